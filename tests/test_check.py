"""`vit check`: what it finds in folders made here, and that training then does what it says."""

import csv
import json
import os
import shutil
import subprocess
import sys
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
from PIL import Image

import vit
from vit import cli
from vit.checkup import check
from vit.contact_sheet import contact_sheet
from vit.giveaway import giveaways
from vit.items import Item
from vit.survey import Seen


def photo(path: Path, seed: int, size: tuple[int, int] = (60, 48), **options) -> Path:
    """Coarse blocks of colour, other ones for every seed."""
    path.parent.mkdir(parents=True, exist_ok=True)
    blocks = np.random.default_rng(seed).integers(0, 256, (6, 6, 3), dtype=np.uint8)
    Image.fromarray(blocks).resize(size, Image.Resampling.BICUBIC).save(path, **options)
    return path


def flat(root: Path, counts: dict[str, int], suffix: str = "jpg") -> Path:
    """Class folders, all photos different."""
    for number, (name, count) in enumerate(counts.items()):
        for i in range(count):
            photo(root / name / f"{i:02}.{suffix}", 1000 * number + i)
    return root


def kinds(report) -> dict[str, str]:
    return {one.kind: one.severity for one in report.findings}


def finding(report, kind: str):
    (one,) = (one for one in report.findings if one.kind == kind)
    return one


def cases(report, kind: str) -> set:
    return {frozenset(case.photos) for case in finding(report, kind).cases}


def state(root: Path) -> dict:
    return {
        path: (path.stat().st_mtime_ns, path.read_bytes() if path.is_file() else b"")
        for path in [root, *root.rglob("*")]
    }


@pytest.fixture(scope="module")
def troubled(tmp_path_factory) -> Path:
    """train / val with every kind of trouble once."""
    root = tmp_path_factory.mktemp("check") / "photos"
    flat(root / "train", {"ants": 12, "bees": 12})
    flat(root / "val", {"bees": 0})
    for i in range(4):
        photo(root / "val" / "ants" / f"v{i}.jpg", 5000 + i)
        photo(root / "val" / "bees" / f"v{i}.jpg", 6000 + i)
    ants, bees = root / "train" / "ants", root / "train" / "bees"
    shutil.copy(ants / "00.jpg", ants / "copy.jpg")
    shutil.copy(ants / "01.jpg", bees / "ant.jpg")
    shutil.copy(ants / "02.jpg", root / "val" / "ants" / "leak.jpg")
    Image.open(ants / "03.jpg").resize((40, 32)).save(ants / "smaller.jpg", quality=60)
    Image.open(bees / "04.jpg").transpose(0).save(root / "val" / "bees" / "turned.jpg", quality=90)
    (ants / "broken.jpg").write_bytes((ants / "05.jpg").read_bytes()[:-40])
    Image.new("RGB", (60, 48), "white").save(bees / "white.jpg")
    photo(bees / "tiny.jpg", 7000, (9, 9))
    photo(bees / "long.jpg", 7001, (300, 60))
    exif = Image.Exif()
    exif[274] = 6
    photo(bees / "phone.jpg", 7002, (48, 60), exif=exif)
    exif[274] = 0
    photo(bees / "zero.jpg", 7003, exif=exif)
    photo(bees / "scan.jpg", 7004)
    Image.open(bees / "scan.jpg").convert("CMYK").save(bees / "scan.jpg")
    (bees / "notes.txt").write_text("x")
    photo(root / "train" / "stray.jpg", 7005)
    return root


@pytest.fixture(scope="module")
def report(troubled):
    before = state(troubled)
    found = check(troubled, size=48)
    assert state(troubled) == before  # nothing is written to it
    return found


def test_counts_formats_sizes(report):
    assert report.found == {"train": {"ants": 15, "bees": 19}, "val": {"ants": 5, "bees": 5}}
    assert report.counts == {"train": {"ants": 14, "bees": 19}, "val": {"ants": 5, "bees": 5}}
    assert (report.classes, report.divided) == (["ants", "bees"], [])
    assert report.formats == {"JPEG": 43}
    assert report.sizes == [(9, 9), (60, 48), (300, 60)]
    assert report.orientations == {1: 42, 6: 1}
    assert report.can_train


