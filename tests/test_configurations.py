"""Each configuration that comes with the package, for a step; and that its header is a result."""

from pathlib import Path

import pytest

from vit import config as settings
from vit import config_files
from vit.commands import train

PACKAGED = sorted(path for folder in config_files.packaged() for path in folder.glob("*.yaml"))
FROM_SCRATCH = [path.stem for path in PACKAGED if not settings.load(path.stem).model.weights]


def test_the_five_are_there():
    names = {path.stem for path in PACKAGED}
    assert names == {"quickstart", "fashion_mnist", "cifar10", "cifar100", "finetune"}


@pytest.mark.parametrize(
    "name",
    [n if n == "quickstart" else pytest.param(n, marks=pytest.mark.full) for n in FROM_SCRATCH],
)
def test_runs_a_step(tmp_path, name):
    """On digits enlarged to its size: the sets themselves are large or have to be downloaded."""
    few = {"trainer.limit_train_batches": 1, "trainer.limit_val_batches": 1}
    few |= {"data.source": "digits", "data.batch_size": 8, "optim.epochs": 1, "data.root": None}
    few |= {"run.pictures": False}
    run = train.train(name, **few, **{"run.root": str(tmp_path), "run.checkpoint_steps": 0})
    assert run.path.parent.name == name and run.summary["global_step"] == 1
    assert run.summary["test"]["count"] == 360


@pytest.mark.parametrize("path", PACKAGED, ids=lambda path: path.stem)
def test_the_header_says_command_and_result(path: Path):
    text = path.read_text(encoding="utf-8")
    header = " ".join(line[1:] for line in text.splitlines() if line.startswith("#"))
    assert f"--config {path.stem}" in header
    assert "%" in header or "promises no accuracy" in header


@pytest.mark.parametrize("name", ["optim.lr", "optim.weight_decay", "data.mixup", "optim.head_lr"])
def test_not_a_number_is_refused(name):
    with pytest.raises(ValueError, match=rf"{name} \(nan\) must be at least 0"):
        settings.load("quickstart", {name: ".nan"})  # as YAML writes it


def test_a_key_given_twice_is_refused(tmp_path):
    path = tmp_path / "twice.yaml"
    path.write_text("optim:\n  lr: 1\n  epochs: 2\n  lr: 3\n")
    with pytest.raises(ValueError, match=r'twice.yaml is not YAML: "lr" is given twice.* line 4'):
        settings.load(str(path))


@pytest.mark.parametrize(
    ("theirs", "ours"),
    [("optim.learning_rate", "optim.lr"), ("imgsz", "model.img_size"), ("model.lr0", "optim.lr")],
)
def test_other_programs_words_lead_to_the_right_setting(theirs, ours):
    with pytest.raises(ValueError, match=f'unknown setting "{theirs}".*did you mean "{ours}"'):
        settings.load("quickstart", {theirs: "1"})
