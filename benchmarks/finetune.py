"""A probe on each of several photo sets, beside the 10 nearest neighbours of the same features.

    python benchmarks/finetune.py PHOTOS/ MORE/ --weights timm:vit_small_patch14_dinov2

Both see the same frozen features of the same training images. A set without a validation or a test
part has a fifth of its training images set aside for each. The probe chooses its L2 strength on
validation; the neighbours choose nothing, so validation flatters the probe and test does not.
"""

import argparse
import tempfile
import time
from pathlib import Path

from sklearn.neighbors import KNeighborsClassifier

from vit import config as settings
from vit import runs
from vit.commands import train
from vit.commands.fit_probe import extract

PARTS = ("val", "test")
COLUMNS = ("set", "train", "val", "test", "probe val", "probe test", "10-NN val", "10-NN test", "s")


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("photos", nargs="+", help="folders of photos")
    parser.add_argument("--weights", required=True, help="as --model.weights")
    parser.add_argument("--architecture", help="as --model.architecture")
    parser.add_argument("--img-size", type=int, default=224, help="pixels (default: 224)")
    parser.add_argument("--share", type=float, default=0.2, help="set aside (default: 0.2)")
    arguments = parser.parse_args()
    with tempfile.TemporaryDirectory() as root:
        rows = [compare(Path(photos), arguments, root) for photos in arguments.photos]
    widths = [max(map(len, column)) for column in zip(COLUMNS, *rows, strict=True)]
    for row in (COLUMNS, *rows):
        print("  ".join(cell.rjust(width) for cell, width in zip(row, widths, strict=True)))


def compare(photos: Path, arguments: argparse.Namespace, root: str) -> tuple[str, ...]:
    """One set's row: images, accuracy of the probe and of the neighbours, seconds of the run."""
    given = {
        "data.root": str(photos),
        "data.val_share": arguments.share,
        "data.test_share": arguments.share,
        "model.weights": arguments.weights,
        "model.architecture": arguments.architecture,
        "model.img_size": arguments.img_size,
        "run.root": root,
        "run.name": photos.name,
    }
    config = settings.load("finetune", given)
    began = time.perf_counter()
    parts = train.assemble(config, runs.create(Path(root), photos.name))
    summary = train.carry_out(parts).summary
    seconds = time.perf_counter() - began
    train_features, labels = extract(parts, "train"), parts.data.load("train").labels
    neighbours = KNeighborsClassifier(10, metric="cosine").fit(train_features, labels)
    counts = [str(len(parts.data.of(part))) for part in ("train", *PARTS)]
    probe = [f"{summary[part]['top1']:.1%}" for part in PARTS]
    nearest = [
        f"{neighbours.score(extract(parts, part), parts.data.load(part).labels):.1%}"
        for part in PARTS
    ]
    return (photos.name, *counts, *probe, *nearest, f"{seconds:.0f}")


if __name__ == "__main__":
    main()