def test_copies_byte_for_byte_by_what_they_do(report):
    assert cases(report, "identical-same") == {
        frozenset({"train/ants/00.jpg", "train/ants/copy.jpg"})
    }
    assert cases(report, "identical-classes") == {
        frozenset({"train/ants/01.jpg", "train/bees/ant.jpg"})
    }
    assert cases(report, "identical-parts") == {
        frozenset({"train/ants/02.jpg", "val/ants/leak.jpg"})
    }
    assert finding(report, "identical-classes").severity == "warning"
    assert finding(report, "identical-parts").training.startswith("moves and leaves out none")
    assert finding(report, "identical-same").severity == "note"


def test_copies_as_they_look(report):
    assert cases(report, "near-identical-same") == {
        frozenset({"train/ants/03.jpg", "train/ants/smaller.jpg"})
    }
    (turned,) = finding(report, "near-identical-parts").cases
    assert set(turned.photos) == {"train/bees/04.jpg", "val/bees/turned.jpg"}
    assert turned.why == "train bees, val bees, mirrored"
    assert "near-identical-classes" not in kinds(report)


@pytest.mark.parametrize(
    ("kind", "severity", "name", "why"),
    [
        ("unreadable", "warning", "train/ants/broken.jpg", "image file is truncated"),
        ("one-colour", "warning", "train/bees/white.jpg", ""),
        ("tiny", "warning", "train/bees/tiny.jpg", "9x9"),
        ("long", "note", "train/bees/long.jpg", "300x60, 20% of it seen"),
        ("turned", "note", "train/bees/phone.jpg", "EXIF orientation 6"),
        ("orientation", "note", "train/bees/zero.jpg", "orientation 0 ignored"),
        ("converted", "note", "train/bees/scan.jpg", ""),
    ],
)
def test_single_photos(report, kind, severity, name, why):
    one = finding(report, kind)
    assert one.severity == severity
    (case,) = one.cases
    assert case.photos == (name,)
    assert case.why.startswith(why)
    assert one.training or kind == "converted"


def test_what_training_says_while_it_lists_is_in_the_report(report, troubled):
    said = {one.text: one.severity for one in report.findings if one.kind == "said"}
    assert said["passed over 1 files that are no photos: 1 .txt"] == "note"
    (stray,) = (text for text in said if "stray.jpg" in text)
    assert said[stray] == "warning"
    assert str(troubled / "train") in stray


def test_findings_come_gravest_first(report):
    order = [("stop", "warning", "note").index(one.severity) for one in report.findings]
    assert order == sorted(order)


def test_json_and_exit_code(troubled, tmp_path, capsys):
    file = tmp_path / "out.json"
    assert cli.main(["check", str(troubled), "--json", str(file), "--size", "48"]) == 0
    told = json.loads(file.read_text(encoding="utf-8"))
    assert told["can_train"] is True
    assert told["counts"]["val"] == {"ants": 5, "bees": 5}
    (broken,) = (one for one in told["findings"] if one["kind"] == "unreadable")
    assert broken["cases"][0]["photos"] == ["train/ants/broken.jpg"]
    assert broken["severity"] == "warning"
    printed = capsys.readouterr().out
    assert "1 photo cannot be read" in printed
    assert "train/ants/broken.jpg: image file is truncated" in printed
    assert "Training can begin; look into the points above first." in printed
    assert printed.index("To be looked into:") < printed.index("Good to know:")


def test_details_are_limited_in_print_and_whole_in_json(tmp_path, capsys):
    flat(tmp_path, {"a": 12, "b": 12})
    file = tmp_path / "o.json"
    assert cli.main(["check", str(tmp_path), "--json", str(file)]) == 0
    assert "... and 21 more" in capsys.readouterr().out
    told = json.loads(file.read_text(encoding="utf-8"))
    assert [len(one["cases"]) for one in told["findings"] if one["kind"] == "tiny"] == [24]


def test_training_divides_and_leaves_out_the_same(tmp_path):
    """Against what training's own data module makes of the folder."""
    from vit.data import ImageData
    from vit.fitting import Preprocess
    from vit.settings import Data

    root = flat(tmp_path, {"a": 21, "b": 14})
    (root / "b" / "bad.jpg").write_bytes(b"\xff\xd8\xff\xe0 no more")
    report = check(root)
    data = ImageData(Data(source="folder", root=str(root)), Preprocess(size=(8, 8)), seed=0)
    assert data.scan() == report.classes
    assert [one.item for one in report.seen if not one.problem] == data.items
    assert [(s.item.id, s.problem) for s in report.seen if s.problem] == data.left_out
    assert report.divided == ["val"]


