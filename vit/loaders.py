"""Images held on one device as uint8, and batches of them.

n images of a part, b batch size: one batch of n where n < b, else floor(n / b) batches of exactly
b in training (the rest returns in another epoch's order); all images, once, in evaluation.
"""

import hashlib
import logging
import os
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from vit.datasets import Item, Source
from vit.images import Preprocess, UnreadableImage, fit

NAMED = 10  # unreadable files that are named one by one; the rest is counted
log = logging.getLogger("vit")


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
    def read(
        cls, source: Source, items: list[Item], classes: list[str], preprocess: Preprocess
    ) -> "Part":
        """Opens and fits every image; unreadable ones are left out and reported by name."""
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
        left_out = [problem for problem in problems if problem]
        for problem in left_out[:NAMED]:
            log.warning("left out: %s", problem)
        if len(left_out) > NAMED:
            log.warning("left out: %d more", len(left_out) - NAMED)
        good = [row for row, problem in enumerate(problems) if problem is None]
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
        weights: (n,) how often each image is wanted, relative to the others. An epoch is then n
            draws with replacement; None takes every image once.

    Raises:
        ValueError: fewer images than processes, or weights that are none.
    """

    def __init__(
        self,
        part: Part,
        batch_size: int,
        seed: int,
        position: Callable[[], tuple[int, int]],
        rank: int = 0,
        world_size: int = 1,
        weights: Tensor | None = None,
    ):
        if len(part) < world_size:
            raise ValueError(f"{len(part)} training images cannot feed {world_size} processes")
        self.part, self.seed, self.position = part, seed, position
        self.weights = None if weights is None else checked(weights, len(part))
        self.rank, self.world_size = rank, world_size
        self.batch_size = min(batch_size * world_size, len(part))  # over all processes

    def __len__(self) -> int:
        return len(self.part) // self.batch_size

    def order(self, epoch: int) -> Tensor:
        """Numbers of the images in the order of an epoch, (n,): the same for all processes."""
        generator = torch.Generator().manual_seed(mix(self.seed, epoch))
        count = len(self.part)
        if self.weights is None:
            return torch.randperm(count, generator=generator)
        upto = self.weights.cumsum(0)  # image i is drawn where upto[i - 1] <= point < upto[i]
        points = torch.rand(count, generator=generator, dtype=torch.float64) * upto[-1]
        last = int(self.weights.nonzero()[-1])
        return torch.searchsorted(upto, points, right=True).clamp(max=last)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, first = self.position()
        order = self.order(epoch).to(self.part.images.device)
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

    Raises:
        ValueError: fewer images than processes.
    """

    def __init__(self, part: Part, batch_size: int, rank: int = 0, world_size: int = 1):
        if len(part) < world_size:
            raise ValueError(f"{len(part)} images cannot be shared by {world_size} processes")
        self.part, self.batch_size = part, batch_size
        self.rows = torch.arange(rank, len(part), world_size, device=part.images.device)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        for rows in self.rows.split(self.batch_size):
            yield self.part.images[rows], self.part.labels[rows], rows


def checked(weights: Tensor, count: int) -> Tensor:
    """The weights of `count` images in float64.

    Raises:
        ValueError: not one for each image, one that is negative or no number, or all 0.
    """
    if weights.shape != (count,):
        raise ValueError(f"weights {tuple(weights.shape)} must be one for each image, ({count},)")
    weights = weights.double().cpu()
    if not (weights.isfinite().all() and weights.min() >= 0 and weights.max() > 0):
        raise ValueError("weights must be numbers that are not negative and not all 0")
    return weights


def mix(*numbers: int) -> int:
    """Numbers -> one seed in [0, 2^63) that looks unrelated for neighbouring numbers."""
    text = " ".join(map(str, numbers)).encode()
    return int.from_bytes(hashlib.sha256(text).digest()[:8], "big") >> 1
