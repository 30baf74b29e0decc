"""What there is to say of a folder's photos, one by one, and what training does about each.

What training does is said as `data`, `class_folders` and `images` do it.
"""

import re
from collections import Counter, defaultdict
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np

from vit.giveaway import by_trait, giveaways
from vit.items import natural, some
from vit.spectrum import FLAT, contrast
from vit.survey import Seen

# What a finding means for training; the order in which they are shown.
STOP, WARNING, NOTE = "stop", "warning", "note"

VERY_SMALL = 4  # times that a photo must be enlarged to be called tiny
LONG = 2.0  # times as long as wide, beyond which much of a photo is cropped away
UNEQUAL, VERY_UNEQUAL = 3, 10  # times as many photos as the smallest class has
FEW = 10  # training photos, below which a class is small
RARE = 0.01  # share of all photos, up to which a format is rare
FEW_VALIDATED = 30  # validation photos, below which a result says little


@dataclass(frozen=True)
class Case:
    """One photo, or several that belong together, by their ids; and what is so with them."""

    photos: tuple[str, ...]
    why: str = ""


@dataclass(frozen=True)
class Finding:
    """Something to know of a folder.

    Args:
        kind: a word for programs.
        severity: stop, warning or note.
        text: what is so.
        training: what training does about it.
        cases: the photos.
    """

    kind: str
    severity: str
    text: str
    training: str = ""
    cases: tuple[Case, ...] = ()


def counted(number: int, one: str, many: str = "") -> str:
    """'1 photo', '1,234 photos'."""
    return f"{number:,} {one if number == 1 else many or one + 's'}"


def of_photos(
    kind: str, severity: str, text: str, training: str, cases: list[Case]
) -> list[Finding]:
    """A finding where there is a case; `{}` in the text becomes their number."""
    if not cases:
        return []
    text = text.format(counted(len(cases), "photo"))
    return [Finding(kind, severity, text, training, tuple(cases))]


def unreadable(seen: list[Seen]) -> list[Finding]:
    """Files that cannot be read."""
    cases = [Case((one.item.id,), one.problem) for one in seen if one.problem]
    training = (
        "leaves them out and lists them in the run's left_out.csv; --data.strict true stops instead"
    )
    return of_photos("unreadable", WARNING, "{} cannot be read", training, cases)


def sizes(seen: list[Seen], size: int) -> list[Finding]:
    """Photos smaller than the network's side `size`, and long strips."""
    tiny, small, long = [], [], []
    for one in seen:
        short, side = sorted((one.height, one.width))
        case = Case((one.item.id,), f"{one.width}x{one.height}")
        if short * VERY_SMALL < size:
            tiny.append(case)
        elif short < size:
            small.append(case)
        if side > LONG * short:
            seen_share = f"{one.width}x{one.height}, {short / side:.0%} of it seen"
            long.append(Case((one.item.id,), seen_share))
    enlarge = f"enlarges them to {size} pixels: they are blurred, other photos are sharp"
    fraction = f"{size / VERY_SMALL:g} pixels, 1/{VERY_SMALL} of the network's"
    shape = (
        "with --data.fit crop (the default from scratch) sees the middle square alone; pad or "
        "squash keep the whole"
    )
    return [
        *of_photos("tiny", WARNING, f"{{}} tiny: a short side below {fraction}", enlarge, tiny),
        *of_photos(
            "small",
            NOTE,
            f"{{}} with a short side below {size} pixels, the network's",
            enlarge,
            small,
        ),
        *of_photos("long", NOTE, f"{{}} more than {LONG:g} times as long as wide", shape, long),
    ]


def orientations(seen: list[Seen]) -> list[Finding]:
    """Photos that are stored turned, and such whose tag says nothing valid."""
    turned = [
        Case((s.item.id,), f"EXIF orientation {s.orientation}") for s in seen if s.orientation > 1
    ]
    wrong = [
        Case((one.item.id,), note)
        for one in seen
        for note in one.notes
        if note.startswith("orientation ")
    ]
    return [
        *of_photos(
            "turned", NOTE, "{} stored turned", "turns them upright, as predict does", turned
        ),
        *of_photos(
            "orientation",
            NOTE,
            "{} with an EXIF orientation that does not exist",
            "takes them as they are stored",
            wrong,
        ),
    ]


def conversions(seen: list[Seen]) -> list[Finding]:
    """What the loader does with unusual pixels: one finding for each way."""
    by_way = defaultdict(list)
    for one in seen:
        for note in one.notes:
            if not note.startswith("orientation "):
                by_way[way(note)].append(Case((one.item.id,), note))
        if one.mode == "CMYK" and not any("ICC profile to" in note for note in one.notes):
            by_way["CMYK without a colour profile"].append(Case((one.item.id,)))
    return [
        found
        for name, cases in sorted(by_way.items(), key=lambda one: -len(one[1]))
        for found in of_photos("converted", NOTE, f"{{}}: {name}", "", cases)
    ]


