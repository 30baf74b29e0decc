"""The images of a run as batches for Lightning: loaded once, kept on the device as uint8.

n images of a part, b batch size: one batch of n where n < b, else floor(n / b) batches of exactly
b in training (the rest returns in another epoch's order); all images, once, in evaluation.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from vit import datasets, runs
from vit.config import Data
from vit.datasets import Item
from vit.images import Preprocess, UnreadableImage, fit

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
            ValueError: no training images, or a class that training does not have.
        """
        if split is not None:
            self.items = [Item(row["id"], row["class"], row["split"]) for row in runs.read(split)]
        else:
            self.items = self.divided(self.source.items())
        self.classes = datasets.class_names(self.items)
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

    def load(self, part: str) -> "Part":
        """Reads the images of a part, once."""
        if part not in self.parts:
            self.parts[part] = Part.read(self.source, self.of(part), self.classes, self.preprocess)
        return self.parts[part]

    def setup(self, stage: str) -> None:
        """Lightning: reads what the stage needs; the test part not before the test."""
        for part in {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}[stage]:
            if self.of(part):
                self.load(part).to(self.trainer.strategy.root_device)

    def train_dataloader(self) -> "TrainLoader":
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

    def val_dataloader(self) -> "EvalLoader | list":
        """Batches (images, labels, numbers) of the validation part, nothing where there is none."""
        return self.eval_loader("val") if self.of("val") else []

    def test_dataloader(self) -> "EvalLoader":
        """Batches (images, labels, numbers) of the test part."""
        return self.eval_loader("test")

    def eval_loader(self, part: str) -> "EvalLoader":
        """Every image of a part once, in its own order, divided among the processes."""
        trainer = self.trainer
        return EvalLoader(
            self.load(part), self.config.batch_size, trainer.global_rank, trainer.world_size
        )


class Part:
    """The pixels of one part of a data set.

    Attributes:
        images: uint8 (n, 3, height, width).
        labels: int64 (n,).
        items: what they are, in the same order.
    """

    def __init__(self, images: Tensor, labels: Tensor, items: list[Item]):
        self.images, self.labels, self.items = images, labels, items

    @classmethod
    def read(cls, source, items: list[Item], classes: list[str], preprocess: Preprocess) -> "Part":
        """Opens and fits every image; unreadable ones are left out and reported by name.

        Raises:
            ValueError: none of them is readable.
        """
        images = torch.empty(len(items), 3, *preprocess.size, dtype=torch.uint8)

        def open_one(row: int) -> str | None:
            try:
                photo = source.open(items[row], preprocess.resized)
            except (UnreadableImage, OSError) as error:
                return str(error)
            images[row] = torch.from_numpy(fit(photo, preprocess).pixels).permute(2, 0, 1)
            return None

        with ThreadPoolExecutor(os.cpu_count()) as pool:
            problems = list(pool.map(open_one, range(len(items))))
        for problem in filter(None, problems):
            log.warning("left out: %s", problem)
        good = [row for row, problem in enumerate(problems) if problem is None]
        if not good:
            raise ValueError(f"none of {len(items)} images could be read")
        items = [items[row] for row in good]
        number = {name: i for i, name in enumerate(classes)}
        labels = torch.tensor([number[item.label] for item in items])
        return cls(images if len(good) == len(images) else images[good], labels, items)

    def to(self, device: torch.device) -> None:
        """Moves the pixels and labels to a device."""
        self.images, self.labels = self.images.to(device), self.labels.to(device)

    def __len__(self) -> int:
        return len(self.labels)


class TrainLoader:
    """Batches of a part in an order that (seed, epoch) fixes.

    Where an iteration begins is asked of the trainer when its first batch is wanted, so that a
    resumed run goes on with the very next batch; the loader itself remembers nothing.

    Args:
        part: the images.
        batch_size: images per batch and process, b.
        seed: of the order.
        position: () -> (epoch, number of the next batch in it).
        rank: which of the processes this is.
        world_size: number of processes; all share one order, each takes its slice of every batch.

    Raises:
        ValueError: fewer images than processes.
    """

    def __init__(
        self,
        part: Part,
        batch_size: int,
        seed: int,
        position: Callable[[], tuple[int, int]],
        rank: int = 0,
        world_size: int = 1,
    ):
        if len(part) < world_size:
            raise ValueError(f"{len(part)} training images cannot feed {world_size} processes")
        self.part, self.seed, self.position = part, seed, position
        self.rank, self.world_size = rank, world_size
        self.batch_size = min(batch_size * world_size, len(part))  # over all processes

    def __len__(self) -> int:
        return len(self.part) // self.batch_size

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, first = self.position()
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        order = torch.randperm(len(self.part), generator=generator).to(self.part.images.device)
        for batch in range(first, len(self)):
            start = batch * self.batch_size
            rows = order[start : start + self.batch_size][self.rank :: self.world_size]
            yield self.part.images[rows], self.part.labels[rows]


class EvalLoader:
    """Every image of a part once: (images, labels, their numbers in the part).

    Args:
        part: the images.
        batch_size: images per batch and process.
        rank: which of the processes this is; each takes every world_size-th image.
        world_size: number of processes.
    """

    def __init__(self, part: Part, batch_size: int, rank: int = 0, world_size: int = 1):
        self.part, self.batch_size = part, batch_size
        self.rows = torch.arange(rank, len(part), world_size, device=part.images.device)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for rows in self.rows.split(self.batch_size):
            yield self.part.images[rows], self.part.labels[rows], rows


def mix(*numbers: int) -> int:
    """Numbers -> one seed in [0, 2^63) that looks unrelated for neighbouring numbers."""
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
