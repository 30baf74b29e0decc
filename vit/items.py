"""Labelled images by name: their classes, how classes may be misspelt, and their division.

Labels are class names throughout; numbers come from their order in `class_names` and are never
stored.
"""

import hashlib
import logging
import re
import unicodedata
from collections import defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

log = logging.getLogger("vit")
NAMED = 10  # of many, so many are named one by one; the rest is counted

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


class DataError(ValueError):
    """What lies in the data's folder, or in its table, is at fault; not how the program was called."""


@dataclass(frozen=True, slots=True)
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


def natural(text: str) -> list:
    """Sort key that puts "2" before "10"."""
    parts = re.split(r"(\d+)", text)
    return [(0, int(part), "") if part.isdecimal() else (1, 0, part) for part in parts]


def some(names: Iterable[str], limit: int = NAMED) -> str:
    """Names in a row, the first ones: "a, b, c and 7 more"."""
    names = list(names)
    rest = len(names) - limit
    return ", ".join(names[:limit]) + (f" and {rest} more" if rest > 0 else "")


def escaped(text: str) -> str:
    """A file name as text that can be encoded: bytes that are no UTF-8 become \\udcXX, \\ is doubled.

    Python stands such bytes for by lone surrogates, which no file in UTF-8 can hold.
    """
    doubled = text.replace("\\", "\\\\")
    return re.sub(r"[\ud800-\udfff]", lambda found: f"\\u{ord(found[0]):04x}", doubled)


def unescaped(text: str) -> str:
    """The inverse of `escaped`."""
    return re.sub(
        r"\\(\\|u[0-9a-f]{4})", lambda f: f[1] if f[1] == "\\" else chr(int(f[1][1:], 16)), text
    )


def class_names(items: Iterable[Item]) -> list[str]:
    """The classes of the training images, in natural order."""
    return sorted({item.label for item in items if item.split == "train"}, key=natural)


def normal(label: str) -> str:
    """Equal for spellings of a class that differ in case, spaces or Unicode form alone."""
    return " ".join(unicodedata.normalize("NFKC", label).casefold().replace("_", " ").split())


def shown(label: str) -> str:
    """A label in quotes; where a composed letter looks like another one, by its codes."""
    plain = unicodedata.is_normalized("NFC", label)
    return f'"{label}"' if plain else f'"{ascii(label)[1:-1]}"'


def report_spellings(labels: Iterable[str]) -> None:
    """Warns of classes that may be one: "Cat" and "cat "; none is changed."""
    alike = defaultdict(list)
    for label in sorted(set(labels), key=natural):
        alike[normal(label)].append(shown(label))
    pairs = [" and ".join(group) for group in alike.values() if len(group) > 1]
    if pairs:
        log.warning("spellings of one class? They are taken for different classes: %s", some(pairs))


def check_labels(items: Iterable[Item], classes: list[str], where: str) -> None:
    """Refuses labels that are no class; reports classes without an image.

    Raises:
        DataError: a label that is not among the classes.
    """
    labels = {item.label for item in items}
    if unknown := sorted(labels - set(classes), key=natural):
        known = {normal(name): name for name in classes}
        like = [shown(known[normal(name)]) for name in unknown if normal(name) in known]
        raise DataError(
            f"{where} has {some(unknown, 20)}, which is no class of the training images "
            f"({', '.join(classes[:20])}{', ...' if len(classes) > 20 else ''})"
            + (f"; another spelling of {', '.join(like[:20])}?" if like else "")
        )
    if missing := [name for name in classes if name not in labels]:
        log.warning("%s has no image of %s", where, some(missing, 20))


def divide(
    items: list[Item], digest: Callable[[Item], bytes], part: str, share: float, seed: int
) -> list[Item]:
    """Moves a share of each class's training images to another part.

    An image's place follows from its content and the seed alone: the same on any machine and for
    any order or naming of files. Byte-identical images stay on one side: those of one class
    together on either, those that stand in several classes in training.

    Args:
        items: all images; those of other parts are returned as they are.
        digest: content of an item, equal for equal content.
        part: "val" or "test".
        share: fraction of each class: max(1, round(share * n)) of its n images move.
        seed: which ones.
    """
    by_class = defaultdict(lambda: defaultdict(list))
    labels = defaultdict(set)
    for item in items:
        if item.split == "train":
            content = digest(item)
            by_class[item.label][content].append(item)
            labels[content].add(item.label)
    moved = set()
    for label, groups in by_class.items():
        count = sum(map(len, groups.values()))
        own = [content for content in groups if len(labels[content]) == 1]
        if len(groups) == 1 or not own:
            has = "one image" if len(groups) == 1 else "no image that no other class has"
            log.warning('class "%s" has %s: it is in training only', label, has)
            continue
        wanted = max(1, round(share * count))
        order = sorted(own, key=lambda content: draw(content, part, seed))
        moved |= take(groups, order, wanted)
    return [replace(item, split=part) if item.id in moved else item for item in items]


def take(groups: dict[bytes, list[Item]], order: list[bytes], wanted: int) -> set[str]:
    """Ids of whole groups in this order, `wanted` images or as near below as groups allow.

    At least one group is taken and one of `groups` is left.
    """
    taken: set[str] = set()
    left = len(groups)
    for content in order:
        fits = len(taken) + len(groups[content]) <= wanted or not taken
        if fits and left > 1:
            taken |= {item.id for item in groups[content]}
            left -= 1
    return taken


def draw(content: bytes, part: str, seed: int) -> bytes:
    """An image's place in the order from which `divide` takes the first ones."""
    return hashlib.sha256(f"{part} {seed} ".encode() + content).digest()
