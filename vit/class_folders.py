"""Class folders -> labelled images: which folders are parts and classes, and what is passed over."""

import logging
import os
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

from vit.formats import SUFFIXES, is_image
from vit.items import PARTS, DataError, Item, escaped, natural, some

log = logging.getLogger("vit")
# Folders that systems make; other names that begin so may be someone's class, and are reported.
SYSTEMS = ("__MACOSX", "__pycache__", "@eaDir", "@Recycle", "@Recently-Snapshot", "@tmp")


def hidden(name: str) -> bool:
    """Whether a folder is no one's class: .ipynb_checkpoints, __MACOSX, @eaDir."""
    return name.startswith((".", "__", "@"))


def is_folder(entry: os.DirEntry) -> bool:
    """Whether it is a folder or leads to one; a link in a circle, or to what is forbidden, is none."""
    try:
        return entry.is_dir()
    except OSError:
        return False


def is_file(entry: os.DirEntry) -> bool:
    """Whether it is a file or leads to one."""
    try:
        return entry.is_file()
    except OSError:
        return False


def is_photo(path: str | os.PathLike) -> bool:
    """Whether a file is meant to be a photo, by its name, or is one, whatever its name."""
    return os.path.splitext(path)[1].lower() in SUFFIXES or is_image(path)


class Layout:
    """The labelled images of a folder of class folders; says what it leaves out.

    Args:
        root: the folder.
    """

    def __init__(self, root: Path):
        self.root = root
        self.skipped: Counter[str] = Counter()  # files that are no photos, by kind
        self.dropped: list[Path] = []  # folders with a hidden name
        self.empty: list[Path] = []  # class folders without a photo

    def items(self) -> list[Item]:
        """All images, in natural order of their paths."""
        items = []
        for folder, split in self.parts():
            for class_folder in self.folders(folder):
                photos = list(self.photos(class_folder, frozenset(parents(class_folder))))
                if not photos:
                    self.empty.append(class_folder)
                label = (
                    escaped(class_folder.name) if broken(class_folder.name) else class_folder.name
                )
                items += [
                    Item(path.relative_to(self.root).as_posix(), label, split) for path in photos
                ]
        self.report()
        return sorted(items, key=lambda item: natural(item.id))

    def parts(self) -> list[tuple[Path, str]]:
        """The folders that hold class folders, each with the part it is: train, val or test.

        Raises:
            DataError: a part stands beside class folders, where it would be one of the classes.
        """
        named = [(path, PARTS.get(path.name.lower())) for path in self.folders(self.root)]
        known = [(path, part) for path, part in named if part]
        others = [path for path, part in named if not part]
        divided = any(part == "train" and has_folders(path) for path, part in known)
        if not known or (others and not divided):
            for path, part in known:
                self.refuse_part(path, part, others)
            self.report_strays([self.root])
            self.report_flat([path for path, _ in named])
            return [(self.root, "train")]
        for path in others:
            log.warning("ignored %s: beside train, it is no part of the data", path)
        by_part = defaultdict(list)
        for path, part in known:
            by_part[part].append(path.name)
        for part, names in by_part.items():
            if len(names) > 1:
                log.warning("%s are taken together, as the %s part", " and ".join(names), part)
        self.report_strays([self.root, *(path for path, _ in known)])
        return known

    def folders(self, folder: Path) -> list[Path]:
        """The folders in a folder in natural order; hidden ones are noted."""
        inside = [Path(entry.path) for entry in os.scandir(folder) if is_folder(entry)]
        self.dropped += [path for path in inside if hidden(path.name)]
        visible = [path for path in inside if not hidden(path.name)]
        return sorted(visible, key=lambda path: natural(path.name))

    def photos(self, folder: Path, above: frozenset[str]) -> Iterator[Path]:
        """All photos below a folder; a link back to a folder `above` is not followed."""
        real = os.path.realpath(folder)
        if real in above:
            return
        for entry in sorted(os.scandir(folder), key=lambda entry: entry.name):
            path = Path(entry.path)
            if is_folder(entry):
                if hidden(entry.name):
                    self.dropped.append(path)
                else:
                    yield from self.photos(path, above | {real})
            elif not is_file(entry):
                self.skipped["broken link" if entry.is_symlink() else "special file"] += 1
            elif not entry.name.startswith(".") and is_photo(path):
                yield path
            else:
                self.skipped[path.suffix.lower() or path.name] += 1

    def refuse_part(self, path: Path, part: str, classes: list[Path]) -> None:
        """Stops where a folder named as a part holds folders of the classes that stand beside it."""
        names = {one.name for one in classes}
        same = sorted(names & {e.name for e in os.scandir(path) if is_folder(e)}, key=natural)
        if same:
            raise DataError(
                f"{path} looks like the {part} part, with {some(same, 3)} in it as beside it: put "
                f"the class folders in {self.root} into {self.root / 'train'}"
            )

    def report_flat(self, classes: list[Path]) -> None:
        """Warns of class folders that hardly are any."""
        for path in classes:
            if path.name.lower() in PARTS:
                reason = (
                    "it stands beside others" if has_folders(path) else "no class folders are in it"
                )
                log.warning("%s is taken for a class: %s", path, reason)
        if len(classes) == 1 and has_folders(classes[0]):
            log.warning("%s is taken for the one class; or is it the folder to give?", classes[0])

    def report_strays(self, folders: list[Path]) -> None:
        """Warns of photos that lie beside class folders, where they have no class."""
        for folder in folders:
            files = sorted(e.path for e in os.scandir(folder) if is_file(e) and e.name[0] != ".")
            strays = [path for path in files if is_photo(path)]
            if strays:
                log.warning(
                    "left out %d photos beside the class folders in %s, such as %s: a photo's class is "
                    "the folder it lies in",
                    *(len(strays), folder, os.path.basename(strays[0])),
                )

    def report(self) -> None:
        """Says what was passed over."""
        if self.skipped:
            kinds = ", ".join(f"{n} {kind}" for kind, n in self.skipped.most_common(5))
            log.info("passed over %d files that are no photos: %s", self.skipped.total(), kinds)
        if self.empty:
            log.warning("no photo in %s", some(map(str, self.empty)))
        by_name = defaultdict(list)
        for path in self.dropped:
            by_name[path.name].append(path)
        if by_name:
            log.info("passed over hidden folders: %s", some(by_name))
        for paths in by_name.values():
            if any(map(may_be_meant, paths)):
                log.warning(
                    "left out %s: names that begin with @ or __ are taken for a system's; rename it "
                    "if it is a class",
                    paths[0],
                )


def parents(folder: Path) -> map:
    """The real paths of the folders above one."""
    return map(str, folder.resolve().parents)


def broken(name: str) -> bool:
    """Whether a name holds bytes that are no UTF-8."""
    return any("\ud800" <= letter <= "\udfff" for letter in name)


def has_folders(folder: Path) -> bool:
    """Whether a folder holds visible folders."""
    return any(is_folder(entry) and not hidden(entry.name) for entry in os.scandir(folder))


def may_be_meant(folder: Path) -> bool:
    """Whether a hidden folder has a name that no system gives, and photos in it."""
    return folder.name[0] != "." and folder.name not in SYSTEMS and holds_photo(folder)


def holds_photo(folder: Path) -> bool:
    """Whether there is a photo anywhere below a folder; links to folders are not followed."""
    return any(
        is_photo(os.path.join(place, name)) for place, _, names in os.walk(folder) for name in names
    )
