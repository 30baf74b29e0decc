"""Which format a file is in, told from its content; all that Pillow decodes, and HEIC.

The file's name has no say: phones, downloads and chat programs give wrong extensions.
"""

import ctypes
import os
import struct
from functools import cache
from typing import BinaryIO

from PIL import Image

# Formats whose first bytes leave no doubt.
_SIGNED = ("JPEG", "PNG", "GIF", "WEBP", "TIFF", "AVIF", "HEIF", "JPEG2000")
# Formats Pillow recognises but does not decode by itself (EPS would start Ghostscript).
_NOT_PIXELS = ("BUFR", "EPS", "GRIB", "HDF5", "MPEG", "WMF")
# Names by which a file is meant to be a picture, even where its content is broken.
SUFFIXES = frozenset(
    """.apng .arw .avif .bmp .cr2 .cr3 .dib .dng .gif .heic .heif .hif .ico .jfif .jp2 .jpe .jpeg
    .jpg .jxl .nef .orf .pbm .pgm .png .pnm .ppm .psd .raf .svg .tga .tif .tiff .webp""".split()
)


def is_image(path: str | os.PathLike) -> bool:
    """Whether the first bytes are an image's, whatever its name; a truncated photo still is one.

    False as well for what cannot be opened.
    """
    prepare_pillow()
    try:
        with open(path, "rb") as stream:
            head = stream.read(16)
            return any(_accepts(name, head) for name in _SIGNED) or bool(open_image(stream))
    except Exception:
        return False


def open_image(stream: BinaryIO) -> Image.Image:
    """`Image.open` without its pixel limit: a global, and it warns at 108-megapixel photos.

    `prepare_pillow` comes first.

    Raises:
        ValueError: no format knows the content.
    """
    stream.seek(0)
    head = stream.read(16)
    if not head:
        raise ValueError("the file is empty")
    for name in Image.ID:
        if name in _NOT_PIXELS or not _accepts(name, head):
            continue
        stream.seek(0)
        try:
            return Image.OPEN[name][0](stream, "")
        except (SyntaxError, IndexError, TypeError, struct.error):
            continue  # the format's way of saying: not mine
    claimed = [name for name in _SIGNED if _accepts(name, head)]
    kind = f"broken or unsupported {claimed[0]}" if claimed else "not an image of a known format"
    raise ValueError(kind)


def _accepts(name: str, head: bytes) -> bool:
    """Whether the format claims these first bytes, or cannot tell (a text: it is not built in)."""
    accept = Image.OPEN[name][1]
    try:
        answer = accept is None or accept(head)
    except (IndexError, struct.error):  # fewer bytes than it looks at
        return False
    return bool(answer) and not isinstance(answer, str)


@cache
def prepare_pillow() -> None:
    """Once: all of Pillow's formats, HEIC (iPhones write it), and a libtiff silent on stderr."""
    import pi_heif

    Image.init()
    pi_heif.register_heif_opener()
    library = ctypes.CDLL(Image.core.__file__)
    for name in ("TIFFSetErrorHandler", "TIFFSetWarningHandler"):
        if setter := getattr(library, name, None):  # not found where libtiff is linked in privately
            setter.argtypes, setter.restype = [ctypes.c_void_p], ctypes.c_void_p
            setter(None)
