"""Photos that cannot be read: found before anything is divided, remembered, reported."""

import csv
import errno
import os
import time

import numpy as np
import pytest
from PIL import Image

from vit import images, loaders, scan
from vit.data import ImageData
from vit.datasets import Folder
from vit.fitting import Preprocess
from vit.images import UnreadableImage, read
from vit.settings import Data


@pytest.fixture(autouse=True)
def memory(tmp_path_factory, monkeypatch):
    folder = tmp_path_factory.mktemp("memory")
    monkeypatch.setenv("VIT_SCAN_CACHE", str(folder))
    return folder


@pytest.fixture
def decoded(monkeypatch):
    """Names of the files that are decoded, by the real decoder."""
    names, original = [], scan.problem_of

    def spy(path):
        names.append(path.name)
        return original(path)

    monkeypatch.setattr(scan, "problem_of", spy)
    return names


def photos(root, count: int = 10, age: float = 60.0):
    """Two classes of JPEGs, last changed some seconds ago."""
    for label in "ab":
        (root / label).mkdir(parents=True)
        for i in range(count):
            pixels = np.random.default_rng(i + 1000 * ord(label)).integers(0, 255, (40, 40, 3))
            path = root / label / f"{i}.jpg"
            Image.fromarray(pixels.astype(np.uint8)).save(path)
            grow_old(path, age)
    return root


def grow_old(path, age: float = 60.0):
    os.utime(path, (time.time() - age,) * 2)


def cut(path):
    """Leaves the first half of a file."""
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])
    grow_old(path)


def scanned(root, strict=False):
    folder = Folder(root)
    return scan.readable(folder, folder.items(), strict)


def data(root, **changes) -> ImageData:
    config = Data(source="folder", root=str(root), **changes)
    return ImageData(config, Preprocess(size=(8, 8)), 0)


def test_unreadable_photos_count_in_no_part(tmp_path, caplog):
    root = photos(tmp_path / "photos")
    for i in range(5):
        cut(root / "a" / f"{i}.jpg")
    (root / "a" / "empty.jpg").write_bytes(b"")
    made = data(root, val_share=0.4)
    made.scan()
    sides = {(i.label, split) for split in ("train", "val") for i in made.of(split)}
    assert sides == {("a", "train"), ("a", "val"), ("b", "train"), ("b", "val")}
    assert sum(i.label == "a" for i in made.of("val")) == 2  # of the five that can be read
    assert [name for name, _ in made.left_out] == [f"a/{i}.jpg" for i in range(5)] + ["a/empty.jpg"]
    assert "the file is empty" in caplog.text


def test_the_first_ten_are_named_and_all_are_written_down(tmp_path, caplog):
    root = photos(tmp_path / "photos", 15)
    for i in range(13):
        cut(root / "b" / f"{i}.jpg")
    made = data(root)
    made.scan()
    said = [r.getMessage() for r in caplog.records if r.getMessage().startswith("left out: ")]
    assert len(said) == 11
    assert all(f"{root / 'b'}/{i}.jpg: " in line for i, line in enumerate(said[:10]))
    assert said[10] == "left out: 3 more"
    made.write_split(tmp_path / "split.csv")
    with open(tmp_path / "left_out.csv", newline="", encoding="utf-8") as file:
        rows = list(csv.DictReader(file))
    assert [row["id"] for row in rows] == [f"b/{i}.jpg" for i in range(13)]
    assert all("truncated" in row["reason"] for row in rows)


def test_no_table_where_all_can_be_read(tmp_path):
    made = data(photos(tmp_path / "photos"))
    made.scan()
    made.write_split(tmp_path / "split.csv")
    assert not (tmp_path / "left_out.csv").exists()


def test_strict_stops_and_names_them(tmp_path):
    root = photos(tmp_path / "photos")
    cut(root / "a" / "3.jpg")
    with pytest.raises(OSError, match=r"data\.strict: 1 of 20 photos in .*: a/3\.jpg: .*truncated"):
        data(root, strict=True).scan()


def test_nothing_readable_is_an_error(tmp_path):
    root = photos(tmp_path / "photos", 1)
    for label in "ab":
        cut(root / label / "0.jpg")
    with pytest.raises(ValueError, match=r"none of the 2 photos in .* can be read"):
        data(root).scan()


def test_each_photo_is_decoded_once(tmp_path, decoded):
    root = photos(tmp_path / "photos")
    cut(root / "b" / "4.jpg")
    first = scanned(root)
    assert len(decoded) == 20
    decoded.clear()
    assert scanned(root) == first
    assert decoded == []
    assert [name for name, _ in first[1]] == ["b/4.jpg"]


def test_what_has_changed_is_decoded_again(tmp_path, decoded):
    root = photos(tmp_path / "photos")
    scanned(root)
    decoded.clear()
    cut(root / "a" / "1.jpg")
    grow_old(root / "a" / "2.jpg", 30.0)
    assert [name for name, _ in scanned(root)[1]] == ["a/1.jpg"]
    assert sorted(decoded) == ["1.jpg", "2.jpg"]


