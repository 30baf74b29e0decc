"""One picture in many encodings means the same to the network: the same class, nearly the same logits.

The network is a real one (DINOv2, its head the class means of 40 flowers' features). Lossless encodings
must give its logits within rounding, lossy ones within a stated share of the logits' spread.
"""

import io
import struct
import zlib

import numpy as np
import pytest
import torch
from PIL import Image, ImageCms

import vit
from vit.fitting import Preprocess, fit
from vit.images import read
from vit.model_file import TrainedModel
from vit.model_source import open_model

SIDE = 224
ORIENTATION = 274
# Pictures stored so that turning by the EXIF orientation brings the original back.
STORED = {
    1: lambda image: image,
    2: lambda image: image.transpose(Image.Transpose.FLIP_LEFT_RIGHT),
    3: lambda image: image.transpose(Image.Transpose.ROTATE_180),
    4: lambda image: image.transpose(Image.Transpose.FLIP_TOP_BOTTOM),
    5: lambda image: image.transpose(Image.Transpose.TRANSPOSE),
    6: lambda image: image.transpose(Image.Transpose.ROTATE_90),
    7: lambda image: image.transpose(Image.Transpose.TRANSVERSE),
    8: lambda image: image.transpose(Image.Transpose.ROTATE_270),
}


def encoded(image: Image.Image, kind: str, **options) -> bytes:
    stream = io.BytesIO()
    image.save(stream, kind, **options)
    return stream.getvalue()


def turned(image: Image.Image, orientation: int, kind: str, **options) -> bytes:
    exif = Image.Exif()
    exif[ORIENTATION] = orientation
    return encoded(STORED[orientation](image), kind, exif=exif.tobytes(), **options)


def sixteen_bit_png(image: Image.Image) -> bytes:
    """RGB of 16 bits a channel, which Pillow does not write: v * 257."""
    pixels = np.asarray(image).astype(">u2") * 257
    rows = b"".join(b"\0" + row.tobytes() for row in pixels.astype(">u2"))

    def chunk(name: bytes, data: bytes) -> bytes:
        return (
            struct.pack(">I", len(data)) + name + data + struct.pack(">I", zlib.crc32(name + data))
        )

    head = struct.pack(">IIBBBBB", *image.size, 16, 2, 0, 0, 0)
    body = chunk(b"IHDR", head) + chunk(b"IDAT", zlib.compress(rows)) + chunk(b"IEND", b"")
    return b"\x89PNG\r\n\x1a\n" + body


def lossless(image: Image.Image) -> dict[str, bytes]:
    opaque = image.copy()
    opaque.putalpha(255)
    profile = ImageCms.ImageCmsProfile(ImageCms.createProfile("sRGB")).tobytes()
    files = {
        "png": encoded(image, "PNG"),
        "png, sRGB profile": encoded(image, "PNG", icc_profile=profile),
        "png, opaque alpha": encoded(opaque, "PNG"),
        "png, 16 bit": sixteen_bit_png(image),
        "apng": encoded(
            image, "PNG", save_all=True, append_images=[Image.new("RGB", image.size, "red")]
        ),
        "bmp": encoded(image, "BMP"),
        "tga": encoded(image, "TGA", compression="tga_rle"),
        "ppm": encoded(image, "PPM"),
        "webp, lossless": encoded(image, "WEBP", lossless=True),
        "jpeg 2000, lossless": encoded(image, "JPEG2000"),
    }
    for compression in ("raw", "tiff_lzw", "tiff_adobe_deflate", "packbits"):
        files[f"tiff, {compression}"] = encoded(image, "TIFF", compression=compression)
    for orientation, store in STORED.items():
        files[f"png, orientation {orientation}"] = turned(image, orientation, "PNG")
        tag = {ORIENTATION: orientation}
        files[f"tiff, orientation {orientation}"] = encoded(store(image), "TIFF", tiffinfo=tag)
    return files


def lossy(image: Image.Image) -> dict[str, bytes]:
    files = {f"jpeg {quality}": encoded(image, "JPEG", quality=quality) for quality in (95, 80, 60)}
    for orientation in STORED:
        files[f"jpeg, orientation {orientation}"] = turned(image, orientation, "JPEG", quality=95)
    return files | {
        "jpeg, progressive": encoded(image, "JPEG", quality=90, progressive=True),
        "jpeg, full colour": encoded(image, "JPEG", quality=90, subsampling=0),
        "jpeg, cmyk": encoded(image.convert("CMYK"), "JPEG", quality=95),
        "tiff, cmyk": encoded(image.convert("CMYK"), "TIFF"),
        "tiff, jpeg": encoded(image, "TIFF", compression="jpeg", quality=95),
        "png, palette": encoded(image.quantize(256), "PNG"),
        "gif": encoded(image, "GIF"),
        "webp": encoded(image, "WEBP", quality=90),
        "avif": encoded(image, "AVIF", quality=90),
        "jpeg 2000": encoded(image, "JPEG2000", quality_mode="rates", quality_layers=[10]),
        "mpo": encoded(image, "MPO", quality=90, save_all=True, append_images=[image]),
    }


