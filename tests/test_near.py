"""Near-identical photos: against scipy's transform, by properties, and on copies of real photos."""

import io
from functools import cache

import numpy as np
import pytest
from PIL import Image

from vit import near, spectrum
from vit.grouping import groups as grouped
from vit.images import read
from vit.survey import squashed

scipy_fft = pytest.importorskip("scipy.fft")


@cache
def scene(seed: int, height: int = 96, width: int = 120) -> Image.Image:
    """A picture with the spectrum of natural ones, 1 / frequency, in loosely coupled colours."""
    rng = np.random.default_rng(seed)
    v, u = np.meshgrid(
        np.fft.fftfreq(height) * height, np.fft.rfftfreq(width) * width, indexing="ij"
    )
    falling = 1 / np.maximum(1, np.hypot(u, v))
    planes = [
        np.fft.irfft2(falling * np.fft.rfft2(rng.normal(size=(height, width)))) for _ in range(4)
    ]
    planes = [planes[0] + 0.4 * plane for plane in planes[1:]]
    planes = [128 + 50 * (plane - plane.mean()) / plane.std() for plane in planes]
    return Image.fromarray(np.stack(planes, -1).clip(0, 255).astype(np.uint8))


def encoded(photo: Image.Image, quality: int) -> Image.Image:
    file = io.BytesIO()
    photo.save(file, "JPEG", quality=quality)
    return Image.open(file).convert("RGB")


def signature(photo: Image.Image) -> np.ndarray:
    return spectrum.signature(
        np.asarray(photo.resize((64, 64), Image.Resampling.BILINEAR, reducing_gap=3))
    )


def pairs_of(photos: list[Image.Image]) -> list[near.Match]:
    return near.matches(np.stack([signature(photo) for photo in photos]))


def test_signature_is_the_cosine_transform_of_brightness_and_colour():
    pixels = np.random.default_rng(0).integers(0, 256, (64, 64, 3), dtype=np.uint8)
    red, green, blue = np.moveaxis(pixels.astype(np.float64), -1, 0)
    luma = 0.299 * red + 0.587 * green + 0.114 * blue
    planes = ((luma, 24), ((blue - luma) / 2, 8), ((red - luma) / 2, 8))
    expected = [scipy_fft.dctn(plane, norm="ortho")[:k, :k].ravel() for plane, k in planes]
    got = spectrum.signature(pixels)
    assert got.dtype == np.float16
    assert got == pytest.approx(np.concatenate(expected), rel=1e-3, abs=0.05)


def test_signature_refuses_other_sizes():
    with pytest.raises(
        ValueError, match=r"expected pixels of shape \(64, 64, 3\), got \(32, 64, 3\)"
    ):
        spectrum.signature(np.zeros((32, 64, 3), np.uint8))


@pytest.mark.parametrize("crop", [(0, 0, 0, 0), (0.05, 0, 0, 0), (0, 0.05, 0.02, 0), (0.05,) * 4])
def test_a_crop_is_compared_as_if_it_had_been_made(crop):
    """Waves are drawn whole and, finely, within the crop alone; scipy transforms the latter."""
    left, top, right, bottom = crop
    rng = np.random.default_rng(1)
    waves = [(v, u, rng.normal(scale=9), rng.uniform(0, 6)) for v in range(6) for u in range(6)]

    def drawn(x0, x1, y0, y1):
        x = x0 + (x1 - x0) * (np.arange(64) + 0.5) / 64
        y = (y0 + (y1 - y0) * (np.arange(64) + 0.5) / 64)[:, None]
        plane = sum(a * np.cos(np.pi * (u * x + v * y) + phase) for v, u, a, phase in waves)
        return (128 + plane).clip(0, 255)

    whole = drawn(0, 1, 0, 1).astype(np.uint8)
    got = spectrum.weighted(spectrum.signature(np.dstack([whole] * 3))[None], crop)[0]
    coefficients = scipy_fft.dctn(drawn(left, 1 - right, top, 1 - bottom), norm="ortho")[:12, :12]
    v, u = np.mgrid[:12, :12]
    expected = (coefficients * np.hypot(u, v)).ravel()[1:]
    assert got[:143] @ expected / np.linalg.norm(expected) > 0.998
    assert np.linalg.norm(got) == pytest.approx(1, abs=1e-3)


