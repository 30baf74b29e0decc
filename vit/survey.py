"""What is there to say of each photo of a folder: readable or not, format, size, look.

Each file is decoded once, in threads; what is found out of files that cannot be read is remembered
as a scan before training does, so that training need not decode them again.
"""

import hashlib
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from PIL import Image

from vit.commands.progress import Progress
from vit.cores import default_workers
from vit.folder import Folder
from vit.formats import open_image
from vit.images import Photo, UnreadableImage, read
from vit.items import Item
from vit.scan import Checked, Memory
from vit.spectrum import SIDE, signature

CHUNK = 16  # photos that a thread takes at once


@dataclass(frozen=True)
class Seen:
    """What is known of one photo.

    Args:
        item: its id, class and part.
        problem: why it cannot be read; empty where it can, and only then there is what follows.
        digest: SHA-256 of the file; None where even that cannot be read.
        bytes: size of the file.
        format: Pillow's name, such as JPEG.
        mode: Pillow's, of the pixels as they are stored, such as CMYK.
        height: of the upright photo, pixels.
        width: likewise.
        orientation: what the file says (EXIF), 1 to 8; 1 where it says nothing valid.
        notes: what the loader did or left out.
        signature: see `spectrum`.
    """

    item: Item
    problem: str = ""
    digest: bytes | None = None
    bytes: int = 0
    format: str = ""
    mode: str = ""
    height: int = 0
    width: int = 0
    orientation: int = 1
    notes: tuple[str, ...] = ()
    signature: np.ndarray | None = None


def survey(folder: Folder, items: list[Item]) -> list[Seen]:
    """Every item's photo, decoded; the folder learns the digests of its files."""
    memory = Memory(folder.root)
    chunks = [items[start : start + CHUNK] for start in range(0, len(items), CHUNK)]
    seen: list[Seen] = []
    with (
        ThreadPoolExecutor(default_workers()) as pool,
        Progress(len(items), "photos looked at") as bar,
    ):
        for some in pool.map(lambda chunk: [look(folder, item) for item in chunk], chunks):
            memory.add([checked for _, checked in some if checked])
            seen += [one for one, _ in some]
            bar.advance(len(some))
    folder.digests |= {one.item.id: one.digest for one in seen if one.digest}
    return seen


def look(folder: Folder, item: Item) -> tuple[Seen, Checked | None]:
    """One photo, and the line for a scan's memory; none where the machine failed, not the file."""
    path = folder.path(item)
    try:
        state = path.stat()
        with path.open("rb") as file:
            digest = hashlib.file_digest(file, "sha256").digest()
    except OSError as error:
        return Seen(item, error.strerror or str(error)), None
    about = {"digest": digest, "bytes": state.st_size}
    try:
        seen = Seen(item, **about, **described(path))
    except UnreadableImage as error:
        seen = Seen(item, str(error).removeprefix(f"{path}: "), **about)
        if error.passing:
            return seen, None
    stamp = (item.id, state.st_size, state.st_mtime_ns, digest.hex())
    return seen, Checked(*stamp, seen.problem)


def described(path: Path) -> dict:
    """What `Seen` says of a photo that can be read.

    Raises:
        UnreadableImage: it cannot be.
    """
    photo = read(path, at_least=(SIDE, SIDE))
    with path.open("rb") as stream:
        mode = open_image(stream).mode
    return {
        "format": photo.format,
        "mode": mode,
        "height": photo.height,
        "width": photo.width,
        "orientation": photo.orientation,
        "notes": photo.notes,
        "signature": signature(squashed(photo, SIDE)),
    }


def squashed(photo: Photo, side: int) -> np.ndarray:
    """The whole photo as (side, side, 3) uint8, whatever its shape."""
    method = Image.Resampling.BILINEAR
    return np.asarray(photo.image.resize((side, side), method, box=photo.box, reducing_gap=3))
