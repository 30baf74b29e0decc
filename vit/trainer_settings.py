"""Which of lightning.Trainer's arguments a configuration may give."""

import inspect
from typing import Any

from vit.nearest import nearest

# Trainer arguments that a setting of ours decides; naming them twice could only contradict.
OWNED_BY = {
    "max_epochs": "optim.epochs",
    "accumulate_grad_batches": "optim.accumulate",
    "gradient_clip_val": "optim.clip",
    "precision": "run.precision",
    "default_root_dir": "run.root",
    "callbacks": "run.checkpoint_steps",
    "enable_checkpointing": "run.checkpoint_steps",
    "enable_progress_bar": "run.progress",
    "logger": "run.logger",
}
# Trainer arguments that end or divide epochs in a way that an exact resume, or the choice of the
# best epoch after each one, cannot follow.
REFUSED = [
    "max_steps",
    "min_steps",
    "min_epochs",
    "max_time",
    "check_val_every_n_epoch",
    "val_check_interval",
    "fast_dev_run",
    "limit_test_batches",
    "overfit_batches",
    "reload_dataloaders_every_n_epochs",
    "num_sanity_val_steps",
    "barebones",
]


def check_trainer(settings: dict[str, Any]) -> None:
    """Refuses Trainer arguments that Lightning does not have, or that a setting of ours decides.

    Raises:
        ValueError: for the first such one, with the nearest or the right name.
    """
    if not settings:
        return
    from lightning.pytorch import Trainer

    known = list(inspect.signature(Trainer).parameters)
    for name in settings:
        if name in OWNED_BY:
            raise ValueError(f"trainer.{name} is decided by {OWNED_BY[name]}; set that")
        if name in REFUSED:
            raise ValueError(
                f"trainer.{name} is not supported: training goes by whole epochs (optim.epochs, "
                "optim.patience), each followed by its validation"
            )
        if name not in known:
            raise ValueError(
                f'unknown setting "trainer.{name}"'
                + nearest(f"trainer.{name}", [f"trainer.{one}" for one in known])
            )