CHANGES = {
    "half": lambda photo: photo.resize((60, 48)),
    "quarter": lambda photo: photo.resize((30, 24)),
    "recompressed": lambda photo: encoded(photo, 30),
    "a side cut": lambda photo: photo.crop((0, 0, 114, 96)),
    "some of every side cut": lambda photo: photo.crop((3, 4, 120, 93)),
    "all sides cut": lambda photo: encoded(photo.crop((6, 5, 114, 91)), 60),
    "squashed": lambda photo: photo.resize((80, 80)),
}


@pytest.mark.parametrize("change", CHANGES.values(), ids=CHANGES)
def test_altered_copies_are_found_and_nothing_else(change):
    photos = [scene(seed) for seed in range(30)]
    pairs = pairs_of([*photos, *map(change, photos)])
    assert {(pair.first, pair.second) for pair in pairs} == {(i, i + 30) for i in range(30)}
    assert all(near.COPY <= pair.likeness <= 1 and not pair.mirrored for pair in pairs)


def test_mirrored_copies_are_found_and_called_so():
    photos = [scene(seed) for seed in range(5)]
    turned = encoded(photos[3].transpose(Image.Transpose.FLIP_LEFT_RIGHT), 80)
    (pair,) = pairs_of([*photos, turned])
    assert (pair.first, pair.second, pair.mirrored) == (3, 5, True)
    upside_down = photos[3].transpose(Image.Transpose.FLIP_TOP_BOTTOM)
    assert pairs_of([*photos, upside_down]) == []


def test_brightness_and_contrast_do_not_hide_a_copy():
    photo = scene(1)
    darker = Image.fromarray((np.asarray(photo) * 0.6 + 10).astype(np.uint8))
    assert len(pairs_of([photo, darker, scene(2)])) == 1


def test_photos_of_one_colour_are_like_nothing():
    flat = [Image.new("RGB", (80, 60), colour) for colour in ("white", "white", "#fefefe", "navy")]
    table = np.stack([signature(photo) for photo in flat])
    assert (spectrum.contrast(table) < spectrum.FLAT).all()
    assert near.matches(table) == []
    assert spectrum.contrast(signature(scene(0))[None])[0] > 20
    assert not spectrum.weighted(table, (0, 0, 0, 0)).any()


def trousers(seed: int) -> Image.Image:
    """Two bars before nothing, in a shade and with ends that differ a little from seed to seed."""
    rng = np.random.default_rng(seed)
    page = np.zeros((240, 240), np.uint8)
    for bar in ([20, 220, 70, 110], [20, 220, 130, 170]):
        top, low, left, right = np.round(bar + rng.normal(scale=3, size=4)).astype(int)
        page[top:low, left:right] = 170 + rng.integers(40)
    return Image.fromarray(np.dstack([page] * 3))


def test_one_shape_before_nothing_is_no_copy_unless_it_stands_out():
    photos = [trousers(seed) for seed in range(60)]
    table = np.stack([signature(photo) for photo in photos])
    wholes = spectrum.weighted(table, (0, 0, 0, 0))
    likest = np.sort(wholes @ wholes.T, axis=1)[:, -2]
    assert (likest > near.COPY).mean() > 0.9  # by the limit alone nearly all would be copies
    assert len(near.matches(table)) <= 2
    pairs = pairs_of([*photos, encoded(photos[7], 95)])
    assert (7, 60) in {(pair.first, pair.second) for pair in pairs}


def test_blocks_change_nothing(monkeypatch):
    photos = [scene(seed % 17, 60, 60) for seed in range(17)]
    photos += [encoded(photos[i], 30 + i) for i in (2, 2, 5, 11)]
    told: list[int] = []
    table = np.stack([signature(photo) for photo in photos])
    at_once = near.matches(table, advance=told.append)
    assert told == [21 * 21]
    monkeypatch.setattr(near, "_BLOCK", 4)
    in_blocks = near.matches(table, advance=told.append)
    assert sum(told) == 2 * 21 * 21
    assert [pair.pair for pair in in_blocks] == [pair.pair for pair in at_once]
    assert grouped([pair.pair for pair in at_once], 21) == [[2, 17, 18], [5, 19], [11, 20]]


