"""Near-identical photos: how many altered copies are found, and what else is taken for a copy.

    VIT_TEST_DATA=/path/to/shared python benchmarks/near_duplicates.py [--sets flowers5 ...] [--cifar]

Every photo of a set is altered in memory, encoded, decoded as `vit check` does, and compared with
all others of its set. Recall is the share of copies that stand in one group with their original, at
the limits COPY ("near-identical") and ALIKE ("look alike"). Below stand all pairs of different
files that are taken for one, to be looked at: --pairs FOLDER draws them. --cifar does the same
with CIFAR-10's 10,000 test photos, unaltered: what a large set gives, and how long it takes.
"""

import argparse
import io
import os
import sys
import tarfile
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
from PIL import Image

sys.path.insert(0, str(Path(__file__).parents[1]))
from vit import near
from vit.grouping import groups
from vit.images import UnreadableImage, is_image, read
from vit.spectrum import SIDE
from vit.spectrum import signature as signature_of
from vit.survey import squashed

SETS = ("flowers5", "hymenoptera", "pizza_steak_sushi", "fruit3", "ecssd300")
NO_PHOTOS = ("masks",)


def resized(factor: float) -> Callable[[Image.Image], Image.Image]:
    """Reduces both sides by a factor."""
    return lambda photo: photo.resize(
        [max(1, round(side * factor)) for side in photo.size], Image.Resampling.LANCZOS
    )


def cropped(left: float, top: float, right: float, bottom: float):
    """Cuts off shares of the width and height."""

    def crop(photo: Image.Image) -> Image.Image:
        width, height = photo.size
        return photo.crop(
            (
                round(left * width),
                round(top * height),
                width - round(right * width),
                height - round(bottom * height),
            )
        )

    return crop


def same(photo: Image.Image) -> Image.Image:
    """As it is."""
    return photo


# name: (what is done to the pixels, JPEG quality; None for PNG)
COPIES = {
    "half size": (resized(1 / 2), None),
    "quarter size": (resized(1 / 4), None),
    "JPEG 90": (same, 90),
    "JPEG 60": (same, 60),
    "JPEG 30": (same, 30),
    "5 % of the left cut": (cropped(0.05, 0, 0, 0), 90),
    "5 % of the top cut": (cropped(0, 0.05, 0, 0), 90),
    "5 % of two sides": (cropped(0, 0, 0.05, 0.05), 90),
    "5 % of all four sides": (cropped(0.05, 0.05, 0.05, 0.05), 90),
    "5 % of the area": (cropped(*4 * [(1 - 0.95**0.5) / 2]), 90),
    "3, 1, 0 and 4 % of the sides": (cropped(0.03, 0.01, 0, 0.04), 90),
    "5 % of all, half, JPEG 60": (
        lambda photo: resized(1 / 2)(cropped(0.05, 0.05, 0.05, 0.05)(photo)),
        60,
    ),
    "flipped": (lambda photo: photo.transpose(Image.Transpose.FLIP_LEFT_RIGHT), 90),
}


def signature(source) -> np.ndarray:
    """As `vit check` computes it."""
    return signature_of(squashed(read(source, at_least=(SIDE, SIDE)), SIDE))


def encoded(photo: Image.Image, quality: int | None) -> bytes:
    """A file's content."""
    file = io.BytesIO()
    options = {"format": "PNG"} if quality is None else {"format": "JPEG", "quality": quality}
    photo.save(file, **options)
    return file.getvalue()


def signatures(path: Path) -> np.ndarray | None:
    """(1 + copies, F): of a photo and its altered copies; None where it cannot be read."""
    try:
        photo = read(path).image
    except UnreadableImage:
        return None
    copies = [encoded(change(photo), quality) for change, quality in COPIES.values()]
    return np.stack([signature(path), *map(signature, copies)])


def recall(
    originals: np.ndarray, copies: np.ndarray, limit: float
) -> tuple[int, list[tuple[int, int]]]:
    """How many copies stand with their originals; and (original, copy) pairs of different photos."""
    count = len(originals)
    pairs = near.matches(np.concatenate([originals, copies]), limit)
    group = {}
    for number, members in enumerate(groups([match.pair for match in pairs], 2 * count)):
        group |= dict.fromkeys(members, number)
    right = sum(one in group and group[one] == group.get(count + one) for one in range(count))
    apart = [match.pair for match in pairs if (match.first < count) != (match.second < count)]
    return right, [pair for pair in apart if pair[0] % count != pair[1] % count]


