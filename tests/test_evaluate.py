"""`vit evaluate` against the run's own numbers and by its messages."""

import json
import os
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

import vit
from vit.cli import main
from vit.commands import evaluate as evaluate_command
from vit.datasets import Digits
from vit.evaluation import evaluate
from vit.inference import Computing
from vit.metrics import Predictions


@pytest.fixture(scope="module")
def run(tmp_path_factory, command):
    root = tmp_path_factory.mktemp("runs")
    command("--optim.epochs", 12, "--optim.warmup_epochs", 1, "--run.root", root)
    return root / "quickstart" / "1"


def evaluated(command, *words) -> dict:
    return json.loads(command("evaluate", *words, script="vit").stdout)


@pytest.mark.parametrize("batch_size", [1, 64, 1000])
def test_equals_the_runs_own_test(run, command, batch_size):
    own = json.loads((run / "summary.json").read_text())["test"]
    again = evaluated(command, "digits", "--model", run, "--batch-size", batch_size)
    assert own["top1"] > 0.3  # it has learned something
    assert (again["correct"], again["count"], again["split"]) == (own["correct"], 360, "test")
    assert again["nll"] == pytest.approx(own["nll"], abs=1e-6)
    assert sum(map(sum, again["confusion"])) == 360
    assert sum(again["confusion"][i][i] for i in range(10)) == own["correct"]


def test_timm_loads_the_run_folder(run):
    model = vit.load(run)
    theirs = timm.create_model(f"local-dir:{run}", pretrained=True).eval()
    images = torch.randn(4, 3, 8, 8)
    with torch.inference_mode():
        torch.testing.assert_close(theirs(images), model.net(images), atol=1e-5, rtol=1e-5)
    assert all(torch.equal(v, theirs.state_dict()[k]) for k, v in model.net.state_dict().items())


def test_checkpoints_hold_tensors_and_plain_values_alone(run):
    for name in ("last", "best"):
        content = torch.load(run / "checkpoints" / f"{name}.ckpt", weights_only=True)
        assert content["state_dict"]


@pytest.fixture(scope="module")
def digits_as_files(tmp_path_factory) -> Path:
    """The test images as PNG files in test/LABEL/."""
    folder, digits = tmp_path_factory.mktemp("digits"), Digits()
    for item in digits.items():
        if item.split == "test":
            (folder / "test" / item.label).mkdir(parents=True, exist_ok=True)
            photo = digits.open(item, (8, 8))
            photo.image.save(folder / "test" / item.label / f"{item.id}.png")
    return folder


def test_a_folder_of_the_same_images_gives_the_same(run, command, digits_as_files, tmp_path):
    own = json.loads((run / "summary.json").read_text())["test"]
    output = tmp_path / "result.json"
    words = [digits_as_files, "--model", run / "model.safetensors", "--output", output]
    again = evaluated(command, *words)
    assert (again["correct"], again["count"]) == (own["correct"], own["count"])
    assert json.loads(output.read_text()) == again


def test_equals_predict_scored_by_hand(run, digits_as_files):
    """The rows of `vit predict`, whose folders are the true classes, counted here."""
    result = evaluate(vit.load(run), str(digits_as_files), computing=Computing(7)).report()
    rows = vit.load(run).predict([digits_as_files], top_k=10, batch_size=50)
    true = [Path(row["path"]).parent.name for row in rows]
    right = [row["label"] == label for row, label in zip(rows, true, strict=True)]
    assert (result["count"], result["correct"]) == (len(rows), sum(right))
    assert result["top1"] == pytest.approx(sum(right) / 360)
    top5 = [
        label in [one["label"] for one in row["top"][:5]]
        for row, label in zip(rows, true, strict=True)
    ]
    assert result["top5"] == pytest.approx(sum(top5) / 360)
    shares = [
        next(one["probability"] for one in row["top"] if one["label"] == label)
        for row, label in zip(rows, true, strict=True)
    ]
    assert result["nll_calibrated"] == pytest.approx(-np.log(shares).mean(), abs=1e-5)
    for i, label in enumerate(result["classes"]):
        for j, said in enumerate(result["classes"]):
            pairs = [(row["label"], name) for row, name in zip(rows, true, strict=True)]
            assert result["confusion"][i][j] == pairs.count((said, label))


