"""Any image file -> upright RGB.

The one reader that training, evaluation, prediction and attention share. Sizes are (height, width)
in pixels; points and boxes are (x, y) in continuous coordinates whose pixel centres lie at +0.5, as
in Pillow's `resize(box=...)`.
"""

import io
import os
from collections.abc import Callable
from dataclasses import dataclass
from typing import BinaryIO

from PIL import Image, ImageFile

from vit.colour import scale_transparent_colour, to_rgb
from vit.formats import is_image, open_image, prepare_pillow

__all__ = ["Photo", "UnreadableImage", "is_image", "read"]

MAX_PIXELS = 2**28  # 268 million, 1 GB in memory: the 200-megapixel photos of phones pass

_JPEG = ("JPEG", "MPO")
_ORIENTATION = 274  # EXIF and TIFF tag
_TURN = {
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_270,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_90,
}

Source = str | os.PathLike | bytes | BinaryIO
Box = tuple[float, float, float, float]
Size = tuple[int, int]


class UnreadableImage(ValueError):
    """The file is no picture, or is broken; the message is one line: which file, and why."""

    @property
    def passing(self) -> bool:
        """Whether the machine failed and not the file: no memory, no such disk, too many files open."""
        cause = self.__cause__
        if isinstance(cause, OSError):  # what Pillow says of a file's content has no number
            return cause.errno is not None or "out of memory" in str(cause)
        return isinstance(cause, MemoryError)


@dataclass(frozen=True)
class Photo:
    """An upright RGB picture and where it came from.

    Args:
        image: Mode RGB, upright; a JPEG may be decoded smaller than its file.
        height: Of the upright photo at full resolution, in pixels; all maps refer to it.
        width: Likewise.
        orientation: What the file says (EXIF), 1 to 8; 1 where it says nothing valid.
        format: Pillow's name, such as JPEG.
        notes: What was done or left out, to be shown: "alpha on white", "first of 12 frames".
        box: (x0, y0, x1, y1) of `image` that the photo fills; None for all of it. A reduced JPEG is
            rounded up to whole pixels: the photo may end within the last or, turned, begin within
            the first of them.
    """

    image: Image.Image
    height: int
    width: int
    orientation: int = 1
    format: str = ""
    notes: tuple[str, ...] = ()
    box: Box | None = None


def read(
    source: Source,
    *,
    at_least: Size | Callable[[int, int], Size] | None = None,
    max_pixels: int = MAX_PIXELS,
) -> Photo:
    """A file, its bytes or a binary stream -> its first picture, upright, in sRGB.

    Args:
        at_least: (height, width) that the upright picture is needed in. A large JPEG is then
            decoded at 1/2, 1/4 or 1/8, but not below twice this size, so that the last step is a
            proper filter (as with Pillow's `reducing_gap=2`). Or a function that says so from the
            height and width of the upright photo.
        max_pixels: A larger file is refused before anything is decoded.

    Raises:
        UnreadableImage: no picture, broken, truncated, or more than max_pixels.
        ValueError: at_least is not positive, or Pillow was told to accept truncated files.
    """
    if isinstance(at_least, tuple) and min(at_least) < 1:
        raise ValueError(f"at_least {at_least} must be positive, (height, width)")
    if ImageFile.LOAD_TRUNCATED_IMAGES:
        raise ValueError("ImageFile.LOAD_TRUNCATED_IMAGES must be False, or photos are half grey")
    prepare_pillow()
    try:
        with _stream(source) as stream:
            try:
                return _decode(stream, at_least, max_pixels)
            except OSError:  # a lossless JPEG cannot be decoded smaller
                if at_least is None:
                    raise
                return _decode(stream, None, max_pixels)
    except Exception as error:  # broken files make Pillow raise nearly everything
        raise UnreadableImage(f"{_name(source)}: {_reason(error)}") from error


def _decode(
    stream: BinaryIO, at_least: Size | Callable[[int, int], Size] | None, max_pixels: int
) -> Photo:
    image = open_image(stream)
    if image.width * image.height > max_pixels:
        size = f"{image.width}x{image.height}"
        raise ValueError(f"{size} pixels are more than max_pixels ({max_pixels}); reduce the photo")
    scale_transparent_colour(image)
    notes: list[str] = []
    known = image.format in (*_JPEG, "TIFF")  # others may tell the orientation after the pixels
    orientation = _orientation(image, notes) if known else 1
    full = used = image.size  # (width, height), as stored
    if at_least is not None and image.format in _JPEG:
        if callable(at_least):
            at_least = at_least(*(full[::-1] if orientation < 5 else full))
        used = _reduce(image, at_least if orientation < 5 else at_least[::-1])
    image.load()
    if not known:
        full = used = image.size
        orientation = _orientation(image, notes)
    turn = 1 if image.format == "TIFF" else orientation  # Pillow turns a TIFF while loading
    rgb, done = to_rgb(image)
    box = _upright_box(rgb.size, used, turn)
    width, height = full if turn < 5 else full[::-1]
    upright = rgb.transpose(_TURN[turn]) if turn in _TURN else rgb
    notes += [*done, *_other_frames(image)]
    return Photo(upright, height, width, orientation, image.format, tuple(notes), box)


def _reduce(image: Image.Image, at_least: tuple[int, int]) -> tuple[float, float]:
    """Has a JPEG decoded smaller; returns the (width, height) that the photo then fills."""
    height, width = at_least
    drafted = image.draft(image.mode, (2 * width, 2 * height))
    return drafted[1][2:] if drafted else image.size


def _upright_box(size: tuple[int, int], used: tuple[float, float], turn: int) -> Box | None:
    """Where the part (0, 0, *used) of a stored (width, height) picture lies after the turn."""
    if size == used:
        return None
    if turn >= 5:
        size, used = size[::-1], used[::-1]
    left = size[0] - used[0] if turn in (2, 3, 6, 7) else 0.0
    top = size[1] - used[1] if turn in (3, 4, 7, 8) else 0.0
    return (left, top, left + used[0], top + used[1])


def _orientation(image: Image.Image, notes: list[str]) -> int:
    """The EXIF (or XMP) orientation, 1 to 8; whatever is wrong with it is noted and means 1."""
    try:
        value = image.getexif().get(_ORIENTATION, 1)
    except Exception as error:
        notes.append(f"EXIF ignored: {_reason(error)}")
        return 1
    if value in range(1, 9):
        return int(value)
    notes.append(f"orientation {value} ignored")
    return 1


def _other_frames(image: Image.Image) -> list[str]:
    try:
        count = getattr(image, "n_frames", 1)
    except Exception as error:
        return [f"later frames are broken: {_reason(error)}"]
    return [f"first of {count} frames"] if count > 1 else []


def _stream(source: Source) -> BinaryIO:
    if isinstance(source, (str, os.PathLike)):
        return open(source, "rb")
    return io.BytesIO(source if isinstance(source, bytes) else source.read())


def _name(source: Source) -> str:
    if isinstance(source, (str, os.PathLike)):
        return os.fspath(source)
    if isinstance(source, bytes):
        return f"<{len(source)} bytes>"
    return str(getattr(source, "name", "<stream>"))


def _reason(error: Exception) -> str:
    """The error's own words on one line."""
    words = getattr(error, "strerror", None) or str(error) or type(error).__name__
    return " ".join(words.split())
