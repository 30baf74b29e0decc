"""The photo loader: one picture in many encodings, real difficult files, and the map back to the photo.

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
from pathlib import Path

import numpy as np
import pytest
from PIL import Image, ImageCms, ImageFile

from vit.images import Photo, Preprocess, UnreadableImage, fit, is_image, read

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


def png(width, height, depth, colour_type, rows: list[bytes], chunks=()) -> bytes:
    """A PNG made by hand, for what Pillow does not write."""
    header = struct.pack(">IIBBBBB", width, height, depth, colour_type, 0, 0, 0)
    data = zlib.compress(b"".join(b"\0" + row for row in rows))
    parts = [(b"IHDR", header), *chunks, (b"IDAT", data), (b"IEND", b"")]
    return b"\x89PNG\r\n\x1a\n" + b"".join(
        struct.pack(">I", len(body)) + kind + body + struct.pack(">I", zlib.crc32(kind + body))
        for kind, body in parts
    )


def tiff(
    width, height, data: bytes, *, bits=16, samples=1, photometric=1, sample_format=1
) -> bytes:
    """An uncompressed little-endian TIFF made by hand, for what Pillow does not write."""
    extra = b"" if samples == 1 else struct.pack(f"<{samples}H", *[bits] * samples)
    tags = [(256, 4, width), (257, 4, height), (258, 3, bits), (259, 3, 1), (262, 3, photometric)]
    tags += [
        (273, 4, 0),
        (277, 3, samples),
        (278, 4, height),
        (279, 4, len(data)),
        (339, 3, sample_format),
    ]
    end = 8 + 2 + 12 * len(tags) + 4
    entries = b""
    for tag, kind, value in tags:
        count = samples if tag == 258 else 1
        value = {258: end if samples > 1 else bits, 273: end + len(extra)}.get(tag, value)
        entries += struct.pack("<HHII", tag, kind if count == 1 else 3, count, value)
    head = b"II*\0" + struct.pack("<I", 8) + struct.pack("<H", len(tags))
    return head + entries + b"\0\0\0\0" + extra + data


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
    "png 16 bit": (png(WIDTH, HEIGHT, 16, 2, [row.tobytes() for row in DEEP.astype(">u2")]), 1.0),
    "tiff 16 bit": (
        tiff(WIDTH, HEIGHT, DEEP.astype("<u2").tobytes(), samples=3, photometric=2),
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
        tiff(WIDTH, HEIGHT, (65535 - DEEP_GREY).astype("<u2").tobytes(), photometric=0),
        1,
    ),
    "tiff 16 bit signed": (
        tiff(WIDTH, HEIGHT, (DEEP_GREY >> 1).astype("<i2").tobytes(), sample_format=2),
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


def test_12_bit_tiff_is_scaled_by_its_depth():
    values = np.arange(0, 4096, 64, dtype=np.uint16)  # 64 of them: two in three bytes
    first, second = values[::2], values[1::2]
    packed = np.stack([first >> 4, (first & 15) << 4 | second >> 8, second & 255], axis=1)
    data = tiff(64, 1, packed.astype(np.uint8).tobytes(), bits=12)
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


# One row of four pixels each; the wanted grey levels follow.
TRANSPARENT_COLOURS = {
    "palette, one entry": (
        png(4, 1, 8, 3, [bytes([0, 1, 2, 1])], [(b"PLTE", bytes([9, 9, 9, 80, 80, 80, 7, 7, 7])), (b"tRNS", bytes([255, 0]))]),
        [9, 255, 7, 255],
    ),
    "palette, alpha per entry": (
        png(4, 1, 8, 3, [bytes([0, 1, 2, 1])], [(b"PLTE", bytes([0, 0, 0, 80, 80, 80, 7, 7, 7])), (b"tRNS", bytes([51, 0, 255]))]),
        [204, 255, 7, 255],
    ),
    "grey": (png(4, 1, 8, 0, [bytes([5, 6, 7, 6])], [(b"tRNS", b"\0\6")]), [5, 255, 7, 255]),
    "grey, 1 bit": (png(4, 1, 1, 0, [bytes([0b01010000])], [(b"tRNS", b"\0\0")]), [255, 255, 255, 255]),
    "grey, 2 bit": (png(4, 1, 2, 0, [bytes([0b00011011])], [(b"tRNS", b"\0\1")]), [0, 255, 170, 255]),
    "grey, 4 bit": (png(4, 1, 4, 0, [bytes([0x02, 0x24])], [(b"tRNS", b"\0\2")]), [0, 255, 255, 68]),
    "grey, 16 bit": (
        png(4, 1, 16, 0, [struct.pack(">4H", 257 * 5, 257 * 6, 257 * 6 + 1, 0)], [(b"tRNS", struct.pack(">H", 257 * 6))]),
        [5, 255, 6, 0],
    ),
    "colour": (
        png(4, 1, 8, 2, [bytes([5] * 3 + [6] * 3 + [7] * 3 + [6] * 3)], [(b"tRNS", b"\0\6" * 3)]),
        [5, 255, 7, 255],
    ),
    "colour, 16 bit": (
        png(4, 1, 16, 2, [struct.pack(">12H", *[0x0502] * 3, *[0x0603] * 3, *[0x0704] * 3, *[0] * 3)], [(b"tRNS", struct.pack(">3H", *[0x0603] * 3))]),
        [5, 255, 7, 0],
    ),
}  # fmt: skip


@pytest.mark.parametrize("name", TRANSPARENT_COLOURS)
def test_transparent_colours_of_png_become_white(name):
    data, wanted = TRANSPARENT_COLOURS[name]
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


@pytest.mark.parametrize("format", ["PNG", "JPEG", "WEBP"])
@pytest.mark.parametrize("block", [b"Exif\0\0nonsense", b"Exif\0\0MM\0*\xff\xff\xff\xff", b"E"])
def test_broken_exif_does_not_lose_the_picture(format, block):
    data = encode(PICTURE, format, exif=block)
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # Pillow's remarks on the block
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
    stored_first_row_is_bottom, first_column_is_right = orientation in (3, 4), orientation in (2, 3)
    if orientation >= 5:
        stored_first_row_is_bottom, first_column_is_right = (
            orientation in (7, 8),
            orientation in (6, 7),
        )
    assert (top > 0) == stored_first_row_is_bottom
    assert (left > 0) == first_column_is_right
    whole = fit(Photo(Image.fromarray(upright), 1203, 805), Preprocess((150, 100), fit="squash"))
    small = fit(photo, Preprocess((150, 100), fit="squash"))
    difference = np.abs(small.pixels.astype(int) - whole.pixels)
    assert difference.mean() < 1.0
    assert (small.affine == whole.affine).all()


@pytest.mark.parametrize(
    "need, size",
    [
        ((60, 90), (1600, 1200)),
        ((301, 10), (800, 600)),
        ((75, 100), (200, 150)),
        ((4000, 4000), (1600, 1200)),
    ],
)
def test_the_reduction_fits_the_need(need, size):
    data = encode(picture(1200, 1600), "JPEG")
    wanted = {(60, 90): (200, 150), (301, 10): (1600, 1200)}.get(need, size)
    assert read(data, at_least=need).image.size == wanted


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


@pytest.mark.parametrize(
    "format, options, tolerance",
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


@pytest.mark.parametrize("name", ["apng", "webp animated", "tiff pages"])
def test_more_frames_are_noted(name):
    assert read(LOSSLESS[name]).notes == ("first of 2 frames",)


def test_a_broken_later_frame_does_not_lose_the_first():
    photo = read(LOSSY["mpo"][0][:-200])  # two JPEG files in one; the second is cut
    assert np.abs(np.asarray(photo.image).astype(int) - PICTURE).mean() < 2


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
    (tmp_path / "folder.jpg").mkdir()
    reasons = {
        "empty.jpg": "the file is empty",
        "text.png": "not an image of a known format",
        "drawing.eps": "not an image of a known format",
        "short.jpg": "broken or unsupported JPEG",
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
    bomb = png(60000, 50000, 8, 2, [])
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
    "change, message",
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
PHOTO_SIZES = [(333, 500), (500, 333), (224, 224), (97, 403), (640, 200), (51, 50), (1000, 1003)]


@pytest.mark.parametrize("how", TIMM_MODE)
@pytest.mark.parametrize("size", [(224, 224), (96, 160), (161, 75)])
@pytest.mark.parametrize("crop_pct", [1.0, 0.875, 0.95])
def test_fit_equals_timms_evaluation_transform(how, size, crop_pct):
    from timm.data import create_transform

    mean = (0.485, 0.456, 0.406)
    for interpolation in ("bicubic", "bilinear", "lanczos"):
        transform = create_transform(
            (3, *size),
            interpolation=interpolation,
            crop_pct=crop_pct,
            crop_mode=TIMM_MODE[how],
            mean=mean,
            std=(1, 1, 1),
        )
        preprocess = Preprocess(size, mean, (1, 1, 1), interpolation, crop_pct, how)
        for height, width in PHOTO_SIZES:
            image = Image.fromarray(noisy(height, width))
            wanted = (transform(image).permute(1, 2, 0).numpy() + mean) * 255
            got = fit(Photo(image, height, width), preprocess).pixels
            assert np.abs(got - wanted).max() < 1.01, (interpolation, height, width)


def noisy(height: int, width: int) -> np.ndarray:
    noise = np.random.default_rng(height).integers(-40, 40, (height, width, 3))
    return (picture(height, width) + noise).clip(0, 255).astype(np.uint8)


SPOTS = {  # (height, width) of the photo: where the spots are, (x, y)
    (3000, 4000): [(2000.5, 1500.5), (1203.5, 2200.5), (2800.5, 333.5)],
    (1000, 3000): [(1500.5, 500.5), (1800.5, 90.5)],
    (3000, 1000): [(500.5, 1500.5), (77.5, 1209.5)],
    (757, 1003): [(501.5, 378.5), (700.5, 650.5)],
}
FITTING = [
    Preprocess((224, 224)),
    Preprocess((224, 224), crop_pct=0.875),
    Preprocess((160, 225), crop_pct=0.9),
    Preprocess((224, 224), fit="pad"),
    Preprocess((225, 160), fit="pad", crop_pct=0.95),
    Preprocess((224, 224), fit="squash"),
    Preprocess((112, 225), fit="squash", crop_pct=0.9),
]


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


@pytest.mark.parametrize("height, width", SPOTS)
def test_the_affine_map_leads_back_to_the_spot(height, width):
    for x, y in SPOTS[height, width]:
        photo = Photo(Image.fromarray(spot(height, width, x, y)), height, width)
        for preprocess in FITTING:
            fitted = fit(photo, preprocess)
            weights = fitted.pixels[..., 0].astype(float)
            weights[weights == 128] = 0  # padding
            x0, y0, x1, y1 = fitted.seen
            margin = max(height, width) / 20
            if x0 + margin < x < x1 - margin and y0 + margin < y < y1 - margin:
                found = fitted.affine @ centroid(weights)
                assert np.abs(found - [x, y]).max() < 0.5, (preprocess, x, y)


@pytest.mark.parametrize("orientation", STORED)
def test_the_map_holds_for_reduced_and_turned_jpegs(orientation):
    height, width, x, y = 1203, 1605, 700.5, 500.5
    data = oriented(spot(height, width, x, y), orientation, quality=95)
    for preprocess in FITTING[:6:2]:
        photo = read(data, at_least=preprocess.resized)
        assert photo.image.size != (width, height)
        fitted = fit(photo, preprocess)
        weights = fitted.pixels[..., 0].astype(float)
        weights[(weights == 128) | (weights < 4)] = 0  # padding, JPEG noise
        assert np.abs(fitted.affine @ centroid(weights) - [x, y]).max() < 0.5, preprocess
