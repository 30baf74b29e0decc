"""`vit check`: a folder of photos looked over before training."""

import argparse
import json
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from vit.checkup import Report
    from vit.findings import Case, Finding

SHOWN = 3  # cases of a finding that are printed
CLASSES = 30  # of so many the numbers are printed
HEADINGS = {
    "stop": "Training cannot begin",
    "warning": "To be looked into",
    "note": "Good to know",
}


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument("folder", help="class folders, or train / val / test, or a table of photos")
    parser.add_argument("--json", metavar="FILE", help="also write everything that was found")
    parser.add_argument("--sheet", metavar="FILE.png", help="also draw a contact sheet")
    parser.add_argument(
        "--size",
        type=int,
        default=224,
        metavar="N",
        help="side of the network's pixels, by which small photos are judged (default: 224)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carries the command out; 0: training can begin; 1: it cannot."""
    from vit.checkup import check

    for name in ("json", "sheet"):
        require_place(name, getattr(arguments, name))
    report = check(arguments.folder, arguments.size)
    print("\n".join(lines(report)))
    if arguments.json:
        with open(arguments.json, "w", encoding="utf-8") as file:
            json.dump(report.to_dict(), file, ensure_ascii=False, indent=1)
            file.write("\n")
    if arguments.sheet:
        from vit.contact_sheet import contact_sheet

        contact_sheet(report).save(arguments.sheet)
        print(f"contact sheet: {arguments.sheet}", file=sys.stderr)
    return 0 if report.can_train else 1


def require_place(option: str, path: str | None) -> None:
    """Says before the work, not after it, that a file cannot be written.

    Raises:
        ValueError: its folder does not exist, or a sheet's name is no picture's.
    """
    if path is None:
        return
    folder = os.path.dirname(path) or "."
    if not os.path.isdir(folder):
        raise ValueError(f"--{option} {path}: there is no folder {folder}")
    if os.path.isdir(path):
        raise ValueError(f"--{option} {path}: that is a folder; give a file's name")
    if option == "sheet" and not path.lower().endswith((".png", ".jpg", ".jpeg", ".webp")):
        raise ValueError(f"--sheet {path}: must end in .png, .jpg or .webp")


def lines(report: "Report") -> list[str]:
    """The report as it is printed."""
    total = sum(sum(part.values()) for part in report.found.values())
    text = [f"{shown(report.folder)}: {total:,} photos in {len(report.classes)} classes"]
    text += ["", *table(report)] if total else []
    text += described(report)
    for severity, heading in HEADINGS.items():
        if found := report.of(severity):
            text += ["", f"{heading}:"]
            text += [line for one in found for line in as_lines(one)]
    return [*text, "", verdict(report)]


def table(report: "Report") -> list[str]:
    """Photos that can be read by class and part, as training divides them."""
    parts = list(report.counts)
    names = {"train": "training", "val": "validation", "test": "test"}
    classes = report.classes
    rows = [["class", *(names[part] + "*" * (part in report.divided) for part in parts)]]
    for name in classes[:CLASSES]:
        rows.append([shown(name), *(f"{report.counts[part].get(name, 0):,}" for part in parts)])
    if len(classes) > CLASSES:
        rows.append([f"... {len(classes) - CLASSES} more", *("" for _ in parts)])
    rows.append(["all", *(f"{sum(report.counts[part].values()):,}" for part in parts)])
    widths = [max(map(len, column)) for column in zip(*rows, strict=True)]
    text = []
    for first, *rest in rows:
        cells = [cell.rjust(width) for cell, width in zip(rest, widths[1:], strict=True)]
        text.append("  ".join(["  " + first.ljust(widths[0]), *cells]).rstrip())
    if report.divided:
        text.append("  * set aside from training by vit train, a share of each class")
    return text


def described(report: "Report") -> list[str]:
    """Formats and sizes, a line each."""
    text = []
    if report.formats:
        text += ["", "formats: " + ", ".join(f"{k} {n:,}" for k, n in report.formats.items())]
        smallest, median, largest = (f"{width}x{height}" for width, height in report.sizes)
        text.append(f"width x height: {smallest} smallest, {median} median, {largest} largest")
    if set(report.orientations) - {1}:
        turned = ", ".join(f"{key}: {n:,}" for key, n in report.orientations.items())
        text.append(f"EXIF orientations: {turned}")
    return text


def as_lines(finding: "Finding") -> list[str]:
    """A finding: what is so, what training does, the first photos."""
    text = [f"- {shown(finding.text)}"]
    if finding.training:
        text.append(f"    training {finding.training}")
    text += [f"    {as_line(case)}" for case in finding.cases[:SHOWN]]
    if (more := len(finding.cases) - SHOWN) > 0:
        text.append(f"    ... and {more:,} more")
    return text


def as_line(case: "Case") -> str:
    """A photo or a group, and why."""
    photos = " = ".join(case.photos[:SHOWN]) + (" = ..." if len(case.photos) > SHOWN else "")
    return shown(f"{photos}: {case.why}" if case.why else photos)


def shown(text: str) -> str:
    """The text so that any terminal can print it, on one line."""
    from vit.checkup import printable

    return " ".join(printable(text).split())


def verdict(report: "Report") -> str:
    """The last line."""
    if not report.can_train:
        return "Training cannot begin with this folder as it is."
    if report.of("warning"):
        return "Training can begin; look into the points above first."
    return "Training can begin."
