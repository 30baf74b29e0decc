"""A training run that takes a second, for the tests of training."""

from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vit import config as settings
from vit import runs
from vit.commands import train

TINY = {
    "data.source": "digits",
    "model.img_size": 8,
    "model.patch_size": 4,
    "model.embed_dim": 16,
    "model.depth": 2,
    "model.num_heads": 2,
    "optim.epochs": 2,
    "optim.average_decay": 0.9,
    "run.precision": "32",
    "run.name": "tiny",
    "run.pictures": False,
}


def tiny(root: Path, **changes) -> settings.Config:
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return settings.load("quickstart", TINY | {"run.root": str(root)} | changes)


def assembled(root: Path, *callbacks, **changes) -> train.Assembly:
    config = tiny(root, **changes)
    parts = train.assemble(config, runs.create(root, "tiny"))
    parts.trainer.callbacks.extend(callbacks)
    return parts


def recorder_of(name: str, function):
    """A Lightning callback whose hook `name` calls `function`."""
    from lightning.pytorch import Callback

    return type("Recording", (Callback,), {name: staticmethod(function)})()


def folder_of(tmp_path: Path, counts: dict[str, int]) -> Path:
    """Class folders of small pictures, each class with a colour of its own."""
    for k, (label, count) in enumerate(counts.items()):
        (tmp_path / label).mkdir(parents=True)
        for i in range(count):
            pixels = np.random.default_rng(100 * k + i).integers(0, 90, (8, 8, 3), dtype=np.uint8)
            pixels[..., k % 3] += 150
            Image.fromarray(pixels).save(tmp_path / label / f"{i}.png")
    return tmp_path


def checkpoint(folder: Path, name: str = "last") -> dict:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)
