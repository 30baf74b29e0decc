"""Maps of one photo -> a page: which panels it has, beside what, at what size, on which scale.

Arrays in, pixels out; what the maps mean is said by `vit.captions` and asked by `vit.looking`.
"""

import math
from dataclasses import dataclass, replace

import numpy as np

from vit.canvas import PLAIN, Canvas, Style, canvas, drawn_size
from vit.captions import remark
from vit.images import Photo
from vit.legend import Text
from vit.overlay import scale_top
from vit.page import Page, Panel, page

BLOCK = (
    1680,
    1200,
)  # (width, height) in pixels that panels together keep to, unless a size is asked
WIDE = 2  # times as wide as high: its parts stand below each other
LEAST_PANEL = 96  # long side of one of very many, pixels


@dataclass(frozen=True)
class Map:
    """One map of a photo, with what is marked on it.

    Args:
        heat: (rows, cols), at least 0, not normalised.
        heading: what tells it from the others of the page.
        outliers: (rows, cols) bool, outlined and without a say in the scale; None: none.
        chosen: (row, column) of the patch whose view it is, which has no say in the scale either.
    """

    heat: np.ndarray
    heading: str = ""
    outliers: np.ndarray | None = None
    chosen: tuple[int, int] | None = None

    def aside(self) -> np.ndarray:
        """Patches without a say in the scale: (rows, cols) bool."""
        aside = np.zeros(self.heat.shape, dtype=bool)
        if self.outliers is not None:
            aside |= self.outliers
        if self.chosen is not None:
            aside[self.chosen] = True
        return aside

    def share(self, where: np.ndarray | tuple[int, int]) -> float:
        """The part of the map at some patches, (rows, cols) bool, or at one; 0 of nothing."""
        return float(self.heat[where].sum() / self.heat.sum()) if self.heat.any() else 0.0


@dataclass(frozen=True)
class Arrangement:
    """How the maps stand on the page.

    Args:
        columns: panels beside each other; None: as many as make the page a little wider than high.
        row_names: written left of the rows.
        parts: the first map in three panels, as photo, heat and overlay, instead of one for each.
    """

    columns: int | None = None
    row_names: tuple[str, ...] = ()
    parts: bool = False


ONE_EACH = Arrangement()


def compose(
    photo: Photo,
    affine: np.ndarray,
    maps: list[Map],
    text: Text,
    arrangement: Arrangement = ONE_EACH,
    style: Style = PLAIN,
    size: int | str | None = None,
    top: float | None = None,
) -> Page:
    """The page of a photo's maps, all on one scale.

    Args:
        affine: (2, 3), patches to the photo's pixels at full resolution.
        size: long side of each panel, as for `drawn_size`; None: so that all fit beside each other.
        top: of the scale, times the mean; None: `common_top`.
    """
    count = 3 if arrangement.parts else len(maps)
    columns = arrangement.columns or columns_for(count, photo.height, photo.width)
    if arrangement.parts:
        columns = 1 if photo.width > WIDE * photo.height else 3
    size = size or panel_size(count, columns, photo.height, photo.width)
    drawn = canvas(photo, affine, size)
    top = common_top(maps) if top is None else top
    if arrangement.parts:
        panels = in_parts(drawn, maps[0], top, style)
    else:
        panels = [Panel(painted(drawn, one, top, style), headed(one, count)) for one in maps]
    return page(panels, columns, text, top, arrangement.row_names)


def common_top(maps: list[Map]) -> float:
    """The end of the scale that all maps of a page share, times the mean."""
    return scale_top([one.heat for one in maps], [one.aside() for one in maps])


def painted(drawn: Canvas, one: Map, top: float, style: Style) -> np.ndarray:
    """A photo under a map, marks on top: (height, width, 3).

    What the chosen patch reads of itself, often most of the map, is drawn as the scale's top: more
    would cover its neighbours where colours run smoothly from patch to patch.
    """
    outliers = () if one.outliers is None else np.argwhere(one.outliers)
    heat = np.array(one.heat, dtype=np.float64)
    if one.chosen is not None and (mean := heat.mean()):
        heat[one.chosen] = min(heat[one.chosen], top * mean)
        top *= mean / heat.mean()  # still times the mean of the map itself
    return drawn.under(heat, top, style, outliers, one.chosen)


def in_parts(drawn: Canvas, one: Map, top: float, style: Style) -> list[Panel]:
    """Photo, heat alone, and the one under the other."""
    heat = painted(drawn, one, top, replace(style, alpha=1))
    return [
        Panel(drawn.pixels, "the photo"),
        Panel(heat, headed(one, 3) or "where the network looks"),
        Panel(painted(drawn, one, top, style), "both"),
    ]


def headed(one: Map, count: int) -> str:
    """A panel's heading; it says so where the map is nearly even or zero."""
    said = remark(one.heat)
    if count == 1:
        return said
    return f"{one.heading}: {said}" if said and one.heading else one.heading or said


def columns_for(count: int, height: int, width: int) -> int:
    """Panels beside each other so that `count` of them are about 1.8 times as wide as high."""

    def off(columns: int) -> float:
        rows = math.ceil(count / columns)
        empty = rows * columns - count
        return abs(math.log(columns * width / (rows * height) / 1.8)) + empty / count

    return min(range(1, count + 1), key=off)


def panel_size(count: int, columns: int, height: int, width: int) -> int | None:
    """The long side of each of several panels, pixels; None for a single one: its own."""
    if count == 1:
        return None
    rows = math.ceil(count / columns)
    tall, wide = drawn_size(height, width)
    factor = min(1.0, BLOCK[0] / (columns * wide), max(BLOCK[1] / (rows * tall), 0.25))
    return max(LEAST_PANEL, round(max(tall, wide) * factor))
