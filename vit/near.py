"""Near-identical photos: the same picture resized, recompressed, cropped by a little, or mirrored.

A photo's signature is the low frequencies of its discrete cosine transform, brightness and colour,
after squashing it to 64x64. Two photos are compared by the cosine of the angle between their
coefficients, each weighted by its frequency: natural images have amplitudes that fall as 1 /
frequency (Field 1987, "Relations between the statistics of natural images and the response
properties of cortical cells"), so that the weighted ones count alike. Cropping is linear, and so
what a crop's coefficients would be follows from the whole photo's. Legend: n photos, F = 704
coefficients kept, D = 173 compared.
"""

from collections.abc import Callable, Iterable
from functools import cache
from typing import NamedTuple

import numpy as np

# Likeness is a cosine, 1 for equal photos. benchmarks/near_duplicates.py prints what these limits
# find. On five sets of real photos (1,252 of flowers, insects, food, fruit, things) resized,
# recompressed and cropped copies have at least 0.957; different photos of different things at most
# 0.75. Between lie other shots of one thing before one background (0.953 at most, an orange turned
# by hand), and copies whose colours were changed. Of the 50 million pairs of CIFAR-10's test photos
# all 40 above ALIKE show one picture; the first that do not have 0.88.
COPY = 0.955  # a copy
ALIKE = 0.9  # an edited copy, or another shot of one series
# Things of one shape before nothing (trousers in Fashion-MNIST) are alike by 0.99 without being
# copies. So a pair must stand out: its distance, 1 - likeness, must be at most this share of that to
# the CROWD-th nearest photo. Of more copies than that only the nearest are found.
STANDS_OUT, CROWD = 0.2, 20
FLAT = 2.0  # grey levels (0 to 255) of contrast, below which a photo has nothing to compare
SIDE = 64  # pixels, of what a signature is made from

_KEPT, _KEPT_COLOUR = 24, 8  # frequencies per direction in a signature
_USED, _USED_COLOUR = 12, 4  # of these compared
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)
_NEAREST = 32  # matches kept for a photo
_BLOCK = 1024  # photos compared with as many at once
# (left, top, right, bottom) fractions cut off: steps so small that a crop in between is like one.
_E = 0.05
_CROPS = (
    *((cut,) * 4 for cut in (0.0, 0.0125, 0.025, _E)),
    *((_E, 0, 0, 0), (0, _E, 0, 0), (0, 0, _E, 0), (0, 0, 0, _E)),
    *((_E, _E, 0, 0), (0, _E, _E, 0), (0, 0, _E, _E), (_E, 0, 0, _E)),
)


class Match(NamedTuple):
    """Two photos by their places in the list, the first before the second."""

    first: int
    second: int
    likeness: float
    mirrored: bool


def signature(pixels: np.ndarray) -> np.ndarray:
    """(64, 64, 3) uint8 -> (F,) float16.

    Raises:
        ValueError: other pixels than that.
    """
    if pixels.shape != (SIDE, SIDE, 3):
        raise ValueError(f"expected pixels of shape {(SIDE, SIDE, 3)}, got {pixels.shape}")
    rgb = pixels.astype(np.float32)
    luma = rgb @ _LUMA
    planes = (luma, (rgb[..., 2] - luma) / 2, (rgb[..., 0] - luma) / 2)
    kept = [
        basis(count, SIDE) @ plane @ basis(count, SIDE).T
        for plane, count in zip(planes, (_KEPT, _KEPT_COLOUR, _KEPT_COLOUR), strict=True)
    ]
    return np.concatenate([coefficients.ravel() for coefficients in kept]).astype(np.float16)


def contrast(signatures: np.ndarray) -> np.ndarray:
    """(n, F) -> (n,) root mean square difference from the mean colour, in grey levels."""
    varying = signatures.astype(np.float32)
    varying[:, list(_constants())] = 0
    return np.sqrt(np.square(varying).sum(1)) / SIDE


