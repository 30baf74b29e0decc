"""A table of labelled photos, CSV or JSON lines: path, label and, where it says so, split.

Paths are relative to the table's own folder.
"""

import csv
import json
from collections.abc import Iterator
from pathlib import Path

from vit.items import PARTS, DataError, Item

JSON_LINES = (".jsonl", ".ndjson")
TABLES = (".csv", ".tsv", *JSON_LINES)
COLUMNS = ("path", "label", "split")  # the last one may be missing
DELIMITERS = ",;\t"


def read_table(table: Path) -> list[Item]:
    """The images that a table lists, in its order.

    Raises:
        DataError: a header without path and label, a line that is not whole, an unknown part, a
            file that does not exist or is listed twice; names the table and the line.
    """
    items, lines = [], {}
    rows = json_rows(table) if table.suffix.lower() in JSON_LINES else csv_rows(table)
    for number, row in rows:
        where = f"{table}, line {number}"
        item = item_of(row, where, table.parent)
        if item.id in lines:
            raise DataError(f"{where}: {item.id} stands in line {lines[item.id]} already")
        lines[item.id] = number
        items.append(item)
    if not items:
        raise DataError(f"{table} lists no photo: it needs a line with path and label for each")
    return items


def csv_rows(table: Path) -> Iterator[tuple[int, dict]]:
    """(line, {"path": ..., "label": ..., "split": ...}) of a CSV file."""
    # utf-8-sig: spreadsheets put a mark first. File names may hold bytes that are no UTF-8.
    with table.open(newline="", encoding="utf-8-sig", errors="surrogateescape") as file:
        first = file.readline()
        delimiter = max(DELIMITERS, key=first.count)
        header = [
            name.strip().lower() for name in next(csv.reader([first], delimiter=delimiter), [])
        ]
        if not {"path", "label"} <= set(header) or len(set(header)) < len(header):
            raise DataError(
                f"{table}, line 1: the header must name the columns path and label, and may name "
                f'split; it is "{first.strip()}"'
            )
        reader = csv.reader(file, delimiter=delimiter, skipinitialspace=True, strict=True)
        try:
            for row in reader:
                if row:
                    if len(row) != len(header):
                        raise ValueError(f"{len(row)} fields, the header has {len(header)}")
                    yield reader.line_num + 1, dict(zip(header, row, strict=True))
        except (csv.Error, ValueError) as error:
            raise DataError(f"{table}, line {reader.line_num + 1}: {error}") from error


def json_rows(table: Path) -> Iterator[tuple[int, dict]]:
    """(line, object) of a file with a JSON object a line."""
    with table.open(encoding="utf-8-sig", errors="surrogateescape") as file:
        for number, line in enumerate(file, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except json.JSONDecodeError as error:
                raise DataError(f"{table}, line {number}: no JSON: {error}") from error
            if not isinstance(row, dict) or not {"path", "label"} <= set(row):
                raise DataError(f"{table}, line {number}: must be an object with path and label")
            yield number, row


def item_of(row: dict, where: str, root: Path) -> Item:
    """A row as an image.

    Raises:
        DataError: see `read_table`.
    """
    texts = {name: as_text(row.get(name), name, where) for name in COLUMNS}
    for name in ("path", "label"):
        if not texts[name].strip():
            raise DataError(f"{where}: {name} is empty")
    split = PARTS.get(texts["split"].strip().lower() or "train")
    if split is None:
        raise DataError(f'{where}: split "{texts["split"]}" must be train, val or test')
    return Item(existing(texts["path"], where, root), texts["label"], split)


def as_text(value, name: str, where: str) -> str:
    """A value as text: a label may be a number in JSON."""
    if value is None:
        return ""
    if isinstance(value, bool) or not isinstance(value, str | int | float):
        raise DataError(f"{where}: {name} ({value!r}) must be a text")
    text = str(value)
    if name == "label" and not text.isascii():
        try:
            text.encode()
        except UnicodeEncodeError:
            raise DataError(f"{where}: the label is not UTF-8; save the table as UTF-8") from None
    return text


def existing(path: str, where: str, root: Path) -> str:
    """A path as an item's id: with forward slashes, relative where it is.

    Raises:
        DataError: there is no such file.
    """
    for spelling in (path, path.replace("\\", "/")):  # tables are written on Windows too
        if (root / spelling).is_file():
            return Path(spelling).as_posix()
    raise DataError(f"{where}: no file {root / path}")
