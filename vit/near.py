"""Near-identical photos: the same picture resized, recompressed, cropped by a little, or mirrored.

All pairs are compared by the cosine of their signatures (`spectrum`), whole photos with a dozen crops
of each other; the crop is then searched for finely where a pair comes near. Legend: n photos, F and D
coefficients as in `spectrum`.
"""

from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace

import numpy as np

from vit.grouping import join
from vit.spectrum import WHOLE, Crop, mirrored, weighted

# Chosen on five sets of real photos and altered copies, see benchmarks/near_duplicates.py. Copies have
# at least 0.97, at a quarter of the size; other shots of one thing before one background at most 0.964
# (fruit turned by hand); different things at most 0.76. In the 50 million pairs of CIFAR-10's test
# photos all 43 that are found show one picture.
COPY = 0.97  # a copy
ALIKE = 0.92  # an edited copy, or another shot of one series
# Things of one shape before nothing (trousers in Fashion-MNIST) are alike by 0.99 without being
# copies. So a pair must stand out: its distance, 1 - likeness, must be at most this share of that to
# the CROWD-th nearest photo. Of more copies than that only the nearest are found.
STANDS_OUT, CROWD = 0.2, 20

_NEAR = 0.85  # from which on the crop is searched for
_NEAREST = 32  # pairs kept for a photo
_BLOCK = 1024  # photos compared with as many at once
_EDGE, _STEP, _MOST = 0.05, 0.0125, 0.0625  # cut off: at first, finely, at most
_CROPS: tuple[Crop, ...] = (
    *((cut,) * 4 for cut in (0.0, _STEP, 2 * _STEP, _EDGE)),
    *((_EDGE, 0, 0, 0), (0, _EDGE, 0, 0), (0, 0, _EDGE, 0), (0, 0, 0, _EDGE)),
    *((_EDGE, _EDGE, 0, 0), (0, _EDGE, _EDGE, 0), (0, 0, _EDGE, _EDGE), (_EDGE, 0, 0, _EDGE)),
)


@dataclass(frozen=True)
class Match:
    """Two photos by their places in the list, the first before the second.

    Args:
        likeness: the greatest cosine, 1 for equal photos.
        mirrored: one is the left-right flipped picture of the other.
    """

    first: int
    second: int
    likeness: float
    mirrored: bool

    @property
    def pair(self) -> tuple[int, int]:
        """Both places."""
        return self.first, self.second


def matches(
    signatures: np.ndarray, least: float = ALIKE, advance: Callable[[int], None] | None = None
) -> list[Match]:
    """(n, F) -> pairs of photos that are alike and stand out, enough to connect all that are.

    Of photos that are alike in a row (1 and 2, 2 and 3, ...) only the best pairs are given: those
    above any limit connect the same photos as all pairs above it would. Time grows with n^2, memory
    with n.

    Args:
        least: the likeness from which on a pair is given.
        advance: is told, in steps, of n * n compared pairs.
    """
    found, crowd = candidates(signatures, advance)
    refined = [finely(one, signatures) for one in batches(outstanding(found, crowd))]
    good = [match for some in refined for match in some if match.likeness >= least]
    return sorted(good, key=lambda match: (-match.likeness, match.pair))


def candidates(
    signatures: np.ndarray, advance: Callable[[int], None] | None
) -> tuple[list[Match], np.ndarray]:
    """Pairs that come near, by the crops of `_CROPS`; and of each photo its greatest likenesses.

    The second is (n, CROWD + 1), the likeness to itself among them.
    """
    wholes = weighted(signatures, WHOLE)
    crowd = np.full((len(signatures), CROWD + 1), -1, np.float32)
    found: dict[tuple[int, int], tuple[float, bool]] = {}
    for start in range(0, len(signatures), _BLOCK):
        block = signatures[start : start + _BLOCK]
        crops = [weighted(block, crop) for crop in _CROPS]
        flipped = weighted(mirrored(block), WHOLE)
        for row in range(0, len(wholes), _BLOCK):
            some = slice(row, row + _BLOCK)
            likeness, turned = compared(wholes[some], crops, flipped)
            crowd[some] = greatest(np.concatenate([crowd[some], likeness], axis=1), CROWD + 1)
            for first, second, *how in hits(likeness, turned, row, start):
                pair = (min(first, second), max(first, second))
                found[pair] = max(found.get(pair, (0.0, False)), tuple(how))
            if advance:
                advance(likeness.size)
        found = {one.pair: (one.likeness, one.mirrored) for one in forest(found, len(signatures))}
    return forest(found, len(signatures)), crowd


