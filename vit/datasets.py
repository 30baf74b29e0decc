"""Where labelled images come from, and how they are divided into training, validation and test.

A source lists its images as `Item`s (no pixels read) and opens one by its id. Labels are class
names throughout; numbers come from their order in `class_names` and are never stored.
"""

import hashlib
import logging
import os
import re
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from pathlib import Path

import numpy as np
from PIL import Image

from vit.archives import SETS, Archive
from vit.images import Photo, is_image, read

log = logging.getLogger("vit")

# Names that people give to the parts of a data set, in lower case.
PARTS = {
    "train": "train",
    "training": "train",
    "val": "val",
    "valid": "val",
    "validation": "val",
    "test": "test",
    "testing": "test",
}


@dataclass(frozen=True)
class Item:
    """One labelled image.

    Args:
        id: its path inside the folder, with forward slashes, or its number in an embedded set.
        label: the class's name.
        split: "train", "val" or "test".
    """

    id: str
    label: str
    split: str


class Digits:
    """1,797 handwritten digits of 8x8 pixels (UCI, CC BY 4.0), 360 of them a fixed test part."""

    def __init__(self):
        with np.load(Path(__file__).parent / "digits.npz") as file:
            self.images, self.labels, self.test = file["images"], file["labels"], file["test"]

    def items(self) -> list[Item]:
        """All images, in the set's own order."""
        return [
            Item(str(i), str(label), "test" if test else "train")
            for i, (label, test) in enumerate(zip(self.labels, self.test, strict=True))
        ]

    def digest(self, item: Item) -> bytes:
        """Equal for equal pixels."""
        return hashlib.sha256(self.images[int(item.id)].tobytes()).digest()

    def open(self, item: Item, at_least: tuple[int, int]) -> Photo:
        """One image as a photo; the set's 0 to 16 become 0 to 255."""
        grey = np.rint(self.images[int(item.id)] * (255 / 16)).astype(np.uint8)
        image = Image.fromarray(grey).convert("RGB")
        height, width = grey.shape
        return Photo(image, height, width, 1, "digits", (), (0, 0, width, height))


class Folder:
    """Photos in class folders, inside train / val / test folders or at the top.

    Args:
        root: the folder. Files are known by their content, not by their name. Hidden files and
            files that are no images are passed over, counted and reported.

    Raises:
        ValueError: no such folder, or no class folder with an image in it.
    """

    def __init__(self, root: str | Path):
        self.root = Path(root)
        if not self.root.is_dir():
            raise ValueError(f"{root} is no folder" if self.root.exists() else f"no folder {root}")

    def items(self) -> list[Item]:
        """All images, in natural order of their paths."""
        items, skipped = [], Counter()
        for folder, split in self.parts():
            for class_folder in visible_folders(folder):
                above = map(str, class_folder.resolve().parents)
                for path in walk(class_folder, frozenset(above)):
                    if path.name.startswith(".") or not is_image(path):
                        skipped[path.suffix.lower() or path.name] += 1
                        continue
                    item_id = path.relative_to(self.root).as_posix()
                    items.append(Item(item_id, class_folder.name, split))
        if skipped:
            kinds = ", ".join(f"{n} {kind}" for kind, n in skipped.most_common(5))
            log.info("passed over %d files that are no images: %s", skipped.total(), kinds)
        if not items:
            raise ValueError(
                f"no class folder with an image in it in {self.root}: expected one folder per "
                "class, there or inside train, val and test"
            )
        return sorted(items, key=lambda item: natural(item.id))

    def parts(self) -> list[tuple[Path, str]]:
        """The folders that hold class folders, each with the part it is: train, val or test."""
        named = [(path, PARTS.get(path.name.lower())) for path in visible_folders(self.root)]
        known = [(path, part) for path, part in named if part]
        if known and (any(part == "train" for _, part in known) or len(known) == len(named)):
            for path, part in named:
                if not part:
                    log.warning("ignored %s: beside train, it is no part of the data", path)
            return known
        return [(self.root, "train")]

    def report_twins(self, items: list[Item]) -> None:
        """Warns of byte-identical files in several parts or classes; none is moved or left out."""
        by_size, by_content = defaultdict(list), defaultdict(list)
        for item in items:
            by_size[(self.root / item.id).stat().st_size].append(item)
        for group in by_size.values():
            for item in group if len(group) > 1 else ():
                by_content[self.digest(item)].append(item)
        for name, what in (("split", "parts"), ("label", "classes")):
            twins = [g for g in by_content.values() if len({getattr(i, name) for i in g}) > 1]
            if twins:
                example = " = ".join(item.id for item in twins[0][:3])
                log.warning("%d photos stand in several %s, as %s", len(twins), what, example)

    def digest(self, item: Item) -> bytes:
        """Equal for byte-identical files."""
        with (self.root / item.id).open("rb") as file:
            return hashlib.file_digest(file, "sha256").digest()

    def open(self, item: Item, at_least: tuple[int, int]) -> Photo:
        """One photo, upright, decoded no smaller than `at_least` (height, width) pixels."""
        return read(self.root / item.id, at_least=at_least)


