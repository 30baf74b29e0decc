"""The same photo more than once: byte for byte, or as it looks, within and across parts and classes."""

from collections import defaultdict
from collections.abc import Collection, Iterable

import numpy as np

from vit.commands.progress import Progress
from vit.findings import NOTE, WARNING, Case, Finding, counted
from vit.grouping import groups
from vit.near import COPY, Match, matches
from vit.survey import Seen

NEAR = "resized, recompressed, cropped a little or mirrored"
LEAST_SIDE = 16  # pixels; smaller pictures are too simple to tell copies by their look
MANY = 2000  # photos, from which on the comparison takes long enough to be shown


def copies(seen: list[Seen], divided: bool) -> list[Finding]:
    """Identical, near-identical and alike photos.

    Args:
        seen: photos that can be read, each item in the part that training puts it in.
        divided: training divides the validation part off itself.
    """
    by_content = defaultdict(list)
    for one in seen:
        by_content[one.digest].append(one)
    contents = list(by_content.values())
    pairs = compared([some[0] for some in contents])
    near = [pair for pair in pairs if pair.likeness >= COPY]
    turned = {contents[one][0].item.id for pair in near if pair.mirrored for one in pair.pair}
    together = [
        [one for number in group for one in contents[number]]
        for group in groups([pair.pair for pair in near], len(contents))
    ]
    identical = [some for some in contents if len(some) > 1]
    return [
        *by_meaning(identical, "identical", "byte for byte", divided),
        *by_meaning(together, "near-identical", NEAR, divided, turned),
        *alike([pair for pair in pairs if pair.likeness < COPY], contents),
    ]


def compared(photos: list[Seen]) -> list[Match]:
    """Pairs of photos that look alike."""
    if not photos:
        return []
    signatures = np.stack([one.signature for one in photos])
    small = [min(one.height, one.width) < LEAST_SIDE for one in photos]
    signatures[small] = 0  # of one colour: like nothing
    if len(photos) < MANY:
        return matches(signatures)
    with Progress(len(photos) ** 2, "pairs compared") as bar:
        return matches(signatures, advance=bar.advance)


def by_meaning(
    found: list[list[Seen]],
    kind: str,
    how: str,
    divided: bool,
    turned: Collection[str] = (),
) -> list[Finding]:
    """Groups of copies, by what they do: contradict, leak, or weigh more.

    Args:
        kind: identical or near-identical.
        how: in what the photos are equal.
        divided: training divides the validation part off itself.
        turned: ids of photos that are the mirrored picture of another, or have one.
    """
    mixed = [group for group in found if len(labels(group)) > 1]
    leaks = [group for group in found if len(parts(group)) > 1]
    rest = [group for group in found if len(labels(group)) == 1 and len(parts(group)) == 1]
    meanings = [
        (mixed, "classes", WARNING, "in several classes: their labels contradict each other"),
        (leaks, "parts", WARNING, "in several parts: what is to be predicted was trained on"),
        (rest, "same", NOTE, "in one class and part"),
    ]
    return [
        Finding(
            f"{kind}-{where}",
            severity,
            f"{counted(len(chosen), 'group')} of {kind} photos ({how}) {words}",
            consequence(kind, where, divided),
            tuple(as_case(group, turned) for group in chosen),
        )
        for chosen, where, severity, words in meanings
        if chosen
    ]


def as_case(group: list[Seen], turned: Collection[str]) -> Case:
    """A group and where it stands."""
    ids = tuple(one.item.id for one in group)
    return Case(ids, places(group) + ", mirrored" * any(one in turned for one in ids))


def consequence(kind: str, where: str, divided: bool) -> str:
    """What training does with such copies."""
    if where == "classes":
        own = ", and keeps them out of the validation it divides off"
        return "trains on each under its own label" + (
            own if divided and kind == "identical" else ""
        )
    if where == "parts":
        if divided:
            return (
                "looks for identical files alone when it divides, so these go to both sides: "
                "validation comes out too high; take the copies out"
            )
        return "moves and leaves out none: validation or test comes out too high"
    if kind == "identical" and divided:
        return (
            "trains on each, so that the photo weighs more; keeps them on one side when it divides"
        )
    return "trains on each, so that the photo weighs more"


def alike(pairs: list[Match], contents: list[list[Seen]]) -> list[Finding]:
    """Pairs that are no plain copies: edited ones, or shots of one series."""
    if not pairs:
        return []
    cases, apart, mixed = [], 0, 0
    for pair in pairs:
        both = [contents[pair.first][0], contents[pair.second][0]]
        apart += len(parts(both)) > 1
        mixed += len(labels(both)) > 1
        why = f"{places(both)}, likeness {pair.likeness:.2f}" + ", mirrored" * pair.mirrored
        cases.append(Case(tuple(one.item.id for one in both), why))
    text = f"{counted(len(pairs), 'pair')} of photos that look alike: edited copies, or one series"
    text += f"; {apart} across parts, {mixed} across classes" if apart or mixed else ""
    training = "takes them for different photos; across parts, validation or test comes out high"
    return [Finding("alike", WARNING if mixed else NOTE, text, training, tuple(cases))]


def labels(group: Iterable[Seen]) -> set[str]:
    """The classes of a group."""
    return {one.item.label for one in group}


def parts(group: Iterable[Seen]) -> set[str]:
    """The parts of a group."""
    return {one.item.split for one in group}


def places(group: list[Seen]) -> str:
    """Where a group's photos stand: "train ants, val ants"."""
    return ", ".join(dict.fromkeys(f"{one.item.split} {one.item.label}" for one in group))
