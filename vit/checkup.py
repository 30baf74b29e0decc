"""A folder of photos looked over before training: what is in it, and what training would do.

The folder is listed, divided and refused by the very functions that training calls; what they say
on the way is in the report.
"""

import logging
from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path

from vit.copies import copies
from vit.findings import NOTE, STOP, WARNING, Case, Finding, all_of_photos, class_sizes
from vit.folder import Folder
from vit.items import (
    Item,
    check_labels,
    class_names,
    divide,
    escaped,
    natural,
    report_spellings,
)
from vit.settings import Data
from vit.survey import Seen, survey

SIZE = 224  # pixels, the network's side that photos are judged by unless another is named
PARTS = ("train", "val", "test")


@dataclass
class Report:
    """What there is to know of a folder.

    Args:
        folder: as it was given.
        found: photos by class, by part, as they lie there.
        counts: the same of those that can be read, as training divides them.
        divided: parts that training sets aside itself.
        formats: photos by format.
        sizes: (smallest, median, largest) width and height, by area.
        orientations: photos by EXIF orientation.
        findings: the gravest first.
        seen: every photo, in the part that training puts it in.
    """

    folder: str
    found: dict[str, dict[str, int]] = field(default_factory=dict)
    counts: dict[str, dict[str, int]] = field(default_factory=dict)
    divided: list[str] = field(default_factory=list)
    formats: dict[str, int] = field(default_factory=dict)
    sizes: list[tuple[int, int]] = field(default_factory=list)
    orientations: dict[int, int] = field(default_factory=dict)
    findings: list[Finding] = field(default_factory=list)
    seen: list[Seen] = field(default_factory=list, repr=False)

    @property
    def can_train(self) -> bool:
        """Whether training can begin."""
        return all(one.severity != STOP for one in self.findings)

    @property
    def classes(self) -> list[str]:
        """All classes, also such as training does not know, in natural order."""
        return sorted({name for part in self.found.values() for name in part}, key=natural)

    def of(self, severity: str) -> list[Finding]:
        """The findings of one severity."""
        return [one for one in self.findings if one.severity == severity]

    def to_dict(self) -> dict:
        """Everything, as JSON holds it; names that are no UTF-8 as `items.escaped` writes them."""
        return {
            "folder": escaped(self.folder),
            "can_train": self.can_train,
            "classes": self.classes,
            "found": self.found,
            "counts": self.counts,
            "divided": self.divided,
            "formats": self.formats,
            "sizes": [list(size) for size in self.sizes],
            "orientations": {str(key): count for key, count in self.orientations.items()},
            "findings": [as_json(one) for one in self.findings],
        }


def check(folder: str | Path, size: int = SIZE) -> Report:
    """Looks a folder, or a table of photos, over; nothing is written to it.

    Args:
        size: the network's side in pixels, by which small photos are judged.

    Raises:
        ValueError: no such folder, or a size below 1.
    """
    if size < 1:
        raise ValueError(f"size ({size}) must be at least 1 pixel")
    source = Folder(folder)
    report = Report(str(folder))
    with heard() as said:
        try:
            items = source.items()
        except ValueError as error:
            items, stops = [], [str(error)]
        else:
            report.found = by_part(items)
            report.seen = survey(source, items)
            stops = divided(report, source)
    describe(report)
    found = [Finding("no-training", STOP, text, "stops with this message") for text in stops]
    found += [Finding("said", *one, "") for one in dict.fromkeys(said)]
    found += all_of_photos(report.seen, size)
    sound = [one for one in report.seen if not one.problem]
    found += copies(sound, bool(report.divided))
    found += class_sizes(report.counts, set(report.divided))
    order = (STOP, WARNING, NOTE)
    report.findings = sorted(found, key=lambda one: order.index(one.severity))
    return report


def divided(report: Report, source: Folder) -> list[str]:
    """Divides the photos that can be read as training does; returns why training cannot begin."""
    sound = [one.item for one in report.seen if not one.problem]
    if not sound:
        return [f"none of the {len(report.seen)} photos can be read"]
    present = {item.split for item in sound}
    settings = Data()
    for part, share in (("test", settings.test_share), ("val", settings.val_share)):
        if part not in present and share:
            sound = divide(sound, source.digest, part, share, settings.split_seed)
            report.divided += [part] if any(item.split == part for item in sound) else []
    place = {item.id: item for item in sound}
    report.seen = [moved(one, place.get(one.item.id, one.item)) for one in report.seen]
    report.counts = by_part(sound)
    classes = class_names(sound)
    report_spellings(item.label for item in sound)
    if not classes:
        return ["there are no training photos"]
    if len(classes) == 1:
        logging.getLogger("vit").warning(
            'there is one class alone, "%s": nothing to tell apart', classes[0]
        )
    stops = []
    for part in ("val", "test"):
        if chosen := [item for item in sound if item.split == part]:
            try:
                check_labels(chosen, classes, f"the {part} part")
            except ValueError as error:
                stops.append(str(error))
    return stops


def moved(seen: Seen, item: Item) -> Seen:
    """The same photo in the part that `item` says."""
    return seen if seen.item is item else replace(seen, item=item)


def describe(report: Report) -> None:
    """Fills in formats, sizes and orientations."""
    sound = [one for one in report.seen if not one.problem]
    report.formats = dict(Counter(one.format for one in sound).most_common())
    report.orientations = dict(sorted(Counter(one.orientation for one in sound).items()))
    ordered = sorted((one.height * one.width, one.width, one.height) for one in sound)
    if ordered:
        places = (0, len(ordered) // 2, -1)
        report.sizes = [ordered[place][1:] for place in places]


def by_part(items: Iterable[Item]) -> dict[str, dict[str, int]]:
    """Numbers of images by class, by part; both in their usual order."""
    counts: dict[str, Counter] = defaultdict(Counter)
    for item in items:
        counts[item.split][item.label] += 1
    return {
        part: {name: counts[part][name] for name in sorted(counts[part], key=natural)}
        for part in PARTS
        if part in counts
    }


def as_json(finding: Finding) -> dict:
    """A finding with its cases."""
    return {
        "kind": finding.kind,
        "severity": finding.severity,
        "text": printable(finding.text),
        "training": finding.training,
        "cases": [as_entry(case) for case in finding.cases],
    }


def as_entry(case: Case) -> dict:
    """A case as JSON holds it."""
    return {"photos": [escaped(name) for name in case.photos], "why": printable(case.why)}


def printable(text: str) -> str:
    """The text so that it can be encoded, whatever bytes a file's name has."""
    return text.encode("utf-8", "backslashreplace").decode()


@contextmanager
def heard() -> Iterator[list[tuple[str, str]]]:
    """What the library says while it lasts, as (severity, text), in place of its being shown."""
    said: list[tuple[str, str]] = []

    class Listener(logging.Handler):
        def emit(self, record: logging.LogRecord) -> None:
            grave = record.levelno >= logging.WARNING
            said.append((WARNING if grave else NOTE, record.getMessage()))

    logger = logging.getLogger("vit")
    before = logger.handlers, logger.level, logger.propagate
    logger.handlers, logger.propagate = [Listener()], False
    logger.setLevel(logging.INFO)
    try:
        yield said
    finally:
        logger.handlers, logger.propagate = before[0], before[2]
        logger.setLevel(before[1])
