"""vit attend: the right pixels of the original photo, files of a fixed form, and plain words."""

import json
import shlex
import shutil
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit import attending, explain, model_file
from vit.attending import MOST_PNG, encoded
from vit.captions import MEANINGS
from vit.cli import Parser, main
from vit.commands.attend import LAYOUTS, METHODS, add_arguments, name_of
from vit.fitting import Preprocess, fit
from vit.head_maps import head_maps
from vit.images import read
from vit.looking import answers
from vit.output_names import stems_of
from vit.overlay import colour_map, overlay, scale_top
from vit.question import Question
from vit.views import LOOKS, look

HOT, COLD = colour_map()[255], colour_map()[0]
LOOKED_AT = (2, 5)  # the row and column of the patch that the network below looks at
# Photos three times as wide as high, or as high as wide, leave little room between the padding.
PATCHES = {"crop": LOOKED_AT, "squash": LOOKED_AT, "pad": (3, 5), "pad_tall": (1, 3)}
GRID, PATCH = (7, 7), 8
CLASSES = ["10", "2", "a b", "猫", "O'Brien", "<b>x</b>"]

# What turns an upright picture into the pixels a file of that orientation stores.
STORED = {
    1: None,
    2: Image.Transpose.FLIP_LEFT_RIGHT,
    3: Image.Transpose.ROTATE_180,
    4: Image.Transpose.FLIP_TOP_BOTTOM,
    5: Image.Transpose.TRANSPOSE,
    6: Image.Transpose.ROTATE_90,
    7: Image.Transpose.TRANSVERSE,
    8: Image.Transpose.ROTATE_270,
}


def looking_network(row: int, col: int) -> vit.VisionTransformer:
    """One block whose class token attends to one patch alone, whatever is on it.

    Tokens carry nothing but a position: 1 in the first channel at that patch. Every query asks for
    that channel through its bias, so loudly that the softmax leaves nothing for the others.
    """
    net = vit.VisionTransformer(
        img_size=GRID[0] * PATCH,
        patch_size=PATCH,
        embed_dim=16,
        depth=1,
        num_heads=1,
        num_classes=2,
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.zero_()
        net.blocks[0].norm1.weight.fill_(1)
        net.pos_embed[0, 1 + row * GRID[1] + col, 0] = 1
        net.blocks[0].attn.qkv.weight[16, 0] = 1  # k: the first channel
        net.blocks[0].attn.qkv.bias[0] = 1000  # q
    return net.eval()


@pytest.fixture(scope="module")
def looking(tmp_path_factory) -> Path:
    """A folder of models that look at one patch, one for each way to fit a photo."""
    folder = tmp_path_factory.mktemp("looking")
    for name, patch in PATCHES.items():
        preprocess = Preprocess((GRID[0] * PATCH, GRID[1] * PATCH), fit=name.partition("_")[0])
        (folder / name).mkdir()
        path = folder / name / "model.safetensors"
        model_file.save(path, looking_network(*patch), ["off", "on"], preprocess)
    return folder


@pytest.fixture(scope="module")
def trained(tmp_path_factory) -> Path:
    """A small network with random weights, a head and classes with odd names."""
    torch.manual_seed(0)
    net = vit.VisionTransformer(
        img_size=(24, 32),
        patch_size=8,
        embed_dim=16,
        depth=3,
        num_heads=2,
        num_classes=len(CLASSES),
    )
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.2 * torch.randn_like(parameter))
    folder = tmp_path_factory.mktemp("trained")
    model_file.save(folder / "model.safetensors", net.eval(), CLASSES, Preprocess((24, 32)))
    return folder


