"""Names of the pictures of many photos in one folder, and what they must not replace.

A photo's stem is its picture's and its heat's name in the folder, without suffix.
"""

import json
import os
from collections import Counter
from pathlib import Path

RECORD = "attend.json"
SUFFIXES = (".png", ".jpg", ".mp4", ".npz")  # of pictures, and last of heat


def stems_of(paths: list[str]) -> dict[str, str]:
    """Each photo's name in the output folder, without the picture's suffix.

    Its own name; where several photos would have the same, also its suffix (a.jpg, a.png), else as
    many of its folders as tell them apart. Letters that differ in case alone are the same name.
    """
    stems: dict[str, str] = {}
    left = {path: Path(os.path.abspath(path)).parts[1:] for path in dict.fromkeys(paths)}
    for depth in range(1, max(map(len, left.values()), default=0) + 1):
        for ending in (lambda name: os.path.splitext(name)[0], str):
            names = {path: ending("/".join(parts[-depth:])) for path, parts in left.items()}
            uses = Counter(name.casefold() for name in (*names.values(), *stems.values()))
            stems |= {path: name for path, name in names.items() if uses[name.casefold()] == 1}
            left = {path: parts for path, parts in left.items() if path not in stems}
    return stems | numbered(list(left), {stem.casefold() for stem in stems.values()})


def numbered(paths: list[str], taken: set[str]) -> dict[str, str]:
    """Names for photos that nothing else tells apart: NAME-1, NAME-2, ..., none of them taken."""
    stems, number = {}, 0
    for path in paths:
        stem = None
        while stem is None or stem.casefold() in taken:
            number += 1
            stem = f"{Path(path).name}-{number}"
        stems[path] = stem
    return stems


def keep_photos(output: Path, stems: dict[str, str]) -> None:
    """No photo that is asked about is replaced by a picture.

    Raises:
        ValueError: one would be.
    """
    photos = {os.path.realpath(path): path for path in stems}
    for path, stem in stems.items():
        for suffix in SUFFIXES:
            place = f"{output / stem}{suffix}"
            if photo := photos.get(os.path.realpath(place)):
                raise ValueError(
                    f"the picture of {path} would be written to {place}, which is the photo {photo} "
                    "itself: give another folder as --output"
                )


def pictured(output: Path) -> dict[str, str]:
    """What attend.json knows of the pictures that are in a folder: stem -> its photo's whole path."""
    try:
        known = json.loads((output / RECORD).read_text(encoding="utf-8"))["pictures"]
        return {stem: path for stem, path in known.items() if files_of(output, stem)}
    except (OSError, ValueError, KeyError, TypeError, AttributeError):
        return {}


def files_of(output: Path, stem: str) -> list[str]:
    """The files of a stem that are there."""
    places = [f"{output / stem}{suffix}" for suffix in SUFFIXES]
    return [place for place in places if os.path.lexists(place)]


def keep_others(output: Path, stems: dict[str, str]) -> None:
    """No file is replaced that is not known to be an earlier picture of the same photo.

    Raises:
        ValueError: one would be.
    """
    known = pictured(output)
    for path, stem in stems.items():
        there = files_of(output, stem)
        if there and known.get(stem) != os.path.abspath(path):
            shows = (
                f"shows {known[stem]}" if stem in known else "is not known to show the same photo"
            )
            raise ValueError(
                f"{there[0]} {shows} and would be replaced by the picture of {path}: "
                "choose another --output, or remove it"
            )
