"""A photo -> the pixels that a network takes, with the affine map back to the photo.

What training, evaluation, prediction and attention share. Sizes are (height, width) in pixels; points
and boxes are (x, y) in continuous coordinates whose pixel centres lie at +0.5, as in Pillow's
`resize(box=...)`.
"""

import math
from collections.abc import Mapping
from dataclasses import asdict, dataclass, fields
from typing import Any

import numpy as np
from PIL import Image

from vit.images import Box, Photo

FITS = ("crop", "pad", "squash")
INTERPOLATIONS = ("nearest", "bilinear", "bicubic", "lanczos", "box", "hamming")

_STRIP = 16  # a photo of more than this many parts is not resized as a whole


@dataclass(frozen=True)
class Preprocess:
    """How a photo becomes network pixels; travels with the weights.

    Args:
        size: (height, width) of the network's pixels.
        mean: Subtracted from pixels in 0..1, one number per channel or one for all.
        std: Divided by afterwards, likewise.
        interpolation: nearest, bilinear, bicubic, lanczos, box or hamming.
        crop_pct: Share of the resized photo's side that is kept, in (0, 1].
        fit: crop (short side resized, centre kept), pad (long side resized, the rest filled with
            the mean) or squash (both sides resized, the aspect ratio is lost).
    """

    size: tuple[int, int]
    mean: tuple[float, ...] = (0.5, 0.5, 0.5)
    std: tuple[float, ...] = (0.5, 0.5, 0.5)
    interpolation: str = "bicubic"
    crop_pct: float = 1.0
    fit: str = "crop"

    def __post_init__(self) -> None:
        for name in ("size", "mean", "std"):  # JSON and YAML give lists
            object.__setattr__(self, name, tuple(getattr(self, name)))
        if len(self.size) != 2 or not all(isinstance(side, int) and side > 0 for side in self.size):
            raise ValueError(f"size {self.size} must be two positive integers, (height, width)")
        if len(self.mean) not in (1, 3) or not all(0 <= value <= 1 for value in self.mean):
            raise ValueError(f"mean {self.mean} must be 1 or 3 numbers in 0..1, like pixels / 255")
        if len(self.std) != len(self.mean) or not all(value > 0 for value in self.std):
            raise ValueError(f"std {self.std} must be {len(self.mean)} positive numbers, as mean")
        if self.interpolation not in INTERPOLATIONS:
            rule = f"must be one of {', '.join(INTERPOLATIONS)}"
            raise ValueError(f"interpolation ({self.interpolation}) {rule}")
        if not 0 < self.crop_pct <= 1:
            raise ValueError(f"crop_pct ({self.crop_pct}) must be in (0, 1]")
        if self.fit not in FITS:
            raise ValueError(f"fit ({self.fit}) must be one of {', '.join(FITS)}")

    @property
    def resized(self) -> tuple[int, int]:
        """(height, width) of the photo before the centre is kept, for `read(at_least=...)`."""
        return tuple(math.floor(side / self.crop_pct) for side in self.size)

    def to_dict(self) -> dict[str, Any]:
        """The fields as JSON holds them."""
        return {key: list(v) if isinstance(v, tuple) else v for key, v in asdict(self).items()}

    @classmethod
    def from_dict(cls, mapping: Mapping[str, Any]) -> "Preprocess":
        """The inverse of `to_dict`; unknown keys are ignored, so that newer files can be read."""
        names = {field.name for field in fields(cls)}
        return cls(**{key: value for key, value in mapping.items() if key in names})


@dataclass(frozen=True)
class Fitted:
    """Network pixels and where they lie in the photo.

    Args:
        pixels: (height, width, 3) uint8.
        affine: (2, 3) float64; affine @ (x, y, 1) of the network's pixels is (x, y) of the photo at
            full resolution.
        seen: (x0, y0, x1, y1) of the photo the network sees, clipped to the photo.
    """

    pixels: np.ndarray
    affine: np.ndarray
    seen: Box


def fit(photo: Photo, preprocess: Preprocess) -> Fitted:
    """Photo -> (height, width, 3) network pixels, timm's evaluation transform within rounding."""
    full, size = (photo.height, photo.width), preprocess.size
    resized = _resized(full, preprocess)
    y, x = (whole / now for whole, now in zip(full, resized, strict=True))  # scale back
    up, across = (_offset(now, wanted) for now, wanted in zip(resized, size, strict=True))
    top, left = max(0, up), max(0, across)
    bottom, right = min(resized[0], up + size[0]), min(resized[1], across + size[1])

    pixels = np.empty((*size, 3), np.uint8)
    pixels[:] = [round(255 * value) for value in preprocess.mean]
    method = Image.Resampling[preprocess.interpolation.upper()]
    part = _resize(photo, resized, (left, top, right, bottom), method)
    pixels[top - up : bottom - up, left - across : right - across] = part
    affine = np.array([[x, 0.0, across * x], [0.0, y, up * y]])
    seen = (left * x, top * y, min(right * x, full[1]), min(bottom * y, full[0]))
    return Fitted(pixels, affine, seen)


def _resized(full: tuple[int, int], preprocess: Preprocess) -> tuple[int, int]:
    """(height, width) of the whole photo in network pixels, as timm's transforms_imagenet_eval."""
    target = preprocess.resized
    if preprocess.fit == "squash":
        return target
    cropped = preprocess.fit == "crop"
    if cropped and target[0] == target[1]:  # torchvision's Resize: the long side is truncated
        return tuple(int(target[0] * side / min(full)) for side in full)
    ratios = [side / wanted for side, wanted in zip(full, target, strict=True)]
    ratio = min(ratios) if cropped else max(ratios)  # timm's ResizeKeepRatio: rounded
    return tuple(max(1, round(side / ratio)) for side in full)


def _offset(resized: int, size: int) -> int:
    """Where the network's first pixel lies on the resized photo; negative where it is padding."""
    return round((resized - size) / 2) if resized >= size else -((size - resized) // 2)


def _resize(
    photo: Photo, size: tuple[int, int], part: tuple[int, int, int, int], method: Image.Resampling
) -> np.ndarray:
    """The part (left, top, right, bottom) of the photo resized to size (height, width), as uint8.

    Pillow's two passes round in between, and their order depends on the sizes: only the whole photo
    resized gives timm's pixels. A long strip would be huge then; of that only the part is made.
    """
    box = x0, y0, x1, y1 = photo.box or (0, 0, *photo.image.size)
    left, top, right, bottom = part
    if size[0] * size[1] <= _STRIP * (right - left) * (bottom - top):
        whole = np.asarray(photo.image.resize(size[::-1], method, box=box))
        return whole[top:bottom, left:right]
    x, y = (x1 - x0) / size[1], (y1 - y0) / size[0]
    box = (x0 + left * x, y0 + top * y, min(x0 + right * x, x1), min(y0 + bottom * y, y1))
    return np.asarray(photo.image.resize((right - left, bottom - top), method, box=box))
