"""Lightning's loggers beside a run's own tables, and what is said where a package is missing."""

import csv
import importlib.util

import pytest

from vit import config, loggers, runs
from vit.commands.train import train


def tiny(tmp_path, logger: str):
    """A run of two epochs on digits with one block."""
    settings = {"data.batch_size": 512, "model.depth": 1, "model.embed_dim": 16, "optim.epochs": 2}
    settings |= {"run.pictures": False}
    return train("quickstart", **settings, **{"run.root": str(tmp_path), "run.logger": logger})


def test_csv_has_the_numbers_of_metrics_csv_and_the_results(tmp_path):
    run = tiny(tmp_path, "csv")
    with next(run.path.glob("csv/version_0/metrics.csv")).open() as file:
        logged = list(csv.DictReader(file))
    ours = runs.read(run.path / "metrics.csv")
    for row, theirs in zip(ours, logged, strict=False):
        for name in ("train_loss", "train_top1", "val_top1", "val_nll", "lr"):
            assert float(theirs[name]) == pytest.approx(float(row[name]), rel=1e-12)
        assert theirs["step"] == row["step"]
    assert float(logged[-1]["final_test_top1"]) == run.summary["test"]["top1"]


def test_tensorboard_reads_what_was_written(tmp_path):
    pytest.importorskip("tensorboard", reason="tensorboard is not installed")
    from tensorboard.backend.event_processing.event_accumulator import EventAccumulator

    run = tiny(tmp_path, "tensorboard")
    events = EventAccumulator(str(run.path / "tensorboard")).Reload()
    ours = runs.read(run.path / "metrics.csv")
    logged = events.Scalars("val_nll")
    assert [one.step for one in logged] == [int(row["step"]) for row in ours]
    for one, row in zip(logged, ours, strict=True):
        assert one.value == pytest.approx(float(row["val_nll"]), rel=1e-6)
    assert events.Scalars("final_test_nll")[0].value == pytest.approx(
        run.summary["test"]["nll"], 1e-6
    )


@pytest.mark.parametrize("name", ["wandb", "mlflow"])
def test_a_missing_package_is_named(tmp_path, name):
    if importlib.util.find_spec(name):
        pytest.skip(f"{name} is installed here")
    with pytest.raises(ValueError, match=f"run.logger {name} needs .*: pip install {name}"):
        loggers.make(name, runs.create(tmp_path, "quickstart"))


def test_the_name_with_a_service_is_the_runs_own(tmp_path):
    """A folder of the same path on another machine, or after this one was removed, has another."""
    folder = runs.create(tmp_path, "quickstart")
    first = loggers.kept_id(folder)
    assert first == loggers.kept_id(runs.RunFolder(folder.path))
    (folder.path / "wandb_id").unlink()
    assert loggers.kept_id(folder) != first


class Service:
    """A logger as Lightning's of wandb is: its own run stays open after `finalize`."""

    def __init__(self):
        self._experiment, self.calls = self, []

    def finalize(self, status: str) -> None:
        self.calls.append(status)

    def finish(self, code: int) -> None:
        self.calls.append(code)


def test_each_logger_is_closed_at_the_end():
    service = Service()
    with loggers.closing([service]):
        assert service.calls == []
    assert service.calls == ["success", 0]
    with pytest.raises(KeyboardInterrupt), loggers.closing([service]):
        raise KeyboardInterrupt
    assert service.calls[2:] == ["failed", 1]


def test_none_is_the_default(tmp_path):
    folder = runs.create(tmp_path, "quickstart")
    assert loggers.make(config.load("quickstart").run.logger, folder) is False


def test_the_trainers_own_logger_is_refused():
    with pytest.raises(ValueError, match=r"trainer\.logger is decided by run.logger"):
        config.load("quickstart", {"trainer.logger": "true"})