def test_what_has_changed_just_now_is_not_remembered(tmp_path, decoded):
    root = photos(tmp_path / "photos", age=0.0)
    for _ in range(2):
        scanned(root)
    assert len(decoded) == 40


def test_digests_are_of_the_files_and_remembered(tmp_path, monkeypatch):
    from hashlib import sha256

    root = photos(tmp_path / "photos", 2)
    scanned(root)
    folder = Folder(root)
    items, _ = scan.readable(folder, folder.items())
    assert set(folder.digests) == {item.id for item in items}
    for item in items:
        assert folder.digest(item) == sha256((root / item.id).read_bytes()).digest()


def test_a_damaged_memory_costs_time_alone(tmp_path, memory, decoded):
    root = photos(tmp_path / "photos")
    scanned(root)
    (file,) = memory.iterdir()
    lines = file.read_bytes().splitlines(keepends=True)
    file.write_bytes(
        b"".join(lines[:-3]) + b'["a/1.jpg", 7, "x"\n\xff\xfe[1,2]\n{}\n' + lines[-1][:9]
    )
    decoded.clear()
    items, left_out = scanned(root)
    assert (len(items), left_out) == (20, [])
    assert 0 < len(decoded) <= 3
    decoded.clear()
    scanned(root)  # what was decoded has been added after the half line
    assert decoded == []


def test_a_memory_that_cannot_be_written_is_said_once(tmp_path, monkeypatch, caplog):
    (tmp_path / "file").write_text("x")
    monkeypatch.setenv("VIT_SCAN_CACHE", str(tmp_path / "file" / "below"))
    items, _ = scanned(photos(tmp_path / "photos", 100))
    assert len(items) == 200
    assert caplog.text.count("what a scan finds is not remembered") == 1


def test_memory_does_not_grow_for_ever(tmp_path, memory, monkeypatch, decoded):
    monkeypatch.setattr(scan, "MANY", 10)
    root = photos(tmp_path / "photos")
    for age in range(50, 40, -1):
        for path in root.rglob("*.jpg"):
            grow_old(path, age)
        scanned(root)
    (file,) = memory.iterdir()
    assert len(file.read_bytes().split()) < 20 * 10 * 5 / 2  # five fields a line
    decoded.clear()
    scanned(root)
    assert decoded == []


def test_a_table_of_a_few_photos_keeps_the_memory_of_its_folder(tmp_path, monkeypatch, decoded):
    monkeypatch.setattr(scan, "MANY", 0)
    root = photos(tmp_path / "photos")
    scanned(root)
    (root / "few.csv").write_text("path,label\na/0.jpg,a\n", encoding="utf-8")
    few = Folder(root / "few.csv")
    scan.readable(few, few.items())
    decoded.clear()
    scanned(root)
    assert decoded == []


@pytest.mark.parametrize(
    "failure",
    [
        MemoryError(),
        OSError(errno.EIO, "Input/output error"),
        OSError(errno.EMFILE, "Too many open files"),
    ],
)
def test_a_failure_of_the_machine_is_not_remembered(tmp_path, monkeypatch, decoded, failure):
    root = photos(tmp_path / "photos", 1)

    def fail(stream, at_least, max_pixels):
        raise failure

    with monkeypatch.context() as patch:
        patch.setattr(images, "_decode", fail)
        _, left_out = scanned(root)
        assert [name for name, _ in left_out] == ["a/0.jpg", "b/0.jpg"]
        with pytest.raises(OSError) as error:
            loaders.opened(Folder(root), Folder(root).items()[0], Preprocess(size=(8, 8)))
        assert "changed since" not in str(error.value)
    decoded.clear()
    assert scanned(root)[1] == []
    assert len(decoded) == 2


def test_photos_are_never_written_to(tmp_path):
    root = photos(tmp_path / "photos")
    cut(root / "a" / "0.jpg")
    before = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}
    made = data(root)
    made.scan()
    after = {p: (p.read_bytes(), p.stat().st_mtime_ns) for p in root.rglob("*") if p.is_file()}
    assert after == before


def test_copies_stay_on_one_side_across_classes(tmp_path, caplog):
    root = photos(tmp_path / "photos", 30)
    for i in range(10):
        (root / "b" / f"copy{i}.jpg").write_bytes((root / "a" / f"{i}.jpg").read_bytes())
    for seed in range(4):
        made = data(root, val_share=0.3, test_share=0.3, split_seed=seed)
        made.scan()
        sides = {}
        for item in made.items:
            sides.setdefault((root / item.id).read_bytes(), set()).add(item.split)
        assert all(len(side) == 1 for side in sides.values())
        assert {(i.label, i.split) for i in made.items} == {
            (label, split) for label in "ab" for split in ("train", "val", "test")
        }
    assert "10 photos stand in several classes, as a/0.jpg = b/copy0.jpg" in caplog.text


