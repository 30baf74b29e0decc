"""`vit predict`: its numbers against the network asked directly, its rows, its streams, its ends.

The oracle opens lossless pictures of the network's own size with Pillow alone, so that the pixels
are the file's, and does the softmax itself.
"""

import csv
import hashlib
import io
import json
import logging
import os
import re
import signal
import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit import inference
from vit.cli import configure_messages, main
from vit.commands.progress import Progress
from vit.fitting import Preprocess
from vit.inference import Computing, likeliest, logits
from vit.metrics import Predictions

CLASSES = ["10", "2", "a b", "猫", "O'Brien", "<b>x</b>"]
MEAN, STD, TEMPERATURE = 0.4, 0.25, 1.7
SIDE = 16


def random_network(generator: torch.Generator, **changes) -> vit.VisionTransformer:
    usual = {"img_size": SIDE, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3}
    net = vit.VisionTransformer(**usual | {"num_classes": len(CLASSES)} | changes)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.2, generator=generator)
    return net.eval()


@pytest.fixture(autouse=True)
def heard_from_commands(heard, monkeypatch):
    """caplog hears what commands say, too: the first of them sets the messages up."""
    configure_messages()
    monkeypatch.setattr(logging.getLogger("vit"), "propagate", True)


@pytest.fixture(scope="module")
def model_folder(tmp_path_factory, good) -> Path:
    folder = tmp_path_factory.mktemp("model")
    net = random_network(torch.Generator().manual_seed(0))
    logits = torch.from_numpy(expected(net, good)).float()
    with torch.no_grad():  # answers that differ from photo to photo, none of them certain
        net.head.bias -= logits.mean(dim=0)
        for parameter in (net.head.weight, net.head.bias):
            parameter.div_(logits.std(dim=0).mean())
    preprocess = Preprocess((SIDE, SIDE), (MEAN,) * 3, (STD,) * 3)
    vit.save(folder / "model.safetensors", net, CLASSES, preprocess, TEMPERATURE)
    return folder


@pytest.fixture(scope="module")
def model(model_folder):
    return vit.load(model_folder)


