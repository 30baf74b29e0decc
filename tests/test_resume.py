"""Runs that are killed or stopped, and go on to the same end."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest
import torch
from tiny_runs import assembled, checkpoint, recorder_of, tiny

from vit import runs
from vit.commands import train


def test_a_signal_in_validation_saves_what_an_uninterrupted_run_saves(tmp_path):
    """Raw and averaged weights are each what they say, and the run goes on to the same end."""
    from vit.callbacks import Stopped

    def strike(trainer, module, batch, batch_idx, *_):
        if trainer.current_epoch == 0 and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGINT)

    whole = assembled(tmp_path, data__batch_size=16)
    states = []
    keep = recorder_of(
        "on_train_epoch_end",
        lambda t, m: states.append({k: v.clone() for k, v in m.state_dict().items()}),
    )
    whole.trainer.callbacks.append(keep)
    whole.trainer.fit(whole.classifier, whole.data)
    struck = assembled(
        tmp_path, recorder_of("on_validation_batch_start", strike), data__batch_size=16
    )
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped):
        struck.trainer.fit(struck.classifier, struck.data)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    saved = checkpoint(struck.folder.path)["state_dict"]
    assert set(saved) == set(states[0])
    assert all(torch.equal(saved[k], states[0][k]) for k in saved)
    assert not torch.equal(saved["net.head.weight"], saved["average.head.weight"])
    resumed = train.resume(str(struck.folder.path))
    ends = [checkpoint(path)["state_dict"] for path in (whole.folder.path, resumed.path)]
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])


@pytest.mark.parametrize(  # the first two write settings and split
    "moment", [4, *(pytest.param(moment, marks=pytest.mark.full) for moment in (3, 5, 6, 7, 8))]
)
def test_a_kill_at_any_moment_of_saving_is_made_good(tmp_path, monkeypatch, moment):
    """Fails at the n-th file operation of two epochs' tables and checkpoints, then resumes."""
    from vit import callbacks

    whole = train.start(tiny(tmp_path / "whole", run__checkpoint_steps=9))
    calls = []

    def failing(function):
        def call(*args, **kwargs):
            calls.append(function)
            if len(calls) == moment:
                raise RuntimeError("killed")
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.os, "replace", failing(os.replace))
        patch.setattr(callbacks.os, "link", failing(os.link))
        patch.setattr(callbacks.runs, "append", failing(runs.append))
        with pytest.raises(RuntimeError, match="killed"):
            train.start(tiny(tmp_path / "part", run__checkpoint_steps=9))
    resumed = train.resume(str(tmp_path / "part" / "tiny" / "1"))
    tables = [(run.path / "metrics.csv").read_bytes() for run in (whole, resumed)]
    assert tables[0] == tables[1]
    states = [checkpoint(run.path)["state_dict"] for run in (whole, resumed)]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert whole.summary["test"] == resumed.summary["test"]


def test_killed_after_early_stopping_trains_no_more(tmp_path, monkeypatch):
    from vit.commands import finish as ending

    changes = {"optim__epochs": 30, "optim__lr": 0.0, "optim__patience": 2}

    def killed(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ending, "judge", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train.start(tiny(tmp_path, **changes))
    assert train.resume(str(tmp_path / "tiny" / "1")).summary["epochs"] == 3


QUICK = ["--run.pictures", "false"]


KILLED = [*QUICK, "--optim.epochs", "3", "--run.checkpoint_steps", "3"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, command) -> Path:
    root = tmp_path_factory.mktemp("whole")
    command(*KILLED, "--run.root", root)
    return root / "quickstart" / "1"


@pytest.mark.parametrize(  # in the first epoch, the first again, the second
    "saves", [pytest.param(1, marks=pytest.mark.full), 4, pytest.param(9, marks=pytest.mark.full)]
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, command, uninterrupted, saves):
    """SIGKILL of README's command after the n-th checkpoint; then --resume."""
    folder = tmp_path / "quickstart" / "1"
    start = [sys.executable, "train.py", *KILLED, "--run.root", str(tmp_path)]
    process = subprocess.Popen(start, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)
    seen, last = set(), folder / "checkpoints" / "last.ckpt"
    while len(seen) < saves:
        assert process.poll() is None, "the run ended before it could be killed"
        if last.exists():
            seen.add(last.stat().st_mtime_ns)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint(folder)["global_step"] % 20, "a checkpoint within an epoch was meant"
    assert not (folder / "summary.json").exists()
    command("--resume", folder)
    one, two = checkpoint(uninterrupted), checkpoint(folder)
    assert one["state_dict"].keys() == two["state_dict"].keys()
    assert all(torch.equal(v, two["state_dict"][k]) for k, v in one["state_dict"].items())
    ours, theirs = (c["optimizer_states"][0]["state"] for c in (one, two))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(v, theirs[i][k]) for i in ours for k, v in ours[i].items())
    assert one["lr_schedulers"] == two["lr_schedulers"]
    tables = [(path / "metrics.csv").read_bytes() for path in (uninterrupted, folder)]
    assert tables[0] == tables[1]
    ends = [json.loads((path / "summary.json").read_text()) for path in (uninterrupted, folder)]
    assert ends[0]["test"] == ends[1]["test"]
    assert (uninterrupted / "split.csv").read_bytes() == (folder / "split.csv").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, command, number, code):
    start = [sys.executable, "train.py", *QUICK, "--run.root", str(tmp_path)]
    options = {"cwd": Path(__file__).parents[1], "text": True}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(start, **options, **pipes)
    process.stdout.readline()  # the first epoch is over
    process.send_signal(number)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == code
    folder = tmp_path / "quickstart" / "1"
    assert f"python train.py --resume {folder}" in messages
    assert "Traceback" not in messages
    assert checkpoint(folder)["global_step"] >= 20


@pytest.mark.full
def test_a_finished_run_is_not_run_again(tmp_path, command):
    command(*QUICK, "--optim.epochs", 1, "--run.root", tmp_path)
    folder = tmp_path / "quickstart" / "1"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = command("--resume", folder)
    assert "finished already" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


INTERRUPTED_IN_TEST = """
import os, signal, sys
from lightning.pytorch import Callback
from vit import assembly, cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored

class CtrlC(Callback):
    def on_test_batch_start(self, *_):
        os.kill(os.getpid(), signal.SIGINT)

make = assembly.make_trainer
assembly.make_trainer = lambda config, callbacks, *rest: make(config, [*callbacks, CtrlC()], *rest)
sys.exit(cli.train(sys.argv[1:]))
"""


@pytest.mark.full
def test_ctrl_c_in_the_final_test_says_how_to_go_on(tmp_path, command):
    words = [*QUICK, "--run.root", tmp_path, "--optim.epochs", "1", "--model.depth", "1"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_TEST, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    folder = tmp_path / "quickstart" / "1"
    assert done.returncode == 130, done.stderr
    assert f"python train.py --resume {folder}" in done.stderr and "Traceback" not in done.stderr
    command("--resume", folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"]["count"] == 360