def way(note: str) -> str:
    """A loader's note without what differs from photo to photo."""
    if note.startswith("first of"):
        return "an animation or several pages; the first picture is taken"
    if note.startswith("values"):
        return "more than 8 bits, scaled to 8 bits"
    if note.startswith("later frames"):
        return "later pictures in the file are broken; the first is taken"
    known = {
        "alpha on white": "transparency, laid on white",
        "ICC profile to sRGB": "another colour space, brought to sRGB",
    }
    return known.get(note) or re.sub(r":.*", "", note)


def rare_formats(seen: list[Seen]) -> list[Finding]:
    """Single files of another format than nearly all: often placeholders or downloads gone wrong."""
    by_format = defaultdict(list)
    for one in seen:
        by_format[one.format].append(Case((one.item.id,), one.format))
    limit = RARE * len(seen)
    cases = [case for cases in by_format.values() if len(cases) <= limit for case in cases]
    return of_photos("rare-format", NOTE, "{} in a format that hardly any other has", "", cases)


def one_colour(seen: list[Seen]) -> list[Finding]:
    """Photos that show nothing."""
    with_look = [one for one in seen if one.signature is not None]
    if not with_look:
        return []
    varying = contrast(np.stack([one.signature for one in with_look]))
    cases = [
        Case((one.item.id,)) for one, much in zip(with_look, varying, strict=True) if much < FLAT
    ]
    training = "trains on them all the same: take them out"
    return of_photos("one-colour", WARNING, "{} of one colour throughout", training, cases)


TOLD = {
    "format": "sees pixels alone, but compression shows in them: save all classes in one format",
    "orientation tag": "turns all upright and cannot see it; but classes taken apart may differ in "
    "light and place too",
    "kind of colour": "sees it, and may learn it in place of what the photos show",
}
RESIZED = (
    "brings all to one size, but sharpness and borders tell: take all classes from like sources"
)


def told_by_files(seen: list[Seen]) -> list[Finding]:
    """Traits of the files that give the class away."""
    found = []
    for trait, tells in by_trait(giveaways(seen)).items():
        best = tells[0]
        more = f"; also {some((one.label for one in tells[1:]), 5)}" if len(tells) > 1 else ""
        text = (
            f'the {trait} gives "{best.label}" away: {best.value} are {best.inside} of its photos and '
            f"{best.outside} of all others; by it alone {best.right:.0%} are told right, without it "
            f"{best.base:.0%}{more}"
        )
        found.append(Finding("giveaway", WARNING, text, TOLD.get(trait, RESIZED)))
    return found


def class_sizes(counts: dict[str, dict[str, int]], divided: set[str]) -> list[Finding]:
    """Classes of unequal size, small ones, and few photos to choose by.

    Args:
        counts: photos by class, by part, as training divides them.
        divided: parts that training sets aside itself.
    """
    found = []
    train = Counter(counts.get("train", {}))
    if len(train) > 1:
        (largest, most), (smallest, least) = train.most_common()[0], train.most_common()[-1]
        if most >= UNEQUAL * least:
            text = (
                f'classes of unequal size: {most} training photos of "{largest}", {least} of '
                f'"{smallest}"; always saying "{largest}" is right for {most / train.total():.0%}'
            )
            training = (
                "counts all photos alike; --data.balance sample or loss makes classes count alike"
            )
            severity = WARNING if most >= VERY_UNEQUAL * least else NOTE
            found.append(Finding("unequal", severity, text, training))
    few = sorted((name for name in train if train[name] < FEW), key=natural)
    if few:
        names = some((f'"{name}" {train[name]}' for name in few), 10)
        text = f"{counted(len(few), 'class', 'classes')} with fewer than {FEW} training photos: {names}"
        found.append(Finding("few", WARNING, text, "goes on, and can hardly learn them"))
    for part, words in (("val", "validation"), ("test", "test")):
        count = sum(counts.get(part, {}).values())
        if 0 < count < FEW_VALIDATED:
            text = f"{counted(count, f'{words} photo')}: one more or less right is {1 / count:.1%}"
            own = "sets them aside from training, and " if part in divided else ""
            training = f"{own}goes on; by so few, much of a result is chance"
            found.append(Finding("few-" + part, NOTE, text, training))
    return found


def all_of_photos(seen: Iterable[Seen], size: int) -> list[Finding]:
    """What there is to say of each photo by itself."""
    seen = list(seen)
    sound = [one for one in seen if not one.problem]
    return [
        *unreadable(seen),
        *one_colour(sound),
        *told_by_files(sound),
        *sizes(sound, size),
        *orientations(sound),
        *rare_formats(sound),
        *conversions(sound),
    ]