def test_unknown_class_stops_with_trainings_words(tmp_path):
    flat(tmp_path / "train", {"a": 3, "b": 3})
    flat(tmp_path / "val", {"a": 2, "d": 2})
    report = check(tmp_path)
    assert not report.can_train
    (stop,) = report.of("stop")
    assert "the val part has d, which is no class of the training images (a, b)" in stop.text
    assert cli.main(["check", str(tmp_path)]) == 1


@pytest.mark.parametrize(
    ("make", "words"),
    [
        (lambda root: None, "no class folder with an image in it"),
        (lambda root: photo(root / "alone.jpg", 1), "no class folder with an image in it"),
        (lambda root: flat(root / "val", {"a": 2}), "there are no training photos"),
        (lambda root: bad(root / "a" / "x.jpg"), "none of the 1 photos can be read"),
    ],
)
def test_folders_that_cannot_be_trained_on(tmp_path, make, words, capsys):
    make(tmp_path)
    assert cli.main(["check", str(tmp_path), "--sheet", str(tmp_path / "s.png")]) == 1
    printed = capsys.readouterr().out
    assert words in printed
    assert "Training cannot begin with this folder as it is." in printed
    assert Image.open(tmp_path / "s.png").width == 1460


def bad(path: Path) -> None:
    path.parent.mkdir()
    path.write_bytes(b"\xff\xd8\xff\xe0 no more")


def test_one_class_alone_can_be_trained_and_is_said(tmp_path):
    report = check(flat(tmp_path, {"a": 6}))
    assert report.can_train
    assert any('one class alone, "a"' in one.text for one in report.of("warning"))


def test_unequal_small_and_misspelt_classes(tmp_path):
    report = check(flat(tmp_path, {"Bee": 44, "bee_": 9, "c": 1}))
    unequal = finding(report, "unequal")
    assert unequal.severity == "warning"
    assert '40 training photos of "Bee", 1 of "c"; always saying "Bee" is right' in unequal.text
    assert (
        '2 classes with fewer than 10 training photos: "bee_" 8, "c" 1'
        in finding(report, "few").text
    )
    said = [one.text for one in report.findings if one.kind == "said"]
    assert any('"Bee" and "bee_"' in text for text in said)
    assert any('class "c" has one image: it is in training only' in text for text in said)
    assert "5 validation photos: one more or less right is 20.0%" in finding(report, "few-val").text


def test_copies_across_the_division_that_training_makes(tmp_path):
    root = flat(tmp_path, {"a": 20, "b": 20})
    for i in range(20):
        Image.open(root / "a" / f"{i:02}.jpg").save(root / "a" / f"again{i}.jpg", quality=40)
    report = check(root)
    moved = {one.item.id for one in report.seen if one.item.split == "val"}
    pairs = [{f"a/{i:02}.jpg", f"a/again{i}.jpg"} for i in range(20)]
    apart = {frozenset(pair) for pair in pairs if len(pair & moved) == 1}
    assert apart
    assert cases(report, "near-identical-parts") == apart
    assert "so these go to both sides" in finding(report, "near-identical-parts").training
    assert cases(report, "near-identical-same") == {*map(frozenset, pairs)} - apart


def test_pictures_of_a_few_pixels_are_compared_byte_for_byte_alone(tmp_path):
    for part in ("train", "val"):
        flat(tmp_path / part, {"a": 2})
    for side in (15, 16):
        for suffix in ("png", "bmp"):
            photo(tmp_path / "train" / "a" / f"{side}.{suffix}", side, (side, 40))
    found = cases(check(tmp_path), "near-identical-same")
    assert found == {frozenset({"train/a/16.bmp", "train/a/16.png"})}


