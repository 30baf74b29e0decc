"""Folders as people have them, and tables: which photos have which label, and what is said."""

import json
import logging
import os
import unicodedata
from collections import Counter

import numpy as np
import pytest
from PIL import Image

from vit import cli, items
from vit.datasets import Folder, check_labels, class_names
from vit.items import PARTS, DataError
from vit.tables import read_table


def picture(path, seed=0):
    path.parent.mkdir(parents=True, exist_ok=True)
    pixels = np.random.default_rng(seed).integers(0, 255, (9, 7, 3), dtype=np.uint8)
    Image.fromarray(pixels).save(path, format="PNG")


def labels(root) -> dict[str, tuple[str, str]]:
    return {item.id: (item.split, item.label) for item in Folder(root).items()}


NAMES = ("10", "2", "a b", "猫", "O'Brien", "<b>x", "$x_1$")


@pytest.mark.parametrize("name", ["val", "Valid", "VALIDATION"])
@pytest.mark.parametrize("test", ["test", "Testing"])
def test_parts_are_known_by_any_of_their_names(tmp_path, name, test):
    folders = {"Train": "train", name: "val", test: "test"}
    for folder in folders:
        for label in ("a", "b"):
            picture(tmp_path / folder / label / "x.png")
    expected = {f"{folder}/{k}/x.png": (folders[folder], k) for folder in folders for k in "ab"}
    assert labels(tmp_path) == expected


def test_class_names_are_any_text(tmp_path):
    for name in NAMES:
        picture(tmp_path / name / "x.png")
    found = Folder(tmp_path).items()
    assert set(class_names(found)) == set(NAMES)
    assert class_names(found).index("2") < class_names(found).index("10")


def test_a_class_may_be_called_like_a_part(tmp_path, caplog):
    for name in ("train", "plane", "car"):
        picture(tmp_path / name / "x.png")
    assert {label for _, label in labels(tmp_path).values()} == {"train", "plane", "car"}
    assert "train is taken for a class: no class folders are in it" in caplog.text


@pytest.mark.parametrize("part", ["test", "Valid"])
def test_a_part_beside_class_folders_is_refused(tmp_path, part):
    for name in ("cat", "dog", f"{part}/cat", f"{part}/dog"):
        picture(tmp_path / name / "x.png")
    with pytest.raises(DataError) as error:
        Folder(tmp_path).items()
    words = PARTS[part.lower()]
    assert str(error.value) == (
        f"{tmp_path / part} looks like the {words} part, with cat, dog in it as beside it: put the "
        f"class folders in {tmp_path} into {tmp_path / 'train'}"
    )


def test_a_class_called_like_a_part_may_hold_other_folders(tmp_path, caplog):
    for name in ("cat", "dog", "test/2024"):
        picture(tmp_path / name / "x.png")
    assert {label for _, label in labels(tmp_path).values()} == {"cat", "dog", "test"}
    assert "test is taken for a class: it stands beside others" in caplog.text


def test_what_lies_in_the_folder_is_no_wrong_usage(tmp_path, capsys):
    """Exit code 1 where the photos are at fault, 2 where the words are."""
    (tmp_path / "photos" / "a").mkdir(parents=True)
    words = ["--data.source", "folder", "--run.root", str(tmp_path / "runs"), "--data.root"]
    said = {
        1: (tmp_path / "photos", "no class folder"),
        2: (tmp_path / "none", "no folder or table"),
    }
    for code, (root, message) in said.items():
        assert cli.main(["train", *words, str(root)]) == code
        assert message in capsys.readouterr().err


def test_two_validation_folders_are_taken_together_and_reported(tmp_path, caplog):
    for part in ("train", "val", "validation"):
        picture(tmp_path / part / "a" / "x.png")
    assert Counter(split for split, _ in labels(tmp_path).values()) == {"train": 1, "val": 2}
    assert "val and validation are taken together, as the val part" in caplog.text


def test_photos_beside_class_folders_are_reported(tmp_path, caplog):
    for path in ("train/a/x.png", "train/b/x.png", "train/stray.png", "train/zweiter.png", "y.png"):
        picture(tmp_path / path)
    (tmp_path / "notes.txt").write_text("x")
    assert set(labels(tmp_path)) == {"train/a/x.png", "train/b/x.png"}
    assert f"left out 2 photos beside the class folders in {tmp_path / 'train'}" in caplog.text
    assert "as stray.png" in caplog.text
    assert f"left out 1 photos beside the class folders in {tmp_path}, such as y.png" in caplog.text