def compared(
    wholes: np.ndarray, crops: list[np.ndarray], flipped: np.ndarray
) -> tuple[np.ndarray, np.ndarray]:
    """Likeness (rows, cols) of whole photos to others' crops or mirror pictures, and to the latter.

    Args:
        wholes: (rows, D).
        crops: for each way of cropping (cols, D).
        flipped: the mirror pictures, (cols, D).
    """
    turned = wholes @ flipped.T
    likeness = turned.copy()
    for crop in crops:
        np.maximum(likeness, wholes @ crop.T, out=likeness)
    return np.minimum(likeness, 1), turned


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
    likeness: np.ndarray, turned: np.ndarray, row: int, col: int
) -> Iterable[tuple[int, int, float, bool]]:
    """Pairs that come near: first, second, likeness, whether mirrored.

    Args:
        likeness, turned: (rows, cols), see `compared`.
        row: number of the first row's photo.
        col: number of the first column's.
    """
    rows, cols = np.nonzero(likeness >= _NEAR)
    apart = rows + row != cols + col
    rows, cols = nearest(rows[apart], cols[apart], likeness)
    values = likeness[rows, cols]
    columns = (rows + row, cols + col, values, turned[rows, cols] >= values)
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


def batches(found: list[Match]) -> Iterable[list[Match]]:
    """The same in lists of at most _BLOCK, so that memory is bounded."""
    return (found[start : start + _BLOCK] for start in range(0, len(found), _BLOCK))


def finely(found: list[Match], signatures: np.ndarray) -> list[Match]:
    """The same pairs with the likeness at the best crop of one or the other photo."""
    first = signatures[[match.first for match in found]]
    second = signatures[[match.second for match in found]]
    turned = [match.mirrored for match in found]
    second[turned] = mirrored(second[turned])
    likeness = np.maximum(at_best_crop(first, second), at_best_crop(second, first))
    return [
        replace(match, likeness=float(best)) for match, best in zip(found, likeness, strict=True)
    ]


def at_best_crop(wholes: np.ndarray, others: np.ndarray) -> np.ndarray:
    """(m, F), (m, F) -> (m,) likeness of each photo to the crop of its other that is most like it.

    From the best of _CROPS on, each edge in turn is moved as long as that helps, twice around.
    """
    looks = weighted(wholes, WHOLE)
    tried = np.stack([dots(looks, weighted(others, crop)) for crop in _CROPS])
    best, crops = tried.max(axis=0), np.array(_CROPS)[tried.argmax(axis=0)]
    for edge in 2 * [0, 1, 2, 3]:
        for steps in (-2, -1, 1, 2):
            moved = crops.copy()
            moved[:, edge] = np.clip(moved[:, edge] + steps * _STEP, 0, _MOST)
            likeness = dots(looks, each_cropped(others, moved))
            better = likeness > best
            best[better], crops[better] = likeness[better], moved[better]
    return np.minimum(best, 1)


def each_cropped(signatures: np.ndarray, crops: np.ndarray) -> np.ndarray:
    """(m, F) and a crop for each (m, 4) -> (m, D)."""
    steps, which = np.unique(np.rint(crops / _STEP).astype(int), axis=0, return_inverse=True)
    looks = weighted(signatures, WHOLE)
    for number, crop in enumerate(steps):
        rows = which.ravel() == number
        looks[rows] = weighted(signatures[rows], tuple((crop * _STEP).tolist()))
    return looks


def dots(first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """(m, D), (m, D) -> (m,) scalar products row by row."""
    return np.einsum("md,md->m", first, second)


def forest(found: dict[tuple[int, int], tuple[float, bool]], count: int) -> list[Match]:
    """The best pairs that connect what all pairs connect, the best one first (Kruskal 1956).

    Args:
        found: likeness and mirrored, by (first, second).
        count: how many photos there are.
    """
    parent = list(range(count))
    best = sorted(found, key=lambda pair: (-found[pair][0], pair))
    return [Match(*pair, *found[pair]) for pair in best if join(parent, *pair)]
