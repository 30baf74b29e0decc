"""A photo's look in 704 numbers: its low frequencies, of which a crop's can be computed.

The signature is the low end of the discrete cosine transform, of brightness and colour, of the photo
squashed to 64x64. Looks are compared by the cosine of the angle between coefficients, each weighted
by its frequency: natural images have amplitudes that fall as 1 / frequency (Field 1987, "Relations
between the statistics of natural images and the response properties of cortical cells"), so that
weighted ones count alike. Cropping is linear, and so a crop's coefficients follow from the whole
photo's. Legend: n photos, F = 704 coefficients kept, D = 173 compared.
"""

from functools import cache

import numpy as np

SIDE = 64  # pixels, of what a signature is made from
FLAT = 2.0  # grey levels (0 to 255) of contrast, below which a photo has nothing to compare

# Shares of the width and height that are cut off: left, top, right, bottom.
Crop = tuple[float, float, float, float]
WHOLE: Crop = (0.0, 0.0, 0.0, 0.0)

_KEPT, _KEPT_COLOUR = 24, 8  # frequencies per direction in a signature
_USED, _USED_COLOUR = 12, 4  # of these compared
_LUMA = np.array([0.299, 0.587, 0.114], np.float32)


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


def mirrored(signatures: np.ndarray) -> np.ndarray:
    """(n, F) -> (n, F) of the left-right flipped photos: odd frequencies across change sign."""
    signs = [np.where(np.mgrid[:kept, :kept][1] % 2, -1, 1).ravel() for kept, _ in _planes()]
    return signatures * np.concatenate(signs).astype(np.float16)


def weighted(signatures: np.ndarray, crop: Crop) -> np.ndarray:
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


def _planes() -> tuple[tuple[int, int], ...]:
    """(kept, used) frequencies per direction of brightness, blue and red."""
    return ((_KEPT, _USED), (_KEPT_COLOUR, _USED_COLOUR), (_KEPT_COLOUR, _USED_COLOUR))


def _constants() -> tuple[int, ...]:
    """Where in a signature the three means stand."""
    return (0, _KEPT**2, _KEPT**2 + _KEPT_COLOUR**2)
