"""The command line: help, wrong usage in one line with exit code 2, and its three names."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

QUICK = ["--run.pictures", "false"]


@pytest.mark.parametrize(
    ("script", "words", "message"),
    [
        (
            "train.py",
            ["--optim.lrr", "1"],
            'unknown setting "optim.lrr" in the command line; did you',
        ),
        ("train.py", ["--optim.lrr=1"], 'did you mean "optim.lr"?'),
        ("train.py", ["--epochs", "5"], 'did you mean "optim.epochs"?'),
        ("train.py", ["--optim.lr"], "--optim.lr needs a value"),
        ("train.py", ["--optim.lr", "--optim.epochs", "3"], "--optim.lr needs a value"),
        ("train.py", ["quickstart"], '"quickstart" is not understood'),
        ("train.py", ["--config", "cifar"], 'no configuration "cifar"'),
        ("train.py", ["--config", "mnist"], 'mean "--config fashion_mnist --data.source mnist"?'),
        ("train.py", ["--config", "tests"], 'mean "--config finetune --data.root tests"?'),
        ("train.py", ["--config"], "argument --config: expected one argument"),
        ("train.py", ["--resume", "nowhere"], "nowhere is not a run that began"),
        ("train.py", ["--resume", "x", "--optim.lr", "1"], "it takes no other setting (optim.lr"),
        ("train.py", ["--seeds", "0"], "--seeds (0) must be at least 1"),
        ("train.py", ["--data.source", "folder"], "data.source folder needs --data.root"),
        pytest.param(
            "train.py",
            ["--model.num_heads", "5"],
            "embed_dim (64) must be a multiple of num_heads (5)",
            marks=pytest.mark.full,
        ),
        pytest.param(
            "train.py",
            ["--trainer.devces", "1"],
            'did you mean "trainer.devices"?',
            marks=pytest.mark.full,
        ),
        (
            "vit",
            ["trian"],
            'no command "trian" (there are: ',
        ),
        ("vit", ["trian"], '); did you mean "train"?'),
        ("vit", ["evaluate", "digits", "--modle", "x"], "required: --model"),
    ],
)
def test_wrong_usage_is_one_line(command, tmp_path, script, words, message):
    if script == "train.py":
        words = [*words, *([] if "--resume" in words else [f"--run.root={tmp_path}"])]
    done = command(*words, script=script, check=False)
    assert done.returncode == 2
    assert message in done.stderr
    assert done.stderr.count("\n") == 1, done.stderr
    assert not list(tmp_path.rglob("[0-9]*"))  # no folder of a run that never began


def test_help_names_every_setting(command):
    from vit import config

    text = command("--help").stdout
    assert all(f"--{key}\n" in text for key in set(config.keys()) - {"trainer"})
    assert "--config" in text
    assert "--resume" in text


def test_overview_and_version(command):
    assert "evaluate" in command("--help", script="vit").stdout
    assert command("--version", script="vit").stdout.startswith("vit ")
    assert command(script="vit", check=False).returncode == 2


def test_console_script_is_the_same_program():
    script = Path(sys.executable).with_name("vit")
    if not script.exists():
        script = Path(shutil.which("vit") or pytest.skip("the package is not installed"))
    done = subprocess.run([script, "--help"], capture_output=True, text=True, check=True)
    assert "usage: vit COMMAND" in done.stdout


@pytest.mark.full
def test_packaged_configurations_are_found_from_anywhere(command, tmp_path):
    done = command("train", "--optim.epochs", 1, *QUICK, script="vit", cwd=tmp_path)
    assert "top-1" in done.stdout
    assert (tmp_path / "runs" / "quickstart" / "1" / "summary.json").is_file()


@pytest.mark.full
def test_several_seeds_make_a_table(command, tmp_path):
    done = command("--seeds", 2, "--optim.epochs", 1, *QUICK, "--run.root", tmp_path)
    assert "# test top-1" in done.stdout
    assert "over 2 seeds" in done.stdout
    assert sorted(path.name for path in (tmp_path / "quickstart").iterdir()) == ["1", "2"]
    (tmp_path / "quickstart" / "2" / "summary.json").unlink()
    table = command("runs", tmp_path, script="vit").stdout.splitlines()
    assert [line.split()[0] for line in table] == ["run", "quickstart/1", "quickstart/2"]
    assert table[1].split()[-1] == "finished"
    assert table[2].split()[-1] == "unfinished"
    assert command("runs", tmp_path / "none", script="vit", check=False).returncode == 2


def test_no_character_stops_what_is_printed():
    """A stdout that is not UTF-8, as a pipe on Windows: what it lacks is written as its number."""
    code = "from vit.cli import main; main(['--version']); print('bee \\u732b')"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        check=True,
        cwd=Path(__file__).parents[1],
        env=os.environ | {"PYTHONIOENCODING": "ascii:strict"},
    )
    assert done.stdout.split()[-2:] == [b"bee", rb"\u732b"]
