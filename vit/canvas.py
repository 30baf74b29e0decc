"""A photo at the size in which it is drawn, with the places of its patches on it.

The heat's affine map (2, 3) takes patches to the photo's pixels at full resolution, whatever size
the photo was decoded in; `Canvas.affine` takes them to the pixels that are drawn.
"""

import math
from collections.abc import Iterable
from dataclasses import dataclass

import numpy as np
from PIL import Image

from vit.fitting import Fitted
from vit.images import Photo
from vit.marks import CHOSEN, gridded, outlined
from vit.overlay import SQUARE_PIXELS_FROM, overlay

LEAST_SIDE, MOST_SIDE = 512, 1600  # long side of a drawn photo, pixels, unless a size is asked for


@dataclass(frozen=True)
class Style:
    """How heat is drawn.

    Args:
        alpha: opacity of the heat over the photo, fraction in [0, 1].
        smooth: linear between the patches' centres; otherwise each patch has one colour.
        grid: lines between the patches.

    Raises:
        ValueError: another alpha.
    """

    alpha: float = 0.5
    smooth: bool = True
    grid: bool = False

    def __post_init__(self) -> None:
        if not 0 <= self.alpha <= 1:
            raise ValueError(f"alpha ({self.alpha}) must be a fraction in [0, 1]")


PLAIN = Style()


@dataclass(frozen=True)
class Canvas:
    """A photo as it is drawn.

    Args:
        pixels: (height, width, 3) uint8.
        affine: (2, 3) float64, patches to these pixels.
    """

    pixels: np.ndarray
    affine: np.ndarray

    def under(
        self,
        heat: np.ndarray,
        top: float,
        style: Style,
        outliers: Iterable[tuple[int, int]] = (),
        chosen: tuple[int, int] | None = None,
    ) -> np.ndarray:
        """The photo under the heat (rows, cols), some patches (row, column) marked.

        Args:
            top: top of the colour scale, times the mean.
            outliers: outlined as such.
            chosen: the patch whose view it is.
        """
        picture = overlay(
            self.pixels, heat, affine=self.affine, alpha=style.alpha, top=top, smooth=style.smooth
        )
        picture = np.asarray(picture)
        if style.grid:
            picture = gridded(picture, heat.shape, self.affine)
        picture = outlined(picture, outliers, self.affine)
        return picture if chosen is None else outlined(picture, [chosen], self.affine, CHOSEN, 2)


def canvas(photo: Photo, affine: np.ndarray, size: int | str | None = None) -> Canvas:
    """The photo at the size in which it is drawn.

    Args:
        affine: (2, 3), patches to the photo's pixels at full resolution.
        size: as for `drawn_size`.
    """
    height, width = drawn_size(photo.height, photo.width, size)
    method = Image.Resampling.BICUBIC
    if min(height / photo.height, width / photo.width) >= SQUARE_PIXELS_FROM:
        method = Image.Resampling.NEAREST
    image = photo.image
    if photo.box is not None or image.size != (width, height):
        image = image.resize((width, height), method, box=photo.box)
    zoom = np.array([[width / photo.width], [height / photo.height]])
    return Canvas(np.asarray(image), np.asarray(affine, dtype=np.float64) * zoom)


def drawn_size(height: int, width: int, size: int | str | None = None) -> tuple[int, int]:
    """(height, width) in which a photo of (height, width) pixels is drawn.

    Args:
        size: long side in pixels; "original": as it is; None: as it is, but enlarged to LEAST_SIDE
            and reduced to MOST_SIDE. A small photo is enlarged by a whole number, so that all its
            pixels become squares of the same size.

    Raises:
        ValueError: another size.
    """
    if size == "original":
        return height, width
    side = max(height, width)
    if size is None:
        factor = min(1.0, MOST_SIDE / side)
        if side < LEAST_SIDE:
            factor = LEAST_SIDE / side
            factor = math.ceil(factor) if factor >= SQUARE_PIXELS_FROM else factor
    elif isinstance(size, int) and size >= 1:
        factor = size / side
    else:
        raise ValueError(f'size ({size}) must be a number of pixels, at least 1, or "original"')
    return max(1, round(height * factor)), max(1, round(width * factor))


def heat_affine(fitted: Fitted, patch_size: tuple[int, int]) -> np.ndarray:
    """Patches to the photo's pixels at full resolution: (2, 3) float64.

    Args:
        patch_size: (height, width) of a patch, in the network's pixels.
    """
    height, width = patch_size
    return fitted.affine * [width, height, 1.0]


def patch_at(affine: np.ndarray, shape: tuple[int, int], point: tuple[float, float]):
    """(row, column) of the patch under a point (x, y) of the photo.

    Args:
        affine: (2, 3), patches to the photo's pixels.
        shape: (rows, cols) of the map.

    Raises:
        ValueError: the network saw nothing there.
    """
    x, y = np.linalg.solve(affine[:, :2], np.asarray(point, dtype=np.float64) - affine[:, 2])
    row, col = math.floor(y), math.floor(x)
    if not (0 <= row < shape[0] and 0 <= col < shape[1]):
        (x0, y0), (x1, y1) = (affine @ (*corner, 1.0) for corner in ((0, 0), shape[::-1]))
        raise ValueError(
            f"the network saw nothing at pixel {point[0]:g},{point[1]:g}: what it saw reaches from "
            f"{max(0, x0):.0f},{max(0, y0):.0f} to {x1:.0f},{y1:.0f} (x,y from the top left corner)"
        )
    return row, col
