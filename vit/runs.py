"""Run folders: runs/<name>/<number>/, one for every training run, never written by another.

See `RunFolder` for the files. The tables are plain CSV, one flushed line per row, so that a kill at
any moment loses at most the row being written.
"""

import csv
import io
import json
import os
import shutil
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

# Child processes of a distributed run find the folder that the launching process made here.
FOLDER_VARIABLE = "VIT_RUN_FOLDER"


class RunFolder:
    """The files of one run.

    Args:
        path: an existing folder.
    """

    def __init__(self, path: Path):
        self.path = Path(path)
        self.config = self.path / "config.yaml"  # all settings
        self.split = self.path / "split.csv"  # which image is in which part
        self.weights = self.path / "weights.json"  # of a run with pretrained weights: what they are
        self.last = self.path / "checkpoints" / "last.ckpt"  # where a resume goes on
        self.best = self.path / "checkpoints" / "best.ckpt"  # the epoch that was chosen
        self.metrics = self.path / "metrics.csv"  # a row per epoch; equal for equal runs
        self.timing = self.path / "timing.csv"  # a row per epoch; never equal
        self.model = self.path / "model.safetensors"
        self.summary = self.path / "summary.json"  # written last: the run is whole

    @property
    def finished(self) -> bool:
        """Whether the run came to its end."""
        return self.summary.is_file()

    def features(self, part: str) -> Path:
        """Where a probe keeps the features of a part's images: float32 (n, F), as `split.csv`."""
        return self.path / "checkpoints" / f"features_{part}.npy"

    def picture(self, name: str) -> Path:
        """Where the picture `name` goes."""
        return self.path / f"{name}.png"

    def remove_if_unused(self) -> None:
        """Removes the folder of a run that failed before its first step."""
        if not self.config.exists():
            shutil.rmtree(self.path, ignore_errors=True)
            with suppress(OSError):  # there are other runs beside it
                self.path.parent.rmdir()

    def read_summary(self) -> dict:
        """The content of summary.json."""
        return json.loads(self.summary.read_text(encoding="utf-8"))


@contextmanager
def announced(folder: RunFolder) -> Iterator[None]:
    """While it lasts, processes started from this one get the same folder from `create`."""
    before = os.environ.get(FOLDER_VARIABLE)
    os.environ[FOLDER_VARIABLE] = str(folder.path)
    try:
        yield
    finally:
        del os.environ[FOLDER_VARIABLE]
        if before is not None:
            os.environ[FOLDER_VARIABLE] = before


def create(root: Path, name: str) -> RunFolder:
    """Makes the next free runs/<name>/<number>; two processes never get the same one."""
    if parent := os.environ.get(FOLDER_VARIABLE):
        return RunFolder(Path(parent))
    folder = Path(root) / name
    number = 1 + max((int(p.name) for p in folder.glob("*") if p.name.isdecimal()), default=0)
    while True:
        try:
            (folder / str(number)).mkdir(parents=True)
            break
        except FileExistsError:  # another process was faster
            number += 1
    (folder / str(number) / "checkpoints").mkdir()
    return RunFolder((folder / str(number)).resolve())


def reopen(path: str | Path) -> RunFolder:
    """The folder of an existing run.

    Raises:
        ValueError: no run folder there.
    """
    run = RunFolder(Path(path).resolve())
    if not run.config.is_file() or not run.split.is_file():
        raise ValueError(
            f"{path} is not a run that began (config.yaml and split.csv are missing there); "
            "a run folder looks like runs/quickstart/1"
        )
    return run


def write(path: Path, rows: list[dict]) -> None:
    """Writes a whole CSV file, or leaves the old one: never half of it."""
    text = io.StringIO(newline="")
    if rows:
        writer = csv.DictWriter(text, list(rows[0]))
        writer.writeheader()
        writer.writerows(rows)
    write_whole(path, text.getvalue().encode())


def append(path: Path, row: dict) -> None:
    """Adds one line to a CSV file, with a header where it is new; it is on disk on return."""
    new = not path.exists() or path.stat().st_size == 0
    with path.open("a", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, list(row))
        if new:
            writer.writeheader()
        writer.writerow(row)
        file.flush()
        os.fsync(file.fileno())


def read(path: Path) -> list[dict]:
    """The rows of a CSV file, values as text; none where there is no file."""
    if not path.exists():
        return []
    with path.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def cut_back(path: Path, epochs: int) -> None:
    """Keeps the rows of the first `epochs` epochs: what a resume will write again goes."""
    if not path.exists():
        return
    rows = [row for row in read(path) if None not in row.values()]  # a half-written last line
    write(path, [row for row in rows if int(row["epoch"]) <= epochs])


def write_whole(path: Path, content: bytes) -> None:
    """Writes a whole file, or leaves the old one: never half of it."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(content)
    os.replace(part, path)