def picture(height: int, width: int) -> Image.Image:
    """A photo without any colour of the map's top."""
    rows, cols = np.mgrid[:height, :width]
    channels = [rows * 99 // height, cols * 99 // width, (rows + cols) % 99]
    return Image.fromarray(np.stack(channels, axis=2).astype(np.uint8))


def store(image: Image.Image, path: Path, orientation: int = 1) -> Path:
    """A file that shows `image` when it is turned as its EXIF says."""
    turn = STORED[orientation]
    exif = Image.Exif()
    exif[274] = orientation
    (image if turn is None else image.transpose(turn)).save(path, exif=exif)
    return path


def attend(*words) -> int:
    return main(["attend", *map(str, words)])


def rows_of(folder: Path) -> list[dict]:
    return json.loads((folder / "attend.json").read_text(encoding="utf-8"))["photos"]


def panels(folder: Path, row: dict) -> list[np.ndarray]:
    page = np.asarray(Image.open(folder / row["picture"]))
    return [page[y0:y1, x0:x1] for x0, y0, x1, y1 in row["panels"]]


def box_of(lit: np.ndarray) -> tuple[int, int, int, int]:
    rows, cols = np.nonzero(lit)
    return cols.min(), rows.min(), cols.max() + 1, rows.max() + 1


# --- the right pixels ----------------------------------------------------------------------------


def check_lit_pixels(path: Path, height: int, width: int, model: Path, output: Path) -> None:
    """The pixels that the picture lights are those that the network sees in its patch."""
    words = ("--alpha", 1, "--view", "nearest", "--size", "original", "--sinks", "show")
    assert attend(path, "--model", model, "--output", output, *words) == 0
    [row] = rows_of(output)
    [panel] = panels(output, row)
    assert panel.shape == (height, width, 3)
    lit = (panel == HOT).all(axis=2)
    x0, y0, x1, y1 = box_of(lit)
    assert lit[y0:y1, x0:x1].all()

    # The network's own view, from a black photo that is white exactly where the picture is lit.
    white = np.zeros((height, width, 3), np.uint8)
    white[y0:y1, x0:x1] = 255
    spot = store(Image.fromarray(white), output / "spot.png")
    preprocess = model_file.load(model).preprocess
    outside = 255 * preprocess.mean[0]  # padding is grey
    seen = fit(read(spot), preprocess).pixels[..., 0].astype(float)
    seen[np.abs(seen - outside) < 1] = 0
    rows, cols = np.mgrid[: seen.shape[0], : seen.shape[1]] + 0.5
    centre = (seen * rows).sum() / seen.sum(), (seen * cols).sum() / seen.sum()
    patch = [(number + 0.5) * PATCH for number in PATCHES[model.name]]
    pixel = scale_of(preprocess.fit, height, width)  # photo pixels in one of the network's
    off = [(found - true) * side for found, true, side in zip(centre, patch, pixel, strict=True)]
    assert np.abs(off).max() <= 0.5, off
    tall, wide = (PATCH * side for side in pixel)
    assert abs((y1 - y0) - tall) <= 1 and abs((x1 - x0) - wide) <= 1


def scale_of(fitting: str, height: int, width: int) -> tuple[float, float]:
    """Photo pixels in one of the network's 56, (down, along).

    The photo is first resized to whole pixels, its long side cut off (crop) or rounded (pad).
    """
    side = GRID[0] * PATCH
    if fitting == "squash":
        return height / side, width / side
    whole, reference = (int, min) if fitting == "crop" else (round, max)
    small = [max(1, whole(side * one / reference(height, width))) for one in (height, width)]
    return height / small[0], width / small[1]


def model_for(fitting: str, height: int, width: int) -> str:
    """The model whose patch the padding leaves in sight."""
    return "pad_tall" if fitting == "pad" and height > width else fitting


@pytest.mark.parametrize("orientation", STORED)
def test_the_right_pixels_are_lit_in_every_orientation(orientation, looking, tmp_path):
    path = store(picture(120, 170), tmp_path / "a.png", orientation)
    check_lit_pixels(path, 120, 170, looking / "crop", tmp_path / "out")


@pytest.mark.parametrize("size", [(60, 180), (180, 60)])
@pytest.mark.parametrize("fitting", ["crop", "pad", "squash"])
def test_the_right_pixels_are_lit_in_long_photos(fitting, size, looking, tmp_path):
    path = store(picture(*size), tmp_path / "a.png", 6)
    check_lit_pixels(path, *size, looking / model_for(fitting, *size), tmp_path / "out")


@pytest.mark.full
@pytest.mark.parametrize("orientation", STORED)
@pytest.mark.parametrize("fitting", ["crop", "pad", "squash"])
def test_the_right_pixels_are_lit_in_large_photos(
    fitting, orientation, looking, tmp_path, monkeypatch
):
    monkeypatch.setattr(attending, "MOST_PNG", 10**9)  # JPEG would blur the edges
    sizes = [(3000, 4000)] if orientation in (1, 6) else [(300, 900), (900, 300)]
    for height, width in sizes:
        path = store(picture(height, width), tmp_path / f"{width}.png", orientation)
        model = looking / model_for(fitting, height, width)
        check_lit_pixels(path, height, width, model, tmp_path / f"{width}")


@pytest.mark.full
def test_the_right_pixels_are_lit_in_a_jpeg_of_a_phone(looking, tmp_path):
    """12 megapixels, sideways; the picture is reduced and the lit box with it."""
    path = tmp_path / "phone.jpg"
    store(picture(3000, 4000), path, 6)
    words = ("--alpha", 1, "--view", "nearest", "--sinks", "show", "--output", tmp_path / "out")
    assert attend(path, "--model", looking / "crop", *words) == 0
    [row] = rows_of(tmp_path / "out")
    [panel] = panels(tmp_path / "out", row)
    assert panel.shape == (1200, 1600, 3)
    lit = (np.abs(panel.astype(int) - HOT) < 40).all(axis=2)
    # 56 of 56 rows and, from the tenth on, 56 of 74 columns (4000 * 56 / 3000, cut off).
    down, along = 1200 / 56, 1600 / 74
    left, top = (9 + LOOKED_AT[1] * PATCH) * along, LOOKED_AT[0] * PATCH * down
    expected = left, top, left + PATCH * along, top + PATCH * down
    assert np.allclose(box_of(lit), expected, atol=1.5)


def test_alpha_zero_is_the_photo_itself(looking, tmp_path):
    path = store(picture(90, 130), tmp_path / "a.png", 8)
    words = ("--alpha", 0, "--size", "original", "--sinks", "show", "--output", tmp_path / "out")
    assert attend(path, "--model", looking / "crop", *words) == 0
    [panel] = panels(tmp_path / "out", rows_of(tmp_path / "out")[0])
    assert np.array_equal(panel, picture(90, 130))


def test_the_heat_file_says_where_each_patch_lies(looking, tmp_path):
    store(picture(112, 224), tmp_path / "a.png")
    assert (
        attend(tmp_path / "a.png", "--model", looking / "crop", "--output", tmp_path / "out") == 0
    )
    with np.load(tmp_path / "out" / "a.npz") as file:
        assert set(file) == {"heat", "affine", "seen"}
        heat, affine, seen = file["heat"], file["affine"], file["seen"]
    assert heat.dtype == np.float32 and heat.shape == GRID
    assert np.unravel_index(heat.argmax(), GRID) == LOOKED_AT
    assert heat.sum() == pytest.approx(0.5) == heat.max()  # the other half is the class token's own
    assert affine.dtype == np.float64 and np.array_equal(affine, [[16, 0, 56], [0, 16, 0]])
    assert np.array_equal(seen, [56, 0, 168, 112])


# --- layouts -------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "count", "headed"),
    [
        ((), 1, "over the last 2 of 3 layers"),
        (("--layers", "all"), 1, "over all 3 layers"),
        (("--layout", "panels", "--method", "generic"), 3, "generic attribution"),
        (("--layout", "depth"), 3, "rollout"),
        (("--layout", "heads"), 6, "attention"),
        (("--layout", "classes"), 3, "generic attribution"),
        (("--layout", "classes", "--method", "legrad", "--target", "猫", "2"), 2, "LeGrad"),
        (("--method", "gradcam", "--target", "a b", "10"), 2, "GradCAM"),
        (("--layout", "methods"), len(explain.METHODS) + 1, "rollout"),
        (
            ("--layout", "depth", "--patch", "1,3", "--method", "raw"),
            3,
            "as patch (row 1, column 3, from 0)",
        ),
        (("--at", "20,20", "--heads", "max", "--discard", 0.3), 1, "unlike Abnar & Zuidema 2020"),
        (("--sinks", "exclude", "--grid", "--view", "nearest"), 1, "outlier patches excluded"),
    ],
)
def test_every_layout_has_its_panels(words, count, headed, trained, tmp_path):
    store(picture(60, 80), tmp_path / "a.png")
    output = tmp_path / "out"
    words = ("--size", 160, "--output", output, *words)
    assert attend(tmp_path / "a.png", "--model", trained, *words) == 0
    [row] = rows_of(output)
    shown = panels(output, row)
    assert len(shown) == count and {one.shape for one in shown} == {(120, 160, 3)}
    assert headed in row["maps"][0]["label"]
    assert row["label"] in CLASSES and row["top"][0]["probability"] == row["probability"]
    with np.load(output / row["heat"]) as file:
        maps = 1 if "panels" in words else count
        assert file["heat"].shape == ((3, 4) if maps == 1 else (maps, 3, 4))
        assert np.isfinite(file["heat"]).all()


