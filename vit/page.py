"""A page: panels of pixels in rows and columns, with a title, headings, a colour bar and a caption.

Every panel stands on the page pixel by pixel, never resampled, and `Page.boxes` says where. What is
said of the whole stands above the panels, how to read them below. Text grows with the panels, and
a page of narrow panels is as wide as its text needs.
"""

import math
from dataclasses import dataclass, replace
from itertools import zip_longest

import numpy as np

from vit.legend import Text, legend
from vit.sheet import LINE_HEIGHT, Sheet
from vit.typeset import Line, measured, shortened, wrapped

LEAST_EM, MOST_EM = 13, 26  # size of the letters, pixels
LEAST_WIDTH = 38  # of a page's text, in em
HEADING_LINES = 5  # of a panel
NARROW, BESIDE = 24, 28  # panels narrower than this have the legend beside them, so wide, in em


@dataclass(frozen=True)
class Panel:
    """Pixels (height, width, 3), uint8, with a heading of at most three lines above them."""

    pixels: np.ndarray
    heading: str = ""


@dataclass(frozen=True)
class Page:
    """A finished page: pixels (height, width, 3), and its panels' (x0, y0, x1, y1) on it."""

    pixels: np.ndarray
    boxes: list[tuple[int, int, int, int]]


def page(
    panels: list[Panel],
    columns: int,
    text: Text,
    top: float | None = None,
    row_names: tuple[str, ...] = (),
) -> Page:
    """Sets the panels, row by row, into a page.

    Args:
        columns: panels beside each other.
        top: of the colour scale, times the mean; None: no colour bar.
        row_names: written left of the rows.

    Raises:
        ValueError: no panels.
    """
    if not panels:
        raise ValueError("panels must hold at least one panel, got none")
    rows = [panels[start : start + columns] for start in range(0, len(panels), columns)]
    em = letter_size(rows)
    names = math.ceil(max((measured(name, em) + em for name in row_names), default=0))
    gap = round((0.35 if row_names else 0.7) * em)
    block = names + max(row_width(row, gap) for row in rows)
    beside = block < NARROW * em  # the rest stands right of the panels, not below them
    width = block + gap + BESIDE * em if beside else max(block, LEAST_WIDTH * em)
    sheet = Sheet(em, round(1.4 * em), width, y=1.0 * em)
    sheet.write(text.title, 1.5, bold=True)
    if text.lead:
        sheet.write(text.lead, 1.1)
    start, boxes = sheet.y, []
    for row, name in zip_longest(rows, row_names, fillvalue=""):
        boxes += set_row(sheet, row, gap, name, names)
    below = sheet
    if beside:
        left = sheet.left + block + 2 * gap
        below = replace(sheet, left=left, width=sheet.left + width - left, y=start)
    legend(below, text, top)
    sheet.y = max(sheet.y, below.y)
    return Page(sheet.finished(), boxes)


def letter_size(rows: list[list[Panel]]) -> int:
    """The em of a page, pixels: in proportion to the panels' whole size."""
    width = max(sum(panel.pixels.shape[1] for panel in row) for row in rows)
    height = sum(max(panel.pixels.shape[0] for panel in row) for row in rows)
    return round(min(max(math.sqrt(width * height) / 52, LEAST_EM), MOST_EM))


def row_width(row: list[Panel], gap: int) -> int:
    """Of the panels beside each other, pixels."""
    return sum(panel.pixels.shape[1] for panel in row) + gap * (len(row) - 1)


def set_row(
    sheet: Sheet, row: list[Panel], gap: int, name: str, names: int
) -> list[tuple[int, int, int, int]]:
    """Panels beside each other below their headings; returns their boxes.

    Args:
        gap: between them, pixels.
        name: of the row, left of it.
        names: the width that is left for it, pixels.
    """
    sheet.y = math.ceil(sheet.y + gap)
    headings = [
        shortened(wrapped(panel.heading, panel.pixels.shape[1], sheet.em), HEADING_LINES)
        for panel in row
    ]
    deep = max(
        len(lines) if panel.heading else 0 for panel, lines in zip(row, headings, strict=True)
    )
    below = math.ceil(sheet.y + deep * LINE_HEIGHT * sheet.em)
    boxes, x = [], sheet.left + names
    if name:
        middle = below + row[0].pixels.shape[0] / 2 + 0.35 * sheet.em
        sheet.lines.append(Line(name, sheet.left, middle, sheet.em))
    for panel, lines in zip(row, headings, strict=True):
        for number, line in enumerate(reversed(lines)):
            y = below - (0.35 + number * LINE_HEIGHT) * sheet.em
            sheet.lines.append(Line(line, x, y, sheet.em))
        boxes.append(sheet.paste(panel.pixels, x, below))
        x += panel.pixels.shape[1] + gap
    sheet.y = max(box[3] for box in boxes)
    return boxes
