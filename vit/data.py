"""The images of a run, for Lightning: scanned, divided, and held or streamed part by part."""

import logging
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path

import torch
from lightning.pytorch import LightningDataModule
from torch import Tensor

from vit import datasets, items, runs, scan
from vit.augment import Augment
from vit.balance import class_weights
from vit.cores import default_workers
from vit.datasets import Folder, Item
from vit.fitting import Preprocess
from vit.loaders import EvalLoader, Part, TrainLoader
from vit.memory import ran_out
from vit.settings import Data
from vit.stream import Stream, StreamedPart

log = logging.getLogger("vit")
BUDGET = 2**31  # bytes of pixels that are held in memory where nobody says otherwise
MOST_WORKERS = 16


class ImagesTooLarge(MemoryError):
    """The images of a part cannot be held in memory; the message names the setting."""


class ImageData(LightningDataModule):
    """Scans a source, divides it, and loads each part when it is needed.

    Args:
        config: which images, and how they are divided.
        preprocess: how a photo becomes network pixels.
        seed: of the order of the training images, and of random crops.

    Attributes:
        items: all images, after `scan`.
        left_out: (id, reason) of photos that cannot be read.
        config: as given; after `scan` with `resident` decided.
    """

    def __init__(self, config: Data, preprocess: Preprocess, seed: int):
        super().__init__()
        self.config, self.preprocess, self.seed = config, preprocess, seed
        self.source = datasets.open_source(config.source, config.root)
        self.items: list[Item] = []
        self.left_out: list[tuple[str, str]] = []
        self.classes: list[str] = []
        self.parts: dict[str, Part | StreamedPart] = {}
        self.stream: Stream | None = None

    def scan(self, split: Path | None = None) -> list[str]:
        """Lists the images, tries the photos, decides the part of each; returns the classes.

        Args:
            split: the table of an earlier `write_split` to follow; None divides anew.

        Raises:
            OSError: a photo of `split` has vanished; one cannot be read, and config.strict.
            DataError: no training images, or a class that training does not have.
            ValueError: a damaged table.
        """
        if split is not None:
            self.items = read_split(split)
            self.require_all(split)
        else:
            self.items = self.divided(self.readable(self.source.items()))
        self.classes = datasets.class_names(self.items)
        if isinstance(self.source, Folder):
            items.report_spellings(item.label for item in self.items)
            self.source.report_twins(self.items)
            self.source.digests.clear()  # else each worker would get them
        if len(self.classes) == 1:
            log.warning('there is one class alone, "%s": nothing to tell apart', self.classes[0])
        if not self.classes:
            raise items.DataError(f"no training images in {self.config.root or self.config.source}")
        for part in ("val", "test"):
            if chosen := self.of(part):
                datasets.check_labels(chosen, self.classes, f"the {part} part")
        self.config = replace(self.config, resident=self.is_resident())
        return self.classes

    def readable(self, found: list[Item]) -> list[Item]:
        """The images that can be read; notes and reports the others."""
        if not isinstance(self.source, Folder):
            return found
        sound, self.left_out = scan.readable(self.source, found, self.config.strict)
        if not sound:
            raise items.DataError(
                f"none of the {len(found)} photos in {self.config.root} can be read"
            )
        return sound

    def require_all(self, split: Path) -> None:
        """Refuses to go on without the photos that a run began with.

        Raises:
            OSError: some are not there any more; names them.
        """
        if not isinstance(self.source, Folder):
            return
        gone = [item.id for item in self.items if not self.source.path(item).is_file()]
        if gone:
            raise OSError(
                f"{len(gone)} of the {len(self.items)} photos in {split} are not in "
                f"{self.source.root} any more: {items.some(gone)}. A run goes on with the photos it "
                "began with: put them back, or start a new run"
            )

    def is_resident(self) -> bool:
        """Whether pixels are held in memory, see `config.Data`."""
        if self.config.resident != "auto":
            return self.config.resident
        if not isinstance(self.source, Folder):
            return True  # they are in memory anyway
        height, width = self.preprocess.size
        fits = len(self.items) * 3 * height * width <= BUDGET
        return fits and self.config.random_resized_crop is None

    def on_device(self, augment: Augment) -> Augment:
        """What of the augmentation is left to do in batches: of streamed photos not the crop."""
        return augment if self.config.resident else replace(augment, random_resized_crop=None)

    def storage(self, processes: int) -> str:
        """Where pixels come from, for the line at the start; `processes` train on this machine."""
        if self.config.resident:
            return "images held in memory"
        count = self.workers(processes)
        by = f"{count} worker{'s' if count > 1 else ''}" if count else "this process"
        return f"images opened by {by}"

    def workers(self, processes: int) -> int:
        """Processes that open photos for one of those that train here, see `config.Data`."""
        if self.config.workers != "auto":
            return self.config.workers
        return max(1, min(MOST_WORKERS, default_workers() // processes - 1))

    def divided(self, found: list[Item]) -> list[Item]:
        """Adds the parts that the source does not have, each as a share of the training images."""
        shares = {"test": self.config.test_share, "val": self.config.val_share}
        present = {item.split for item in found}
        for part, share in shares.items():
            if part not in present and share:
                seed = self.config.split_seed
                found = datasets.divide(found, self.source.digest, part, share, seed)
        return found

    def of(self, part: str) -> list[Item]:
        """The items of "train", "val" or "test"."""
        return [item for item in self.items if item.split == part]

    def write_split(self, path: Path) -> None:
        """Writes which image is in which part: split, class, id; and beside it what was left out."""
        rows = [{"split": i.split, "class": i.label, "id": items.escaped(i.id)} for i in self.items]
        runs.write(path, rows)
        if self.left_out:
            rows = [{"id": items.escaped(one), "reason": why} for one, why in self.left_out]
            runs.write(path.with_name("left_out.csv"), rows)

    def load(self, part: str) -> Part | StreamedPart:
        """A part, made once; where pixels are held, read now.

        Raises:
            ImagesTooLarge: there is no memory for the pixels.
            OSError: an image cannot be read any more.
        """
        if part not in self.parts:
            with self.lack_told(part):
                self.parts[part] = self.read(self.of(part))
        return self.parts[part]

    def placed(self, part: str, device: torch.device) -> Part | StreamedPart:
        """A part as `load` makes it, its pixels on a device where they are held."""
        loaded = self.load(part)
        with self.lack_told(part):
            loaded.to(device)
        return loaded

    @contextmanager
    def lack_told(self, part: str) -> Iterator[None]:
        """Turns lack of memory for a part's pixels into `ImagesTooLarge`."""
        try:
            yield
        except Exception as error:
            if not (self.config.resident and ran_out(error)):
                raise
            height, width = self.preprocess.size
            raise ImagesTooLarge(
                f"out of memory: {len(self.of(part)):,} {part} images of {height}x{width} pixels "
                "cannot be held; --data.resident false opens them when they are wanted"
            ) from error

    def read(self, chosen: list[Item]) -> Part | StreamedPart:
        """Images as a part."""
        if self.config.resident:
            return Part.read(self.source, chosen, self.classes, self.preprocess)
        if self.stream is None:
            trainer = self.trainer
            self.stream = Stream(
                self.source,
                self.preprocess,
                self.config.random_resized_crop,
                self.workers(trainer.world_size // trainer.num_nodes if trainer else 1),
                pin=bool(trainer) and trainer.strategy.root_device.type == "cuda",
            )
        return StreamedPart(self.stream, chosen, self.classes)

    def close(self) -> None:
        """Ends the processes that open photos."""
        if self.stream is not None:
            self.stream.close()

    def on_exception(self, exception: BaseException) -> None:
        """Lightning: training is over."""
        self.close()

    def setup(self, stage: str) -> None:
        """Lightning: reads what the stage needs; the test part not before the test."""
        for part in {"fit": ("train", "val"), "validate": ("val",), "test": ("test",)}[stage]:
            if self.of(part):
                self.placed(part, self.trainer.strategy.root_device)

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
            self.image_weights(),
        )

    def image_weights(self) -> Tensor | None:
        """How often each training image is wanted, (n,); None: all alike."""
        if self.config.balance != "sample":
            return None
        return class_weights(self.of("train"), self.classes)[self.load("train").labels.cpu()]

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
    return [Item(items.unescaped(row["id"]), row["class"], row["split"]) for row in rows]