def test_the_picture_is_the_map_that_explain_gives(trained, tmp_path):
    """Command and library agree: the same heat, drawn on the same scale."""
    store(picture(48, 64), tmp_path / "a.png")
    words = ("--layers", "2-3", "--heads", "min", "--sinks", "show", "--size", "original")
    assert attend(tmp_path / "a.png", "--model", trained, "--output", tmp_path / "o", *words) == 0
    model = model_file.load(trained)
    pixels = torch.from_numpy(fit(read(tmp_path / "a.png"), model.preprocess).pixels)
    images = (pixels.permute(2, 0, 1)[None] / 255 - 0.5) / 0.5
    heat = explain.rollout(model.net, images, layers=slice(1, 3), heads="min")[0]
    with np.load(tmp_path / "o" / "a.npz") as file:
        assert np.allclose(file["heat"], heat, rtol=1e-5, atol=0)
        drawn = overlay(picture(48, 64), file["heat"], affine=file["affine"])
    [panel] = panels(tmp_path / "o", rows_of(tmp_path / "o")[0])
    assert np.abs(panel.astype(int) - np.asarray(drawn)).max() <= 1


def test_shares_and_targets_are_recorded(trained, tmp_path):
    store(picture(48, 64), tmp_path / "a.png")
    words = ("--method", "generic", "--target", "O'Brien", "--output", tmp_path / "o")
    assert attend(tmp_path / "a.png", "--model", trained, *words) == 0
    [one] = rows_of(tmp_path / "o")[0]["maps"]
    assert one["target"] == CLASSES.index("O'Brien") and one["layers"] == [1, 3]
    assert 0 < one["prefix_share"] < 1 and 0 <= one["outlier_share"] < 1
    settings = json.loads((tmp_path / "o" / "attend.json").read_text())["settings"]
    assert settings["method"] == "generic" and settings["targets"] == [4]


@pytest.mark.parametrize("query", [None, (1, 2)])
def test_each_heads_map_is_that_of_raw_attention(query, trained):
    net = model_file.load(trained).net
    images = torch.rand(2, 3, 24, 32, generator=torch.manual_seed(3))
    maps = head_maps(net, images, range(1, 3), query, row_block=5)
    assert maps.shape == (2, 2, 2, 3, 4)
    for layer in (1, 2):
        for head in (0, 1):
            asked = {"layers": slice(layer, layer + 1), "heads": head, "query": query}
            expected = explain.explain(net, images, "raw", **asked).heat
            assert torch.allclose(maps[:, layer - 1, head], expected, atol=1e-7)