def test_best_pairs_connect_what_all_pairs_connect():
    """Against a search through the whole graph, above any limit."""
    rng = np.random.default_rng(0)
    found = {
        (int(a), int(b)): (float(rng.uniform()), False)
        for a, b in rng.integers(0, 40, (60, 2))
        if a < b
    }
    best = near.forest(found, 40)
    assert [one.likeness for one in best] == sorted((one.likeness for one in best), reverse=True)
    for limit in (0.0, 0.3, 0.6, 0.9):
        edges = [pair for pair, (likeness, _) in found.items() if likeness >= limit]
        some = [one.pair for one in best if one.likeness >= limit]
        assert grouped(some, 40) == reached(edges, 40)


def reached(edges: list[tuple[int, int]], count: int) -> list[list[int]]:
    """Connected photos, by walking from each."""
    groups, seen = [], set()
    for start in range(count):
        if start in seen:
            continue
        group, ahead = set(), [start]
        while ahead:
            one = ahead.pop()
            if one not in group:
                group.add(one)
                ahead += [b if a == one else a for a, b in edges if one in (a, b)]
        seen |= group
        if len(group) > 1:
            groups.append(sorted(group))
    return groups


def test_of_many_alike_the_nearest_are_kept():
    likeness = np.array([[0.91, 0.99, 0.95], [0.97, 0.92, 0.93]])
    rows, cols = np.nonzero(likeness)
    assert len(near.nearest(rows, cols, likeness)[0]) == 6
    many = np.linspace(0.9, 1, 100)[None]
    kept = near.nearest(np.zeros(100, int), np.arange(100), many)[1]
    assert sorted(kept) == list(range(68, 100))


def test_nothing_in_nothing_out():
    assert near.matches(np.zeros((0, 704), np.float16)) == []
    assert len(near.matches(signature(scene(0))[None])) == 0


def test_the_best_crop_is_searched_for():
    """A crop between the dozen first tried is found: nearly as like as the very copy."""
    photos = [scene(seed, 240, 320) for seed in range(6)]
    boxes = [(9, 2, 313, 236), (1, 11, 318, 233), (15, 5, 320, 240), (0, 0, 309, 231)]
    boxes += [(6, 9, 320, 231), (16, 0, 311, 240)]
    wholes = np.stack(
        [signature(photo.crop(box)) for photo, box in zip(photos, boxes, strict=True)]
    )
    others = np.stack([signature(photo) for photo in photos])
    looks = spectrum.weighted(wholes, spectrum.WHOLE)
    tried = [near.dots(looks, spectrum.weighted(others, crop)) for crop in near._CROPS]
    best = near.at_best_crop(wholes, others)
    assert (best >= np.max(tried, axis=0) - 1e-6).all()
    assert (np.max(tried, axis=0) < near.COPY).any()
    assert (best > 0.98).all()


@pytest.mark.full
def test_real_photos(shared):
    """flowers5: all copies found that shall be, no pair of different photos."""
    paths = sorted((shared / "data" / "flowers5").glob("*/*.jpg"))
    photos = [read(path).image for path in paths]
    table = np.stack(
        [spectrum.signature(squashed(read(path, at_least=(64, 64)), 64)) for path in paths]
    )
    assert near.matches(table) == []
    changes = {
        "half": (lambda photo: photo.resize([side // 2 for side in photo.size]), 0.99),
        "JPEG 30": (lambda photo: encoded(photo, 30), 0.99),
        "cropped": (
            lambda photo: photo.crop(
                [
                    round(share * side)
                    for share, side in zip((0.05, 0.05, 0.95, 0.95), photo.size * 2, strict=True)
                ]
            ),
            0.95,
        ),
    }
    for name, (change, least) in changes.items():
        copies = np.stack([signature(change(photo)) for photo in photos])
        pairs = near.matches(np.concatenate([table, copies]), near.COPY)
        right = {pair.first for pair in pairs if pair.second == pair.first + len(photos)}
        assert len(right) >= least * len(photos), name
        assert len(right) == len(pairs), name
