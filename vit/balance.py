"""Classes of unequal size: how much an image of each counts, so that all classes count the same."""

from collections import Counter
from collections.abc import Iterable

import torch
from torch import Tensor

from vit.datasets import Item


def class_weights(items: Iterable[Item], classes: list[str]) -> Tensor:
    """n / (C n_c) for each of the C classes, 0 for one without images: float32 (C,).

    The mean over the n images is 1, so that losses stay what they are in size.

    Args:
        items: the training images.
        classes: names, in the order of the logits.
    """
    counts = Counter(item.label for item in items)
    sizes = torch.tensor([counts[name] for name in classes], dtype=torch.float64)
    return torch.where(sizes > 0, sizes.sum() / (len(classes) * sizes), 0.0).float()
