"""Batches of images: those held on one device as uint8, and the orders in which they come.

n images of a part, b batch size: one batch of n where n < b, else floor(n / b) batches of exactly
b in training (the rest returns in another epoch's order); all images, once, in evaluation.
"""

import hashlib
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor

import torch
from torch import Tensor

from vit.commands.progress import Progress
from vit.cores import default_workers
from vit.datasets import Item, Source
from vit.fitting import Preprocess, fit
from vit.images import UnreadableImage

MANY = 1000  # so many images to read are worth a line of progress


class Part:
    """One part of a data set, its pixels held in memory.

    What it does, `stream.StreamedPart` does for images that are opened when they are wanted.

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
        """Opens and fits every image.

        Raises:
            OSError: one cannot be read.
        """
        images = torch.empty(len(items), 3, *preprocess.size, dtype=torch.uint8)

        def open_one(row: int) -> None:
            images[row] = opened(source, items[row], preprocess)

        total = len(items)
        with ThreadPoolExecutor(default_workers()) as pool, Progress(total, "photos read") as bar:
            for _ in pool.map(open_one, range(total)):
                bar.advance(1 if total >= MANY else 0)
        return cls(images, numbers(items, classes), items)

    def to(self, device: torch.device) -> None:
        """Moves the pixels and labels to a device."""
        self.images, self.labels = self.images.to(device), self.labels.to(device)

    def batches(
        self, draws: Iterable[Tensor], chance: tuple[int, int] | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(images, labels, rows) for the numbers of each batch.

        Args:
            draws: rows, each plus n for every time that it came before in the epoch, so that equal
                images of an epoch can be varied differently.
            chance: of no influence on pixels that are held.
        """
        for some in draws:
            rows = some.to(self.images.device) % len(self)
            yield self.images[rows], self.labels[rows], rows

    def pixels(self, rows: Tensor, chance: tuple[int, int] | None = None) -> Tensor:
        """A few images on the CPU, uint8 (len(rows), 3, height, width)."""
        return self.images[rows.to(self.images.device)].cpu()

    def __len__(self) -> int:
        return len(self.labels)


def opened(source: Source, item: Item, preprocess: Preprocess) -> Tensor:
    """One image as the network takes it, uint8 (3, height, width).

    Raises:
        OSError: it cannot be read; says so where it could be and has changed.
    """
    try:
        photo = source.open(item, preprocess.resized)
    except ValueError as error:
        raise OSError(f"{error}{since(error)}") from error
    return torch.from_numpy(fit(photo, preprocess).pixels).permute(2, 0, 1)


def since(error: Exception) -> str:
    """What to add to a photo's error where the file has changed or gone, and not the machine failed."""
    gone = isinstance(error.__cause__, FileNotFoundError)
    if isinstance(error, UnreadableImage) and (gone or not error.passing):
        return "; the run found it readable, so it has changed since"
    return ""


def numbers(items: list[Item], classes: list[str]) -> Tensor:
    """The classes of items by their place in `classes`, int64 (n,)."""
    number = {name: i for i, name in enumerate(classes)}
    return torch.tensor([number[item.label] for item in items], dtype=torch.long)


class TrainLoader:
    """Batches of a part in an order that (seed, epoch) fixes.

    Where an iteration begins is asked of the trainer when its first batch is wanted, so that a
    resumed run goes on with the very next batch; the loader itself remembers nothing.

    Args:
        part: the images, a `Part` or a `stream.StreamedPart`.
        batch_size: images per batch and process, b.
        seed: of the order.
        position: () -> (epoch, number of the next batch in it).
        rank: which of the processes this is.
        world_size: number of processes; all share one order, each takes its slice of every batch.
        weights: (n,) how often each image is wanted, relative to the others. An epoch is then n
            draws with replacement; None takes every image once.

    Attributes:
        waited: seconds that the iteration begun last has kept its user waiting so far.

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
        self.part, self.seed, self.position, self.waited = part, seed, position, 0.0
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

    def draws(self, epoch: int) -> Tensor:
        """`order`, each number plus n for every time it came before; see `Part.batches`."""
        order = self.order(epoch)
        if self.weights is None:
            return order
        ordered, places = order.sort(stable=True)
        first = torch.searchsorted(ordered, ordered)  # place of the first of the equal ones
        before = torch.empty_like(order)
        before[places] = torch.arange(len(order)) - first
        return order + before * len(self.part)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor]]:
        epoch, first = self.position()
        self.waited = 0.0
        draws = self.draws(epoch)
        own = (
            draws[start : start + self.batch_size][self.rank :: self.world_size]
            for start in range(
                first * self.batch_size, len(self) * self.batch_size, self.batch_size
            )
        )
        batches = self.part.batches(own, (self.seed, epoch))
        while True:
            before = time.perf_counter()
            batch = next(batches, None)
            self.waited += time.perf_counter() - before
            if batch is None:
                return
            yield batch[:2]


class EvalLoader:
    """Every image of a part once: (images, labels, their numbers in the part).

    Args:
        part: the images, a `Part` or a `stream.StreamedPart`.
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
        self.rows = torch.arange(rank, len(part), world_size)

    def __len__(self) -> int:
        return -(-len(self.rows) // self.batch_size)

    def __iter__(self) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        yield from self.part.batches(self.rows.split(self.batch_size))


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
