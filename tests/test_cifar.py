"""CIFAR-10 (all of it, as JPEG copy) by README's command, killed in mid-epoch and gone on with.

What a run says of itself is held against the files on disk, the checkpoint, and timm.
"""

import csv
import hashlib
import json
import os
import signal
import subprocess
import sys
import tarfile
import time
from collections import Counter
from pathlib import Path

import numpy as np
import pytest
import timm
import torch
from PIL import Image

pytestmark = pytest.mark.full

ROOT = Path(__file__).parents[1]
BATCHES = 32  # an epoch of the test: 32 batches of 128 images in place of 351
SAVE_EVERY = 8
# The configuration's data, schedule and saving; fewer blocks and batches, so that it takes minutes.
SETTINGS = {
    "--config": "cifar10",
    "--data.source": "folder",
    "--model.depth": "2",
    "--optim.epochs": "2",
    "--optim.warmup_epochs": "0.5",
    "--run.checkpoint_steps": str(SAVE_EVERY),
    "--trainer.limit_train_batches": str(BATCHES),
    "--trainer.limit_val_batches": "10",
}


@pytest.fixture(scope="module")
def cifar(shared, tmp_path_factory) -> Path:
    """The 60,000 files in train/CLASS/ and test/CLASS/."""
    folder = tmp_path_factory.mktemp("cifar10")
    with tarfile.open(shared / "data" / "cifar10_jpeg.tar.xz") as archive:
        archive.extractall(folder, filter="data")
    return folder


@pytest.fixture(scope="module")
def killed(cifar, tmp_path_factory) -> Path:
    """A run that SIGKILL ended in its second epoch, after a checkpoint there."""
    root = tmp_path_factory.mktemp("runs")
    words = [word for pair in SETTINGS.items() for word in pair]
    words += ["--data.root", str(cifar), "--run.root", str(root)]
    process = subprocess.Popen([sys.executable, "train.py", *words], cwd=ROOT)
    folder = root / "cifar10" / "1"
    try:
        wait_for_second_epoch(process, folder)
    finally:
        os.kill(process.pid, signal.SIGKILL)
        process.wait()
    assert process.returncode == -signal.SIGKILL
    return folder


def wait_for_second_epoch(process: subprocess.Popen, folder: Path) -> None:
    """Returns once the first row is written and two more checkpoints are: one of them mid-epoch."""
    last, seen = folder / "checkpoints" / "last.ckpt", set()
    while len(seen) < 3:  # the one there already, that of the epoch's end at most, another
        assert process.poll() is None, "the run ended before it could be killed"
        if len(rows(folder / "metrics.csv")) == 1:
            seen.add(last.stat().st_mtime_ns)
        time.sleep(0.02)


def rows(path: Path) -> list[dict]:
    if not path.exists():
        return []
    with path.open(newline="") as file:
        return list(csv.DictReader(file))


def state(folder: Path) -> dict:
    return torch.load(folder / "checkpoints" / "last.ckpt", weights_only=True)


@pytest.fixture(scope="module")
def finished(killed, command) -> Path:
    """The same run, gone on with to its end."""
    first_row = (killed / "metrics.csv").read_bytes()
    assert not (killed / "summary.json").exists()
    assert BATCHES < state(killed)["global_step"] < 2 * BATCHES
    assert state(killed)["global_step"] % SAVE_EVERY == 0
    command("--resume", killed)
    assert (killed / "metrics.csv").read_bytes().startswith(first_row)
    return killed


def test_goes_on_to_the_end_with_every_row_once(finished):
    table = rows(finished / "metrics.csv")
    assert [(row["epoch"], row["step"]) for row in table] == [
        ("1", str(BATCHES)),
        ("2", str(2 * BATCHES)),
    ]
    assert [row["epoch"] for row in rows(finished / "timing.csv")] == ["1", "2"]
    assert state(finished)["global_step"] == 2 * BATCHES
    assert float(table[1]["train_loss"]) < float(table[0]["train_loss"]) < np.log(10)
    summary = json.loads((finished / "summary.json").read_text())
    assert summary["val"]["count"] == 1280
    best = max(table, key=lambda row: (float(row["val_top1"]), -float(row["val_nll"])))
    assert summary["best_epoch"] == int(best["epoch"])


def test_divides_all_images_and_trains_on_none_that_it_validates_on(finished, cifar):
    split = rows(finished / "split.csv")
    assert len(split) == len({row["id"] for row in split}) == 60_000
    on_disk = {path.relative_to(cifar).as_posix() for path in cifar.rglob("*.jpg")}
    assert {row["id"] for row in split} == on_disk
    assert all(row["id"].split("/")[1] == row["class"] for row in split)
    assert {row["id"].split("/")[0] for row in split if row["split"] != "test"} == {"train"}
    counts = Counter((row["split"], row["class"]) for row in split)
    for label in {row["class"] for row in split}:
        assert counts["test", label] == 1000
        assert counts["val", label] == 500
        assert counts["train", label] == 4500
    contents = {"train": set(), "val": set()}
    for row in split:
        if row["split"] in contents:
            digest = hashlib.sha256((cifar / row["id"]).read_bytes()).digest()
            contents[row["split"]].add(digest)
    assert not contents["train"] & contents["val"]


def test_its_test_is_what_timm_makes_of_the_files(finished, cifar):
    """The saved model in timm, the files read by Pillow: as many right ones as summary.json says."""
    summary = json.loads((finished / "summary.json").read_text())
    net = timm.create_model(f"local-dir:{finished}", pretrained=True).eval()
    config = net.pretrained_cfg
    mean, std = (torch.tensor(config[key]).view(3, 1, 1) for key in ("mean", "std"))
    right = count = 0
    for number, label in enumerate(config["label_names"]):
        photos = [Image.open(path) for path in sorted((cifar / "test" / label).iterdir())]
        pixels = np.stack([np.asarray(photo.convert("RGB")) for photo in photos])
        images = torch.from_numpy(pixels).permute(0, 3, 1, 2) / 255
        with torch.inference_mode():
            chosen = net((images - mean) / std).argmax(dim=1)
        right, count = right + int((chosen == number).sum()), count + len(chosen)
    assert count == summary["test"]["count"] == 10_000
    assert abs(right - summary["test"]["correct"]) <= 3  # two near-equal logits, summed otherwise
    assert right > 2000  # it has learned something
    assert summary["test"]["top1"] == summary["test"]["correct"] / 10_000