def test_folders_with_a_systems_names_are_left_out_aloud(tmp_path, caplog):
    for path in ("a/x.png", "b/x.png", "@home/x.png", "__init/deep/x.png", "@eaDir/x.png"):
        picture(tmp_path / path)
    picture(tmp_path / "a" / "@inner" / "x.png")
    caplog.set_level(logging.INFO)
    assert set(labels(tmp_path)) == {"a/x.png", "b/x.png"}
    for name in ("@home", "__init", "a/@inner"):
        assert f"left out {tmp_path / name}: names that begin with @ or __" in caplog.text
    assert f"left out {tmp_path / '@eaDir'}" not in caplog.text
    assert "passed over hidden folders: " in caplog.text
    assert "@eaDir" in caplog.text


def test_what_holds_no_photo_is_said(tmp_path, caplog):
    picture(tmp_path / "a" / "x.png")
    picture(tmp_path / "a" / "._x.png")
    (tmp_path / "empty").mkdir()
    (tmp_path / "a" / "notes.TXT").write_text("x")
    os.symlink(tmp_path / "nowhere.png", tmp_path / "a" / "link.png")
    os.symlink("loop", tmp_path / "a" / "loop")
    os.symlink("loop", tmp_path / "loop")
    caplog.set_level(logging.INFO)
    assert set(labels(tmp_path)) == {"a/x.png"}
    assert f"no photo in {tmp_path / 'empty'}" in caplog.text
    assert "passed over 4 files that are no photos" in caplog.text
    assert "1 .txt" in caplog.text
    assert "2 broken link" in caplog.text


def test_a_broken_photo_is_still_one(tmp_path):
    picture(tmp_path / "a" / "x.png")
    (tmp_path / "a" / "y.JPG").write_bytes(b"")
    (tmp_path / "a" / "z.dat").write_bytes(b"")
    assert set(labels(tmp_path)) == {"a/x.png", "a/y.JPG"}


def test_a_folder_within_the_folder_is_guessed_at(tmp_path, caplog):
    picture(tmp_path / "photos" / "train" / "a" / "x.png")
    assert labels(tmp_path) == {"photos/train/a/x.png": ("train", "photos")}
    assert f"{tmp_path / 'photos'} is taken for the one class; or is it the" in caplog.text


def test_a_link_to_another_class_is_followed_and_one_in_a_loop_is_not(tmp_path):
    picture(tmp_path / "a" / "x.png")
    picture(tmp_path / "b" / "y.png")
    os.symlink(tmp_path / "a", tmp_path / "b" / "deep")
    os.symlink(tmp_path / "b", tmp_path / "b" / "again")
    assert set(labels(tmp_path)) == {"a/x.png", "b/y.png", "b/deep/x.png"}


def test_spellings_of_one_class_are_reported(caplog):
    cafe = "café"
    items.report_spellings(["Cat", "cat ", "dog", cafe, unicodedata.normalize("NFD", cafe), "dogs"])
    assert '"Cat" and "cat "' in caplog.text
    assert '"café" and "cafe\\u0301"' in caplog.text or '"cafe\\u0301" and "café"' in caplog.text
    assert "dog" not in caplog.text


def test_an_unknown_label_that_is_another_spelling_is_explained():
    cafe = unicodedata.normalize("NFD", "café")
    found = [items.Item("1", cafe, "val")]
    with pytest.raises(ValueError, match='another spelling of "café"'):
        check_labels(found, ["café", "tea"], "the val part")


@pytest.mark.parametrize(
    "text", ["plain/ä 猫.png", "back\\slash", "\\u00e9", "caf\udce9.png", "\ud800"]
)
def test_any_file_name_survives_a_table(text):
    escaped = items.escaped(text)
    assert items.unescaped(escaped) == text
    assert escaped.encode("utf-8")


def not_utf8(folder, name: bytes):
    """A file whose name is no UTF-8, where the file system allows one."""
    path = os.path.join(os.fsencode(folder), name)
    try:
        os.makedirs(os.path.dirname(path), exist_ok=True)
        with open(path, "wb"):
            pass
    except OSError:
        pytest.skip("this file system takes no such names")
    return path


def test_file_names_that_are_no_utf8_become_items(tmp_path):
    path = not_utf8(tmp_path / "a", b"caf\xe9.png")
    picture(tmp_path / "a" / "x.png", 1)
    with open(path, "wb") as file:
        file.write((tmp_path / "a" / "x.png").read_bytes())
    folder = Folder(tmp_path)
    found = {item.id: item for item in folder.items()}
    item = found["a/caf\udce9.png"]
    assert folder.open(item, None).image.size == (7, 9)
    assert folder.digest(item) == folder.digest(found["a/x.png"])