def test_the_pictures_of_a_run_and_the_result_in_a_folder(run, tmp_path, capsys):
    words = ["evaluate", "digits", "--model", str(run), "--output", str(tmp_path / "new" / "out")]
    assert main(words) == 0
    written = sorted(path.name for path in (tmp_path / "new" / "out").iterdir())
    pictures = ["confusion.png", "mistakes.png", "per_class.png", "reliability.png"]
    assert written == sorted([*pictures, "evaluation.json"])
    text = (tmp_path / "new" / "out" / "evaluation.json").read_text("utf-8")
    assert text == capsys.readouterr().out
    for name in pictures:
        with Image.open(tmp_path / "new" / "out" / name) as ours, Image.open(run / name) as runs:
            # the run's own are titled differently; what is drawn of the same numbers is as large
            assert ours.width == runs.width
            assert np.asarray(ours.convert("L")).std() > 5


def test_mistakes_are_opened_when_they_are_drawn(run):
    """No pixels are kept: the picture asks for those it shows."""
    evaluation = evaluate(vit.load(run), "digits")
    wrong = int((~evaluation.predictions.correct()).nonzero()[0])
    digits = Digits()
    photo = digits.open(evaluation.items[wrong], (8, 8))
    seen = evaluation.image_of(wrong).transpose(1, 2, 0)
    np.testing.assert_array_equal(seen, np.asarray(photo.image))


@pytest.mark.parametrize("batch_size", [1, 64])
def test_unreadable_photos_are_left_out_and_counted(run, command, tmp_path, batch_size):
    (tmp_path / "3").mkdir()
    for name in ("a", "b"):
        Image.new("RGB", (9, 9)).save(tmp_path / "3" / f"{name}.png")
    whole = (tmp_path / "3" / "b.png").read_bytes()
    (tmp_path / "3" / "b.png").write_bytes(whole[: len(whole) // 2])
    words = ["evaluate", tmp_path, "--model", run, "--batch-size", batch_size]
    done = command(*words, script="vit", check=False)
    result = json.loads(done.stdout)
    assert (done.returncode, result["count"], result["left_out"]) == (1, 1, 1)
    assert "left out: 3/b.png: " in done.stderr


def test_a_folder_whose_name_is_no_utf8(run, tmp_path, capsys):
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/data\xff")
    os.makedirs(f"{folder}/3")
    Image.new("RGB", (9, 9)).save(f"{folder}/3/a.png")
    words = ["evaluate", folder, "--model", str(run)]
    assert main([*words, "--output", str(tmp_path / "r.json")]) == 0
    assert main([*words, "--output", str(tmp_path / "out")]) == 0
    assert json.loads((tmp_path / "r.json").read_text())["source"].endswith(r"data\udcff")
    assert (tmp_path / "out" / "mistakes.png").is_file()


def test_of_many_unreadable_photos_ten_are_named(caplog):
    evaluate_command.tell([(f"{number}.png", "broken") for number in range(13)])
    lines = [record.getMessage() for record in caplog.records]
    assert (lines[9], lines[10:]) == ("left out: 9.png: broken", ["left out: 3 more"])


def test_messages(run, tmp_path, capsys):
    (tmp_path / "zebra").mkdir()
    Image.new("RGB", (9, 9)).save(tmp_path / "zebra" / "a.png")
    for words, message in [
        (["digits"], "the following arguments are required: --model"),
        (["digits", "--model", tmp_path], "no model at"),
        ([tmp_path, "--model", run], "has zebra, which is no class of the training images"),
        ([tmp_path, "--model", run, "--split", "val"], "has no val part, only train"),
        ([tmp_path / "none", "--model", run], "no folder"),
        (["digits", "--model", run, "--batch-size", "0"], "--batch-size (0) must be"),
        (["digits", "--model", run, "--workers", "0"], "--workers (0) must be"),
        (["digits", "--model", run, "--output", tmp_path / "no" / "a.json"], "there is no folder"),
    ]:
        code = 1 if "zebra" in message else 2  # what lies in the folder is no wrong usage
        assert main(["evaluate", *map(str, words)]) == code
        said = capsys.readouterr()
        assert said.out == ""
        assert message in said.err
        assert said.err.count("\n") == 1


def test_score_and_confusion_by_hand():
    logits = torch.tensor([[2.0, 0.0], [0.0, 1.0], [3.0, 0.0]])
    late = (logits[1:], torch.tensor([1, 1]), torch.tensor([1, 2]))
    predictions = Predictions.of([late, (logits[:1], torch.tensor([0]), torch.tensor([0]))])
    assert predictions.confusion().tolist() == [[1, 0], [1, 1]]
    score = predictions.score()
    assert (score["correct"], score["count"], score["top1"]) == (2, 3, 2 / 3)
    by_hand = (0.126928011 + 0.313261688 + 3.048587352) / 3
    assert score["nll"] == pytest.approx(by_hand, abs=1e-8)