def matches(
    signatures: np.ndarray, least: float = ALIKE, advance: Callable[[int], None] | None = None
) -> list[Match]:
    """(n, F) -> pairs of photos that are alike and stand out, enough to connect all that are.

    Of photos that are alike in a row (1 and 2, 2 and 3, ...) only the best pairs are given: those
    above any limit connect the same photos as all pairs above it would. Time grows with n^2 (ten
    seconds for 10,000 photos on two cores), memory with n.

    Args:
        least: the likeness from which on a pair is given.
        advance: is told, in steps, of n * n compared pairs.
    """
    wholes = weighted(signatures, _CROPS[0])
    crowd = np.full((len(signatures), CROWD + 1), -1, np.float32)  # of each its greatest likenesses
    found: dict[tuple[int, int], tuple[float, bool]] = {}
    for start in range(0, len(signatures), _BLOCK):
        block = signatures[start : start + _BLOCK]
        crops = [weighted(block, crop) for crop in _CROPS]
        for row in range(0, len(wholes), _BLOCK):
            some = slice(row, row + _BLOCK)
            likeness, mirrored = compared(wholes[some], crops)
            crowd[some] = greatest(np.concatenate([crowd[some], likeness], axis=1), CROWD + 1)
            for first, second, *how in hits(likeness, mirrored, row, start, least):
                pair = (min(first, second), max(first, second))
                found[pair] = max(found.get(pair, (0.0, False)), tuple(how))
            if advance:
                advance(likeness.size)
        found = {(one.first, one.second): one[2:] for one in forest(found, len(signatures))}
    return outstanding(forest(found, len(signatures)), crowd)


def compared(wholes: np.ndarray, crops: list[np.ndarray]) -> tuple[np.ndarray, np.ndarray]:
    """Whole photos (rows, D), others' crops (cols, D) -> likeness, and that to the mirrored ones."""
    mirrored = wholes @ (crops[0] * _mirror_signs()).T
    likeness = mirrored.copy()
    for crop in crops:
        np.maximum(likeness, wholes @ crop.T, out=likeness)
    return np.minimum(likeness, 1), mirrored


def greatest(values: np.ndarray, count: int) -> np.ndarray:
    """(n, m) -> (n, count): the greatest of each row, in no order."""
    return np.partition(values, -count, axis=1)[:, -count:]


def outstanding(pairs: list[Match], crowd: np.ndarray) -> list[Match]:
    """Those pairs that are much nearer than the photos around them; all where there are hardly any.

    Args:
        crowd: (n, CROWD + 1): of each photo the greatest likenesses, the one to itself among them.
    """
    if len(crowd) <= 2 * CROWD:
        return pairs
    around = crowd.min(axis=1)
    return [
        pair
        for pair in pairs
        if 1 - pair.likeness <= STANDS_OUT * (1 - max(around[pair.first], around[pair.second]))
    ]


def hits(
    likeness: np.ndarray, mirrored: np.ndarray, row: int, col: int, least: float
) -> Iterable[tuple[int, int, float, bool]]:
    """Pairs that are alike: first, second, likeness, whether mirrored.

    Args:
        likeness, mirrored: (rows, cols), see `compared`.
        row: number of the first row's photo.
        col: number of the first column's.
    """
    rows, cols = np.nonzero(likeness >= least)
    apart = rows + row != cols + col
    rows, cols = nearest(rows[apart], cols[apart], likeness)
    values = likeness[rows, cols]
    turned = mirrored[rows, cols] >= values
    columns = (rows + row, cols + col, values, turned)
    return zip(*(column.tolist() for column in columns), strict=True)


