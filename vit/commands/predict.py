"""`vit predict`: what a trained network says of photos, a row for each."""

import argparse
import os
import sys
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import TextIO

from vit.commands import options
from vit.commands.progress import Progress
from vit.rows import FORMATS, written


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "photos",
        nargs="+",
        metavar="PHOTO",
        help='files, folders, patterns such as "photos/**/*.jpg", or - for a list on the standard '
        "input, a path a line",
    )
    options.add_model(parser)
    parser.add_argument(
        "--output",
        metavar="FILE",
        help="where the rows go, .csv, .json or .jsonl (default: stdout)",
    )
    parser.add_argument(
        "--format", choices=tuple(FORMATS), help="default: by the output's name, else csv"
    )
    parser.add_argument(
        "--top-k", type=int, default=5, metavar="K", help="the likeliest classes (default: 5)"
    )
    parser.add_argument(
        "--threshold",
        type=float,
        metavar="P",
        help='the label is "unknown" where the likeliest class has a probability below this',
    )
    options.add_computing(parser)


def run(arguments: argparse.Namespace) -> int:
    """Carries the command out; returns the exit code: 1 where a photo could not be read."""
    kind = format_of(arguments)
    options.check_at_least_one(arguments, "top_k")
    if arguments.threshold is not None and not 0 <= arguments.threshold <= 1:
        raise ValueError(f"--threshold ({arguments.threshold}) must be a probability, 0 to 1")
    computing = options.computing(arguments)
    from vit.inference import predict
    from vit.photos import listed

    model = options.opened_model(arguments)
    rows = predict(model, listed(arguments.photos), arguments.top_k, arguments.threshold, computing)
    errors, places = 0, min(arguments.top_k, len(model.classes))
    with (
        closing(rows),
        opened(arguments.output, kind) as stream,
        written(kind, stream, places) as output,
        Progress() as progress,
    ):
        for row in rows:
            output.write(row)
            progress.advance()
            errors += row["error"] is not None
    return report(progress.done, errors)


def report(count: int, errors: int) -> int:
    """Says what could not be read; returns the exit code."""
    if not count:
        options.log.warning("no photo was named")
    elif errors:
        options.log.warning("%d of %d photos could not be read: see `error`", errors, count)
    return 1 if errors or not count else 0


def format_of(arguments: argparse.Namespace) -> str:
    """csv, json or jsonl: what --format says, else the output's name.

    Raises:
        ValueError: neither says it, or there is no folder for the output.
    """
    if arguments.output is None:
        return arguments.format or "csv"
    path = Path(arguments.output)
    if path.is_dir() or not path.parent.is_dir():
        raise ValueError(
            f"--output ({path}) is a folder: give a file in it"
            if path.is_dir()
            else f"--output ({path}): there is no folder {path.parent}"
        )
    kind = arguments.format or path.suffix.lower().removeprefix(".")
    if kind not in FORMATS:
        raise ValueError(
            f"--output ({path}) must end in .csv, .json or .jsonl, or --format says which it is"
        )
    return kind


@contextmanager
def opened(output: str | None, kind: str) -> Iterator[TextIO]:
    """The stream for the rows: a new file, or the standard output.

    Rows are in a CSV or JSON lines file as soon as they are known; a JSON file appears whole.
    """
    if output is None:
        yield sys.stdout
        return
    part = f"{output}.part" if kind == "json" else output
    with open(part, "w", encoding="utf-8", newline="") as stream:
        try:
            yield stream
        finally:  # after Ctrl-C too: the rows so far, properly ended
            stream.close()
            os.replace(part, output)
