"""Any decoded picture -> 8-bit RGB as a screen shows it.

Pillow decodes into a dozen modes. `convert("RGB")` alone saturates 16-bit grey, shows the colours
hidden under transparency and ignores the ICC profile; here values are scaled, alpha lies on white,
and colours become sRGB.
"""

import io
from functools import cache

import numpy as np
from PIL import Image, ImageCms

# Integer (I) and float (F) pictures do not say which value is white: the first of these that holds
# all values is. 1: masks and unit floats; 255: 8 bit; 65535: 16 bit. More steps would give the
# pictures of one folder unequal brightness.
_USUAL_WHITES = (1.0, 255.0, 65535.0)
_BITS, _PHOTOMETRIC, _SAMPLE_FORMAT = 258, 262, 339  # TIFF tags
_MIN_IS_WHITE, _SIGNED = 0, 2


def to_rgb(image: Image.Image) -> tuple[Image.Image, tuple[str, ...]]:
    """A loaded picture of any mode -> a new RGB one without metadata, notes on what was done."""
    notes: list[str] = []
    if image.mode[0] in "IF":
        image = _eight_bits(image, notes)
    alpha = None
    if image.has_transparency_data:
        image, alpha = _split_alpha(image)
    if profile := image.info.get("icc_profile"):
        image = _to_srgb(image, profile, notes)
    rgb = image.convert("RGB")
    if alpha is not None and alpha.getextrema() != (255, 255):
        white = Image.new("RGB", rgb.size, "white")
        white.paste(rgb, mask=alpha)
        rgb = white
        notes.append("alpha on white")
    rgb.info = {}  # profile and transparency are applied; nobody shall apply them again
    return rgb, tuple(notes)


def scale_transparent_colour(image: Image.Image) -> None:
    """Brings a PNG's transparent colour to 8 bit in place; Pillow does so with the pixels only.

    Call it before the pixels are loaded: the depth they are stored in is not known afterwards.
    """
    colour = image.info.get("transparency")
    if image.format != "PNG" or not image.tile or not isinstance(colour, (int, tuple)):
        return
    stored = image.tile[0].args
    if stored == "RGB;16B":
        image.info["transparency"] = tuple(value >> 8 for value in colour)
    elif stored in ("L;2", "L;4"):
        image.info["transparency"] = colour * {"L;2": 85, "L;4": 17}[stored]


def _eight_bits(image: Image.Image, notes: list[str]) -> Image.Image:
    """16-bit, 32-bit or float grey -> L, or LA where one grey value is declared transparent."""
    values = np.asarray(image)
    black, white = _black_and_white(image, values)
    notes.append(f"values {black:g} to {white:g} scaled to 8 bit")
    scaled = (values.astype(np.float32) - black) * (255 / (white - black))
    scaled = np.nan_to_num(scaled, nan=0.0, posinf=255.0, neginf=0.0).clip(0, 255)
    grey = Image.fromarray(np.rint(scaled).astype(np.uint8))
    transparent = image.info.get("transparency")
    if isinstance(transparent, int):
        grey.putalpha(Image.fromarray(np.where(values == transparent, 0, 255).astype(np.uint8)))
    if "icc_profile" in image.info:
        grey.info["icc_profile"] = image.info["icc_profile"]
    return grey


def _black_and_white(image: Image.Image, values: np.ndarray) -> tuple[float, float]:
    """The values that are black and white: by the bit depth if known, else by the values' range."""
    tags = getattr(image, "tag_v2", {})
    bits = int(tags.get(_BITS, (16,))[0])  # 12 in some scans
    signed = tags.get(_SAMPLE_FORMAT, (1,))[0] == _SIGNED
    finite = values[np.isfinite(values)]
    low, high = (float(finite.min()), float(finite.max())) if finite.size else (0.0, 0.0)
    known_depth = (
        image.mode.startswith("I")
        and bits <= 16
        and (image.mode != "I" or image.format in ("PPM", "TIFF"))
    )
    whites = (float(2 ** (bits - signed) - 1),) if known_depth else _USUAL_WHITES
    black, white = low, max(high, low + 1)
    for usual in whites:
        if low >= 0 and high <= usual:
            black, white = 0.0, usual
            break
    return (white, black) if tags.get(_PHOTOMETRIC) == _MIN_IS_WHITE else (black, white)


def _split_alpha(image: Image.Image) -> tuple[Image.Image, Image.Image]:
    """Any transparency (channel, palette, one colour) -> (opaque L or RGB picture, alpha in L)."""
    rgba = image.convert("RGBA")
    grey = image.mode in ("1", "L", "LA", "La")
    colours = rgba.getchannel("R") if grey else rgba.convert("RGB")
    return colours, rgba.getchannel("A")


def _to_srgb(image: Image.Image, profile: bytes, notes: list[str]) -> Image.Image:
    """From the embedded ICC profile to sRGB; a broken or unfitting one is noted, not applied."""
    try:
        source = ImageCms.ImageCmsProfile(io.BytesIO(profile))
        if (source.profile.profile_description or "").startswith("sRGB"):
            return image
        space = source.profile.xcolor_space.strip()
        if space == "RGB" and image.mode not in ("CMYK", "LAB"):
            image = image.convert("RGB")
        if {"RGB": "RGB", "GRAY": "L", "CMYK": "CMYK"}.get(space) != image.mode:
            notes.append(f"ICC profile ignored: it is for {space}, the pixels are {image.mode}")
            return image
        converted = ImageCms.profileToProfile(image, source, _srgb(), outputMode="RGB")
    except (ImageCms.PyCMSError, OSError, ValueError, TypeError) as error:
        notes.append(f"ICC profile ignored: {error}")
        return image
    notes.append("ICC profile to sRGB")
    return converted


@cache
def _srgb() -> ImageCms.ImageCmsProfile:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB"))