def nearest(
    rows: np.ndarray, cols: np.ndarray, likeness: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Of each row's hits the best ones: a folder of a film's frames has millions of alike pairs."""
    order = np.lexsort((-likeness[rows, cols], rows))
    rows, cols = rows[order], cols[order]
    first = np.searchsorted(rows, rows)  # where each one's row begins
    keep = np.arange(len(rows)) - first < _NEAREST
    return rows[keep], cols[keep]


def forest(found: dict[tuple[int, int], tuple[float, bool]], count: int) -> list[Match]:
    """The best pairs that connect what all pairs connect, the best one first (Kruskal 1956).

    Args:
        found: likeness and mirrored, by (first, second).
        count: how many photos there are.
    """
    parent = list(range(count))
    best = sorted(found, key=lambda pair: (-found[pair][0], pair))
    return [Match(*pair, *found[pair]) for pair in best if join(parent, *pair)]


def groups(pairs: Iterable[tuple[int, int]], count: int) -> list[list[int]]:
    """Photos that pairs connect, each group in order, the first one's first."""
    parent = list(range(count))
    for first, second in pairs:
        join(parent, first, second)
    by_root: dict[int, list[int]] = {}
    for one in range(count):
        by_root.setdefault(root(parent, one), []).append(one)
    return [group for group in by_root.values() if len(group) > 1]


def join(parent: list[int], first: int, second: int) -> bool:
    """Makes two trees one; False where they were one already."""
    first, second = root(parent, first), root(parent, second)
    parent[max(first, second)] = min(first, second)
    return first != second


def root(parent: list[int], one: int) -> int:
    """The tree that one stands in, by its root; shortens the way for the next time."""
    while parent[one] != one:
        parent[one] = one = parent[parent[one]]
    return one


def weighted(signatures: np.ndarray, crop: tuple[float, float, float, float]) -> np.ndarray:
    """(n, F) -> (n, D) of unit length: what is compared, of a crop; zeros for one colour."""
    left, top, right, bottom = crop
    parts, start = [], 0
    for kept, used in _planes():
        plane = signatures[:, start : start + kept**2].astype(np.float32).reshape(-1, kept, kept)
        start += kept**2
        rows = basis(used, SIDE, top, 1 - bottom) @ basis(kept, SIDE).T  # (used, kept)
        cols = basis(used, SIDE, left, 1 - right) @ basis(kept, SIDE).T
        v, u = np.mgrid[:used, :used]
        parts.append((rows @ plane @ cols.T * np.hypot(u, v)).reshape(-1, used**2)[:, 1:])
    together = np.concatenate(parts, axis=1)
    length = np.linalg.norm(together, axis=1, keepdims=True)
    together /= np.maximum(length, 1e-6)
    together[contrast(signatures) < FLAT] = 0
    return together


@cache
def basis(count: int, size: int, low: float = 0.0, high: float = 1.0) -> np.ndarray:
    """(count, size): the cosines of a DCT of the part low..high (fractions) of `size` pixels.

    A pixel that the part's edge cuts counts by its share. The whole (0..1) is the orthonormal DCT.
    """
    edges = np.arange(size + 1) / size
    share = np.clip(np.minimum(edges[1:], high) - np.maximum(edges[:-1], low), 0, None) * size
    places = (np.clip((edges[1:] + edges[:-1]) / 2, low, high) - low) / (high - low)
    frequency = np.arange(count)[:, None]
    scale = np.where(frequency == 0, np.sqrt(0.5), 1) * np.sqrt(2 / share.sum())
    return (np.cos(np.pi * frequency * places) * share * scale).astype(np.float32)


@cache
def _mirror_signs() -> np.ndarray:
    """(D,): -1 where a left-right flip changes a coefficient's sign: at odd frequencies across."""
    signs = [np.where(np.mgrid[:used, :used][1] % 2, -1, 1) for _, used in _planes()]
    return np.concatenate([plane.ravel()[1:] for plane in signs]).astype(np.float32)


def _planes() -> tuple[tuple[int, int], ...]:
    """(kept, used) frequencies per direction of brightness, blue and red."""
    return ((_KEPT, _USED), (_KEPT_COLOUR, _USED_COLOUR), (_KEPT_COLOUR, _USED_COLOUR))


def _constants() -> tuple[int, ...]:
    """Where in a signature the three means stand."""
    return (0, _KEPT**2, _KEPT**2 + _KEPT_COLOUR**2)
