"""Photos opened while the network trains, by the worker processes of one DataLoader.

Batches come in the order in which they were asked for, whoever opened them; what is sent to workers
can be pickled, so they may be forked or spawned.
"""

import atexit
import os
import re
import signal
import weakref
from collections import deque
from collections.abc import Iterable, Iterator
from contextlib import contextmanager

import torch
from torch import Tensor
from torch.utils.data import DataLoader

from vit.datasets import Item, Source
from vit.fitting import Preprocess
from vit.loaders import numbers
from vit.opener import Opener, Problem, Task, name

AHEAD = 2  # batches that each worker has ready or at work


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
        with self.deaths_told():
            iterator = begun(self.loader)
        while True:
            if turn != self.turn:
                raise RuntimeError("a stream's workers serve one iteration at a time")
            with self.deaths_told():
                images = next(iterator, None)
            if images is None:
                return
            self.packages.sent.pop(next(iter(self.packages.sent)))  # they come in their order
            yield sound(images)

    @contextmanager
    def deaths_told(self) -> Iterator[None]:
        """Turns what PyTorch raises where a worker died into `death`."""
        try:
            yield
        except RuntimeError as error:
            if death := self.death(str(error)):
                raise death from error
            raise

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
        raise OSError(images.text)
    return images


def as_it_is(batch):
    """A batch that needs no collating."""
    return batch
