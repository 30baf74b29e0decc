"""A trained network over labelled photos: the same loop as `vit predict`, scored."""

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
import torch

from vit import datasets
from vit.datasets import Item
from vit.fitting import fit
from vit.inference import DEFAULT, Computing, logits, require_classes
from vit.items import escaped
from vit.metrics import Predictions

if TYPE_CHECKING:
    from vit.model_file import TrainedModel


@dataclass(frozen=True)
class Evaluation:
    """What a network said of labelled photos.

    Args:
        source: a folder, or a named source.
        split: the part that was looked at: train, val, test or all.
        items: the photos that could be read, in order.
        left_out: (id, reason) of those that could not.
        predictions: of `items`.
        model: what was scored.
        image_of: number in `items` -> uint8 (3, height, width), as the network sees it.
    """

    source: str
    split: str
    items: list[Item]
    left_out: list[tuple[str, str]]
    predictions: Predictions
    model: "TrainedModel"
    image_of: Callable[[int], np.ndarray]

    def report(self) -> dict[str, object]:
        """source, split, left_out (how many), the entries of `Predictions.report`, classes and
        confusion (rows: true class)."""
        about = {"source": self.source, "split": self.split, "left_out": len(self.left_out)}
        result = self.predictions.report(self.model.classes, self.model.temperature)
        confusion = self.predictions.confusion().tolist()
        return about | result | {"classes": self.model.classes, "confusion": confusion}


def evaluate(
    model: "TrainedModel",
    source: str,
    split: str = "auto",
    computing: Computing = DEFAULT,
    advance: Callable[[], None] = lambda: None,
) -> Evaluation:
    """Scores a network on labelled photos; of each only its logits are kept.

    Args:
        model: what to score.
        source: a folder of class folders, or a named source.
        split: "train", "val", "test", "all", or "auto": the test part where there is one.
        computing: batches, workers, precision.
        advance: called after each photo.

    Raises:
        ValueError: no such source or part, or a class that the model does not have.
    """
    require_classes(model)
    named = source in datasets.NAMED and not Path(source).is_dir()
    opened = datasets.open_source(source if named else "folder", None if named else source)
    items, split = choose(opened.items(), split, source)
    datasets.check_labels(items, model.classes, f"{source} ({split})")
    number = {name: i for i, name in enumerate(model.classes)}
    read, left_out, answers = [], [], []
    for loaded, answer in logits(model, items, computing, opened.open):
        advance()
        if answer is None:
            left_out.append((loaded.path.id, loaded.error))
        else:
            read.append(loaded.path)
            answers.append(answer)
    if not read:
        raise ValueError(f"none of the {len(items)} images of {source} could be read")
    labels = torch.tensor([number[item.label] for item in read])
    predictions = Predictions(torch.stack(answers), labels)

    def image_of(row: int) -> np.ndarray:
        photo = opened.open(read[row], model.preprocess.resized)
        return fit(photo, model.preprocess).pixels.transpose(2, 0, 1)

    return Evaluation(escaped(str(source)), split, read, left_out, predictions, model, image_of)


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