def test_a_class_whose_photos_all_have_copies_elsewhere_stays_in_training(tmp_path, caplog):
    root = photos(tmp_path / "photos", 5)
    for i in range(5):
        (root / "b" / f"{i}.jpg").write_bytes((root / "a" / f"{i}.jpg").read_bytes())
    made = data(root, val_share=0.4)
    made.scan()
    assert {item.split for item in made.items} == {"train"}
    assert 'class "a" has no image that no other class has' in caplog.text


@pytest.mark.parametrize("part", ["val", "validation"])
def test_labels_are_numbered_by_name_in_every_part(tmp_path, part, caplog):
    """A validation part without the class in the middle: the others keep their numbers."""
    names = ("10", "2", "a b", "猫", "O'Brien", "<b>x")
    for k, name in enumerate(names):
        for folder in ("train", part) if name != "a b" else ("train",):
            (tmp_path / folder / name).mkdir(parents=True)
            image = Image.new("RGB", (8, 8), (40 * k, 0, 9 * len(folder)))
            image.save(tmp_path / folder / name / "x.png")
    made = data(tmp_path)
    classes = made.scan()
    assert "the val part has no image of a b" in caplog.text
    for name in ("train", "val"):
        loaded = made.load(name)
        for row, item in enumerate(loaded.items):
            assert classes[loaded.labels[row]] == item.label
            assert loaded.images[row, 0, 0, 0] == 40 * names.index(item.label)
    made.write_split(tmp_path / "split.csv")
    again = data(tmp_path)
    assert again.scan(tmp_path / "split.csv") == classes
    assert again.items == made.items


def test_a_class_that_training_does_not_have_is_named(tmp_path):
    for path in ("train/a", "train/b", "val/a", "val/d"):
        (tmp_path / path).mkdir(parents=True)
        Image.new("RGB", (8, 8)).save(tmp_path / path / "x.png")
    with pytest.raises(ValueError, match="the val part has d, which is no class of the training"):
        data(tmp_path).scan()


def test_a_table_trains_as_a_folder_does(tmp_path):
    root = photos(tmp_path / "photos", 4)
    lines = [f"{label}/{i}.jpg,{label}" for label in "ab" for i in range(4)]
    (root / "labels.csv").write_text("path,label\n" + "\n".join(lines))
    by_table, by_folder = data(root / "labels.csv"), data(root)
    by_table.scan()
    by_folder.scan()
    assert by_table.items == by_folder.items
    assert {item.split for item in by_table.items} == {"train", "val"}


def test_a_resume_refuses_when_a_photo_has_vanished(tmp_path):
    root = photos(tmp_path / "photos")
    made = data(root)
    made.scan()
    made.write_split(tmp_path / "split.csv")
    again = data(root)
    again.scan(tmp_path / "split.csv")
    assert again.items == made.items
    for i in range(2):
        (root / "a" / f"{i}.jpg").unlink()
    with pytest.raises(
        OSError, match=r"2 of the 20 photos in .*split\.csv are not in .*: a/0\.jpg"
    ):
        data(root).scan(tmp_path / "split.csv")


def test_names_that_are_no_utf8_survive_split_and_left_out(tmp_path):
    root = photos(tmp_path / "photos", 3)
    source = (root / "a" / "0.jpg").read_bytes()
    try:
        for name, content in ((b"caf\xe9.jpg", source + b"x"), (b"b\\\xff.jpg", b"")):
            with open(os.path.join(os.fsencode(root / "a"), name), "wb") as file:
                file.write(content)
    except OSError:
        pytest.skip("this file system takes no such names")
    made = data(root)
    made.scan()
    made.write_split(tmp_path / "split.csv")
    again = data(root)
    again.scan(tmp_path / "split.csv")
    assert again.items == made.items
    assert "a/caf\udce9.jpg" in {item.id for item in again.items}
    assert "caf\\udce9.jpg" in (tmp_path / "split.csv").read_text(encoding="utf-8")
    assert "b\\\\\\udcff.jpg" in (tmp_path / "left_out.csv").read_text(encoding="utf-8")


@pytest.mark.full
@pytest.mark.filterwarnings("ignore::UserWarning:PIL")
def test_the_smallest_decoding_finds_what_the_whole_one_finds(shared):
    """On every difficult file: unreadable in either way, and for the same reason."""
    unreadable = 0
    for path in sorted((shared / "data" / "hard").rglob("*")):
        if not path.is_file() or path.suffix == ".csv":
            continue
        try:
            read(path)
            whole = ""
        except UnreadableImage as error:
            whole = str(error).removeprefix(f"{path}: ")
            unreadable += 1
        assert scan.problem_of(path) == whole, path
    assert unreadable > 10
