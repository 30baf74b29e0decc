"""The pictures of a set's results, the same for a run and for `vit evaluate`."""

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
from torch import Tensor

from vit import figures, score_figures
from vit.metrics import Predictions


def draw_results(
    predictions: Predictions,
    classes: list[str],
    temperature: float,
    images: Tensor | Callable[[int], np.ndarray],
    names: Sequence[str],
    picture: Callable[[str], Path],
    title: str,
) -> list[Path]:
    """How good it is, what it gets wrong, and how far it can be believed.

    Args:
        predictions: of n images.
        classes: in the order of the logits.
        temperature: that `reliability` shows the effect of.
        images: uint8 (n, 3, height, width), or number -> (3, height, width).
        names: of the images, n.
        picture: name -> where that picture goes.
        title: above each.

    Returns:
        The files: confusion, mistakes, per_class, reliability.
    """
    said = predictions.probabilities()
    return [
        score_figures.confusion(predictions.confusion(), classes, picture("confusion"), title),
        figures.mistakes(
            images,
            predictions.labels,
            said,
            classes,
            picture("mistakes"),
            f"{title}, mistakes",
            names,
        ),
        score_figures.per_class(
            predictions.per_class(classes), classes, picture("per_class"), title
        ),
        score_figures.reliability(
            said.amax(dim=1),
            predictions.correct(),
            predictions.probabilities(temperature).amax(dim=1),
            picture("reliability"),
            f"{title}, temperature {temperature:.2f}",
        ),
    ]
