"""Out of memory: a real one, in a process whose address space is limited, and the advice."""

import subprocess
import sys
from dataclasses import replace

import pytest
import torch

from vit import cli, data, memory, runs, tuning
from vit import config as settings
from vit.commands import finish, train
from vit.fitting import Preprocess
from vit.settings import Data

OPTIONS = ("--data.batch_size", "--optim.accumulate")
LIMITED = """
import resource, sys
from pathlib import Path
from vit import cli, config, runs
from vit.commands import train

settings = config.load("quickstart", {
    "run.root": sys.argv[1], "data.batch_size": "1024", "optim.accumulate": "2",
    "model.img_size": "64", "model.patch_size": "4", "model.attention": "explicit", "model.depth": "2",
})
folder = runs.create(Path(settings.run.root), "small")
parts = train.assemble(settings, folder)
pages = int(Path("/proc/self/statm").read_text().split()[0])
resource.setrlimit(resource.RLIMIT_AS, [pages * resource.getpagesize() + 1_500_000_000] * 2)
try:
    train.carry_out(parts)
except MemoryError as error:
    sys.exit(cli.explain_failure(error, "train.py", []))
"""


@pytest.mark.full
@pytest.mark.skipif(sys.platform != "linux", reason="the limit is set as Linux does it")
def test_a_batch_that_does_not_fit_says_which_one_would(tmp_path):
    # One layer's attention weights alone are 1024 * 4 * 257 * 257 numbers: 1.08 GB.
    done = subprocess.run(
        [sys.executable, "-c", LIMITED, str(tmp_path)], capture_output=True, text=True, check=False
    )
    assert done.returncode == 1, done.stderr
    message = done.stderr.splitlines()[-1]
    assert message.startswith(
        "train.py: out of memory on cpu: 1024 images of 64x64 pixels do not fit; "
    )
    size, accumulate = (int(message.split(f"{name} ")[1].split()[0]) for name in OPTIONS)
    assert 1 <= size <= 512 and size * accumulate == 2048


def test_the_first_half_that_fits_is_found():
    tried = []

    def step(count):
        tried.append(count)
        if count > 30:
            torch.empty(1 << 60)  # more than any machine has

    assert memory.fitting(step, 250) == 15
    assert tried == [125, 62, 31, 15]


def test_nothing_fits():
    def step(count):
        raise MemoryError

    assert memory.fitting(step, 4) == 0
    assert memory.advice(0, 4, 1).startswith("not even one image at a time fits: take a smaller")


def test_other_errors_are_not_hidden():
    def step(count):
        raise RuntimeError("shapes do not match")

    with pytest.raises(RuntimeError, match="shapes"):
        memory.fitting(step, 4)


@pytest.mark.parametrize(
    ("fits", "size", "accumulate", "said"),
    [
        (64, 256, 1, "64 fit: --data.batch_size 64 --optim.accumulate 4 makes the same step"),
        (64, 256, 3, "64 fit: --data.batch_size 64 --optim.accumulate 12 makes the same step"),
        (
            31,
            125,
            1,
            "31 fit: --data.batch_size 31 --optim.accumulate 5 makes nearly the same step",
        ),
        (1, 2, 1, "1 fits: --data.batch_size 1 --optim.accumulate 2 makes the same step"),
    ],
)
def test_the_step_stays_what_it_was(fits, size, accumulate, said):
    assert memory.advice(fits, size, accumulate) == said


def test_what_running_out_looks_like():
    with pytest.raises(RuntimeError) as caught:
        torch.empty(1 << 60)
    assert memory.ran_out(caught.value)
    assert memory.ran_out(torch.OutOfMemoryError("CUDA out of memory."))
    assert not memory.ran_out(RuntimeError("shapes do not match"))


def small(root) -> train.Assembly:
    chosen = {"run.root": str(root), "optim.epochs": "1", "model.depth": "1"}
    chosen |= {"run.pictures": "false"}
    config = settings.load("quickstart", chosen)
    return train.assemble(config, runs.create(root, "small"))


def test_images_that_cannot_be_held_name_their_setting():
    made = data.ImageData(Data(), Preprocess((1 << 20, 1 << 20)), 0)
    made.scan()
    with pytest.raises(data.ImagesTooLarge) as error:
        made.load("test")
    assert str(error.value) == (
        "out of memory: 360 test images of 1048576x1048576 pixels cannot be held; "
        "--data.resident false opens them when they are wanted"
    )


def test_after_the_training_a_resume_goes_on_with_smaller_batches(tmp_path, monkeypatch):
    parts = small(tmp_path)

    def fail(*_):
        raise MemoryError

    with monkeypatch.context() as patch:
        patch.setattr(finish, "judge", fail)
        with pytest.raises(MemoryError) as error:
            train.carry_out(parts)
    folder = parts.folder
    assert str(error.value) == (
        "out of memory on cpu after the training, which is kept: set a smaller batch_size under "
        f"data in {folder.config}, then --resume {folder.path}"
    )
    text = folder.config.read_text(encoding="utf-8")
    size = f"batch_size: {parts.config.data.batch_size}\n"
    assert text.count(size) == 1
    folder.config.write_text(text.replace(size, "batch_size: 16\n"), encoding="utf-8")
    before = folder.metrics.read_bytes()
    run = train.resume(str(folder.path))
    assert run.summary["test"]["count"] == 360
    assert sum(run.summary["images"].values()) == 1797
    assert folder.metrics.read_bytes() == before


def test_a_probe_is_not_told_of_steps(tmp_path):
    parts = small(tmp_path)
    parts.config = replace(parts.config, model=replace(parts.config.model, tune="probe"))
    assert train.explain_memory(parts).endswith(
        "do not fit; halve --data.batch_size: of a probe it is of no influence on the result"
    )


def test_a_blank_step_after_one_on_another_device(tmp_path):
    """All learn in it, and what was summed up so far is no part of it."""
    parts = small(tmp_path)
    classifier = parts.classifier
    classifier.config = replace(classifier.config, head_epochs=1)
    tuning.freeze_all_but_head(classifier.net, True)
    classifier.sums = torch.zeros(3, device="meta")
    classifier.try_step(2, torch.device("cpu"), parts.trainer.precision_plugin)
    assert classifier.sums.device.type == "cpu" and classifier.sums[2] == 2
    assert all(parameter.requires_grad for parameter in classifier.net.parameters())


@pytest.mark.parametrize("setting", [("devices", "2"), ("num_nodes", "2"), ("devices", "auto")])
def test_several_seeds_are_of_one_process(capsys, setting):
    name, value = setting
    assert cli.main(["train", "--seeds", "2", f"--trainer.{name}", value]) == 2
    assert f"--trainer.{name} ({value}) must be 1" in capsys.readouterr().err
