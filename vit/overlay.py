"""Heat laid over a photo: arrays and PIL images in, a picture out, RGB everywhere.

Coordinates are continuous, (x, y) from the top left corner: the pixel or patch in row i and
column j covers [j, j + 1] x [i, i + 1], its centre is (j + 0.5, i + 0.5). An affine map (2, 3)
takes heat coordinates to photo coordinates: affine @ (x, y, 1) in patches is (x, y) in pixels.

Heat is drawn in "times the mean": 1 is what every patch gets where attention is spread evenly, so a
flat map has the one colour at 1 and no map is stretched until it looks like a finding.
"""

import math
import sys
from collections.abc import Iterable
from functools import cache
from types import ModuleType

import numpy as np
from PIL import Image

# Perceptually even, dark to light, also for colour-blind eyes and in grey (Smith & van der Walt
# 2015, https://bids.github.io/colormap). One of matplotlib's names.
COLOURS = "inferno"

# The top of the scale: the patches up to it hold this share of the mass. With real pretrained
# weights a few background patches take 5 to 15 % of a map (Darcet et al. 2024, arXiv 2309.16588):
# a scale up to the maximum, or one that shows 90 % of the mass, draws those and nothing else.
MASS_BELOW_TOP = 0.8
LEAST_TOP = 2.0  # times the mean; a map that stays below it is nearly flat and has to look so

STRIPES = (30, 70)  # grey levels of the hatching where there is no heat: never a colour of the map
SQUARE_PIXELS_FROM = 4  # a photo enlarged this many times shows its pixels as squares


def overlay(
    photo, heat, *, affine=None, alpha=0.5, top=None, smooth=True, size=None
) -> Image.Image:
    """Heat (rows, cols) over a photo (height, width, 3) -> RGB picture.

    Where the map does not reach, the photo is dimmed and hatched, as strongly as `alpha` says.

    Args:
        photo: PIL image, or uint8 array (height, width, 3) in RGB.
        heat: array or tensor of finite numbers >= 0; only their ratios matter.
        affine: (2, 3), heat coordinates to photo pixels; None: the heat covers the whole photo.
        alpha: opacity of the heat, the same everywhere, fraction in [0, 1]; 0 is the photo itself.
        top: top of the colour scale, times the mean; None: `scale_top([heat])`.
        smooth: linear between the patches' centres; otherwise each patch has one colour.
        size: long side of the picture, pixels; None: the photo's own.

    Raises:
        ValueError: an argument of another form or range than written here.
    """
    photo, values = as_pixels(photo), times_the_mean(heat)
    if not 0 <= alpha <= 1:
        raise ValueError(f"alpha ({alpha}) must be a fraction in [0, 1]")
    top = scale_top([heat]) if top is None else top
    if not top > 0:
        raise ValueError(f"top ({top}) must be above 0, in times the mean")
    (height, width), (rows, cols) = photo.shape[:2], values.shape
    if affine is None:
        affine = [[width / cols, 0, 0], [0, height / rows, 0]]
    picture = resized(photo, size)
    zoom = np.array([[picture.shape[1] / width], [picture.shape[0] / height]])
    drawn, seen = sample(values, inverse(affine, zoom), picture.shape[:2], smooth)
    colours = colour_map()[np.rint(np.clip(drawn / top, 0, 1) * 255).astype(np.uint8)]
    colours = np.where(seen[..., None], colours, hatching(*picture.shape[:2])[..., None])
    mixed = (1 - alpha) * picture + alpha * colours
    return Image.fromarray(np.rint(mixed).astype(np.uint8))


def scale_top(heats: Iterable, left_out: Iterable | None = None) -> float:
    """One top of the colour scale for several maps (each rows, cols), in times the mean.

    The patches up to it hold MASS_BELOW_TOP of the maps' mass, so that a few patches with
    very much heat do not darken all others; it is never below LEAST_TOP.

    Args:
        left_out: for each map the patches that have no say, (rows, cols) bool, or None for none.
    """
    heats = [times_the_mean(heat) for heat in heats]
    masks = [None] * len(heats) if left_out is None else left_out
    said = [
        heat.ravel() if mask is None else heat[~np.asarray(mask, dtype=bool)]
        for heat, mask in zip(heats, masks, strict=True)
    ]
    values = np.sort(np.concatenate(said))
    if not values.size:
        return LEAST_TOP
    mass = values.cumsum()
    top = values[np.searchsorted(mass, MASS_BELOW_TOP * mass[-1])]
    return max(float(top), LEAST_TOP)


@cache
def colour_map() -> np.ndarray:
    """The colours of the scale, from 0 to its top: uint8 (256, 3), read-only."""
    from matplotlib import colormaps  # here, so that importing this module stays cheap

    table = np.rint(colormaps[COLOURS](np.arange(256))[:, :3] * 255).astype(np.uint8)
    table.flags.writeable = False  # it is shared by all callers
    return table