def test_a_class_name_that_is_no_utf8_becomes_text(tmp_path):
    path = not_utf8(tmp_path / "b", b"x.png")
    os.rename(os.fsencode(tmp_path / "b"), os.path.join(os.fsencode(tmp_path), b"caf\xe9"))
    assert path
    assert set(labels(tmp_path).values()) == {("train", "caf\\udce9")}


def table(path, text: str | bytes):
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    for name in ("x.png", "sub/y.png", "a,b.png"):
        picture(path.parent / name)
    return path


@pytest.mark.parametrize(
    "text",
    [
        "path,label,split\nx.png,01,train\nsub/y.png,a b,Validation\n",
        "\ufeffsplit;Label ;PATH\r\n;01;x.png\r\nvalid;a b;sub/y.png\r\n\r\n",
        'path\tlabel\tsplit\n"x.png"\t01\t\nsub\\y.png\t"a b"\tval',
    ],
)
def test_a_csv_table(tmp_path, text):
    root = table(tmp_path / "labels.csv", text)
    assert labels(root) == {"x.png": ("train", "01"), "sub/y.png": ("val", "a b")}


def test_a_table_of_json_lines(tmp_path):
    rows = [{"path": "x.png", "label": 7}, {"path": str(tmp_path / "sub/y.png"), "label": "猫"}]
    text = "\n\n".join(json.dumps(row, ensure_ascii=False) for row in rows)
    root = table(tmp_path / "labels.jsonl", text)
    absolute = (tmp_path / "sub/y.png").as_posix()
    assert labels(root) == {"x.png": ("train", "7"), absolute: ("train", "猫")}
    folder = Folder(root)
    assert all(folder.open(item, None).image.size == (7, 9) for item in folder.items())


def test_commas_in_quotes_and_columns_of_ones_own(tmp_path):
    text = 'id,path,label\n1,"a,b.png","x, y"\n'
    assert labels(table(tmp_path / "t.csv", text)) == {"a,b.png": ("train", "x, y")}


HEADER = "path,label,split\n"


@pytest.mark.parametrize(
    ("name", "text", "message"),
    [
        ("t.csv", "x.png,cat\n", "line 1: the header must name the columns path and label"),
        ("t.csv", "", 'line 1: the header must name .* it is ""'),
        ("t.csv", "path,label,label\nx.png,a,b", "line 1: the header must name"),
        ("t.csv", HEADER, "lists no photo"),
        ("t.csv", HEADER + "x.png,a,train\nx.png,a\n", "line 3: 2 fields, the header has 3"),
        ("t.csv", HEADER + "\nx.png,a,dev\n", 'line 3: split "dev" must be train, val or test'),
        ("t.csv", HEADER + "x.png,,train\n", "line 2: label is empty"),
        ("t.csv", HEADER + ",a,train\n", "line 2: path is empty"),
        ("t.csv", HEADER + "x.png,a,\nx.png,b,\n", "line 3: x.png stands in line 2 already"),
        ("t.csv", HEADER + "no/z.png,a,\n", r"line 2: no file .*no/z\.png"),
        ("t.csv", HEADER.encode() + b"x.png,caf\xe9,\n", "line 2: the label is not UTF-8"),
        ("t.csv", HEADER + 'x.png,"a,train\n', "line 2: unexpected end of data"),
        ("t.jsonl", '{"path": "x.png", "label": "a"}\n{"path"', "line 2: no JSON"),
        ("t.jsonl", '["x.png", "a"]', "line 1: must be an object with path and label"),
        ("t.jsonl", '{"path": "x.png"}', "line 1: must be an object with path and label"),
        ("t.jsonl", '{"path": "x.png", "label": true}', r"line 1: label \(True\) must be a text"),
        ("t.jsonl", '{"path": "x.png", "label": null}', "line 1: label is empty"),
    ],
)
def test_tables_that_are_none_are_refused_by_line(tmp_path, name, text, message):
    root = table(tmp_path / name, text)
    with pytest.raises(ValueError, match=message):
        read_table(root)


def test_roots_that_are_none_are_named(tmp_path):
    with pytest.raises(ValueError, match=r"no folder or table .*labels\.csv"):
        Folder(tmp_path / "labels.csv")
    (tmp_path / "x.txt").write_text("x")
    with pytest.raises(ValueError, match=r"x\.txt is no folder, and no table \(\.csv"):
        Folder(tmp_path / "x.txt")
    (tmp_path / "labels.csv").write_text("path,label\n")
    with pytest.raises(ValueError, match=r"to take labels from labels\.csv, give that file"):
        Folder(tmp_path).items()