def test_strange_names_links_and_a_table(tmp_path, capsys):
    root = flat(tmp_path / "photos", {"猫 $x$": 4, "<b>O'Brien": 4})
    name = os.fsdecode(b"caf\xe9.jpg")
    photo(root / "猫 $x$" / name, 77)
    shutil.copy(root / "猫 $x$" / name, root / "<b>O'Brien" / name)
    (root / "猫 $x$" / "loop").symlink_to(root)
    out = tmp_path / "o.json"
    assert (
        cli.main(["check", str(root), "--json", str(out), "--sheet", str(tmp_path / "s.png")]) == 0
    )
    told = json.loads(out.read_text(encoding="utf-8"))
    assert told["found"]["train"] == {"<b>O'Brien": 5, "猫 $x$": 5}
    (mixed,) = (one for one in told["findings"] if one["kind"] == "identical-classes")
    assert set(mixed["cases"][0]["photos"]) == {
        "<b>O'Brien/caf\\udce9.jpg",
        "猫 $x$/caf\\udce9.jpg",
    }
    assert "caf\\udce9.jpg" in capsys.readouterr().out
    table = tmp_path / "table.csv"
    table.write_text(
        "path,label\nphotos/猫 $x$/00.jpg,x\nphotos/猫 $x$/01.jpg,y\n", encoding="utf-8"
    )
    assert check(table).found == {"train": {"x": 1, "y": 1}}


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (["nowhere"], "nowhere"),
        ([".", "--size", "0"], "size (0) must be at least 1 pixel"),
        ([".", "--json", "no/where.json"], "--json no/where.json: there is no folder no"),
        ([".", "--json", "."], "--json .: that is a folder; give a file's name"),
        ([".", "--sheet", "s.txt"], "--sheet s.txt: must end in .png, .jpg or .webp"),
    ],
)
def test_wrong_usage(tmp_path, monkeypatch, capsys, words, message):
    monkeypatch.chdir(tmp_path)
    assert cli.main(["check", *words]) == 2
    assert message in capsys.readouterr().err


def test_the_same_report_in_python(tmp_path):
    report = vit.check(flat(tmp_path, {"a": 3, "b": 3}), size=32)
    assert report.can_train
    assert report.to_dict()["sizes"] == [[60, 48]] * 3


