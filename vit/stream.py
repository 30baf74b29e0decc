"""Photos opened while the network trains, by the worker processes of one DataLoader.

The geometry that needs the photo happens here, with Pillow: the same `fit` as everywhere or, in
training, a random crop enlarged to the network's size. A crop's chance follows from (seed, epoch,
image) alone, so neither the number of workers nor the order changes a bit. What is sent to workers
can be pickled: they may be forked or spawned.
"""

import atexit
import math
import os
import re
import signal
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import DataLoader, get_worker_info

from vit.augment import CROP_RATIO, random_boxes
from vit.datasets import Item, Source
from vit.images import Preprocess, fit
from vit.loaders import mix, numbers

AHEAD = 2  # batches that each worker has ready or at work
ENLARGED = 2.0  # a photo is decoded at least this much larger than needed, as images.read does

Task = tuple[Item, tuple[int, ...] | None]  # an image, and what its chance follows from


@dataclass(frozen=True)
class Problem:
    """What a worker hands over instead of a batch: why, in one line."""

    text: str


class Opener:
    """The data set that workers hold: opens the photos of whole batches.

    Args:
        source: of the images.
        preprocess: size and interpolation of the result.
        crop: smallest and largest share of the area of a random crop, where a task has a chance;
            None: the photo is fitted always.
        doing: (workers, 3) shared: process id, number of the batch, place in it that a worker is at.
    """

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        crop: tuple[float, float] | None,
        doing: Tensor,
    ):
        self.source, self.preprocess, self.crop, self.doing = source, preprocess, crop, doing

    def __getitems__(self, package: tuple[int, list[Task]]) -> Tensor | Problem:
        """(number, tasks) -> uint8 (B, 3, height, width)."""
        number, tasks = package
        images = torch.empty(len(tasks), 3, *self.preprocess.size, dtype=torch.uint8)
        for place, (item, chance) in enumerate(tasks):
            self.note(number, place)
            try:
                images[place] = torch.from_numpy(self.pixels(item, chance)).permute(2, 0, 1)
            except Exception as error:  # whatever it is, it is told with the photo's name
                return Problem(f"{name(self.source, item)}: {reason(self.source, item, error)}")
        return images

    def note(self, number: int, place: int) -> None:
        """Leaves word of where this worker is, for the case that it dies."""
        if worker := get_worker_info():
            self.doing[worker.id, 1:] = torch.tensor([number, place])

    def pixels(self, item: Item, chance: tuple[int, ...] | None) -> np.ndarray:
        """One image, uint8 (height, width, 3)."""
        if self.crop is None or chance is None:
            return fit(self.source.open(item, self.preprocess.resized), self.preprocess).pixels
        return random_crop(self.source, item, self.preprocess, self.crop, mix(*chance))


def random_crop(
    source: Source, item: Item, preprocess: Preprocess, area: tuple[float, float], seed: int
) -> np.ndarray:
    """A random part of a photo, enlarged or reduced to uint8 (height, width, 3).

    Args:
        area: smallest and largest share of the photo's area; see `augment.Augment`.
        seed: of the part's place and shape.
    """
    height, width = preprocess.size
    part_of = cache(lambda tall, wide: random_box(tall, wide, area, seed))

    def at_least(tall: int, wide: int) -> tuple[int, int]:
        """The size of the whole photo in which its part has the network's."""
        part = part_of(tall, wide)
        return math.ceil(height * tall / part[2]), math.ceil(width * wide / part[3])

    photo = source.open(item, at_least)
    top, left, tall, wide = part_of(photo.height, photo.width)
    x0, y0, x1, y1 = photo.box or (0, 0, *photo.image.size)
    x, y = (x1 - x0) / photo.width, (y1 - y0) / photo.height  # decoded pixels per photo pixel
    box = (x0 + left * x, y0 + top * y, x0 + (left + wide) * x, y0 + (top + tall) * y)
    box = (*box[:2], min(box[2], x1), min(box[3], y1))
    method = Image.Resampling[preprocess.interpolation.upper()]
    return np.array(photo.image.resize((width, height), method, box=box, reducing_gap=ENLARGED))


