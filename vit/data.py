"""The images of a run, for Lightning: scanned, divided, and loaded part by part."""

import logging
from pathlib import Path

from lightning.pytorch import LightningDataModule

from vit import datasets, runs
from vit.config import Data
from vit.datasets import Item
from vit.images import Preprocess
from vit.loaders import EvalLoader, Part, TrainLoader

log = logging.getLogger("vit")


class ImageData(LightningDataModule):
    """Scans a source, divides it, and loads each part when it is needed.

    Args:
        config: which images, and how they are divided.
        preprocess: how a photo becomes network pixels.
        seed: of the order of the training images.
    """

    def __init__(self, config: Data, preprocess: Preprocess, seed: int):
        super().__init__()
        self.config, self.preprocess, self.seed = config, preprocess, seed
        self.source = datasets.open_source(config.source, config.root)
        self.items: list[Item] = []
        self.classes: list[str] = []
        self.parts: dict[str, Part] = {}

    def scan(self, split: Path | None = None) -> list[str]:
        """Lists the images and decides the part of each, reading no pixels; returns the classes.

        Args:
            split: the table of an earlier `write_split` to follow; None divides anew.

        Raises:
            ValueError: no training images, a class that training does not have, or a damaged table.
        """
        if split is not None:
            self.items = read_split(split)
        else:
            self.items = self.divided(self.source.items())
        self.classes = datasets.class_names(self.items)
        if isinstance(self.source, datasets.Folder):
            self.source.report_twins(self.items)
        if len(self.classes) == 1:
            log.warning('there is one class alone, "%s": nothing to tell apart', self.classes[0])
        if not self.classes:
            raise ValueError(f"no training images in {self.config.root or self.config.source}")
        for part in ("val", "test"):
            if chosen := self.of(part):
                datasets.check_labels(chosen, self.classes, f"the {part} part")
        return self.classes

    def divided(self, items: list[Item]) -> list[Item]:
        """Adds the parts that the source does not have, each as a share of the training images."""
        shares = {"test": self.config.test_share, "val": self.config.val_share}
        present = {item.split for item in items}
        for part, share in shares.items():
            if part not in present and share:
                seed = self.config.split_seed
                items = datasets.divide(items, self.source.digest, part, share, seed)
        return items

    def of(self, part: str) -> list[Item]:
        """The items of "train", "val" or "test"."""
        return [item for item in self.items if item.split == part]

    def write_split(self, path: Path) -> None:
        """Writes which image is in which part: split, class, id."""
        rows = [{"split": i.split, "class": i.label, "id": i.id} for i in self.items]
        runs.write(path, rows)

    def load(self, part: str) -> Part:
        """Reads the images of a part, once."""
        if part not in self.parts:
            read = Part.read(self.source, self.of(part), self.classes, self.preprocess)
            if not len(read):
                raise ValueError(f"none of the {len(self.of(part))} {part} images could be read")
            self.parts[part] = read
        return self.parts[part]

    def setup(self, stage: str) -> None:
        """Lightning: reads what the stage needs; the test part not before the test."""
        for part in {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}[stage]:
            if self.of(part):
                self.load(part).to(self.trainer.strategy.root_device)

    def train_dataloader(self) -> TrainLoader:
        """Batches (images, labels) in an order drawn anew for each epoch."""
        trainer = self.trainer

        def position() -> tuple[int, int]:
            return trainer.current_epoch, trainer.fit_loop.epoch_loop.batch_progress.current.ready

        return TrainLoader(
            self.load("train"),
            self.config.batch_size,
            self.seed,
            position,
            trainer.global_rank,
            trainer.world_size,
        )

    def val_dataloader(self) -> EvalLoader | list:
        """Batches (images, labels, numbers) of the validation part, nothing where there is none."""
        return self.eval_loader("val") if self.of("val") else []

    def test_dataloader(self) -> EvalLoader:
        """Batches (images, labels, numbers) of the test part."""
        return self.eval_loader("test")

    def eval_loader(self, part: str) -> EvalLoader:
        """Every image of a part once, in its own order, divided among the processes."""
        trainer = self.trainer
        return EvalLoader(
            self.load(part), self.config.batch_size, trainer.global_rank, trainer.world_size
        )


def read_split(path: Path) -> list[Item]:
    """The table that `ImageData.write_split` wrote.

    Raises:
        ValueError: it is not whole.
    """
    rows = runs.read(path)
    if any(set(row) != {"split", "class", "id"} or None in row.values() for row in rows):
        raise ValueError(f"{path} is damaged: the run cannot go on by it; start a new one")
    return [Item(row["id"], row["class"], row["split"]) for row in rows]