def test_a_zero_map_is_drawn_and_called_so(trained, tmp_path):
    """A class whose score no attention raises: its weights in the head are zero."""
    model = model_file.load(trained)
    with torch.no_grad():
        model.net.head.weight[0] = 0
    (tmp_path / "zero").mkdir()
    model_file.save(tmp_path / "zero" / "model.safetensors", model.net, CLASSES, model.preprocess)
    store(picture(48, 64), tmp_path / "a.png")
    words = ("--method", "generic", "--target", "10", "--alpha", 1, "--sinks", "show")
    output = tmp_path / "o"
    assert attend(tmp_path / "a.png", "--model", tmp_path / "zero", "--output", output, *words) == 0
    [row] = rows_of(output)
    [panel] = panels(output, row)
    assert (panel == COLD).all()
    assert row["maps"][0]["prefix_share"] == 0  # of nothing: generic's identity is no relevance


# --- files ---------------------------------------------------------------------------------------


def test_a_second_call_writes_the_same_bytes(trained, tmp_path):
    for name in ("a.png", "b.png"):
        store(picture(48, 64), tmp_path / name)
    for output in ("one", "two"):
        words = ("--layout", "panels", "--output", tmp_path / output, "--model", trained)
        assert attend(tmp_path / "a.png", tmp_path / "b.png", *words) == 0
    files = sorted(path.name for path in (tmp_path / "one").iterdir())
    assert files == ["a.npz", "a.png", "attend.json", "b.npz", "b.png"]
    for name in files:
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()
    assert Image.open(tmp_path / "one" / "a.png").info == {}


def test_a_photo_alone_has_the_picture_it_has_among_others(trained, tmp_path):
    photos = tmp_path / "photos"
    photos.mkdir()
    for name, size in (("a.png", (48, 64)), ("b.png", (90, 40))):
        store(picture(*size), photos / name)
    attend(photos / "b.png", "--model", trained, "--output", tmp_path / "one")
    attend(photos, "--model", trained, "--output", tmp_path / "two")
    for name in ("b.png", "b.npz"):
        assert (tmp_path / "one" / name).read_bytes() == (tmp_path / "two" / name).read_bytes()


def test_a_bad_file_is_a_row_and_the_others_go_on(trained, tmp_path, capsys):
    photos = tmp_path / "photos"
    photos.mkdir()
    store(picture(48, 64), photos / "c.png")
    (photos / "b.png").write_bytes((photos / "c.png").read_bytes()[:200])
    before = {path.name: path.read_bytes() for path in photos.iterdir()}
    words = ("--model", trained, "--output", tmp_path / "o")
    assert attend(photos, tmp_path / "gone.jpg", *words) == 1
    rows = rows_of(tmp_path / "o")
    assert [bool(row["error"]) for row in rows] == [True, False, True]
    assert "No such file" in rows[2]["error"] and "picture" not in rows[0]
    assert (tmp_path / "o" / "c.png").is_file() and not (tmp_path / "o" / "b.png").exists()
    said = capsys.readouterr().err
    assert "gone.jpg: No such file" in said and "2 of 3 failed; attend.json says why" in said
    assert {path.name: path.read_bytes() for path in photos.iterdir()} == before


def test_a_list_on_stdin_and_nothing_beside_the_photos(trained, tmp_path, command):
    store(picture(48, 64), tmp_path / "猫.png")
    code = (
        "import sys; from vit.cli import main; code = main(sys.argv[1:]);"
        "print(code, {'timm', 'lightning', 'torchmetrics', 'av'} & set(sys.modules) or 'light')"
    )
    done = subprocess.run(
        [sys.executable, "-c", code, "attend", "-", "--model", str(trained)],
        input=f"{tmp_path / '猫.png'}\n", capture_output=True, text=True, check=True,
        cwd=tmp_path, env={"PYTHONPATH": str(Path(vit.__file__).parents[1])},
    )  # fmt: skip
    assert done.stdout.split() == ["0", "light"], done.stderr
    assert "1 picture in attend" in done.stderr
    assert sorted(path.name for path in tmp_path.iterdir()) == ["attend", "猫.png"]
    assert sorted(path.name for path in (tmp_path / "attend").iterdir()) == [
        "attend.json", "猫.npz", "猫.png",
    ]  # fmt: skip


def test_photos_of_the_same_name_do_not_replace_each_other(trained, tmp_path):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        store(picture(48, 64 if folder == "x" else 50), tmp_path / folder / "a.png")
    attend(tmp_path / "x", tmp_path / "y", "--model", trained, "--output", tmp_path / "o")
    made = [row["picture"] for row in rows_of(tmp_path / "o")]
    assert made == ["x/a.png", "y/a.png"]
    assert len({(tmp_path / "o" / name).read_bytes() for name in made}) == 2


def test_names_are_as_short_as_they_can_be():
    assert stems_of(["p/a.jpg", "q/b.jpg"]) == {"p/a.jpg": "a", "q/b.jpg": "b"}
    assert set(stems_of(["a.jpg", "a.png"]).values()) == {"a.jpg", "a.png"}
    assert set(stems_of(["/p/q/a.jpg", "/r/q/a.jpg"]).values()) == {"p/q/a", "r/q/a"}
    many = ["a.JPG", "A.jpg", "x/a.jpg", "x/a.png", "x.tar.gz", "b.jpg", "b.jpg"]
    names = [name.casefold() for name in stems_of(many).values()]
    assert len(names) == len(set(names)) == 6
    assert stems_of([]) == {}
    trap = [name.casefold() for name in stems_of(["a.jpg", "a.png", "a.jpg.png"]).values()]
    assert len(set(trap)) == 3


