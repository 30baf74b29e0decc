"""`vit models`: the pretrained networks that can be used, from a table that comes with the program."""

import argparse
import csv
import sys
from fnmatch import fnmatch

SHOWN = ("name", "parameters", "gmacs", "img_size", "tokens", "classes", "licence")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "filter",
        nargs="?",
        default="",
        help='part of the name, or a pattern with * and ?, such as "vit_small*dinov2*"',
    )
    parser.add_argument(
        "--all",
        action="store_true",
        help="also those without published weights, and those that are not supported, with the reason",
    )
    parser.add_argument(
        "--csv", action="store_true", help="all columns, also size, crop, mean and std, as CSV"
    )


def run(arguments: argparse.Namespace) -> int:
    """Carries the command out; returns the exit code."""
    from vit import catalogue

    chosen = [
        row
        for row in catalogue.rows()
        if matches(catalogue.full_name(row), arguments.filter)
        and (arguments.all or (row["weights"] and not row["refused"]))
    ]
    if not chosen:
        print(f'no network\'s name has "{arguments.filter}" in it', file=sys.stderr)
        return 1
    if arguments.csv:
        writer = csv.DictWriter(sys.stdout, catalogue.COLUMNS, lineterminator="\n")
        writer.writeheader()
        writer.writerows(chosen)
        return 0
    named = [row | {"name": catalogue.full_name(row)} for row in chosen]
    print("\n".join(table(named)))
    return 0


def matches(name: str, wanted: str) -> bool:
    """Whether a name has `wanted` in it, or is of its pattern."""
    return fnmatch(name, wanted) if set(wanted) & set("*?[") else wanted in name


def table(rows: list[dict[str, str]]) -> list[str]:
    """The rows as lines of text, names to the left and numbers to the right."""
    rows = [dict(zip(SHOWN, SHOWN, strict=True)) | {"refused": ""}, *rows]
    for row in rows[1:]:
        if row["parameters"]:
            row["parameters"] = f"{int(row['parameters']) / 1e6:.1f} M"
    width = {column: max(len(row[column]) for row in rows) for column in SHOWN}
    lines = []
    for row in rows:
        words = [row["name"].ljust(width["name"])]
        words += [row[column].rjust(width[column]) for column in SHOWN[1:-1]]
        words += [row["licence"]]
        if row["refused"]:
            words += [f"not supported: {row['refused']}"]
        lines.append("  ".join(words).rstrip())
    return lines
