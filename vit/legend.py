"""What stands with the panels of a page: colour bar, the network's answers, how to read it all."""

import math
from dataclasses import dataclass, replace

import numpy as np

from vit.overlay import colour_map
from vit.sheet import Sheet
from vit.typeset import FAINT, Line, fitted, measured

LEFT, ASIDE = 44, 70  # em: width of the colour bar; of a page whose answers stand right of it
BAR = (0x33, 0x55, 0x7A)  # bars of probabilities
TRACK = (0xE6, 0xE6, 0xE6)
TICK = (0x5A, 0x5A, 0x5A)


@dataclass(frozen=True)
class Answer:
    """A class and its probability; `marked` where the panels show its map."""

    label: str
    probability: float
    marked: bool = False


@dataclass(frozen=True)
class Text:
    """What is written on a page.

    Args:
        title: what it is of, such as the photo's name.
        lead: what it shows: method, depth, network.
        answers: what the network says, most probable first.
        caption: how to read it, a paragraph each.
        unit: what the colours measure.
        known: how many classes the network knows; 0: not said.
    """

    title: str
    lead: str = ""
    answers: tuple[Answer, ...] = ()
    caption: tuple[str, ...] = ()
    unit: str = "attention on a patch, times the mean of all patches"
    known: int = 0


def legend(sheet: Sheet, text: Text, top: float | None) -> None:
    """What stands below the panels: colour bar, what the network says, how to read it."""
    aside = sheet.width >= ASIDE * sheet.em and text.answers  # room for two columns
    left = replace(sheet, width=LEFT * sheet.em) if aside else sheet
    if aside:
        indent = (LEFT + 3) * sheet.em
        right = replace(sheet, left=sheet.left + indent, width=sheet.width - indent)
        set_answers(right, text.answers, text.known)
    if top is not None:
        colour_bar(left, top, text.unit)
    if text.answers and not aside:
        set_answers(left, text.answers, text.known)
    left.skip(0.7)
    for paragraph in text.caption:
        left.write(paragraph, 0.85, colour=FAINT)
        left.skip(0.2)
    sheet.y = max(left.y, right.y if aside else 0)


def colour_bar(sheet: Sheet, top: float, unit: str) -> None:
    """The scale from 0 to the top, an arrow for what lies above it, and what its numbers mean."""
    em = sheet.em
    sheet.skip(1.0)
    width, height = min(sheet.width, LEFT * em), round(0.9 * em)
    inner = width - height  # the arrow is as long as it is high
    colours = np.full((height, width, 3), 255, np.uint8)
    colours[:, :inner] = colour_map()[np.linspace(0, 255, inner).round().astype(int)]
    for y in range(height):
        colours[y, inner : inner + round(height - 2 * abs(y + 0.5 - height / 2))] = colour_map()[
            255
        ]
    y1 = sheet.paste(colours, sheet.left, sheet.y)[3]
    mark = np.full((round(0.35 * em), max(1, em // 12), 3), TICK, np.uint8)
    for value in ticks_of(top):
        x = sheet.left + value / top * inner
        sheet.paste(mark, x, y1)
        sheet.lines.append(
            Line(f"{value:g}", x, y1 + 1.3 * em, 0.85 * em, align="center" if value else "left")
        )
    last = Line(f"{top:.3g} and more", sheet.left + width, y1 + 1.3 * em, 0.85 * em, align="right")
    sheet.lines.append(last)
    sheet.y = y1 + 1.4 * em
    sheet.write(unit, 0.85)


def ticks_of(top: float) -> list[float]:
    """Round numbers from 0 to the top, 1 among them, far enough from the top's own label."""
    step = next(s for s in (1, 2, 5, 10, 20, 50, 100, 200, 500, 1000, 10**9) if top / s <= 6)
    ticks = {0.0, 1.0} | {float(value) for value in range(0, math.ceil(min(top, 10**6)), step)}
    return sorted(tick for tick in ticks if tick <= 0.72 * top and (tick in (0, 1) or tick >= step))


def set_answers(sheet: Sheet, answers: tuple[Answer, ...], known: int) -> None:
    """A bar for each class: label, bar, percent; the marked ones in bold.

    Args:
        known: how many classes there are in all; 0: not said.
    """
    em = sheet.em
    sheet.skip(0.6)
    among = f", of the {known} classes it knows" if known else ""
    sheet.write(f"What the network says{among}", 1.0, bold=True)
    most = min(16 * em, 0.4 * sheet.width)
    labels = [fitted(answer.label, most, em, answer.marked) for answer in answers]
    column = max(measured(label, em, True) for label in labels)
    length = round(min(16 * em, sheet.width - column - 6 * em))
    for answer, label in zip(answers, labels, strict=True):
        sheet.y += 1.5 * em
        base = sheet.y - 0.35 * em
        sheet.lines.append(Line(label, sheet.left, base, em, answer.marked))
        bar = np.full((round(0.75 * em), length, 3), TRACK, np.uint8)
        bar[:, : round(answer.probability * length)] = BAR
        x = sheet.left + column + 0.7 * em
        sheet.paste(bar, x, base - 0.7 * em)
        percent = percent_of(answer.probability)
        sheet.lines.append(Line(percent, x + length + 0.6 * em, base, em, answer.marked))


def percent_of(share: float) -> str:
    """A fraction as text: 0.973 -> "97 %"; near 0 and 1 finer: "0.4 %", "< 0.1 %", "> 99.9 %"."""
    if share in (0, 1) or 0.0995 <= share < 0.9945:
        return f"{100 * share:.0f} %"
    if share > 0.999:
        return "> 99.9 %"
    return f"{100 * share:.1f} %" if share >= 0.001 else "< 0.1 %"