def test_a_picture_of_another_photo_is_not_replaced(trained, tmp_path, capsys):
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        store(picture(48, 64), tmp_path / folder / "a.png")
    output = tmp_path / "o"
    assert attend(tmp_path / "x" / "a.png", "--model", trained, "--output", output) == 0
    capsys.readouterr()
    assert attend(tmp_path / "y" / "a.png", "--model", trained, "--output", output) == 2
    assert "would be replaced by the picture of" in capsys.readouterr().err
    assert attend(tmp_path / "x" / "a.png", "--model", trained, "--output", output) == 0


def test_photos_are_never_replaced(trained, tmp_path, capsys, monkeypatch):
    """Neither the photo that is asked about, nor a file that no earlier call wrote."""
    store(picture(48, 64), tmp_path / "own.png")
    content = (tmp_path / "own.png").read_bytes()
    monkeypatch.chdir(tmp_path)
    assert attend("own.png", "--model", trained, "--output", ".") == 2
    said = capsys.readouterr().err
    assert "the picture of own.png would be written to own.png, which is the photo own.png" in said
    assert "give another folder as --output" in said
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "own.png").write_bytes(b"mine")
    assert attend("own.png", "--model", trained, "--output", "o") == 2
    assert "is not known to show the same photo" in capsys.readouterr().err
    assert (tmp_path / "o" / "own.png").read_bytes() == b"mine"
    assert (tmp_path / "own.png").read_bytes() == content
    assert not list(tmp_path.rglob("attend.json"))


def test_a_failed_start_leaves_the_record(trained, tmp_path, capsys):
    if torch.cuda.is_available():
        pytest.skip("needs a machine without a GPU")
    store(picture(48, 64), tmp_path / "a.png")
    words = (tmp_path / "a.png", "--model", trained, "--device", "cuda", "--output")
    assert attend(*words, tmp_path / "new") == 2 and not (tmp_path / "new").exists()
    assert "device (cuda) is not here" in capsys.readouterr().err
    (tmp_path / "o").mkdir()
    (tmp_path / "o" / "attend.json").write_text("old")
    assert attend(*words, tmp_path / "o") == 2
    assert (tmp_path / "o" / "attend.json").read_text() == "old"


def test_pictures_of_all_earlier_calls_are_known(trained, tmp_path, capsys, monkeypatch):
    """Whatever the folder in which a call was made, and however many came after it."""
    for folder in ("x", "y"):
        (tmp_path / folder).mkdir()
        store(picture(48, 64), tmp_path / folder / "a.png")
    store(picture(48, 64), tmp_path / "x" / "b.png")
    words = ("--model", trained, "--output", tmp_path / "o")
    monkeypatch.chdir(tmp_path / "x")
    assert attend("a.png", *words) == 0 and attend("b.png", *words) == 0
    assert attend("a.png", *words) == 0
    monkeypatch.chdir(tmp_path / "y")
    capsys.readouterr()
    assert attend("a.png", *words) == 2
    assert f"shows {tmp_path / 'x' / 'a.png'} and would be replaced" in capsys.readouterr().err


@pytest.mark.skipif(sys.platform != "linux", reason="names of files that are no UTF-8")
def test_a_name_that_is_not_utf8_is_recorded(trained, tmp_path):
    store(picture(48, 64), tmp_path / "a.png").rename(tmp_path / "caf\udce9.png")
    assert attend(tmp_path / "caf\udce9.png", "--model", trained, "--output", tmp_path / "o") == 0
    assert rows_of(tmp_path / "o")[0]["path"].endswith("caf\udce9.png")