def grey(image: Image.Image) -> dict[str, bytes]:
    """One channel in several forms; they agree among themselves."""
    one = image.convert("L")
    wide = Image.fromarray(np.asarray(one).astype(np.uint16) * 257)
    real = Image.fromarray(np.asarray(one).astype(np.float32) / 255)
    both = one.copy()
    both.putalpha(255)
    return {
        "grey as RGB": encoded(one.convert("RGB"), "PNG"),
        "grey": encoded(one, "PNG"),
        "grey and alpha": encoded(both, "PNG"),
        "grey, 16 bit png": encoded(wide, "PNG"),
        "grey, 16 bit tiff": encoded(wide, "TIFF"),
        "grey, float tiff": encoded(real, "TIFF"),
        "grey, palette": encoded(one.convert("P"), "PNG"),
    }


def logits_of(model: TrainedModel, files: dict[str, bytes], folder) -> dict[str, np.ndarray]:
    """By `predict` on files without a telling name: log of the probabilities, which are logits
    up to a constant."""
    paths = [folder / f"{number}" for number in range(len(files))]
    for path, data in zip(paths, files.values(), strict=True):
        path.write_bytes(data)
    rows = model.predict(paths, top_k=len(model.classes))
    found = {}
    for name, row in zip(files, rows, strict=True):
        assert row["error"] is None, (name, row)
        shares = {one["label"]: one["probability"] for one in row["top"]}
        values = np.log([shares[label] for label in model.classes])
        found[name] = values - values.mean()
    return found


def compare(found: dict[str, np.ndarray], to: np.ndarray, tolerance: float) -> None:
    """All within the tolerance, as a share of the logits' range, and of one class."""
    spread = np.ptp(to)
    assert spread > 0.5  # a network that says something
    worst = {name: float(np.abs(values - to).max() / spread) for name, values in found.items()}
    assert max(worst.values()) <= tolerance, sorted(worst.items(), key=lambda one: -one[1])[:5]
    assert {int(values.argmax()) for values in found.values()} == {int(to.argmax())}


def pattern() -> Image.Image:
    """Smooth colours and edges, 200 x 150 pixels."""
    x, y = np.meshgrid(np.linspace(0, 1, 200), np.linspace(0, 1, 150))
    waves = [np.sin(9 * x + 4 * y), np.cos(7 * x * y), (np.hypot(x - 0.6, y - 0.4) < 0.3) - 0.5]
    return Image.fromarray((127 + 90 * np.stack(waves, axis=-1)).astype(np.uint8))


@pytest.fixture(scope="module")
def small() -> TrainedModel:
    net = vit.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=48, depth=2, num_heads=3, num_classes=6
    )
    generator = torch.Generator().manual_seed(1)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.2, generator=generator)
    return TrainedModel(net.eval(), [str(i) for i in range(6)], Preprocess((32, 32)))


def test_every_lossless_encoding_gives_the_same_logits(small, tmp_path):
    files = lossless(pattern())
    assert len(files) > 25
    found = logits_of(small, files, tmp_path)
    compare(found, found["png"], 1e-5)


def test_every_form_of_grey_gives_the_same_logits(small, tmp_path):
    found = logits_of(small, grey(pattern()), tmp_path)
    compare(found, found["grey as RGB"], 1e-5)


def test_every_lossy_encoding_gives_nearly_the_same_logits(small, tmp_path):
    reference = logits_of(small, {"png": encoded(pattern(), "PNG")}, tmp_path)["png"]
    compare(logits_of(small, lossy(pattern()), tmp_path), reference, 0.1)


# With real weights and photos.


@pytest.fixture(scope="module")
def flowers(shared, dinov2) -> TrainedModel:
    """Nearest class mean of the features of eight photos per flower, as a head of the network."""
    features = open_model(dinov2, "vit_small_patch14_dinov2", SIDE)
    folders = sorted(path for path in (shared / "data" / "flowers5").iterdir() if path.is_dir())
    p = features.preprocess
    means = []
    for folder in folders:
        paths = sorted(folder.glob("*.jpg"))[:8]
        pixels = np.stack([fit(read(path), p).pixels for path in paths])
        images = (torch.from_numpy(pixels).float() / 255 - torch.tensor(p.mean)) / torch.tensor(
            p.std
        )
        with torch.inference_mode():
            means.append(features.net(images.permute(0, 3, 1, 2)).mean(dim=0))
    means = torch.stack(means) / 100  # logits of a few units
    net = vit.VisionTransformer(
        **features.net.architecture.non_defaults() | {"num_classes": len(folders)}
    )
    head = {"head.weight": means, "head.bias": -50 * means.square().sum(dim=1)}
    net.load_state_dict(features.net.state_dict() | head)
    return TrainedModel(net.eval(), [folder.name for folder in folders], p)


@pytest.mark.full
@pytest.mark.parametrize("flower", ["daisy", "tulips"])
def test_a_real_photo_with_real_weights(shared, flowers, tmp_path, flower):
    path = sorted((shared / "data" / "flowers5" / flower).glob("*.jpg"))[20]
    with Image.open(path) as opened:
        image = opened.convert("RGB")
    found = logits_of(flowers, lossless(image), tmp_path)
    assert flowers.classes[int(found["png"].argmax())] == flower  # it was not among the eight
    compare(found, found["png"], 1e-4)
    compare(logits_of(flowers, lossy(image), tmp_path), found["png"], 0.25)
    several = logits_of(flowers, grey(image), tmp_path)
    compare(several, several["grey as RGB"], 1e-4)