def times_the_mean(heat) -> np.ndarray:
    """heat / mean(heat), (rows, cols) float64; a map of zeros stays zero.

    Raises:
        ValueError: not two axes, or a value that is negative or not finite.
    """
    if hasattr(heat, "detach"):  # a tensor, of whatever device and precision
        heat = heat.detach().cpu().double().numpy()
    heat = np.asarray(heat, dtype=np.float64)
    if heat.ndim != 2 or not heat.size:
        raise ValueError(f"heat must be (rows, cols), got {heat.shape}; draw one map at a time")
    if not (np.isfinite(heat).all() and (heat >= 0).all()):
        raise ValueError(
            f"heat must be finite and at least 0, got {heat.min():g} to {heat.max():g}"
        )
    mean = heat.mean()
    return heat / mean if mean else heat


def as_pixels(photo) -> np.ndarray:
    """PIL image or array -> uint8 (height, width, 3), RGB.

    Raises:
        ValueError: an array of another form.
    """
    if isinstance(photo, Image.Image):
        photo = photo.convert("RGB")
    photo = np.asarray(photo)
    if photo.ndim != 3 or photo.shape[2] != 3 or photo.dtype != np.uint8 or not photo.size:
        raise ValueError(
            "photo must be a PIL image or a uint8 array (height, width, 3), "
            f"got {photo.dtype} {photo.shape}"
        )
    return photo


def resized(photo: np.ndarray, size: int | None) -> np.ndarray:
    """The photo (height, width, 3) with its long side `size` pixels long; None: as it is."""
    if size is None:
        return photo
    if not size >= 1:
        raise ValueError(f"size ({size}) must be at least 1 pixel")
    factor = size / max(photo.shape[:2])
    height, width = (max(1, round(side * factor)) for side in photo.shape[:2])
    squares = factor >= SQUARE_PIXELS_FROM
    method = Image.Resampling.NEAREST if squares else Image.Resampling.BICUBIC
    return np.asarray(Image.fromarray(photo).resize((width, height), method))


def inverse(affine, zoom: np.ndarray) -> np.ndarray:
    """Heat to photo coordinates (2, 3), photo to picture (2, 1) -> picture to heat (2, 3).

    Raises:
        ValueError: affine is not (2, 3), or maps the heat onto a line.
    """
    affine = np.asarray(affine, dtype=np.float64)
    if affine.shape != (2, 3) or not np.isfinite(affine).all():
        raise ValueError(f"affine must be 2 x 3 finite numbers, got {affine.tolist()}")
    affine = affine * zoom
    if not abs(np.linalg.det(affine[:, :2])) > 0:
        raise ValueError(f"affine {affine.tolist()} maps the heat onto a line")
    turn = np.linalg.inv(affine[:, :2])
    return np.hstack([turn, -turn @ affine[:, 2:]])


def sample(
    values: np.ndarray, to_heat: np.ndarray, shape: tuple[int, int], smooth: bool
) -> tuple[np.ndarray, np.ndarray]:
    """Values (rows, cols) at the pixels' centres -> (height, width), and where the map reaches."""
    rows, cols = values.shape
    y, x = np.arange(shape[0])[:, None] + 0.5, np.arange(shape[1])[None] + 0.5
    # Terms with factor 0 are left out: without rotation x stays (1, width) and y (height, 1).
    x, y = (sum((k * p for k, p in ((a, x), (b, y)) if k), c) for a, b, c in to_heat)
    seen = (x >= 0) & (x < cols) & (y >= 0) & (y < rows)
    i, below, down = neighbours(y, rows, smooth)
    j, right, along = neighbours(x, cols, smooth)
    upper = values[i, j] * (1 - along) + values[i, right] * along
    lower = values[below, j] * (1 - along) + values[below, right] * along
    return upper * (1 - down) + lower * down, seen


def neighbours(
    position: np.ndarray, count: int, smooth: bool
) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """The patch before each position, the one after it, and the way between the two centres, 0..1.

    Beyond the outermost centres the outermost patch goes on; without `smooth` the way is 0.
    """
    if not smooth:
        here = np.clip(np.floor(position), 0, count - 1).astype(np.intp)
        return here, here, np.zeros_like(position)
    position = np.clip(position - 0.5, 0, count - 1)  # counted from the first centre
    before = np.floor(position).astype(np.intp)
    return before, np.minimum(before + 1, count - 1), position - before


def hatching(height: int, width: int) -> np.ndarray:
    """Diagonal stripes in two greys: uint8 (height, width)."""
    stripe = max(1, math.ceil(max(height, width) / 100))  # pixels
    diagonal = np.arange(height)[:, None] + np.arange(width)
    return np.array(STRIPES, dtype=np.uint8)[diagonal // stripe % 2]


class CallableModule(ModuleType):
    """Importing this module puts it in the place of the function `vit.overlay`: so it is that, too."""

    def __call__(self, *args, **kwargs) -> Image.Image:
        return overlay(*args, **kwargs)


sys.modules[__name__].__class__ = CallableModule