def test_large_pictures_are_jpegs():
    assert encoded(np.zeros((10, 10, 3), np.uint8))[1] == ".png"
    content, suffix = encoded(np.zeros((MOST_PNG // 1000 + 1, 1000, 3), np.uint8))
    assert suffix == ".jpg" and content[:2] == b"\xff\xd8"


# --- words ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (
            ("--target", "猫"),
            "--target goes with --method generic, legrad, gradcam, not with rollout",
        ),
        (
            ("--method", "generic", "--target", "cat"),
            '--target "cat" is no class of this network: it',
        ),
        (("--method", "generic", "--target", "OBrien"), 'did you mean "O\'Brien"?'),
        (
            ("--method", "legrad", "--patch", "0,0"),
            "--patch (or --at) goes with --method rollout, raw",
        ),
        (
            ("--patch", "9,0"),
            "--patch (9, 0) is not in the network's 3x4 grid: give ROW,COL from 0,0",
        ),
        (("--patch", "x"), "--patch (x) must be two numbers, ROW,COL, such as 3,4"),
        (("--at", "1,2,3"), "--at (1,2,3) must be two numbers, X,Y"),
        (("--at", "500,2"), "the network saw nothing at pixel 500,2"),
        (("--size", "0"), '--size (0) must be a number of pixels, at least 1, or "original"'),
        (("--img-size", "24x"), "--img-size (24x) must be a number of pixels, or HEIGHTxWIDTH"),
        (("--img-size", "30"), "30"),
        (("--alpha", "2"), "alpha (2.0) must be a fraction in [0, 1]"),
        (("--discard", "1"), "discard (1.0) must be at least 0 and below 1"),
        (("--layers", "last:9"), 'layers ("last:9")'),
        (("--method", "raw", "--discard", "0.5"), "--discard goes with --method rollout"),
        (("--method", "generic", "--heads", "max"), "--heads goes with --method rollout, raw"),
        (
            ("--layout", "depth", "--layers", "all"),
            "--layout depth shows all depths: leave --layers",
        ),
        (("--layout", "depth", "--method", "generic", "--target", "2", "10"), "one --target"),
        (
            ("--layout", "heads", "--method", "affinity"),
            "--method affinity does not go with --layout",
        ),
        (("--layout", "heads", "--heads", "max"), "--heads max does not go with --layout heads"),
        (
            ("--layout", "heads", "--discard", "0.5"),
            "--discard 0.5 does not go with --layout heads",
        ),
        (("--layout", "heads", "--target", "2"), "--target does not go with --layout heads"),
        (("--layout", "classes", "--heads", "max"), "--heads goes with --method rollout, raw"),
        (("--architecture", "vit_tiny_patch16_224"), "--architecture"),
    ],
)
def test_what_cannot_be_asked_is_said(words, message, trained, tmp_path, capsys):
    store(picture(24, 32), tmp_path / "a.png")
    code = attend(tmp_path / "a.png", "--model", trained, "--output", tmp_path / "o", *words)
    said = capsys.readouterr().err
    asked_of_the_photo = words[0] == "--at" and words[1] == "500,2"
    assert code == (1 if asked_of_the_photo else 2) and message in said, said
    assert asked_of_the_photo or not (tmp_path / "o").exists()
    assert said.count("Traceback") == 0


@pytest.mark.parametrize("words", [("--method", "generic"), ("--layout", "classes")])
def test_a_network_without_classes_says_so(words, tmp_path, capsys):
    net = vit.VisionTransformer(
        img_size=16, patch_size=8, embed_dim=8, depth=1, num_heads=1, num_classes=0
    )
    model_file.save(tmp_path / "model.safetensors", net, [], Preprocess((16, 16)))
    store(picture(24, 32), tmp_path / "a.png")
    model, output = tmp_path / "model.safetensors", tmp_path / "o"
    assert attend(tmp_path / "a.png", "--model", model, "--output", output, *words) == 2
    assert "explains a class, but this network knows none" in capsys.readouterr().err
    assert attend(tmp_path / "a.png", "--model", model, "--output", output) == 0
    assert rows_of(output)[0]["label"] is None


@pytest.mark.parametrize("layout", ["depth", "methods"])
def test_variants_are_named_and_not_called_the_papers(layout, trained):
    model, images = model_file.load(trained), torch.zeros(1, 3, 24, 32)

    def words_of(**asked):
        said = answers(model, images)
        seen = look(model, images, Question(layout=layout, **asked), said)
        return " | ".join([seen.label, *(one.heading for one in seen.maps)])

    assert ("as in Abnar" in words_of()) == (layout == "depth") and "unlike" not in words_of()
    changed = words_of(heads="max", discard=0.3)
    assert "max over heads, smallest 30% of each row discarded: unlike Abnar & Zuidema" in changed
    assert "as in Abnar" not in changed
    assert "outlier patches excluded" in words_of(sinks="exclude")


def test_a_model_file_alone_is_called_by_its_own_name(trained, tmp_path):
    from argparse import Namespace

    alone = tmp_path / "private" / "bees.safetensors"
    alone.parent.mkdir()
    shutil.copy(trained / "model.safetensors", alone)
    assert name_of(Namespace(model=str(alone), architecture=None)) == ("bees", "")
    (alone.parent / "config.json").write_text("{}")  # of a run
    run = f"{tmp_path.name}/private"
    assert name_of(Namespace(model=str(alone), architecture=None)) == (run, "")


def test_the_command_offers_every_method_and_layout():
    assert METHODS == explain.METHODS and set(METHODS) == set(MEANINGS)
    assert tuple(LOOKS) == LAYOUTS


def test_readmes_commands_are_understood():
    text = (Path(vit.__file__).parents[1] / "README.md").read_text(encoding="utf-8")
    lines = [
        line.partition(" #")[0] for line in text.splitlines() if line.startswith("vit attend ")
    ]
    parser = Parser()
    add_arguments(parser)
    assert len(lines) >= 5
    for line in lines:
        assert parser.parse_args(shlex.split(line)[2:]).model


def test_no_photo_at_all_is_a_failure(trained, tmp_path, caplog):
    (tmp_path / "empty").mkdir()
    assert attend(tmp_path / "empty", "--model", trained, "--output", tmp_path / "o") == 1
    assert "no photo in this folder" in caplog.text


# --- moving pictures -----------------------------------------------------------------------------


def frames_of(count: int, height: int = 40, width: int = 61) -> list[Image.Image]:
    """A bright square that wanders over grey."""
    made = []
    for number in range(count):
        pixels = np.full((height, width, 3), 60, np.uint8)
        pixels[10:30, 2 * number : 2 * number + 20] = (200, 180, 40)
        made.append(Image.fromarray(pixels))
    return made