def test_neither_torch_nor_lightning_is_loaded(tmp_path):
    flat(tmp_path, {"a": 3, "b": 3})
    words = ["check", str(tmp_path), "--sheet", str(tmp_path / "s.png")]
    code = (
        f"import sys; from vit import cli; code = cli.main({words!r}); "
        "heavy = {'torch', 'lightning', 'timm', 'scipy'} & set(sys.modules); "
        "sys.exit(str(heavy) if heavy else code)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "\r" not in done.stderr  # progress is for terminals


# A class hidden in the files.


def seen(label: str, **traits) -> Seen:
    plain = {"format": "JPEG", "mode": "RGB", "height": 100, "width": 150}
    return Seen(Item("x", label, "train"), **(plain | traits))


def slow(labels: list[str], values: list[str], label: str) -> float:
    """Share told right when each photo is judged by the others of its value: the definition."""
    right = 0
    commonest = 2 * labels.count(label) > len(labels)
    for i, own in enumerate(labels):
        others = [labels[j] for j in range(len(labels)) if j != i and values[j] == values[i]]
        inside = others.count(label)
        said = commonest if 2 * inside == len(others) else 2 * inside > len(others)
        right += said == (own == label)
    return right / len(labels)


def test_one_class_png_the_others_jpeg():
    photos = [seen("a", format="PNG") for _ in range(20)]
    photos += [seen(name) for name in "bcde" for _ in range(20)]
    (one,) = giveaways(photos)
    assert (one.trait, one.label, one.value) == ("format", "a", "PNG")
    assert (one.inside, one.outside, one.right, one.base) == (20, 0, 1.0, 0.8)


def test_traits_that_tell_little_are_not_reported():
    rng = np.random.default_rng(0)
    photos = [
        seen(str(rng.choice(list("ab"))), format=str(rng.choice(["PNG", "JPEG"])), width=100 + i)
        for i in range(60)
    ]  # each of its own width: by the photo itself, not by others, all would be told
    assert giveaways(photos) == []
    few = [seen("a", format="PNG") for _ in range(3)] + [seen("b") for _ in range(3)]
    assert giveaways(few) == []


def test_share_told_right_is_its_definition():
    rng = np.random.default_rng(3)
    for _ in range(20):
        labels = rng.choice(list("abc"), 40, p=(0.6, 0.3, 0.1)).tolist()
        marks = [
            "PNG" if rng.random() < {"a": 0.95, "b": 0.05, "c": 0.5}[label] else "GIF"
            for label in labels
        ]
        photos = [seen(label, format=mark) for label, mark in zip(labels, marks, strict=True)]
        for one in giveaways(photos):
            assert one.right == pytest.approx(slow(labels, marks, one.label))
            assert one.right - one.base >= (1 - one.base) / 2
            counts = Counter(zip(labels, marks, strict=True))
            assert one.inside == counts[one.label, one.value]


@pytest.mark.parametrize(
    ("traits", "trait", "value"),
    [
        ({"mode": "L"}, "kind of colour", "grey"),
        ({"mode": "RGBA"}, "kind of colour", "transparency"),
        ({"orientation": 6}, "orientation tag", "6"),
        ({"height": 150, "width": 100}, "shape", "upright"),
        ({"height": 1000, "width": 1500}, "long side", "about 2048 px"),
    ],
)
def test_every_trait(traits, trait, value):
    photos = [seen("a", **traits) for _ in range(12)] + [seen("b") for _ in range(12)]
    assert (trait, value) in {
        (one.trait, one.value) for one in giveaways(photos) if one.label == "a"
    }


def test_the_report_says_what_gives_a_class_away(tmp_path):
    flat(tmp_path, {"a": 15}, "png")
    flat(tmp_path, {"b": 15})
    for path in (tmp_path / "b").iterdir():
        photo(path, int(path.stem) + 500)
    (one,) = (one for one in check(tmp_path).findings if one.kind == "giveaway")
    assert one.text.startswith(
        'the format gives "a" away: PNG are 15 of its photos and 0 of all others'
    )
    assert "compression shows" in one.training


# The contact sheet.


def colours(sheet: Image.Image) -> set[tuple[int, int, int]]:
    return {colour for _, colour in sheet.getcolors(2**24)}


def test_the_sheet_shows_photos_of_every_class_upright_and_whole(tmp_path):
    exif = Image.Exif()
    exif[274] = 6  # stored lying, red on the left: upright, red is on top
    lying = Image.new("RGB", (80, 40), (200, 0, 0))
    lying.paste((0, 0, 200), (40, 0, 80, 40))
    for name in "ab":
        (tmp_path / name).mkdir()
        lying.save(tmp_path / name / "x.png", exif=exif)
    page = np.asarray(contact_sheet(check(tmp_path))).astype(int)
    red = np.argwhere((page == (200, 0, 0)).all(-1))
    blue = np.argwhere((page == (0, 0, 200)).all(-1))
    (top, left), (low, right) = red.min(0), blue[blue[:, 0] < red[:, 0].min() + 112].max(0)
    assert (right - left + 1, low - top + 1) == (56, 112)  # twice as high as wide


def test_the_sheet_crosses_out_what_cannot_be_read(report):
    page = contact_sheet(report)
    assert page.width == 1460
    assert (0xB0, 0xB0, 0xB0) in colours(page)  # the cross
    assert {(0x00, 0x72, 0xB2), (0xE6, 0x9F, 0x00)} <= colours(page)  # training, validation


@pytest.mark.parametrize(("classes", "highest"), [(2, 900), (30, 2600), (100, 4000)])
def test_the_sheet_fits_any_number_of_classes(tmp_path, classes, highest):
    for i in range(classes):
        photo(tmp_path / f"class {i}" / "0.png", i, (30, 20))
        photo(tmp_path / f"class {i}" / "1.png", 1000 + i, (30, 20))
    page = contact_sheet(check(tmp_path, size=20))
    assert page.width == 1460
    assert page.height < highest


@pytest.mark.full
def test_real_folders(shared, tmp_path):
    """What is known of the real sets is found; every file that must fail is named."""
    pizza = check(shared / "data" / "pizza_steak_sushi")
    wrong = finding(pizza, "orientation")
    assert len(wrong.cases) == 55
    assert {case.why for case in wrong.cases} == {"orientation 0 ignored"}
    assert not [one for one in pizza.findings if one.kind == "giveaway"]
    insects = check(shared / "data" / "hymenoptera")
    (odd,) = finding(insects, "rare-format").cases
    assert odd.photos[0].endswith(".gif")
    assert insects.found["train"] == {"ants": 124, "bees": 121}
    fruit = check(shared / "data" / "fruit3")
    groups = [
        c for one in fruit.findings if one.kind.startswith("near-identical") for c in one.cases
    ]
    assert len(groups) >= 8
    assert all("mirrored" in case.why for case in groups)
    hard = check(shared / "data" / "hard")
    manifest = {
        row["file"]: row
        for row in csv.DictReader(
            (shared / "data" / "hard" / "manifest.csv").open(encoding="utf-8")
        )
    }
    unread = {case.photos[0] for case in finding(hard, "unreadable").cases}
    must = {name for name, row in manifest.items() if row["expect"] == "must fail"}
    fine = {name for name, row in manifest.items() if row["expect"] == "ok"}
    assert must <= unread
    assert not fine & unread
    contact_sheet(hard).save(tmp_path / "hard.png")
