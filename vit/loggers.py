"""Other places for a run's numbers, beside its own tables: Lightning's loggers.

Everything is put into the run's folder, but for services that keep it elsewhere.
"""

import hashlib
from typing import TYPE_CHECKING, Any

from vit.runs import RunFolder

if TYPE_CHECKING:
    from lightning.pytorch.loggers import Logger

PACKAGE = {"tensorboard": "tensorboard", "wandb": "wandb", "mlflow": "mlflow"}


def make(name: str, folder: RunFolder) -> "Logger | bool":
    """Lightning's logger of that name for a run; False for "none".

    A resumed run goes on in the same place: tensorboard's folder, wandb's run; csv and mlflow begin
    a further version, since neither takes up an old one.

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
            same = hashlib.sha256(str(folder.path).encode()).hexdigest()[:12]
            return loggers.WandbLogger(title, folder.path, id=same, resume="allow", project="vit")
        if name == "mlflow":
            return loggers.MLFlowLogger("vit", title, save_dir=str(folder.path / "mlruns"))
    except ModuleNotFoundError as error:
        raise ValueError(
            f"run.logger {name} needs a package that is not installed: pip install {PACKAGE[name]}"
        ) from error
    return False


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
