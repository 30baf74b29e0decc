"""Photos on disk, in class folders or listed in a table."""

import hashlib
import logging
from collections import defaultdict
from pathlib import Path

from vit.class_folders import Layout
from vit.images import Photo, read
from vit.items import DataError, Item
from vit.tables import TABLES, read_table

log = logging.getLogger("vit")


class Folder:
    """Labelled photos: a folder of class folders, inside train / val / test or at the top, or a table.

    Args:
        root: the folder, or a CSV or JSON lines file with the columns path, label and perhaps
            split. Files are known by their content, not by their name. Hidden files and files that
            are no photos are passed over, counted and reported.

    Raises:
        ValueError: no such folder or table.
    """

    def __init__(self, root: str | Path):
        self.table = Path(root) if Path(root).is_file() else None
        self.root = Path(root).parent if self.table else Path(root)
        self.digests: dict[str, bytes] = {}  # what a scan has found out, by id
        if self.table and self.table.suffix.lower() not in TABLES:
            raise ValueError(f"{root} is no folder, and no table ({', '.join(TABLES)})")
        if not self.root.is_dir() or not Path(root).exists():
            raise ValueError(f"no folder or table {root}")

    def items(self) -> list[Item]:
        """All images: of a folder in natural order of their paths, of a table in its own.

        Raises:
            DataError: there are none; see `read_table` too.
        """
        if self.table:
            return read_table(self.table)
        items = Layout(self.root).items()
        if not items:
            tables = sorted(p.name for p in self.root.iterdir() if p.suffix.lower() in TABLES)
            raise DataError(
                f"no class folder with an image in it in {self.root}: expected one folder per "
                "class, there or inside train, val and test"
                + (f"; to take labels from {tables[0]}, give that file" if tables else "")
            )
        return items

    def path(self, item: Item) -> Path:
        """Where an image lies."""
        return self.root / item.id

    def report_twins(self, items: list[Item]) -> None:
        """Warns of byte-identical files in several parts or classes; none is moved or left out."""
        by_size, by_content = defaultdict(list), defaultdict(list)
        for item in items:
            by_size[self.path(item).stat().st_size].append(item)
        for group in by_size.values():
            for item in group if len(group) > 1 else ():
                by_content[self.digest(item)].append(item)
        for name, what in (("split", "parts"), ("label", "classes")):
            twins = [g for g in by_content.values() if len({getattr(i, name) for i in g}) > 1]
            if twins:
                example = " = ".join(item.id for item in twins[0][:3])
                log.warning("%d photos stand in several %s, as %s", len(twins), what, example)

    def digest(self, item: Item) -> bytes:
        """Equal for byte-identical files."""
        if item.id not in self.digests:
            with self.path(item).open("rb") as file:
                self.digests[item.id] = hashlib.file_digest(file, "sha256").digest()
        return self.digests[item.id]

    def open(self, item: Item, at_least) -> Photo:
        """One photo, upright; `at_least` as in `images.read`."""
        return read(self.path(item), at_least=at_least)
