"""Lines drawn on a picture where patches lie: outlines of some, the grid of all.

Arrays and an affine map in, a new array out. Coordinates as in `vit.overlay`: continuous, the patch
in row i and column j covers [j, j + 1] x [i, i + 1], affine @ (x, y, 1) is a point of the picture.
"""

import math
from collections.abc import Iterable

import numpy as np
from PIL import Image, ImageDraw

# Never a colour of the map, and each cased in black: to be seen on any photo.
OUTLIER = (0, 229, 255)
CHOSEN = (255, 255, 255)
GRID = (128, 128, 128)

# A patch's sides as (from, to) corners and the neighbour beyond, in (column, row) and (row, column).
SIDES = (
    ((0, 0), (1, 0), (-1, 0)),
    ((1, 0), (1, 1), (0, 1)),
    ((0, 1), (1, 1), (1, 0)),
    ((0, 0), (0, 1), (0, -1)),
)

Segment = tuple[tuple[float, float], tuple[float, float]]


def outlined(
    picture: np.ndarray,
    patches: Iterable[tuple[int, int]],
    affine: np.ndarray,
    colour: tuple[int, int, int] = OUTLIER,
    thick: float = 1.0,
) -> np.ndarray:
    """The picture (height, width, 3) with a line around each group of patches (row, column).

    Args:
        thick: times the usual width of a line.
    """
    chosen = {(int(row), int(col)) for row, col in patches}
    shown = [patch for patch in sorted(chosen) if is_on(patch, picture.shape[:2], affine)]
    segments = [
        ((col + x0, row + y0), (col + x1, row + y1))
        for row, col in shown
        for (x0, y0), (x1, y1), (down, along) in SIDES
        if (row + down, col + along) not in chosen
    ]
    width = round(thick * line_width(picture, affine)) or 1
    cased = drawn(picture, segments, affine, (0, 0, 0), width + 2 * math.ceil(width / 2))
    return drawn(cased, segments, affine, colour, width)


def is_on(patch: tuple[int, int], size: tuple[int, int], affine: np.ndarray) -> bool:
    """Whether some of a patch (row, column) lies on a picture of (height, width)."""
    row, col = patch
    corners = [affine @ (col + x, row + y, 1.0) for x in (0, 1) for y in (0, 1)]
    across, down = zip(*corners, strict=True)
    height, width = size
    within = min(across) < width - 1e-6 and max(across) > 1e-6
    return within and min(down) < height - 1e-6 and max(down) > 1e-6


def gridded(picture: np.ndarray, shape: tuple[int, int], affine: np.ndarray) -> np.ndarray:
    """The picture with a thin line between all patches of a map of (rows, cols)."""
    rows, cols = shape
    across = [((0, row), (cols, row)) for row in range(rows + 1)]
    down = [((col, 0), (col, rows)) for col in range(cols + 1)]
    return drawn(picture, across + down, affine, GRID, 1)


def line_width(picture: np.ndarray, affine: np.ndarray) -> int:
    """Pixels: two on a picture of 512, in proportion on larger ones, less on small patches."""
    patch = math.sqrt(abs(np.linalg.det(affine[:, :2])))
    return max(1, min(round(max(picture.shape[:2]) / 300), int(patch / 8)))


def drawn(
    picture: np.ndarray,
    segments: list[Segment],
    affine: np.ndarray,
    colour: tuple[int, int, int],
    width: int,
) -> np.ndarray:
    """Straight lines between points of the map; ends square, so that corners close."""
    image = Image.fromarray(picture)
    draw = ImageDraw.Draw(image)
    before, after = (width - 1) // 2, width // 2
    for ends in segments:
        (x0, y0), (x1, y1) = (affine @ (*end, 1.0) for end in ends)
        if math.isclose(x0, x1, abs_tol=1e-6) or math.isclose(y0, y1, abs_tol=1e-6):
            left, right = sorted((x0, x1))
            top, bottom = sorted((y0, y1))
            if max(left - image.width, top - image.height, -right, -bottom) > 1e-6:
                continue  # beside the picture, not at its edge
            draw.rectangle(
                (
                    inside(left, image.width) - before,
                    inside(top, image.height) - before,
                    inside(right, image.width) + after,
                    inside(bottom, image.height) + after,
                ),
                fill=colour,
            )
        else:
            draw.line((x0, y0, x1, y1), fill=colour, width=width)
    return np.asarray(image)


def inside(position: float, size: int) -> int:
    """The pixel at a continuous position; at the picture's far edge the last one."""
    return min(math.floor(position + 1e-6), size - 1)
