"""A contact sheet of a folder: samples of each class, and photos that something is to be said of.

Text is set by `typeset`, in any script that an installed font has; photos stand upright and whole.
"""

import math
import os
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image, ImageDraw

from vit.checkup import PARTS, Report, printable
from vit.cores import default_workers
from vit.findings import NOTE, STOP, WARNING, Case, Finding, counted
from vit.folder import Folder
from vit.images import UnreadableImage, read
from vit.items import Item
from vit.sheet import LINE_HEIGHT, Sheet
from vit.typeset import FAINT, INK, Line, fitted, measured, shortened, wrapped

WIDTH, MARGIN, EM, GAP = 1400, 30, 15, 8  # pixels
# (up to so many classes, columns of classes beside each other, side of a photo in pixels)
LAYOUTS = ((12, 1, 112), (30, 2, 96), (100, 4, 72))
MOST_CLASSES = LAYOUTS[-1][0]
TILE = 128  # side of a photo among the findings, pixels
REASON_LINES = 2
PLAIN = ("converted",)  # findings whose photos look like any other
# Okabe & Ito 2008, "Color Universal Design": told apart by all kinds of colour vision.
COLOURS = {"train": "#0072B2", "val": "#E69F00", "test": "#009E73"}
PART_NAMES = {"train": "training", "val": "validation", "test": "test"}
HEADINGS = {
    STOP: ("Training cannot begin", "#B00020"),
    WARNING: ("To be looked into", "#B35900"),
    NOTE: ("Good to know", INK),
}


@dataclass(frozen=True)
class Tile:
    """Photos beside each other, below them what is so with them, and names, a line each."""

    photos: tuple[str, ...]
    reason: str
    names: tuple[str, ...]


def contact_sheet(report: Report) -> Image.Image:
    """Draws what `checkup.check` found: 1,460 pixels wide, as high as it has to be."""
    sheet = Sheet(EM, MARGIN, WIDTH, MARGIN / 2)
    source = Folder(report.folder) if report.seen else None
    heading(sheet, report)
    if source:
        draw_classes(sheet, report, source)
    for severity, (words, colour) in HEADINGS.items():
        if found := report.of(severity):
            sheet.skip(1.2)
            sheet.write(words, 1.3, bold=True, colour=colour)
            for one in found:
                draw_finding(sheet, one, report, source, colour)
    return Image.fromarray(sheet.finished())


def heading(sheet: Sheet, report: Report) -> None:
    """What this is, and how to read it."""
    total = sum(sum(part.values()) for part in report.found.values())
    name = os.path.basename(os.path.abspath(report.folder)) or report.folder
    classes = counted(len(report.classes), "class", "classes")
    sheet.write(f"{printable(name)}: {counted(total, 'photo')} in {classes}", 1.7, bold=True)
    if not total:
        return
    words = [
        f"{sum(report.counts[part].values()):,} for {PART_NAMES[part]}" for part in report.counts
    ]
    divided = [PART_NAMES[part] for part in report.divided]
    own = f" ({' and '.join(divided)} set aside from training by vit train)" if divided else ""
    sheet.write(f"{', '.join(words)}{own}", colour=FAINT)
    if report.formats:
        small, median, large = (f"{width}x{height}" for width, height in report.sizes)
        kinds = ", ".join(f"{kind} {count:,}" for kind, count in report.formats.items())
        sheet.write(f"{kinds}; from {small} to {large} pixels, median {median}", colour=FAINT)


def draw_classes(sheet: Sheet, report: Report, source: Folder) -> None:
    """Samples of each class under its name, numbers, and a bar as long as the class is large."""
    classes = report.classes[:MOST_CLASSES]
    _, columns, side = next(one for one in LAYOUTS if len(classes) <= one[0])
    width = (WIDTH - (columns - 1) * 3 * GAP) // columns
    many = (width + GAP) // (side + GAP)
    sheet.skip(1.2)
    sheet.write(f"Samples of each class, {many} at most", 1.3, bold=True)
    legend(sheet, report)
    samples = sampled(report, classes, many)
    pictures = opened(source, [item for some in samples for item in some], side)
    largest = max(sum(of_class(report, name).values()) for name in classes)
    for start in range(0, len(classes), columns):
        sheet.skip(0.8)
        top = sheet.y
        for column, name in enumerate(classes[start : start + columns]):
            x = sheet.left + column * (width + 3 * GAP)
            own = [pictures[item.id] for item in samples[start + column]]
            draw_class(sheet, report, name, own, x, top, width, largest)
        sheet.y = top + 2.1 * EM + side
    if len(report.classes) > MOST_CLASSES:
        sheet.write(f"and {len(report.classes) - MOST_CLASSES} more classes", colour=FAINT)


