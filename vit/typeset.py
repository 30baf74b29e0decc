"""Lines of text in a given width of pixels: measured, wrapped, shortened, and drawn on a picture.

Sizes are in pixels; a place (x, y) is of the line's left, right or middle end and its baseline.
matplotlib sets the letters, since it takes each from a font that has it.
"""

from dataclasses import dataclass
from functools import cache, lru_cache

import numpy as np
from matplotlib.backends.backend_agg import FigureCanvasAgg
from matplotlib.figure import Figure
from matplotlib.font_manager import FontProperties
from matplotlib.text import Text

from vit.lettering import fonts, letters, literal, short, with_glyphs

INK, FAINT, LINE = "#1a1a1a", "#5c5c5c", "#d0d0d0"
DPI = 72  # at which matplotlib's points are pixels


@dataclass(frozen=True)
class Line:
    """One line of text and its place.

    Args:
        x, y: pixels, y of the baseline.
        size: of the letters, pixels.
        align: what lies at x: "left", "center" or "right".
    """

    text: str
    x: float
    y: float
    size: float
    bold: bool = False
    colour: str = INK
    align: str = "left"


def wrapped(text: str, width: float, size: float, bold: bool = False) -> list[str]:
    """The text in lines no wider than `width`; a word that is wider loses its middle."""
    text = with_glyphs(" ".join(str(text).split()))
    words = text.replace(" %", "\u00a0%").split(" ")  # a number keeps its sign
    lines = []
    while words:
        count = fitting(words, width, size, bold)
        lines.append(" ".join(words[:count]) if count else fitted(words[0], width, size, bold))
        del words[: count or 1]
    return lines


def shortened(lines: list[str], most: int) -> list[str]:
    """At most so many lines, the last of which says where there were more."""
    return lines if len(lines) <= most else [*lines[: most - 1], f"{lines[most - 1]} …"]


def fitting(words: list[str], width: float, size: float, bold: bool) -> int:
    """How many of the first words stand on one line of that width."""
    space = measured("n n", size, bold) - 2 * measured("n", size, bold)
    total, count = -space, 0
    while count < len(words) and total <= width:
        total += space + measured(words[count], size, bold)
        count += 1
    while count and measured(" ".join(words[:count]), size, bold) > width:
        count -= 1
    return count


def fitted(text: str, width: float, size: float, bold: bool = False) -> str:
    """The text on one line no wider than `width`, its middle left out where it is longer."""
    text = with_glyphs(" ".join(str(text).split()))
    if measured(text, size, bold) <= width:
        return text
    fits, too_many = 1, letters(text)  # letters that are kept
    while too_many - fits > 1:
        middle = (fits + too_many) // 2
        if measured(unescaped(short(text, middle)), size, bold) <= width:
            fits = middle
        else:
            too_many = middle
    return unescaped(short(text, fits))


def unescaped(text: str) -> str:
    """A text of `short` without the escapes that `literal` adds again."""
    return text.replace(r"\$", "$")


@lru_cache(maxsize=4096)
def measured(text: str, size: float, bold: bool = False) -> float:
    """The width of a line, pixels."""
    if not text:
        return 0.0
    figure, renderer = ruler()
    line = Text(text=literal(text), fontproperties=font(size, bold), figure=figure)
    return line.get_window_extent(renderer).width


@cache
def ruler():
    """A figure to measure in."""
    figure = Figure(figsize=(1, 1), dpi=DPI)
    return figure, FigureCanvasAgg(figure).get_renderer()


@lru_cache(maxsize=64)
def font(size: float, bold: bool) -> FontProperties:
    """Letters of a size in pixels, from the fonts that are installed."""
    return FontProperties(family=fonts()[1], size=size, weight="bold" if bold else "normal")


def written(picture: np.ndarray, lines: list[Line]) -> np.ndarray:
    """The picture (height, width, 3) with the lines on it: uint8, its own pixels as they were."""
    height, width = picture.shape[:2]
    figure = Figure(figsize=(width / DPI, height / DPI), dpi=DPI)
    drawing = FigureCanvasAgg(figure)
    figure.patch.set_alpha(0)
    for line in lines:
        figure.text(
            line.x / width,
            1 - line.y / height,
            literal(line.text),
            fontproperties=font(line.size, line.bold),
            color=line.colour,
            ha=line.align,
            va="baseline",
        )
    drawing.draw()
    letters_drawn = np.asarray(drawing.buffer_rgba()).astype(np.uint16)
    opacity = letters_drawn[..., 3:]
    mixed = (letters_drawn[..., :3] * opacity + picture * (255 - opacity) + 127) // 255
    return mixed.astype(np.uint8)
