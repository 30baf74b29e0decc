"""The classic benchmark sets, read by torchvision: CIFAR-10, CIFAR-100, MNIST, Fashion-MNIST.

An archive that is on this machine is used; else it is downloaded, once. Either way its checksum is
compared with torchvision's before it is unpacked.
"""

import hashlib
import logging
import shutil
from pathlib import Path

import numpy as np
from PIL import Image

from vit.images import Photo
from vit.user_cache import user_cache

log = logging.getLogger("vit")

# The name that data.source takes -> torchvision's class, and folders where systems install the set.
SETS = {
    "cifar10": ("CIFAR10", ()),
    "cifar100": ("CIFAR100", ()),
    "mnist": ("MNIST", ()),
    "fashion_mnist": ("FashionMNIST", ("/usr/share/datasets/fashion-mnist",)),  # Debian's package
}


class Archive:
    """One benchmark set, its own training and test parts.

    Args:
        name: a key of `SETS`.
        root: where its archives are or go; None: a cache folder of the user's.

    Raises:
        ValueError: an archive is damaged, or can neither be found nor downloaded; the message says
            which file, with which checksum, belongs where.
    """

    def __init__(self, name: str, root: str | None = None):
        from torchvision import datasets

        kind, elsewhere = SETS[name]
        self.kind = getattr(datasets, kind)
        self.root = Path(root) if root else user_cache() / name
        unpack(self.kind, self.root, [Path(place) for place in elsewhere])
        sides = [self.kind(str(self.root), train=train) for train in (True, False)]
        self.pixels = np.concatenate([np.asarray(side.data) for side in sides])
        self.targets = np.concatenate([np.asarray(side.targets) for side in sides])
        self.count = len(sides[0].targets)  # of training images, which come first
        self.names = [str(label).split(" - ")[0] for label in sides[0].classes]  # "7 - seven"

    def labelled(self) -> list[tuple[str, str, str]]:
        """(number, class, "train" or "test") of all images, in the set's own order."""
        return [
            (str(i), self.names[target], "train" if i < self.count else "test")
            for i, target in enumerate(self.targets)
        ]

    def digest(self, number: str) -> bytes:
        """Equal for equal pixels."""
        return hashlib.sha256(self.pixels[int(number)].tobytes()).digest()

    def open(self, number: str) -> Photo:
        """One image as a photo."""
        image = Image.fromarray(self.pixels[int(number)]).convert("RGB")
        box = (0, 0, image.width, image.height)
        return Photo(image, image.height, image.width, 1, self.kind.__name__, (), box)


def files_of(kind, root: Path) -> tuple[Path, list[tuple[str, str, str]]]:
    """Where torchvision expects a set's archives, and (file name, md5, address) of each."""
    if hasattr(kind, "tgz_md5"):
        return root, [(kind.filename, kind.tgz_md5, kind.url)]
    files = [(name, md5, kind.mirrors[0] + name) for name, md5 in kind.resources]
    return root / kind.__name__ / "raw", files


def unpack(kind, root: Path, installed: list[Path]) -> None:
    """Finds or downloads a set's archives, checks them, and unpacks them as torchvision reads them.

    Args:
        kind: torchvision's class.
        root: torchvision's root folder.
        installed: where a system's package manager puts them, which has its own checksums and may
            have compressed the data anew.

    Raises:
        ValueError: see `Archive`.
    """
    from torchvision.datasets.utils import extract_archive

    if unpacked(kind, root):
        return
    folder, files = files_of(kind, root)
    folder.mkdir(parents=True, exist_ok=True)
    found = [find(name, md5, [folder, root], installed) for name, md5, _ in files]
    missing = [file for file, path in zip(files, found, strict=True) if path is None]
    if missing:
        download(kind.__name__, missing, folder)
    for (name, _, _), path in zip(files, found, strict=True):
        if path and path.parent != folder:
            shutil.copyfile(path, folder / name)
        extract_archive(str(folder / name), str(folder))


def unpacked(kind, root: Path) -> bool:
    """Whether torchvision finds the set whole under its root."""
    try:
        kind(str(root), train=True)
        kind(str(root), train=False)
    except (RuntimeError, OSError, ValueError, EOFError):  # its ways to say no
        return False
    return True


def find(name: str, md5: str, places: list[Path], installed: list[Path]) -> Path | None:
    """An archive that lies in one of several folders.

    Args:
        name: of the file.
        md5: that it must have where it lies in `places`.
        places: folders of the user's.
        installed: folders of the system's, see `unpack`.

    Raises:
        ValueError: the only ones there have another checksum.
    """
    damaged = None
    for path in (place / name for place in places):
        if path.is_file():
            got = md5_of(path)
            if got == md5:
                return path
            damaged = (
                damaged or f"{path} is damaged: its md5 is {got}, it should be {md5}; replace it"
            )
    if damaged:
        raise ValueError(damaged)
    return next((place / name for place in installed if (place / name).is_file()), None)


def md5_of(path: Path) -> str:
    """Checksum of a file, in hexadecimal."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, lambda: hashlib.md5(usedforsecurity=False)).hexdigest()


def download(title: str, files: list[tuple[str, str, str]], folder: Path) -> None:
    """Fetches archives into a folder; half a file never stands under its name.

    Raises:
        ValueError: no connection; says which files to put where.
    """
    import urllib.error
    import urllib.request

    log.info("downloading %s to %s", title, folder)
    for name, md5, address in files:
        part = folder / f"{name}.part"
        try:
            with urllib.request.urlopen(address, timeout=30) as source, part.open("wb") as target:
                shutil.copyfileobj(source, target)
        except OSError as error:  # URLError is one
            part.unlink(missing_ok=True)
            wanted = ", ".join(f"{n} (md5 {m}, from {a})" for n, m, a in files)
            plural = "these files" if len(files) > 1 else "this file"
            raise ValueError(
                f"cannot download {title} ({error}): put {plural} into {folder} and start again: "
                f"{wanted}"
            ) from error
        if (got := md5_of(part)) != md5:
            part.unlink()
            raise ValueError(f"{address} gave a file with md5 {got}, it should be {md5}; try again")
        part.replace(folder / name)