def measure(folder: Path, pictures: Path | None) -> None:
    """One set's table."""
    paths = [
        path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and is_image(path) and path.parent.name not in NO_PHOTOS
    ]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        rows = list(pool.map(signatures, paths))
    paths = [path for path, row in zip(paths, rows, strict=True) if row is not None]
    table = np.stack([row for row in rows if row is not None])  # (n, 1 + copies, F)
    print(f"\n{folder.name}: {len(paths)} photos")
    limits = (near.COPY, near.ALIKE)
    heads = "".join(f"{f'>= {limit}':>9}{'false':>7}" for limit in limits)
    print(f"  {'copy':<30}{heads}   (false: pairs of a copy with another photo)")
    for number, name in enumerate(COPIES, 1):
        cells = ""
        for limit in limits:
            right, wrong = recall(table[:, 0], table[:, number], limit)
            cells += f"{right / len(paths):>9.2%}{len(wrong):>7}"
        print(f"  {name:<30}{cells}", flush=True)
    show(paths, near.matches(table[:, 0]), folder, pictures)


def show(paths: list[Path], pairs: list[near.Match], folder: Path, pictures: Path | None) -> None:
    """Pairs of different files, and their pictures."""
    copies = sum(pair.likeness >= near.COPY for pair in pairs)
    print(f"  pairs of different files: {copies} near-identical, {len(pairs) - copies} alike")
    for pair in pairs:
        names = " = ".join(str(paths[one].relative_to(folder)) for one in pair.pair)
        print(f"    {pair.likeness:.3f} {names}{', mirrored' * pair.mirrored}")
    if pictures and pairs:
        both = [[squashed(read(paths[one]), 128) for one in pair.pair] for pair in pairs]
        Image.fromarray(np.vstack([np.hstack(pair) for pair in both])).save(
            pictures / f"{folder.name}.png"
        )


def measure_cifar(archive: Path, pictures: Path | None) -> None:
    """CIFAR-10's test photos among themselves."""
    files = {}
    with tarfile.open(archive, "r|xz") as stream:
        for member in stream:
            if member.isfile() and "test" in Path(member.name).parts:
                files[member.name] = stream.extractfile(member).read()
    names = sorted(files)
    table = np.stack([signature(files[name]) for name in names])
    start, used = time.perf_counter(), time.process_time()
    pairs = near.matches(table)
    print(f"\nCIFAR-10, JPEG copy: {len(names)} test photos")
    print(
        f"  compared in {time.perf_counter() - start:.1f} s, "
        f"{time.process_time() - used:.1f} s of one processor"
    )
    for limit, words in ((near.COPY, "near-identical"), (near.ALIKE, "alike or near-identical")):
        print(f"  {sum(pair.likeness >= limit for pair in pairs)} pairs {words}")
    if pictures:
        both = [
            np.hstack([squashed(read(files[names[one]]), 96) for one in pair.pair])
            for pair in pairs
        ]
        both += [np.full_like(both[0], 255)] * (-len(both) % 6)
        rows = [np.hstack(both[start : start + 6]) for start in range(0, len(both), 6)]
        Image.fromarray(np.vstack(rows)).save(pictures / "cifar10.png")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--sets", nargs="*", default=SETS)
    parser.add_argument("--cifar", action="store_true")
    parser.add_argument("--pairs", type=Path, metavar="FOLDER")
    arguments = parser.parse_args()
    if "VIT_TEST_DATA" not in os.environ:
        sys.exit("VIT_TEST_DATA must name the folder that holds data/ with the photo sets")
    data = Path(os.environ["VIT_TEST_DATA"]) / "data"
    print(f"likeness: near-identical >= {near.COPY}, alike >= {near.ALIKE}")
    for name in arguments.sets:
        measure(data / name, arguments.pairs)
    if arguments.cifar:
        measure_cifar(data / "cifar10_jpeg.tar.xz", arguments.pairs)


if __name__ == "__main__":
    main()
