"""Other places for a run's numbers, beside its own tables: Lightning's loggers.

Everything is put into the run's folder, but for services that keep it elsewhere.
"""

import secrets
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from typing import TYPE_CHECKING, Any

from vit.runs import RunFolder

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

PACKAGE = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def make(name: str, folder: RunFolder) -> "Logger | bool":
    """Lightning's logger of that name for a run; False for "none".

    A resumed run goes on in the same place: tensorboard's folder, wandb's run, whose name there is
    kept in the folder; csv and mlflow begin a further version, since neither takes up an old one.

    Args:
        name: none, csv, tensorboard, wandb or mlflow.
        folder: of the run.

    Raises:
        ValueError: its package is not installed.
    """
    from lightning.pytorch import loggers

    title = f"{folder.path.parent.name}-{folder.path.name}"
    try:
        if name == "csv":
            return loggers.CSVLogger(folder.path, "csv")
        if name == "tensorboard":
            return loggers.TensorBoardLogger(folder.path, "tensorboard", version="")
        if name == "wandb":
            same = {"id": kept_id(folder), "resume": "allow"}
            return loggers.WandbLogger(title, folder.path, project="vit", **same)
        if name == "mlflow":
            return loggers.MLFlowLogger("vit", title, save_dir=str(folder.path / "mlruns"))
    except ModuleNotFoundError as error:
        raise ValueError(
            f"run.logger {name} needs a package that is not installed: pip install {PACKAGE[name]}"
        ) from error
    return False


def kept_id(folder: RunFolder) -> str:
    """A run's name with a service: drawn once, so that no other folder of that path has the same."""
    path = folder.path / "wandb_id"
    if not path.is_file():
        with suppress(FileExistsError), path.open("x", encoding="ascii") as file:
            file.write(secrets.token_hex(6))
    return path.read_text(encoding="ascii")


@contextmanager
def closing(loggers: list["Logger"]) -> Iterator[None]:
    """Closes each logger at the end, so that a further run in this process is one there too.

    Args:
        loggers: the trainer's.
    """
    done = False
    try:
        yield
        done = True
    finally:
        for one in loggers:
            one.finalize("success" if done else "failed")
            started = getattr(one, "_experiment", None)  # asking for `experiment` would start it
            if hasattr(started, "finish"):  # wandb's finalize leaves the service's run open
                started.finish(0 if done else 1)


def log(loggers: list["Logger"], row: dict[str, Any], step: int) -> None:
    """Hands the numbers of a row to each logger.

    Args:
        loggers: the trainer's.
        row: as in metrics.csv; entries that are no number are left out.
        step: optimiser steps so far.
    """
    numbers = {name: float(value) for name, value in row.items() if isinstance(value, (int, float))}
    for one in loggers:
        one.log_metrics(numbers, step)
        one.save()
