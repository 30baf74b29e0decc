"""Where labelled images come from: embedded, a benchmark set, or photos on disk.

A source lists its images as `Item`s (no pixels read) and opens one by its id.
"""

import hashlib
from pathlib import Path

import numpy as np
from PIL import Image

from vit.archives import SETS, Archive
from vit.folder import Folder
from vit.images import Photo
from vit.items import Item, check_labels, class_names, divide, natural

__all__ = [
    "NAMED",
    "Benchmark",
    "Digits",
    "Folder",
    "Item",
    "Source",
    "check_labels",
    "class_names",
    "divide",
    "natural",
    "open_source",
]


class Digits:
    """1,797 handwritten digits of 8x8 pixels (UCI, CC BY 4.0), 360 of them a fixed test part."""

    def __init__(self):
        with np.load(Path(__file__).parent / "digits.npz") as file:
            self.images, self.labels, self.test = file["images"], file["labels"], file["test"]

    def items(self) -> list[Item]:
        """All images, in the set's own order."""
        return [
            Item(str(i), str(label), "test" if test else "train")
            for i, (label, test) in enumerate(zip(self.labels, self.test, strict=True))
        ]

    def digest(self, item: Item) -> bytes:
        """Equal for equal pixels."""
        return hashlib.sha256(self.images[int(item.id)].tobytes()).digest()

    def open(self, item: Item, at_least) -> Photo:
        """One image as a photo; the set's 0 to 16 become 0 to 255."""
        grey = np.rint(self.images[int(item.id)] * (255 / 16)).astype(np.uint8)
        image = Image.fromarray(grey).convert("RGB")
        height, width = grey.shape
        return Photo(image, height, width, 1, "digits", (), (0, 0, width, height))


class Benchmark:
    """A classic benchmark set, see `archives`.

    Args:
        name: a key of `archives.SETS`.
        root: where its archives are or go.
    """

    def __init__(self, name: str, root: str | None):
        self.archive = Archive(name, root)

    def items(self) -> list[Item]:
        """All images, in the set's own order."""
        return [Item(*one) for one in self.archive.labelled()]

    def digest(self, item: Item) -> bytes:
        """Equal for equal pixels."""
        return self.archive.digest(item.id)

    def open(self, item: Item, at_least) -> Photo:
        """One image as a photo."""
        return self.archive.open(item.id)


Source = Digits | Benchmark | Folder
NAMED = ("digits", *SETS)  # those that need no folder


def open_source(name: str, root: str | None) -> Source:
    """A source by the name that `data.source` takes.

    Raises:
        ValueError: `folder` without a root, or a root that holds no folder; see `Archive` too.
    """
    if name == "digits":
        return Digits()
    if name in SETS:
        return Benchmark(name, root)
    if root is None:
        raise ValueError(
            "data.source folder needs --data.root, the folder of class folders or a table"
        )
    return Folder(root)