@pytest.fixture(scope="module")
def folder(tmp_path_factory) -> Path:
    """Ten pictures of noise in the network's size, 0.png to 9.png, and one that is cut short."""
    folder = tmp_path_factory.mktemp("photos")
    draw = np.random.default_rng(0)
    for number in range(10):
        noise = draw.integers(0, 256, (SIDE, SIDE, 3), dtype=np.uint8)
        Image.fromarray(noise).save(folder / f"{number}.png")
    whole = (folder / "3.png").read_bytes()
    (folder / "3 cut.png").write_bytes(whole[: len(whole) // 2])
    return folder


@pytest.fixture(scope="module")
def good(folder) -> list[str]:
    return [str(folder / f"{number}.png") for number in range(10)]


def expected(net, paths, flip: bool = False) -> np.ndarray:
    """Logits (n, C), float64 from the network's float32."""
    stack = np.stack([np.asarray(Image.open(path), np.float32) for path in paths])
    stack = stack[:, :, ::-1] if flip else stack
    pixels = torch.from_numpy((stack / 255 - MEAN) / STD).permute(0, 3, 1, 2)
    with torch.inference_mode():
        return net(pixels).double().numpy()


def softmax(values: np.ndarray) -> np.ndarray:
    powers = np.exp(values - values.max(axis=1, keepdims=True))
    return powers / powers.sum(axis=1, keepdims=True)


def check_rows(rows, paths, shares, tolerance=1e-5) -> None:
    assert [row["path"] for row in rows] == list(paths)
    for row, share in zip(rows, shares, strict=True):
        order = np.argsort(-share)
        assert (row["label"], row["error"]) == (CLASSES[order[0]], None)
        assert [one["label"] for one in row["top"]] == [
            CLASSES[i] for i in order[: len(row["top"])]
        ]
        assert row["probability"] == row["top"][0]["probability"]
        values = [one["probability"] for one in row["top"]]
        np.testing.assert_allclose(values, share[order[: len(values)]], atol=tolerance)


def test_rows_are_the_networks_probabilities_with_its_temperature(model, good):
    rows = model.predict(good, top_k=len(CLASSES))
    check_rows(rows, good, softmax(expected(model.net, good) / TEMPERATURE))
    assert len({row["label"] for row in rows}) > 2  # not one class for everything
    assert sum(one["probability"] for one in rows[0]["top"]) == pytest.approx(1, abs=1e-6)


@pytest.mark.parametrize("batch_size", [1, 3, 10, 100])
def test_a_photo_alone_equals_the_photo_in_a_folder(model, good, batch_size):
    rows = model.predict(good, batch_size=batch_size, workers=3)
    check_rows(rows, good, softmax(expected(model.net, good) / TEMPERATURE))
    (alone,) = model.predict(good[7])
    assert alone["label"] == rows[7]["label"]
    assert alone["probability"] == pytest.approx(rows[7]["probability"], abs=1e-6)


def test_the_order_of_photos_changes_nothing(model, good):
    forward = model.predict(good, batch_size=4)
    backward = model.predict(good[::-1], batch_size=4)[::-1]
    for one, other in zip(forward, backward, strict=True):
        assert (one["path"], one["label"]) == (other["path"], other["label"])
        assert one["probability"] == pytest.approx(other["probability"], abs=1e-6)


def test_flip_averages_the_logits_of_a_photo_and_its_mirror(model, good):
    mean = (expected(model.net, good) + expected(model.net, good, flip=True)) / 2
    check_rows(model.predict(good, flip=True), good, softmax(mean / TEMPERATURE))


def test_bf16_is_near_and_is_not_float32(model, good, monkeypatch):
    monkeypatch.setattr(inference, "has_bf16", lambda device: True)  # emulated, where it must be
    rounded = model.predict(good, precision="bf16")
    shares = softmax(expected(model.net, good) / TEMPERATURE)
    differences = [
        abs(row["probability"] - share.max()) for row, share in zip(rounded, shares, strict=True)
    ]
    assert 1e-6 < max(differences) < 0.05


def test_of_equal_logits_the_first_class_wins_as_in_evaluate(model):
    logits = torch.tensor([0.5, 1, 2, 2, 2, 1])
    told = likeliest(model, logits, 5)
    assert [name for name, _ in told] == [CLASSES[i] for i in (2, 3, 4, 1, 5)]
    assert Predictions(logits[None], torch.tensor([2])).score()["correct"] == 1
    shares = softmax(logits[None].double().numpy() / model.temperature)[0]
    assert [share for _, share in told] == pytest.approx(shares[[2, 3, 4, 1, 5]], rel=1e-6)


def test_a_processor_without_bf16_computes_in_float32_and_says_so(model, good, monkeypatch, caplog):
    monkeypatch.setattr(inference, "has_bf16", lambda device: False)
    rows = list(model.predict(good, precision="bf16"))
    check_rows(rows, good, softmax(expected(model.net, good) / TEMPERATURE))
    assert "no bf16 arithmetic: computed in float32" in caplog.text


def test_threshold_makes_unknown_and_keeps_what_it_would_have_been(model, good):
    plain = model.predict(good)
    limit = sorted(row["probability"] for row in plain)[5]
    for before, after in zip(plain, model.predict(good, threshold=limit), strict=True):
        known = before["probability"] >= limit
        assert after["label"] == (before["label"] if known else "unknown")
        assert (after["top"], after["probability"]) == (before["top"], before["probability"])
    assert {row["label"] for row in model.predict(good, threshold=1.0)} == {"unknown"}


def test_no_more_photos_are_opened_than_two_batches(model, good):
    drawn = []

    def paths():
        for number in range(1000):
            drawn.append(number)
            yield good[0]

    answers = logits(model, paths(), Computing(batch_size=4, workers=2))
    next(answers)
    assert len(drawn) <= 2 * 4
    answers.close()


def test_a_bad_file_has_its_row_where_it_stands(model, good, folder):
    paths = [good[0], str(folder / "3 cut.png"), good[1]]
    first, bad, last = model.predict(paths)
    assert (first["error"], last["error"]) == (None, None)
    assert bad["error"].lower().startswith(("truncated", "image file is truncated"))
    assert (bad["label"], bad["probability"], bad["top"]) == (None, None, [])
    check_rows(
        [first, last], [good[0], good[1]], softmax(expected(model.net, good[:2]) / TEMPERATURE)
    )


def test_csv_json_and_json_lines_say_the_same(model, model_folder, folder, tmp_path, caplog):
    rows = model.predict([folder], top_k=3)
    assert [Path(row["path"]).name for row in rows][2:5] == ["2.png", "3 cut.png", "3.png"]
    for kind in ("csv", "json", "jsonl"):
        words = [str(folder), "--model", str(model_folder), "--top-k", "3"]
        assert main(["predict", *words, "--output", str(tmp_path / f"rows.{kind}")]) == 1
        assert "1 of 11 photos could not be read" in caplog.text
        caplog.clear()
    assert json.loads((tmp_path / "rows.json").read_text("utf-8")) == rows
    lines = (tmp_path / "rows.jsonl").read_text("utf-8").splitlines()
    assert [json.loads(line) for line in lines] == rows
    with (tmp_path / "rows.csv").open(newline="", encoding="utf-8") as file:
        table = list(csv.DictReader(file))
    places = ["label", "probability", "label_2", "probability_2", "label_3", "probability_3"]
    assert list(table[0]) == ["path", *places, "error"]
    for line, row in zip(table, rows, strict=True):
        assert (line["path"], line["error"]) == (row["path"], row["error"] or "")
        names = [line[name] for name in ("label", "label_2", "label_3")]
        assert names == ([one["label"] for one in row["top"]] or ["", "", ""])
        shares = [line[name] for name in ("probability", "probability_2", "probability_3")]
        assert shares == ([str(one["probability"]) for one in row["top"]] or ["", "", ""])


def test_names_of_files_that_are_no_text_survive(model_folder, folder, tmp_path):
    name = os.fsdecode(b"caf\xe9 \xe7.png")
    try:
        (tmp_path / name).write_bytes((folder / "0.png").read_bytes())
    except OSError:
        pytest.skip("this file system takes text alone")
    words = ["predict", str(tmp_path), "--model", str(model_folder), "--output"]
    for kind in ("csv", "jsonl"):
        assert main([*words, str(tmp_path / f"rows.{kind}")]) == 0
    assert b"caf\xe9 \xe7.png," in (tmp_path / "rows.csv").read_bytes()
    row = json.loads((tmp_path / "rows.jsonl").read_text("utf-8"))
    assert Path(row["path"]).name == name


def test_what_is_wrong_with_a_command_is_said_in_a_line(model_folder, tmp_path, capsys):
    here = ["x.jpg", "--model", str(model_folder)]
    for words, message in [
        (["x.jpg"], "the following arguments are required: --model"),
        ([*here, "--top-k", "0"], "--top-k (0) must be at least 1"),
        ([*here, "--batch-size", "0"], "--batch-size (0) must be at least 1"),
        ([*here, "--workers", "0"], "--workers (0) must be at least 1"),
        ([*here, "--threshold", "2"], "--threshold (2.0) must be a probability, 0 to 1"),
        ([*here, "--output", "rows.txt"], "must end in .csv, .json or .jsonl, or --format says"),
        ([*here, "--output", str(tmp_path)], "is a folder: give a file in it"),
        ([*here, "--output", str(tmp_path / "no" / "a.csv")], "there is no folder"),
        ([*here, "--device", "mps"], "device (mps) is not here"),
        (["x.jpg", "--model", str(tmp_path)], "no model at"),
    ]:
        if "mps" in words and torch.backends.mps.is_available():
            continue
        assert main(["predict", *words]) == 2
        said = capsys.readouterr()
        assert message in said.err
        assert said.err.count("\n") == 1
    for name, value in {"batch_size": 0, "workers": 0, "precision": "16", "device": "gpu"}.items():
        with pytest.raises(ValueError, match=rf"{name} \({value}\) must be"):
            Computing(**{name: value})
    with pytest.raises(ValueError, match=r"top_k \(0\) must be at least 1"):
        vit.load(model_folder).predict([], top_k=0)


def test_files_that_are_not_there_have_a_row(model_folder, folder, capsys):
    words = ["predict", f"{folder}/none.jpg", f"{folder}/*.gif", f"{folder}/1.png"]
    assert main([*words, "--model", str(model_folder), "--top-k", "1"]) == 1
    header, *rows = capsys.readouterr().out.splitlines()
    assert header == "path,label,probability,error"
    missing = ",,,No such file or directory"
    assert rows[:2] == [f"{folder}/none.jpg{missing}", f"{folder}/*.gif{missing}"]
    assert rows[2].startswith(f"{folder}/1.png,")


def test_nothing_to_do_is_said(model_folder, tmp_path, capsys, caplog):
    words = ["predict", str(tmp_path), "--model", str(model_folder), "--format", "json"]
    assert main(words) == 1
    assert json.loads(capsys.readouterr().out) == []
    assert "no photo was named" in caplog.text


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


def test_progress_is_shown_on_a_terminal_alone(monkeypatch):
    for stream, shown in ((Terminal(), True), (io.StringIO(), False)):
        monkeypatch.setattr(sys, "stderr", stream)
        with Progress(3000) as progress:
            for _ in range(1234):
                progress.advance()
        last = stream.getvalue().rpartition("\x1b[K")[2]
        assert bool(last) is shown
        assert not shown or re.fullmatch(r"1,234 of 3,000 photos, [\d,.]+/s\n", last)


# In processes of their own: what streams, signals and a fresh start do.


# Python has Ctrl-C only where its parent did not ignore the signal, as a shell's `&` does.
START = """import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from vit.cli import main
sys.exit(main())"""


def process(*words) -> subprocess.Popen:
    start = [sys.executable, "-c", START, "predict", *map(str, words)]
    pipes = dict.fromkeys(("stdin", "stdout", "stderr"), subprocess.PIPE)
    return subprocess.Popen(start, **pipes, cwd=Path(__file__).parents[1])


def test_a_reader_that_leaves_is_no_error(model_folder, good):
    ours = process(*good * 200, "--model", model_folder, "--batch-size", 1)
    with ours:
        assert ours.stdout.readline().startswith(b"path,label")
        ours.stdout.close()
        assert ours.stderr.read() == b""
        assert ours.wait(60) == 1


@pytest.mark.parametrize("kind", ["csv", pytest.param("json", marks=pytest.mark.full)])
def test_ctrl_c_leaves_whole_rows_of_what_was_done(model_folder, good, tmp_path, kind):
    output = tmp_path / f"rows.{kind}"
    ours = process("-", "--model", model_folder, "--batch-size", 1, "--output", output)
    with ours:
        ours.stdin.write(f"{chr(10).join(good)}\n".encode())
        ours.stdin.flush()  # and no end: it waits for more
        written = output if kind == "csv" else tmp_path / "rows.json.part"
        while not (written.exists() and good[4] in written.read_text("utf-8")):
            assert ours.poll() is None, ours.stderr.read()
        ours.send_signal(signal.SIGINT)
        assert ours.wait(60) == 130
        assert ours.stderr.read() == b"vit predict: stopped by Ctrl-C\n"
    text = output.read_text("utf-8")
    rows = json.loads(text) if kind == "json" else list(csv.DictReader(io.StringIO(text)))
    assert [row["path"] for row in rows] == good[: len(rows)]
    assert len(rows) >= 5
    assert text.endswith("\n")
    assert not list(tmp_path.glob("*.part"))


def test_a_model_file_alone_in_a_fresh_process_without_a_network(
    model, model_folder, good, tmp_path
):
    """The same numbers; and no module is loaded that the start could do without."""
    (tmp_path / "m.safetensors").write_bytes((model_folder / "model.safetensors").read_bytes())
    code = (
        "import socket, sys; socket.socket.connect = None\n"
        "from vit.cli import main\n"
        f"assert main(['predict', *{good}, '--model', 'm.safetensors', '--format', 'jsonl']) == 0\n"
        "loaded = {name.partition('.')[0] for name in sys.modules}\n"
        "print(*loaded & {'lightning', 'torchmetrics', 'timm', 'torchvision', 'matplotlib'})"
    )
    done = subprocess.run(
        [sys.executable, "-c", code],
        cwd=tmp_path,
        env=os.environ | {"PYTHONPATH": str(Path(__file__).parents[1])},
        capture_output=True,
        text=True,
        check=True,
    )
    *rows, loaded = done.stdout.splitlines()
    assert loaded == ""
    assert [json.loads(row) for row in rows] == model.predict(good)


# With real data.


def digest(path: Path) -> str:
    return hashlib.sha256(path.read_bytes()).hexdigest()


@pytest.mark.full
def test_every_difficult_file_has_a_row_and_is_left_as_it_was(
    shared, model_folder, command, tmp_path
):
    hard = shared / "data" / "hard"
    files = sorted(path for path in hard.rglob("*") if path.is_file())
    before = {path: digest(path) for path in files}
    output = tmp_path / "rows.jsonl"
    words = ["predict", hard, "--model", model_folder, "--output", output]
    done = command(*words, script="vit", check=False)
    assert done.returncode == 1
    rows = [json.loads(line) for line in output.read_text("utf-8").splitlines()]
    assert all((row["label"] is None) != (row["error"] is None) for row in rows)
    assert all("\n" not in (row["error"] or "") for row in rows)
    listed = [Path(row["path"]) for row in rows]
    assert len(set(listed)) == len(listed)
    left_out = set(files) - set(listed)
    assert {path.suffix for path in left_out} <= {".csv", ".go"}  # said to be no photos
    assert f"passed over {len(left_out)} that are no photos" in done.stderr
    with (hard / "manifest.csv").open(newline="", encoding="utf-8") as file:
        ok = {hard / row["file"] for row in csv.DictReader(file) if row["pil_load"] == "ok"}
    read = {Path(row["path"]) for row in rows if row["error"] is None}
    refused = {path.name for path in ok - read}
    assert len(refused) < 0.03 * len(ok), refused
    assert {path: digest(path) for path in files} == before


PEAK = """
import resource, sys
from vit.cli import main
code = main(["predict", "-", "--model", sys.argv[1], "--output", sys.argv[2]])
print(code, resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.full
def test_memory_does_not_grow_with_the_number_of_photos(shared, model_folder, tmp_path):
    photos = sorted((shared / "data" / "ecssd300").rglob("*.jpg"))[:200]
    peaks = []
    for repeats in (1, 10):
        done = subprocess.run(
            [sys.executable, "-c", PEAK, str(model_folder), str(tmp_path / "rows.csv")],
            input="\n".join(map(str, photos * repeats)),
            capture_output=True,
            text=True,
            check=True,
        )
        code, peak = map(int, done.stdout.split())
        assert code == 0
        assert len((tmp_path / "rows.csv").read_text().splitlines()) == 1 + 200 * repeats
        peaks.append(peak)
    assert peaks[1] <= 1.1 * peaks[0], peaks