@pytest.fixture(params=["gif", "webp", "png"])
def animation(request, tmp_path) -> Path:
    first, *others = frames_of(5)
    path = tmp_path / f"moving.{request.param}"
    first.save(path, save_all=True, append_images=others, duration=[40, 80, 120, 40, 40])
    return path


def test_an_animation_becomes_a_video_of_the_same_frames(animation, looking, tmp_path):
    av = pytest.importorskip("av")
    words = ("--alpha", 1, "--view", "nearest", "--sinks", "show", "--output", tmp_path / "o")
    for _ in range(2):
        assert attend(animation, "--model", looking / "crop", *words) == 0
        content = (tmp_path / "o" / "moving.mp4").read_bytes()
    assert attend(animation, "--model", looking / "crop", *words[:-1], tmp_path / "again") == 0
    assert (tmp_path / "again" / "moving.mp4").read_bytes() == content
    [row] = rows_of(tmp_path / "o")
    assert row["frames"] == 5 and row["error"] == ""
    with np.load(tmp_path / "o" / row["heat"]) as file:
        assert file["heat"].shape == (5, *GRID) and len(file["seconds"]) == 5
        assert np.allclose(file["seconds"], [0, 0.04, 0.12, 0.24, 0.28])
    with av.open(str(tmp_path / "o" / row["picture"])) as container:
        decoded = list(container.decode(video=0))
    assert [round(frame.time, 3) for frame in decoded] == [0, 0.04, 0.12, 0.24, 0.28]
    x0, y0, x1, y1 = row["panels"][0]
    side, scale = 40 / GRID[0], 9  # enlarged by a whole number, to 549
    left, top = 10.5 + LOOKED_AT[1] * side, LOOKED_AT[0] * side
    expected = np.array([left, top, left + side, top + side]) * scale
    for frame in decoded:
        panel = frame.to_ndarray(format="rgb24")[y0:y1, x0:x1]
        lit = (np.abs(panel.astype(int) - HOT) < 60).all(axis=2)
        assert np.allclose(box_of(lit), expected, atol=scale / 2 + 2)


def test_all_frames_share_one_scale(trained, tmp_path):
    """Each patch of each frame has the colour of its heat on the scale of all maps together."""
    av = pytest.importorskip("av")
    first, *others = frames_of(6)
    first.save(tmp_path / "a.gif", save_all=True, append_images=others, duration=50)
    words = ("--alpha", 1, "--view", "nearest", "--sinks", "show", "--output", tmp_path / "o")
    attend(tmp_path / "a.gif", "--model", trained, *words)
    [row] = rows_of(tmp_path / "o")
    with np.load(tmp_path / "o" / "a.npz") as file:
        heat, affine = file["heat"].astype(float), file["affine"]
    times = heat / heat.mean(axis=(1, 2), keepdims=True)
    top = scale_top(heat)
    x0, y0, x1, _ = row["panels"][0]
    zoom = (x1 - x0) / 61
    with av.open(str(tmp_path / "o" / "a.mp4")) as container:
        decoded = [frame.to_ndarray(format="rgb24") for frame in container.decode(video=0)]
    for frame, values in zip(decoded, times, strict=True):
        for (i, j), value in np.ndenumerate(values):
            x, y = zoom * (affine @ (j + 0.5, i + 0.5, 1))
            expected = colour_map()[round(min(value / top, 1) * 255)].astype(int)
            assert np.abs(frame[y0 + int(y), x0 + int(x)] - expected).max() < 30


def test_all_frames_are_for_the_class_of_the_first(trained, tmp_path):
    pytest.importorskip("av")
    colours = [(0, 0, 0), (255, 0, 0), (0, 255, 0), (0, 0, 255), (255, 255, 255), (128, 0, 128)]
    first, *others = stills = [Image.new("RGB", (64, 48), colour) for colour in colours]
    first.save(tmp_path / "a.gif", save_all=True, append_images=others, duration=50)
    for number, still in enumerate(stills):
        still.save(tmp_path / f"{number}.png")
    words = ("--method", "generic", "--model", trained, "--output")
    assert attend(tmp_path / "a.gif", *words, tmp_path / "own") == 0
    [row] = rows_of(tmp_path / "own")
    target = row["maps"][0]["target"]
    said = model_file.load(trained).predict(sorted(tmp_path.glob("?.png")))
    assert CLASSES[target] == said[0]["label"] and len({one["label"] for one in said}) > 1
    assert attend(tmp_path / "a.gif", *words, tmp_path / "named", "--target", CLASSES[target]) == 0
    heats = [np.load(tmp_path / name / "a.npz")["heat"] for name in ("own", "named")]
    assert np.array_equal(*heats)


def test_times_increase_and_the_last_frame_lasts(tmp_path):
    av = pytest.importorskip("av")
    from vit.video import frames, writer

    with writer(tmp_path / "a.mp4", 40, 60) as write:
        for number, image in enumerate(frames_of(3, 40, 60)):
            write(np.asarray(image), number / 10, 0.7)
    with av.open(str(tmp_path / "a.mp4")) as container:
        stream = container.streams.video[0]
        assert float(stream.duration * stream.time_base) == pytest.approx(0.9, abs=0.01)
    first, *others = frames_of(3)
    first.save(tmp_path / "a.gif", save_all=True, append_images=others, duration=[40, 80, 300])
    got = list(frames(str(tmp_path / "a.gif")))
    assert [frame.duration for frame in got] == pytest.approx([0.04, 0.08, 0.3])


