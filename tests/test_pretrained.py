"""Real DINOv2 weights on real photos: our features beside timm's, and heat on the photos' objects."""

import csv
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image
from safetensors.torch import load_file
from timm.layers import resample_abs_pos_embed
from timm.models.vision_transformer import checkpoint_filter_fn
from torch import Tensor, nn

import vit
from vit.explain import raw
from vit.fitting import fit
from vit.images import read
from vit.normalise import normalise
from vit.patch_embed import resize_pos_embed

pytestmark = pytest.mark.full  # the weights are fetched, and are of 22 million parameters

NAME = "vit_small_patch14_dinov2"
NATIVE = (37, 37)  # the grid of the weights: 518 pixels in patches of 14


@pytest.fixture(scope="session")
def weights(dinov2) -> dict[str, Tensor]:
    """A DINOv2 ViT-S/14 in timm's layout."""
    return load_file(dinov2)


def in_timm(weights: dict[str, Tensor], img_size) -> nn.Module:
    """timm's network with the weights, whose positions timm itself brings to the size."""
    module = timm.create_model(NAME, img_size=img_size, num_classes=0).eval()
    module.load_state_dict(checkpoint_filter_fn(dict(weights), module))
    return module


def in_ours(weights: dict[str, Tensor], img_size: tuple[int, int]) -> vit.VisionTransformer:
    """Our network with the weights, whose positions we bring to the size."""
    net = vit.from_timm(NAME, img_size=img_size, num_classes=0).eval()
    positions = resize_pos_embed(weights["pos_embed"], NATIVE, net.grid_size)
    net.load_state_dict(weights | {"pos_embed": positions})
    return net


@pytest.fixture(scope="session")
def small(weights) -> vit.VisionTransformer:
    """Our network at 224 pixels."""
    return in_ours(weights, (224, 224))


def preprocess(size: tuple[int, int], how: str = "crop") -> vit.Preprocess:
    config = timm.get_pretrained_cfg(NAME)
    return vit.Preprocess(size, config.mean, config.std, config.interpolation, config.crop_pct, how)


def pixels(paths: list[Path], size: tuple[int, int], how: str = "crop") -> Tensor:
    """Photos as the network takes them: (B, 3, height, width)."""
    wanted = preprocess(size, how)
    fitted = [fit(read(path), wanted).pixels for path in paths]
    return normalise(torch.from_numpy(np.stack(fitted)).permute(0, 3, 1, 2), wanted)


def flowers(shared: Path, count: int) -> list[Path]:
    """Photos spread evenly over the five classes."""
    photos = sorted((shared / "data" / "flowers5").glob("*/*.jpg"))
    return photos[:: len(photos) // count][:count]


def assert_near(ours: Tensor, theirs: Tensor, limit: float = 1e-5) -> None:
    """max |ours - theirs| is at most `limit` of the largest value."""
    assert ours.shape == theirs.shape
    assert theirs.std() > 0.1  # features that say something
    assert (ours - theirs).abs().max() <= limit * theirs.abs().max()


@pytest.mark.parametrize("path", ["explicit", "fused"])
def test_features_are_timms_at_the_weights_own_size(weights, shared, path):
    module = in_timm(weights, 518)
    net = vit.from_timm(module).use_attention(path)
    images = pixels(flowers(shared, 2), (518, 518))
    with torch.inference_mode():
        assert_near(net(images), module(images))
        assert not net.training


@pytest.mark.parametrize("size", [(224, 224), (168, 280)])
def test_features_are_timms_at_another_size(weights, shared, size):
    module, net = in_timm(weights, size), in_ours(weights, size)
    images = pixels(flowers(shared, 10), size)
    with torch.inference_mode():
        assert_near(net(images), module(images))
        assert_near(net.forward_features(images), module.forward_features(images))


@pytest.mark.parametrize("grid", [(16, 16), (12, 20), (40, 37)])
def test_positions_are_resized_as_timm_does(weights, grid):
    theirs = resample_abs_pos_embed(weights["pos_embed"], list(grid), list(NATIVE))
    ours = resize_pos_embed(weights["pos_embed"], NATIVE, grid)
    assert (ours - theirs).abs().max() <= 1e-5 * theirs.abs().max()


def test_photos_of_one_kind_have_features_alike(small, shared):
    """Nearest neighbours among 100 photos of five flowers: real weights, read and used rightly."""
    photos = flowers(shared, 100)
    with torch.inference_mode():
        batches = [photos[i : i + 20] for i in range(0, len(photos), 20)]
        features = torch.cat([small(pixels(some, (224, 224))) for some in batches])
    features = nn.functional.normalize(features, dim=1)
    nearest = (features @ features.T).fill_diagonal_(-1).argmax(dim=1)
    kinds = [path.parent.name for path in photos]
    right = sum(kinds[i] == kinds[j] for i, j in enumerate(nearest.tolist()))
    assert right / len(photos) > 0.45  # chance: 0.2


def test_rollout_on_photos_is_a_share_of_the_mass(small, shared):
    heat = vit.rollout(small, pixels(flowers(shared, 10), (224, 224)))
    assert heat.shape == (10, 16, 16)
    assert torch.isfinite(heat).all()
    assert (heat >= 0).all()
    total = heat.sum(dim=(1, 2))  # the rest is on the class token
    assert (total > 0.1).all()
    assert (total <= 1 + 1e-5).all()


@pytest.fixture(scope="session")
def photographed(shared) -> tuple[list[Path], Tensor]:
    """12 photos of ECSSD, and what share of each patch is object: (12, 16, 16)."""
    root = shared / "data" / "ecssd300"
    with (root / "pairs.csv").open(newline="") as file:
        chosen = list(csv.DictReader(file))[::25]
    squashed = [Image.open(root / row["mask"]).convert("L").resize((224, 224)) for row in chosen]
    masks = np.stack([np.asarray(mask) > 127 for mask in squashed])
    cover = masks.reshape(-1, 16, 14, 16, 14).mean(axis=(2, 4))
    return [root / row["image"] for row in chosen], torch.from_numpy(cover)


def centre_gaussian() -> Tensor:
    """The control that knows only that photographers aim: sigma a quarter of the side, (1, 16, 16)."""
    distance = torch.linspace(-7.5, 7.5, 16) / 4
    bell = torch.exp(-(distance**2) / 2)
    return (bell[:, None] * bell)[None]


def on_object(heat: Tensor, cover: Tensor) -> Tensor:
    """Share of each map's mass that lies on the object: (B, 16, 16), (B, 16, 16) -> (B,)."""
    return (heat * cover).sum(dim=(1, 2)) / heat.sum(dim=(1, 2))


@pytest.mark.parametrize("method", ["raw", "last two layers"])
def test_heat_lies_on_the_object(small, photographed, method):
    """Far more than spread evenly on every photo, and than a blob in the middle on the whole."""
    photos, cover = photographed
    images = pixels(photos, (224, 224), "squash")
    heat = (
        raw(small, images)
        if method == "raw"
        else vit.rollout(small, images, layers=slice(-2, None))
    )
    share, evenly = on_object(heat, cover), cover.mean(dim=(1, 2))
    assert (share > evenly).all()
    assert share.mean() > 2.5 * evenly.mean()
    assert share.mean() > 1.2 * on_object(centre_gaussian(), cover).mean()
