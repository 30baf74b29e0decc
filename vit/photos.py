"""Photos by the words of a command line, and their pixels, decoded ahead of who uses them.

Both are streams: neither the list nor the pixels of all photos is ever held.
"""

import glob
import logging
import os
import sys
from collections import Counter, deque
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from typing import Any

from vit.class_folders import hidden, is_file, is_folder, may_be_meant
from vit.cores import default_workers
from vit.datasets import natural
from vit.fitting import Fitted, Preprocess, fit
from vit.formats import SUFFIXES
from vit.images import Photo, UnreadableImage, is_image, read

log = logging.getLogger("vit")


@dataclass(frozen=True)
class Loaded:
    """One photo for the network, or why it is none.

    Args:
        path: as it was listed.
        fitted: network pixels and where they lie in the photo; None where there is an error.
        photo: the upright original, where it was asked for.
        error: one line; empty where there is none.
    """

    path: Any
    fitted: Fitted | None = None
    photo: Photo | None = None
    error: str = ""


def listed(words: Iterable[str | os.PathLike]) -> Iterator[str]:
    """The paths of photos that words name, one after another, as they are to be reported.

    A file is itself, whatever it holds. Of a folder it is every picture below it, in natural order:
    what a picture's content or a picture's name has; hidden files and all others are passed over,
    counted and reported. "-" is a list on the standard input, a path a line. What is no path but
    has *, ? or [ in it is a pattern, ** for any depth.
    """
    for word in map(os.fspath, words):
        if word == "-":
            for line in sys.stdin.buffer:
                if path := os.fsdecode(line.rstrip(b"\r\n")):
                    yield from inside(path)
        elif glob.has_magic(word) and not os.path.lexists(word):
            yield from matching(word)
        else:
            yield from inside(word)


def matching(pattern: str) -> Iterator[str]:
    """What a pattern matches, each once: ** matches folders and also what is in them."""
    found = sorted(glob.iglob(pattern, recursive=True), key=natural)
    folders = {os.path.normpath(path) for path in found if os.path.isdir(path)}
    files = {os.path.normpath(path) for path in found} - folders
    for path in found or [pattern]:  # as a shell does: who reads it says what is wrong
        plain = os.path.normpath(path)
        if plain not in folders:
            yield path
        elif folders.isdisjoint(map(str, Path(plain).parents)):
            yield from (one for one in inside(path) if os.path.normpath(one) not in files)


def inside(path: str) -> Iterator[str]:
    """A file itself; of a folder the pictures below it."""
    if not os.path.isdir(path):
        yield path
        return
    skipped, count = Counter(), 0
    for file in walk(path, frozenset(), skipped):
        suffix = os.path.splitext(file)[1].lower()
        if suffix in SUFFIXES or is_image(file):
            count += 1
            yield file
        else:
            skipped[suffix or os.path.basename(file)] += 1
    if skipped:
        kinds = ", ".join(f"{number} {kind}" for kind, number in skipped.most_common(5))
        log.info("%s: passed over %d that are no photos: %s", path, skipped.total(), kinds)
    if not count:
        log.warning("%s: no photo in this folder", path)


def walk(folder: str, above: frozenset[str], skipped: Counter) -> Iterator[str]:
    """All visible files below a folder, in natural order, folder by folder.

    A link back to a folder `above` is not followed; hidden ones are counted in `skipped`, as is a
    link that leads nowhere.
    """
    real = os.path.realpath(folder)
    if real in above:
        return
    try:
        entries = sorted(os.scandir(folder), key=lambda entry: natural(entry.name))
    except OSError as error:
        log.warning("%s: not looked into: %s", folder, error.strerror)
        return
    for entry in entries:
        if entry.name.startswith("."):
            skipped["hidden"] += 1
        elif is_folder(entry) and hidden(entry.name):
            skipped["hidden"] += 1
            if may_be_meant(Path(entry.path)):
                log.warning("left out %s: @ and __ begin a system's names", entry.path)
        elif is_folder(entry):
            yield from walk(entry.path, above | {real}, skipped)
        elif is_file(entry):
            yield entry.path
        elif entry.is_symlink():
            skipped["broken link"] += 1


def load(
    paths: Iterable,
    preprocess: Preprocess,
    workers: int | None = None,
    ahead: int | None = None,
    keep_photo: bool = False,
    opener: Callable[[Any, tuple[int, int] | None], Photo] | None = None,
) -> Iterator[Loaded]:
    """Opens and fits photos in threads (Pillow works without Python's lock), in the given order.

    Args:
        paths: what to open; drawn from only as far as `ahead` allows.
        preprocess: how a photo becomes network pixels.
        workers: threads; None: one per core.
        ahead: photos opened beyond the one handed out; None: two per worker.
        keep_photo: also hand out the upright original at full resolution, of which then
            `ahead` + 1 are in memory.
        opener: (one of `paths`, at_least as in `images.read`) -> photo; None: `images.read`.

    Raises:
        ValueError: workers below 1, or ahead below 0.
    """
    workers = default_workers() if workers is None else workers
    ahead = 2 * workers if ahead is None else ahead
    if workers < 1 or ahead < 0:
        raise ValueError(f"workers ({workers}) must be at least 1, and ahead ({ahead}) at least 0")
    return stream(paths, Opening(preprocess, opener or open_path, keep_photo), workers, ahead)


@dataclass(frozen=True)
class Opening:
    """How one photo is opened and fitted; see `load`."""

    preprocess: Preprocess
    opener: Callable[[Any, tuple[int, int] | None], Photo]
    keep_photo: bool

    def __call__(self, path) -> Loaded:
        """One photo, or its error."""
        try:
            photo = self.opener(path, None if self.keep_photo else self.preprocess.resized)
            fitted = fit(photo, self.preprocess)
        except (UnreadableImage, OSError, MemoryError, ValueError) as error:
            return Loaded(path, error=reason(path, error))
        return Loaded(path, fitted, photo if self.keep_photo else None)


def open_path(path: str, at_least: tuple[int, int] | None) -> Photo:
    """A file as a photo."""
    return read(path, at_least=at_least)


def reason(path, error: Exception) -> str:
    """An error in one line, without the path, which stands beside it."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.removeprefix(f"{path}: ")


def stream(paths: Iterable, opening: Opening, workers: int, ahead: int) -> Iterator[Loaded]:
    """`load`, its arguments complete."""
    pool = ThreadPoolExecutor(workers, thread_name_prefix="photos")
    waiting, rest = deque(), iter(paths)
    try:
        while True:
            for path in islice(rest, ahead + 1 - len(waiting)):
                waiting.append(pool.submit(opening, path))
            if not waiting:
                return
            yield waiting.popleft().result()
    finally:  # also when who uses it stops early, as Ctrl-C does
        pool.shutdown(wait=False, cancel_futures=True)