def test_a_time_that_is_repeated_is_moved(tmp_path, monkeypatch):
    from vit import video

    frame = video.Frame(None, 0.5)
    monkeypatch.setattr(video, "of_animation", lambda path: iter([frame, frame, frame]))
    seconds = [one.seconds for one in video.frames("a.gif")]
    assert seconds[0] == 0.5 and np.allclose(np.diff(seconds), 1 / 90_000)


def test_a_video_is_read_frame_by_frame(looking, tmp_path):
    pytest.importorskip("av")
    from vit.video import frames, writer

    with writer(tmp_path / "a.mp4", 40, 60) as write:
        for number, image in enumerate(frames_of(4, 40, 60)):
            write(np.asarray(image), number / 10)
    got = list(frames(str(tmp_path / "a.mp4")))
    assert [frame.seconds for frame in got] == pytest.approx([0, 0.1, 0.2, 0.3])
    for frame, true in zip(got, frames_of(4, 40, 60), strict=True):
        assert np.abs(np.asarray(frame.photo.image).astype(int) - np.asarray(true)).mean() < 6
    assert attend(tmp_path / "a.mp4", "--model", looking / "pad", "--output", tmp_path / "o") == 0
    assert rows_of(tmp_path / "o")[0]["frames"] == 4


def test_what_cannot_be_filmed_is_said(looking, tmp_path, monkeypatch):
    (tmp_path / "broken.mp4").write_bytes(b"no video at all")
    first, *others = frames_of(3)
    first.save(tmp_path / "a.gif", save_all=True, append_images=others, duration=50)
    store(picture(24, 32), tmp_path / "still.png")
    words = ("--model", looking / "crop", "--output", tmp_path / "o")
    if pytest.importorskip("av"):
        assert attend(tmp_path / "broken.mp4", tmp_path / "still.png", *words) == 1
        rows = rows_of(tmp_path / "o")
        assert rows[0]["error"].startswith("broken after 0 frames") and not rows[1]["error"]
        gif = (tmp_path / "a.gif").read_bytes()
        start = gif.rindex(b"\x2c\0\0\0\0")  # the last frame, which now claims 65,535 pixels a side
        bomb = gif[: start + 5] + b"\xff" * 4 + gif[start + 9 :]
        (tmp_path / "bomb.gif").write_bytes(bomb)
        assert attend(tmp_path / "bomb.gif", tmp_path / "still.png", *words) == 1
        rows = rows_of(tmp_path / "o")
        assert "exceeds limit" in rows[0]["error"] and not rows[1]["error"]
        assert attend(tmp_path / "a.gif", *words, "--layout", "panels") == 1
        assert "--layout overlay and one --target" in rows_of(tmp_path / "o")[0]["error"]
        from vit.video import writer

        with (
            pytest.raises(ValueError, match="even numbers of pixels, got 41x60"),
            writer(tmp_path / "x.mp4", 41, 60),
        ):
            pass
    monkeypatch.setitem(sys.modules, "av", None)
    assert attend(tmp_path / "a.gif", tmp_path / "still.png", *words) == 1
    rows = rows_of(tmp_path / "o")
    assert "pip install" in rows[0]["error"] and "PyAV" in rows[0]["error"]
    assert not rows[1]["error"]
    assert not list((tmp_path / "o").glob("*.part"))


@pytest.mark.full
def test_a_long_video_takes_no_more_memory_than_a_short_one(looking, tmp_path):
    pytest.importorskip("av")
    from vit.video import writer

    peaks = []
    for count in (60, 600):
        with writer(tmp_path / f"{count}.mp4", 240, 320) as write:
            for number in range(count):
                write(np.full((240, 320, 3), number % 250, np.uint8), number / 25)
        code = (
            "import resource, sys; from vit.cli import main; code = main(sys.argv[1:]);"
            "print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)"
        )
        words = ["attend", f"{count}.mp4", "--model", looking / "crop", "--size", "320"]
        done = subprocess.run(
            [sys.executable, "-c", code, *map(str, words)], capture_output=True, text=True,
            check=True, cwd=tmp_path, env={"PYTHONPATH": str(Path(vit.__file__).parents[1])},
        )  # fmt: skip
        failed, peak = map(int, done.stdout.split())
        assert not failed, done.stderr
        peaks.append(peak)
    assert peaks[1] < peaks[0] + 30_000, peaks  # kB; 540 frames are 124 MB


@pytest.mark.full
def test_real_photos_of_all_kinds(shared, trained, tmp_path):
    """Every readable file of the difficult ones has a picture; every other one an error."""
    folder = shared / "data" / "hard" / "orientation"
    attend(folder, "--model", trained, "--output", tmp_path / "o", "--size", 128)
    rows = rows_of(tmp_path / "o")
    assert len(rows) >= 8
    assert all(bool(row["error"]) != bool(row.get("picture")) for row in rows)
    shutil.rmtree(tmp_path / "o")
