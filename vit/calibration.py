"""How often it is right where it says how sure it is: answers binned by their confidence.

Source: Guo et al. 2017, "On Calibration of Modern Neural Networks" (arXiv 1706.04599), section 2.
n images.
"""

import numpy as np

from vit.metrics import BINS


def binned(confidence: np.ndarray, correct: np.ndarray) -> tuple[np.ndarray, ...]:
    """(n,), (n,) -> images, mean confidence and share of right ones per bin: each (BINS,).

    The bins are (0, 1/15], (1/15, 2/15], ...; empty ones have nan.
    """
    places = np.ceil(confidence * BINS).astype(int).clip(1, BINS) - 1
    count = np.bincount(places, minlength=BINS)
    images = np.where(count, count, np.nan)
    sums = (np.bincount(places, weights=values, minlength=BINS) for values in (confidence, correct))
    return count, *(total / images for total in sums)


def calibration_error(count: np.ndarray, sure: np.ndarray, right: np.ndarray) -> float:
    """ECE: the mean of |right - sure| over the images; arguments as from `binned`."""
    return float(np.nansum(count * np.abs(right - sure)) / count.sum())


def wilson(share: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """95 % interval of a share seen in `count` images (Wilson 1927, J. Am. Stat. Assoc. 22, 209)."""
    z = 1.959964
    centre = share + z**2 / (2 * count)
    half = z * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    low, high = ((centre + sign * half) / (1 + z**2 / count) for sign in (-1, 1))
    return np.minimum(low, share), np.maximum(high, share)  # at 0 and 1 up to rounding
