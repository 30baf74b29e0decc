"""Traits of the files that give a photo's class away: all of one class PNG, the other JPEG.

A network that can tell such files apart, by compression, sharpness or borders, learns that in place
of what the pictures show, and fails on other people's photos.

The test, for each class and trait: every photo is put in the class, or not, by the majority of the
other photos with the same value of the trait (where they are none or in balance: as most photos of
the set are). The share that is right is compared with that of saying the same of all photos.
"""

import math
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from vit.survey import Seen

LEAST_GAIN = 0.5  # of the errors of saying the same of all photos, so many must go
LEAST_SIGMA = 3.0  # and so many standard deviations of that share's chance must lie between
LEAST_PHOTOS = 5  # and so many more photos must be right


@dataclass(frozen=True)
class Giveaway:
    """A trait that tells one class from the others.

    Args:
        trait: its name.
        label: the class.
        value: the trait's value that most of the class's photos have.
        inside: how many of them have it.
        outside: how many photos of other classes have it.
        right: share of all photos that the trait puts right.
        base: share that saying the same of all puts right.
    """

    trait: str
    label: str
    value: str
    inside: int
    outside: int
    right: float
    base: float


def shape(seen: Seen) -> str:
    """Upright, lying or square."""
    if max(seen.height, seen.width) <= 1.1 * min(seen.height, seen.width):
        return "square"
    return "upright" if seen.height > seen.width else "lying"


def colours(seen: Seen) -> str:
    """What the stored pixels are made of."""
    grey = ("1", "L", "I", "F")
    if seen.mode.startswith(grey) and seen.mode not in ("LA", "La", "LAB"):
        return "grey"
    names = {"CMYK": "CMYK", "LA": "transparency", "PA": "transparency", "RGBA": "transparency"}
    return names.get(seen.mode, "palette" if seen.mode == "P" else "colour")


TRAITS: dict[str, Callable[[Seen], str]] = {
    "format": lambda seen: seen.format,
    "size in pixels": lambda seen: f"{seen.width}x{seen.height}",
    "long side": lambda seen: f"about {2 ** round(math.log2(max(seen.width, seen.height)))} px",
    "shape": shape,
    "orientation tag": lambda seen: str(seen.orientation),
    "kind of colour": colours,
}


def giveaways(seen: Iterable[Seen]) -> list[Giveaway]:
    """All that tell a class, the surest first; of one class and several alike traits the first."""
    seen = list(seen)
    labels = [one.item.label for one in seen]
    found = []
    for trait, of in TRAITS.items():
        values = [of(one) for one in seen]
        for label in sorted(set(labels)):
            if (one := told(trait, label, labels, values)) is not None:
                found.append(one)
    return sorted(found, key=lambda one: one.base - one.right)


def told(trait: str, label: str, labels: list[str], values: list[str]) -> Giveaway | None:
    """Whether a trait's values tell one class; None where they do not.

    Args:
        labels: of all photos.
        values: the trait of each.
    """
    of_class, of_all = Counter(), Counter(values)
    of_class.update(value for value, own in zip(values, labels, strict=True) if own == label)
    count, size = len(labels), of_class.total()
    common = 2 * size > count  # the class is most of the set
    base = max(size, count - size) / count
    right = 0
    for value, with_value in of_all.items():
        inside = of_class[value]
        right += inside * wins(inside - 1, with_value - inside, common)
        right += (with_value - inside) * wins(with_value - inside - 1, inside, not common)
    needed = (1 - base) * count * LEAST_GAIN
    needed = max(needed, LEAST_SIGMA * math.sqrt(base * (1 - base) * count), LEAST_PHOTOS)
    if base == 1 or right - base * count < needed:
        return None
    value, inside = max(of_class.items(), key=lambda one: 2 * one[1] - of_all[one[0]])
    return Giveaway(trait, label, value, inside, of_all[value] - inside, right / count, base)


def wins(own: int, others: int, tie: bool) -> bool:
    """Whether the photos on one's own side are more; in balance `tie` says so."""
    return tie if own == others else own > others


def by_trait(found: Iterable[Giveaway]) -> dict[str, list[Giveaway]]:
    """The same, by the trait's name."""
    grouped = defaultdict(list)
    for one in found:
        grouped[one.trait].append(one)
    return dict(grouped)