def legend(sheet: Sheet, report: Report) -> None:
    """What the bars say, and their colours."""
    words = "A bar is as long as its class is large:"
    sheet.write(words, colour=FAINT)
    x = sheet.left + measured(words, EM) + EM
    for part in report.counts:
        square = np.full((EM * 2 // 3, EM, 3), rgb(COLOURS[part]), np.uint8)
        sheet.paste(square, x, sheet.y - 0.95 * EM)
        sheet.lines.append(Line(PART_NAMES[part], x + 1.4 * EM, sheet.y - 0.3 * EM, EM))
        x += 8 * EM


def draw_class(
    sheet: Sheet, report: Report, name: str, pictures: list, x, top, width, largest
) -> None:
    """One class with its top left corner at (x, top)."""
    counts = of_class(report, name)
    numbers = " + ".join(f"{count:,}" for count in counts.values()) or "0"
    room = width - (len(numbers) + 2) * EM * 0.6
    title = fitted(printable(name), room, EM, bold=True)
    sheet.lines.append(Line(title, x, top + EM, EM, bold=True))
    sheet.lines.append(Line(numbers, x + width, top + EM, EM, colour=FAINT, align="right"))
    at = float(x)
    for part, count in counts.items():
        long = width * count / largest
        if round(at + long) > round(at):
            bar = np.full((4, round(at + long) - round(at), 3), rgb(COLOURS[part]), np.uint8)
            sheet.paste(bar, at, top + 1.4 * EM)
        at += long
    for number, picture in enumerate(pictures):
        sheet.paste(picture, x + number * (len(picture) + GAP), top + 2.0 * EM)


def of_class(report: Report, name: str) -> dict[str, int]:
    """How many photos of a class each part has, where it has any."""
    return {
        part: report.counts[part][name] for part in PARTS if report.counts.get(part, {}).get(name)
    }


def sampled(report: Report, classes: list[str], many: int) -> list[list[Item]]:
    """Of each class some photos, evenly from all of its list."""
    own: dict[str, list[Item]] = {name: [] for name in classes}
    for one in report.seen:
        if not one.problem and one.item.label in own:
            own[one.item.label].append(one.item)
    return [
        [items[place * len(items) // many] for place in range(many)] if len(items) > many else items
        for items in own.values()
    ]


def draw_finding(sheet: Sheet, finding: Finding, report: Report, source, colour: str) -> None:
    """What is so, what training does, and one row of photos."""
    sheet.skip(0.5)
    sheet.write(printable(finding.text), bold=True, colour=colour)
    if finding.training:
        sheet.write(f"Training {finding.training}.", colour=FAINT)
    if not finding.cases or finding.kind in PLAIN or source is None:
        return
    items = {one.item.id: one.item for one in report.seen}
    tiles, used = [], 0
    for case in finding.cases:
        tile = as_tile(case, items)
        used += len(tile.photos) * (TILE + 2) + 2 * GAP
        if used > WIDTH:
            break
        tiles.append(tile)
    pictures = opened(source, [items[name] for tile in tiles for name in tile.photos], TILE)
    draw_tiles(sheet, tiles, pictures)
    if len(tiles) < len(finding.cases):
        sheet.write(f"and {len(finding.cases) - len(tiles):,} more", colour=FAINT)


def as_tile(case: Case, items: dict[str, Item]) -> Tile:
    """A case's first photos, at most three, and what stands below them."""
    names = [printable(Path(name).name) for name in case.photos[:3]]
    if len(case.photos) == 1:
        item = items[case.photos[0]]
        return Tile(case.photos, printable(case.why), (printable(item.label), names[0]))
    more = f" and {len(case.photos) - 3} more" if len(case.photos) > 3 else ""
    return Tile(case.photos[:3], printable(case.why), (" = ".join(names) + more,))


def draw_tiles(sheet: Sheet, tiles: list[Tile], pictures: dict[str, np.ndarray]) -> None:
    """A row of tiles, captions below."""
    sheet.skip(0.4)
    x, top, deepest = sheet.left, sheet.y, 0
    small = 0.8 * EM
    for tile in tiles:
        for number, name in enumerate(tile.photos):
            sheet.paste(pictures[name], x + number * (TILE + 2), top)
        width = len(tile.photos) * (TILE + 2) - 2
        caption = wrapped(tile.reason, width, small) if tile.reason else []
        caption = shortened(caption, REASON_LINES)
        caption += [fitted(name, width, small) for name in tile.names]
        for number, line in enumerate(caption):
            y = top + TILE + (number + 0.85) * LINE_HEIGHT * small
            sheet.lines.append(Line(line, x, y, small))
        deepest = max(deepest, len(caption))
        x += width + 2 * GAP + 2
    sheet.y = math.ceil(top + TILE + deepest * LINE_HEIGHT * small)


def opened(source: Folder, items: Iterable[Item], side: int) -> dict[str, np.ndarray]:
    """Photos by their ids, each whole in a square of `side` pixels; crossed out where unreadable."""
    items = list({item.id: item for item in items}.values())
    with ThreadPoolExecutor(default_workers()) as pool:
        squares = pool.map(lambda item: square(source.path(item), side), items)
        return dict(zip((item.id for item in items), squares, strict=True))


def square(path: Path, side: int) -> np.ndarray:
    """(side, side, 3) uint8: the whole photo in the middle of light grey."""
    page = Image.new("RGB", (side, side), "#ececec")
    try:
        photo = read(path, at_least=(side, side))
    except (UnreadableImage, OSError):
        draw = ImageDraw.Draw(page)
        for ends in ((0, 0, side, side), (0, side, side, 0)):
            draw.line(ends, fill="#b0b0b0", width=2)
        return np.asarray(page)
    factor = side / max(photo.height, photo.width)
    size = [max(1, round(length * factor)) for length in (photo.width, photo.height)]
    small = photo.image.resize(size, Image.Resampling.BICUBIC, box=photo.box, reducing_gap=3)
    page.paste(small, tuple((side - length) // 2 for length in size))
    return np.asarray(page)


def rgb(colour: str) -> tuple[int, int, int]:
    """ "#0072B2" -> (0, 114, 178)."""
    return tuple(bytes.fromhex(colour.removeprefix("#")))
