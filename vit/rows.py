"""What a network says of photos, as rows, and the rows as CSV, JSON or JSON lines.

A row is {"path", "label", "probability", "top": [{"label", "probability"}, ...], "error"}: of a photo
that could not be read `error` is a line and the others are None or empty.
"""

import csv
import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import TextIO

UNKNOWN = "unknown"


class CsvRows:
    """path,label,probability,label_2,probability_2,...,error: a header, and a line per row.

    Args:
        stream: opened with newline="".
        top_k: how many classes a row has.
    """

    def __init__(self, stream: TextIO, top_k: int):
        self.stream, self.top_k = stream, top_k
        self.writer = csv.writer(stream, lineterminator="\n")
        places = [f"{name}_{k}" for k in range(2, top_k + 1) for name in ("label", "probability")]
        self.writer.writerow(["path", "label", "probability", *places, "error"])

    def write(self, row: dict) -> None:
        """One line, flushed."""
        others = [value for one in row["top"][1:] for value in (one["label"], one["probability"])]
        others += [None] * (2 * (self.top_k - 1) - len(others))
        first = [row["path"], row["label"], row["probability"]]
        self.writer.writerow([*first, *others, row["error"]])
        self.stream.flush()

    def end(self) -> None:
        """Nothing is left to write."""


class JsonLines:
    """An object per line; arguments as of `CsvRows`."""

    def __init__(self, stream: TextIO, top_k: int):
        self.stream = stream

    def write(self, row: dict) -> None:
        """One line, flushed."""
        self.stream.write(json.dumps(row, ensure_ascii=False) + "\n")
        self.stream.flush()

    def end(self) -> None:
        """Nothing is left to write."""


class JsonRows:
    """One array of objects, a line each; arguments as of `CsvRows`."""

    def __init__(self, stream: TextIO, top_k: int):
        self.stream, self.before = stream, "[\n"

    def write(self, row: dict) -> None:
        """One more object, flushed."""
        self.stream.write(self.before + json.dumps(row, ensure_ascii=False))
        self.stream.flush()
        self.before = ",\n"

    def end(self) -> None:
        """Closes the array."""
        self.stream.write("\n]\n" if self.before == ",\n" else "[]\n")
        self.stream.flush()


FORMATS = {"csv": CsvRows, "json": JsonRows, "jsonl": JsonLines}


@contextmanager
def written(kind: str, stream: TextIO, top_k: int) -> Iterator[CsvRows | JsonLines | JsonRows]:
    """A writer of rows that ends properly, also when Ctrl-C comes: what is there can be read.

    Names of files that are no valid text keep their bytes in CSV and are escaped in JSON.
    """
    errors = "surrogateescape" if kind == "csv" else "backslashreplace"
    stream.reconfigure(encoding="utf-8", errors=errors, newline="")
    rows = FORMATS[kind](stream, top_k)
    try:
        yield rows
    except BrokenPipeError:
        raise  # no one reads any more
    except BaseException:
        rows.end()
        raise
    else:
        rows.end()


def row_of(path, probabilities: list[tuple[str, float]], threshold: float | None = None) -> dict:
    """The row of a photo.

    Args:
        path: as it was listed.
        probabilities: (class, probability) of the likeliest classes, the first first.
        threshold: the label is "unknown" where the first is less likely than this.
    """
    top = [{"label": name, "probability": value} for name, value in probabilities]
    first = dict(top[0])
    if threshold is not None and first["probability"] < threshold:
        first["label"] = UNKNOWN
    return {"path": str(path), **first, "top": top, "error": None}


def error_row(path, error: str) -> dict:
    """The row of a photo that could not be read."""
    return {"path": str(path), "label": None, "probability": None, "top": [], "error": error}
