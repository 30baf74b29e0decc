"""Out of memory: a real one, in a process whose address space is limited, and the advice."""

import subprocess
import sys

import pytest
import torch

from vit import memory

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
