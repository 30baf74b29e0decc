"""What README says is so: its commands' options exist, its Python runs, its files are there."""

import re
from pathlib import Path

import pytest

from vit import config, config_files
from vit.cli import COMMANDS

ROOT = Path(__file__).parents[1]
TEXT = (ROOT / "README.md").read_text(encoding="utf-8")
BLOCKS = re.findall(r"```(\w*)\n(.*?)```", TEXT, re.DOTALL)
LINES = [
    line.partition("#")[0].strip() for kind, text in BLOCKS if not kind for line in text.split("\n")
]


def test_python_snippet_runs(tmp_path, monkeypatch):
    (code,) = (text for kind, text in BLOCKS if kind == "python")
    monkeypatch.chdir(tmp_path)
    names: dict = {}
    exec(compile(code, "README.md", "exec"), names)
    assert names["heat"].shape == (2, 4, 4)
    assert names["picture"].size == (640, 480)
    assert names["run"].path == (tmp_path / "runs" / "quickstart" / "1").resolve()


@pytest.mark.parametrize("line", [line for line in LINES if "train.py" in line])
def test_options_and_configurations_exist(line):
    known = {*config.keys(), "config", "resume", "seeds", "help"}
    options = re.findall(r"--([\w.]+)", line)
    assert all(option in known or option.startswith("trainer.") for option in options)
    for name in re.findall(r"--config (\w+)(?= |$)", line):
        config_files.find(name)


def test_commands_and_modules_exist():
    commands = {line.split()[1] for line in LINES if line.startswith("vit ")}
    assert commands <= set(COMMANDS)
    for name in re.findall(r"`(\w+\.py)`", TEXT):
        assert (ROOT / "vit" / name).exists() or (ROOT / name).exists(), name
    for picture in re.findall(r"!\[.*?\]\((.*?)\)", TEXT):
        assert (ROOT / picture).is_file()