class Benchmark:
    """A classic benchmark set, see `archives`.

    Args:
        name: a key of `archives.SETS`.
        root: where its archives are or go.
    """

    def __init__(self, name: str, root: str | None):
        self.archive = Archive(name, root)

    def items(self) -> list[Item]:
        """All images, in the set's own order."""
        return [Item(*one) for one in self.archive.labelled()]

    def digest(self, item: Item) -> bytes:
        """Equal for equal pixels."""
        return self.archive.digest(item.id)

    def open(self, item: Item, at_least: tuple[int, int]) -> Photo:
        """One image as a photo."""
        return self.archive.open(item.id)


Source = Digits | Benchmark | Folder
NAMED = ("digits", *SETS)  # those that need no folder


def open_source(name: str, root: str | None) -> Source:
    """A source by the name that `data.source` takes.

    Raises:
        ValueError: `folder` without a root, or a root that holds no folder; see `Archive` too.
    """
    if name == "digits":
        return Digits()
    if name in SETS:
        return Benchmark(name, root)
    if root is None:
        raise ValueError("data.source folder needs --data.root, the folder of class folders")
    return Folder(root)


def visible_folders(folder: Path) -> list[Path]:
    """The folders in a folder, hidden ones left out, in natural order."""
    inside = [Path(entry.path) for entry in os.scandir(folder) if entry.is_dir()]
    return sorted((p for p in inside if not hidden(p.name)), key=lambda path: natural(path.name))


def hidden(name: str) -> bool:
    """Whether a folder is no one's class: .ipynb_checkpoints, __MACOSX, @eaDir."""
    return name.startswith((".", "__", "@"))


def walk(folder: Path, seen: frozenset[str]) -> Iterable[Path]:
    """All files below a folder; a link back to one of the folders `seen` above is not followed."""
    real = os.path.realpath(folder)
    if real in seen:
        return
    for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
        if entry.is_dir():
            if not hidden(entry.name):
                yield from walk(Path(entry.path), seen | {real})
        elif entry.is_file():
            yield Path(entry.path)


def natural(text: str) -> list:
    """Sort key that puts "2" before "10"."""
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def class_names(items: Iterable[Item]) -> list[str]:
    """The classes of the training images, in natural order."""
    return sorted({item.label for item in items if item.split == "train"}, key=natural)


def check_labels(items: Iterable[Item], classes: list[str], where: str) -> None:
    """Refuses labels that are no class; reports classes without an image.

    Raises:
        ValueError: a label that is not among the classes.
    """
    labels = {item.label for item in items}
    if unknown := sorted(labels - set(classes), key=natural):
        raise ValueError(
            f"{where} has {', '.join(unknown[:20])}, which is no class of the training images "
            f"({', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''})"
        )
    if missing := [name for name in classes if name not in labels]:
        log.warning("%s has no image of %s", where, ", ".join(missing))


def divide(
    items: list[Item], digest: Callable[[Item], bytes], part: str, share: float, seed: int
) -> list[Item]:
    """Moves a share of each class's training images to another part.

    An image's place follows from its content and the seed alone: the same on any machine and for
    any order or naming of files, and byte-identical images stay on one side. A class with one
    (different) image keeps it for training.

    Args:
        items: all images; those of other parts are returned as they are.
        digest: content of an item, equal for equal content.
        part: "val" or "test".
        share: fraction of each class: max(1, round(share * n)) of its n images move.
        seed: which ones.
    """
    by_class = defaultdict(lambda: defaultdict(list))
    for item in items:
        if item.split == "train":
            by_class[item.label][digest(item)].append(item)
    moved = set()
    for label, groups in by_class.items():
        count = sum(map(len, groups.values()))
        if len(groups) == 1:
            log.warning('class "%s" has one image: it is in training only', label)
            continue
        wanted = max(1, round(share * count))
        order = sorted(groups, key=lambda content: draw(content, part, seed))
        moved |= take(groups, order, wanted)
    return [replace(item, split=part) if item.id in moved else item for item in items]


def take(groups: dict[bytes, list[Item]], order: list[bytes], wanted: int) -> set[str]:
    """Ids of whole groups in this order, `wanted` images or as near below as groups allow.

    At least one group is taken and one is left.
    """
    taken: set[str] = set()
    left = len(order)
    for content in order:
        fits = len(taken) + len(groups[content]) <= wanted or not taken
        if fits and left > 1:
            taken |= {item.id for item in groups[content]}
            left -= 1
    return taken


def draw(content: bytes, part: str, seed: int) -> bytes:
    """An image's place in the order from which `divide` takes the first ones."""
    return hashlib.sha256(f"{part} {seed} ".encode() + content).digest()
