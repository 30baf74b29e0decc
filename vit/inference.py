"""A trained network over labelled photos."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path

import torch

from vit import datasets
from vit.datasets import Item
from vit.loaders import Part
from vit.metrics import Predictions
from vit.model_file import TrainedModel
from vit.normalise import normalise


def evaluate(
    model: TrainedModel, source: str, split: str = "auto", batch_size: int = 64
) -> dict[str, object]:
    """Scores a network on labelled photos, in float32, at constant memory.

    Args:
        model: what to score.
        source: a folder of class folders, or a named source.
        split: "train", "val", "test", "all", or "auto": the test part where there is one.
        batch_size: images at once.

    Returns:
        source, split, left_out (unreadable images), the entries of `Predictions.report`, classes,
        confusion (rows: true class).

    Raises:
        ValueError: no such source or part, or a class that the model does not have.
    """
    named = source in datasets.NAMED and not Path(source).is_dir()
    opened = datasets.open_source(source if named else "folder", None if named else source)
    items, split = choose(opened.items(), split, source)
    datasets.check_labels(items, model.classes, f"{source} ({split})")
    device = torch.device("cuda" if torch.cuda.is_available() else "cpu")
    net = model.net.to(device).eval()
    pieces, first = [], 0
    for some in chunks(items, batch_size):
        part = Part.read(opened, some, model.classes, model.preprocess)
        if not len(part):
            continue
        with torch.inference_mode():
            logits = net(normalise(part.images.to(device), model.preprocess))
        pieces.append((logits.cpu(), part.labels, torch.arange(len(part)) + first))
        first += len(part)
    if not first:
        raise ValueError(f"none of the {len(items)} images of {source} could be read")
    predictions = Predictions.of(pieces)
    about = {"source": source, "split": split, "left_out": len(items) - first}
    result = predictions.report(model.classes, model.temperature)
    confusion = predictions.confusion().tolist()
    return about | result | {"classes": model.classes, "confusion": confusion}


def choose(items: list[Item], split: str, source: str) -> tuple[list[Item], str]:
    """The items of a part, and its name.

    Raises:
        ValueError: no image in it.
    """
    parts = {item.split for item in items}
    if split == "auto":
        split = "test" if "test" in parts else "all"
    chosen = items if split == "all" else [item for item in items if item.split == split]
    if not chosen:
        raise ValueError(f"{source} has no {split} part, only {', '.join(sorted(parts))}")
    return chosen, split


def chunks(items: Iterable[Item], size: int) -> Iterator[list[Item]]:
    """Lists of `size` items, the last one shorter."""
    iterator = iter(items)
    while some := list(islice(iterator, size)):
        yield some
