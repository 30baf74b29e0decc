"""`vit runs`: one table of all runs below a folder."""

import argparse
from pathlib import Path

from vit import runs
from vit.runs import RunFolder

COLUMNS = ("run", "test top-1", "val top-1", "test nll", "epochs", "minutes", "parameters", "state")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("folder", nargs="?", default="runs", help="where to look (default: runs)")


def run(arguments: argparse.Namespace) -> int:
    """Carries the command out; returns the exit code."""
    root = Path(arguments.folder)
    if not root.is_dir():
        raise ValueError(f"no folder {root}")
    found = sorted(path.parent for path in root.rglob("split.csv"))
    if not found:
        raise ValueError(f"no runs in {root}: `python train.py` makes one")
    rows = [COLUMNS, *(row(RunFolder(path), root) for path in sorted(found, key=order))]
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    for cells in rows:
        aligned = [cell.rjust(width) for cell, width in zip(cells, widths, strict=True)]
        print("  ".join([cells[0].ljust(widths[0]), *aligned[1:]]))
    return 0


def order(path: Path) -> tuple:
    """Names in the alphabet's order, numbers by size."""
    return path.parent, int(path.name) if path.name.isdecimal() else 0, path.name


def row(folder: RunFolder, root: Path) -> tuple[str, ...]:
    """One run's cells; what is not known yet is "-"."""
    name = str(folder.path.relative_to(root)) if folder.path != root else folder.path.name
    epochs = len(runs.read(folder.metrics))
    if not folder.finished:
        return (name, "-", "-", "-", str(epochs), "-", "-", "unfinished")
    summary = folder.read_summary()

    def percent(part: str) -> str:
        return f"{summary[part]['top1']:.2%}" if summary.get(part) else "-"

    nll = f"{summary['test']['nll']:.4f}" if summary.get("test") else "-"
    chosen = f"{summary['best_epoch']}/{epochs}"
    minutes = f"{summary['seconds'] / 60:.1f}"
    parameters = f"{summary['parameters']:,}"
    return (name, percent("test"), percent("val"), nll, chosen, minutes, parameters, "finished")
