"""Photos by words, decoded ahead: what is listed, in which order, and what is passed over."""

import io
import os
import sys
import threading

import numpy as np
import pytest
from PIL import Image

from vit import photos
from vit.fitting import Preprocess
from vit.images import read

SMALL = Preprocess((8, 8))


def picture(path, size=(9, 9), colour=(10, 20, 30)):
    path.parent.mkdir(parents=True, exist_ok=True)
    Image.new("RGB", size, colour).save(path)
    return path


@pytest.fixture
def folder(tmp_path):
    for name in ("b/10.png", "b/2.png", "a.jpg", ".hidden.png", ".cache/x.png", "c/deep/1.webp"):
        picture(tmp_path / name)
    (tmp_path / "notes.txt").write_text("not a photo")
    (tmp_path / "b" / "no_suffix").write_bytes((tmp_path / "b" / "2.png").read_bytes())
    (tmp_path / "b" / "empty.jpg").touch()
    return tmp_path


def names(words, folder):
    return [os.path.relpath(path, folder) for path in photos.listed(words)]


def test_a_folder_in_natural_order_and_what_is_passed_over(folder, caplog):
    with caplog.at_level("INFO"):
        found = names([folder], folder)
    assert found == ["a.jpg", "b/2.png", "b/10.png", "b/empty.jpg", "b/no_suffix", "c/deep/1.webp"]
    assert "passed over 3 that are no photos: 2 hidden, 1 .txt" in caplog.text


def test_only_folders_can_have_a_systems_name(folder, caplog):
    picture(folder / "c" / "@1.png")
    picture(folder / "c" / "__2.png")
    picture(folder / "@cats" / "3.png")
    (folder / "@eaDir").mkdir()
    picture(folder / "@eaDir" / "4.png")
    assert names([folder], folder)[-3:] == ["c/@1.png", "c/__2.png", "c/deep/1.webp"]
    assert f"left out {folder / '@cats'}" in caplog.text
    assert "@eaDir" not in caplog.text


def test_a_link_to_itself_is_a_broken_link(folder, caplog):
    (folder / "b" / "loop.png").symlink_to("loop.png")
    with caplog.at_level("INFO"):
        assert len(names([folder], folder)) == 6
    assert "1 broken link" in caplog.text


def test_named_files_are_listed_whatever_they_are(folder):
    words = [folder / "notes.txt", folder / "none.jpg", folder / ".hidden.png"]
    assert names(words, folder) == ["notes.txt", "none.jpg", ".hidden.png"]


def test_patterns(folder):
    assert names([f"{folder}/b/*.png"], folder) == ["b/2.png", "b/10.png"]
    assert names([f"{folder}/**/*.webp"], folder) == ["c/deep/1.webp"]
    assert names([f"{folder}/*.tiff"], folder) == ["*.tiff"]  # an error row will say so
    once = ["a.jpg", "b/2.png", "b/10.png", "b/empty.jpg", "b/no_suffix", "c/deep/1.webp"]
    for pattern in ("**", "**/*", "*"):
        assert sorted(names([f"{folder}/{pattern}"], folder)) == sorted([*once, "notes.txt"]), (
            pattern
        )
    odd = picture(folder / "d" / "a[1].png")
    assert names([odd], folder) == ["d/a[1].png"]


def test_a_list_on_the_standard_input(folder, monkeypatch):
    lines = f"{folder}/a.jpg\r\n\n{folder}/b\n{folder}/*.png".encode()
    monkeypatch.setattr(sys, "stdin", io.TextIOWrapper(io.BytesIO(lines)))
    found = names(["-"], folder)
    assert found == ["a.jpg", "b/2.png", "b/10.png", "b/empty.jpg", "b/no_suffix", "*.png"]


def test_a_list_is_read_only_as_far_as_it_is_needed(folder):
    drawn = []

    def paths():
        for number in range(1000):
            drawn.append(number)
            yield str(folder / "a.jpg")

    loading = photos.load(paths(), SMALL, workers=2, ahead=5)
    next(loading)
    assert len(drawn) == 6
    next(loading)
    assert len(drawn) == 7
    loading.close()


def test_links_in_a_circle_end(folder):
    (folder / "c" / "again").symlink_to(folder)
    assert names([folder], folder).count("a.jpg") == 1


def test_a_folder_without_photos_is_said(tmp_path, caplog):
    assert not list(photos.listed([tmp_path]))
    assert f"{tmp_path}: no photo in this folder" in caplog.text


def test_order_is_that_of_the_paths_not_of_the_decoding(folder):
    """The first photo is ready only after the second: it comes first nevertheless."""
    second = threading.Event()

    def opener(path, at_least):
        if path == "first":
            assert second.wait(60)
        else:
            second.set()
        return read(folder / "a.jpg", at_least=at_least)

    loading = photos.load(["first", "second"], SMALL, workers=2, opener=opener)
    assert [one.path for one in loading] == ["first", "second"]


def test_photos_are_opened_while_no_one_asks(folder):
    """After the first was handed out, the threads go on with those ahead by themselves."""
    opened = threading.Semaphore(0)

    def opener(path, at_least):
        opened.release()
        return read(path, at_least=at_least)

    loading = photos.load([str(folder / "a.jpg")] * 10, SMALL, workers=1, ahead=4, opener=opener)
    next(loading)
    assert all(opened.acquire(timeout=60) for _ in range(5))
    assert not opened.acquire(timeout=0.2)  # and no further
    loading.close()


def test_bad_files_are_errors_of_one_line_without_the_path(folder):
    cut = folder / "cut.png"
    cut.write_bytes((folder / "a.jpg").read_bytes()[:-200])
    bad = [cut, folder / "none.jpg", folder / "notes.txt", folder / "b" / "empty.jpg", folder]
    good = folder / "a.jpg"
    loaded = list(photos.load([*map(str, bad), str(good)], SMALL))
    reasons = [one.error for one in loaded]
    assert reasons[1:] == [
        "No such file or directory",
        "not an image of a known format",
        "the file is empty",
        "Is a directory",
        "",
    ]
    assert "truncated" in reasons[0].lower()
    assert [one.fitted is None for one in loaded] == 5 * [True] + [False]


def test_the_original_is_kept_on_request(tmp_path):
    path = picture(tmp_path / "wide.jpg", (400, 200), (200, 0, 0))
    (loaded,) = photos.load([path], SMALL, keep_photo=True)
    assert loaded.photo.image.size == (400, 200)
    assert loaded.fitted.pixels.shape == (8, 8, 3)
    assert loaded.fitted.seen == (100, 0, 300, 200)
    (without,) = photos.load([path], SMALL)
    assert without.photo is None
    np.testing.assert_allclose(without.fitted.affine, loaded.fitted.affine)


def test_messages():
    with pytest.raises(ValueError, match=r"workers \(0\) must be at least 1"):
        photos.load([], SMALL, workers=0)
    with pytest.raises(ValueError, match=r"ahead \(-1\) at least 0"):
        photos.load([], SMALL, ahead=-1)
