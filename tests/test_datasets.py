"""Sources and their division, on real files made here."""

import logging
import os
import random
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from vit import datasets
from vit.datasets import Digits, Folder, Item, divide


def picture(path, seed):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


def content(item: Item) -> bytes:
    return item.id.encode()


def flat(counts: dict[str, int]) -> list[Item]:
    return [Item(f"{name}/{i}", name, "train") for name, n in counts.items() for i in range(n)]


def test_digits_are_scikit_learns_with_a_fixed_stratified_test():
    sklearn = pytest.importorskip("sklearn.datasets").load_digits()
    digits = Digits()
    assert np.array_equal(digits.images, sklearn.images)
    assert np.array_equal(digits.labels, sklearn.target)
    tested = Counter(item.label for item in digits.items() if item.split == "test")
    assert tested.total() == 360
    assert all(
        tested[str(k)] == pytest.approx(0.2 * n, abs=1) for k, n in Counter(sklearn.target).items()
    )
    pixels = np.asarray(digits.open(digits.items()[5], (8, 8)).image)
    assert np.array_equal(pixels[..., 0], np.rint(sklearn.images[5] * 255 / 16))


@pytest.mark.parametrize(
    ("count", "moved"), [(2, 1), (3, 1), (9, 1), (10, 1), (15, 2), (25, 2), (100, 10)]
)
def test_share_of_each_class(count, moved):
    parts = divide(flat({"a": count, "b": 40}), content, "val", 0.1, 0)
    assert Counter((i.label, i.split) for i in parts)["a", "val"] == moved
    assert [i.id for i in parts] == [i.id for i in flat({"a": count, "b": 40})]


def test_a_single_image_stays_in_training_and_is_said(caplog):
    parts = divide(flat({"a": 1, "b": 10}), content, "val", 0.5, 0)
    assert [i.split for i in parts if i.label == "a"] == ["train"]
    assert 'class "a" has one image' in caplog.text


def test_division_depends_on_content_and_seed_alone():
    items = flat({"a": 30, "b": 50})
    chosen = {i.id for i in divide(items, content, "val", 0.2, 0) if i.split == "val"}
    shuffled = random.Random(1).sample(items, len(items))
    assert {i.id for i in divide(shuffled, content, "val", 0.2, 0) if i.split == "val"} == chosen
    assert {i.id for i in divide(items, content, "val", 0.2, 1) if i.split == "val"} != chosen
    assert {i.id for i in divide(items, content, "test", 0.2, 0) if i.split == "test"} != chosen


def test_identical_images_stay_on_one_side():
    items = flat({"a": 60})
    twins = {item.id: bytes([int(item.id[2:]) // 3]) for item in items}  # groups of three
    for seed in range(5):
        parts = divide(items, lambda item: twins[item.id], "val", 0.2, seed)
        sides = {}
        for item in parts:
            sides.setdefault(twins[item.id], set()).add(item.split)
        assert all(len(side) == 1 for side in sides.values())
        assert sum(item.split == "val" for item in parts) == 12


@pytest.mark.parametrize("name", ["val", "valid", "Validation"])
def test_folder_with_parts(tmp_path, name, caplog):
    for part, count in (("train", 3), (name, 2), ("TEST", 1)):
        for label in ("10", "2", "a b", "猫"):
            for i in range(count):
                picture(tmp_path / part / label / f"{i}.JPEG", i)
    (tmp_path / "train" / ".ipynb_checkpoints").mkdir()
    (tmp_path / "train" / "empty").mkdir()
    (tmp_path / "train" / "2" / "Thumbs.db").write_bytes(b"x")
    (tmp_path / "extra").mkdir()
    caplog.set_level(logging.INFO)
    items = Folder(tmp_path).items()
    assert datasets.class_names(items) == ["2", "10", "a b", "猫"]
    assert Counter(i.split for i in items) == {"train": 12, "val": 8, "test": 4}
    assert "1 .db" in caplog.text
    assert "extra" in caplog.text


def test_flat_folder_nested_and_linked_in_a_loop(tmp_path):
    picture(tmp_path / "a" / "x.png", 1)
    picture(tmp_path / "a" / "deep" / "y.tif", 2)
    picture(tmp_path / "b" / "no_suffix", 3)
    os.symlink(tmp_path, tmp_path / "a" / "loop")
    items = Folder(tmp_path).items()
    assert {(i.id, i.label) for i in items} == {
        ("a/x.png", "a"),
        ("a/deep/y.tif", "a"),
        ("b/no_suffix", "b"),
    }


def test_labels_are_checked_by_name(caplog):
    items = [Item("1", "a", "val"), Item("2", "d", "val")]
    with pytest.raises(ValueError, match="the val part has d, which is no class of the training"):
        datasets.check_labels(items, ["a", "b"], "the val part")
    datasets.check_labels(items[:1], ["a", "b"], "the val part")
    assert "the val part has no image of b" in caplog.text


def test_missing_folders_are_named(tmp_path):
    with pytest.raises(ValueError, match="no folder"):
        Folder(tmp_path / "nowhere")
    with pytest.raises(ValueError, match="no class folder with an image"):
        Folder(tmp_path).items()
    with pytest.raises(ValueError, match=r"needs --data.root"):
        datasets.open_source("folder", None)