def random_box(
    height: int, width: int, area: tuple[float, float], seed: int
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a part of a photo, in its pixels."""
    with torch.random.fork_rng(devices=[]):  # the generator of who calls is left alone
        torch.manual_seed(seed)
        boxes = random_boxes(1, height, width, area=area, ratio=CROP_RATIO)
    return tuple(boxes[:, 0].tolist())


class Packages:
    """The batch sampler, whose batches are set anew for each iteration: numbered lists of tasks."""

    def __init__(self):
        self.tasks: Iterable[list[Task]] = ()
        self.number = 0
        self.sent: dict[int, list[Task]] = {}

    def __iter__(self) -> Iterator[tuple[int, list[Task]]]:
        self.sent = {}
        for some in self.tasks:
            self.number += 1
            self.sent[self.number] = some
            yield self.number, some


class Stream:
    """Batches of photos, opened ahead by workers that all parts of a run share.

    Args:
        source: of the images.
        preprocess: how a photo becomes network pixels.
        crop: see `Opener`.
        workers: processes; 0 opens photos in this one, when they are wanted.
        pin: hand batches over in page-locked memory, from which a GPU copies them at once.
        context: how processes start: "fork", "spawn", "forkserver"; None: as Python does here.
    """

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        crop: tuple[float, float] | None = None,
        workers: int = 0,
        pin: bool = False,
        context: str | None = None,
    ):
        self.turn = 0
        doing = torch.zeros(workers, 3, dtype=torch.long).share_memory_()
        self.opener = Opener(source, preprocess, crop, doing)
        self.packages = Packages()
        several = {
            "prefetch_factor": AHEAD,
            "persistent_workers": True,
            "multiprocessing_context": context,
            "worker_init_fn": Beginning(doing),
        }
        self.loader = DataLoader(
            self.opener,
            batch_sampler=self.packages,
            collate_fn=as_it_is,
            num_workers=workers,
            pin_memory=pin,
            generator=torch.Generator(),  # else it would draw from everyone's
            **(several if workers else {}),
        )
        atexit.register(close, weakref.ref(self))  # before Python ends its children by a signal

    def batches(self, tasks: Iterable[list[Task]]) -> Iterator[Tensor]:
        """uint8 (B, 3, height, width) for each list of tasks, in their order.

        Raises:
            OSError: a photo cannot be read, or the process that opened it died; names the photo.
            RuntimeError: another iteration has begun meanwhile.
        """
        self.turn += 1
        turn, self.packages.tasks = self.turn, tasks
        iterator = begun(self.loader)
        while True:
            if turn != self.turn:
                raise RuntimeError("a stream's workers serve one iteration at a time")
            try:
                images = next(iterator, None)
            except RuntimeError as error:
                if death := self.death(str(error)):
                    raise death from error
                raise
            if images is None:
                return
            self.packages.sent.pop(next(iter(self.packages.sent)))  # they come in their order
            yield sound(images)

    def death(self, message: str) -> OSError | None:
        """What to say where a worker died; None where the message is about something else."""
        pids = set(map(int, re.findall(r"\d+", message)))
        for pid, number, place in self.opener.doing.tolist():
            if pid in pids:
                tasks = self.packages.sent.get(number)  # None: it had nothing to do
                at = f" at {name(self.opener.source, tasks[place][0])}" if tasks else ""
                return OSError(
                    f"a process that opens photos died{at}: {message} Either a file crashes its "
                    "decoder, or memory ran out: then fewer --data.workers need less of it, and in "
                    "a container /dev/shm may be too small (docker: --ipc=host)"
                )
        return None

    def close(self) -> None:
        """Ends the workers; a later iteration starts new ones."""
        iterator, self.loader._iterator = self.loader._iterator, None
        if iterator is not None:
            iterator._shutdown_workers()


class StreamedPart:
    """One part of a data set, its images opened when they are wanted; else as `loaders.Part`.

    Args:
        stream: opens them.
        items: the images.
        classes: of the labels.

    Attributes:
        labels: int64 (n,).
    """

    def __init__(self, stream: Stream, items: list[Item], classes: list[str]):
        self.stream, self.items, self.labels = stream, items, numbers(items, classes)

    def to(self, device: torch.device) -> None:
        """Nothing: batches go to the device one by one."""

    def batches(
        self, draws: Iterable[Tensor], chance: tuple[int, int] | None = None
    ) -> Iterator[tuple[Tensor, Tensor, Tensor]]:
        """(images, labels, rows), on the CPU, for the numbers of each batch.

        Args:
            draws: as of `Part.batches`.
            chance: (seed, epoch) of random crops; None: the photo is fitted.
        """
        asked: deque[Tensor] = deque()

        def tasks() -> Iterator[list[Task]]:
            for some in draws:
                asked.append(some % len(self))
                yield self.tasks(some, chance)

        for images in self.stream.batches(tasks()):
            rows = asked.popleft()
            yield images, self.labels[rows], rows

    def tasks(self, draws: Tensor, chance: tuple[int, int] | None) -> list[Task]:
        """What is to be opened, and what each one's chance follows from."""
        own = [None if chance is None else (*chance, draw) for draw in draws.tolist()]
        rows = (draws % len(self)).tolist()
        return [(self.items[row], one) for row, one in zip(rows, own, strict=True)]

    def pixels(self, rows: Tensor, chance: tuple[int, int] | None = None) -> Tensor:
        """A few images, opened in this process: uint8 (len(rows), 3, height, width)."""
        return sound(self.stream.opener.__getitems__((0, self.tasks(rows, chance))))

    def __len__(self) -> int:
        return len(self.labels)


class Beginning:
    """What a worker does first.

    Args:
        doing: see `Opener`.
    """

    def __init__(self, doing: Tensor):
        self.doing = doing

    def __call__(self, worker: int) -> None:
        """Leaves word of its process. Signals to a whole group are the training's to answer."""
        self.doing[worker, 0] = os.getpid()
        for number in (signal.SIGINT, signal.SIGTERM):
            signal.signal(number, signal.SIG_IGN)


def close(stream: weakref.ref) -> None:
    """Ends a stream's workers, if it is still there."""
    if known := stream():
        known.close()


def begun(loader: DataLoader) -> Iterator:
    """The loader's iterator, begun anew.

    PyTorch then answers a worker's death by an exception wherever the training happens to be; its
    handler is taken away again, so that the death is met where a batch is waited for.
    """
    child = getattr(signal, "SIGCHLD", None)  # not on Windows
    before = child and signal.getsignal(child)
    iterator = iter(loader)
    if child and signal.getsignal(child) != before:
        signal.signal(child, before)
    return iterator


def sound(images: Tensor | Problem) -> Tensor:
    """The images themselves.

    Raises:
        OSError: there is a problem instead.
    """
    if isinstance(images, Problem):
        raise OSError(f"{images.text}; the run found it readable, so it has changed since")
    return images


def as_it_is(batch):
    """A batch that needs no collating."""
    return batch


def name(source: Source, item: Item) -> str:
    """An image as it is named in messages: its file, or its number."""
    return str(source.path(item)) if hasattr(source, "path") else f"image {item.id}"


def reason(source: Source, item: Item, error: Exception) -> str:
    """An error's own words, without the file's name."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.removeprefix(f"{name(source, item)}: ")
