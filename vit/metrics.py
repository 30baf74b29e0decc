"""How good predictions are: counts and likelihoods over a whole set, independent of its batches.

n images, C classes.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor


@dataclass
class Predictions:
    """What a network said of a set of images, in the set's order.

    Args:
        logits: float32 (n, C).
        labels: int64 (n,), the true classes.
    """

    logits: Tensor
    labels: Tensor

    @classmethod
    def of(cls, pieces: list[tuple[Tensor, Tensor, Tensor]]) -> "Predictions":
        """Puts (logits, labels, numbers in the set) of single batches into the set's order."""
        logits, labels, rows = (torch.cat(column).cpu() for column in zip(*pieces, strict=True))
        order = rows.argsort()
        return cls(logits[order].float(), labels[order])

    def probabilities(self) -> Tensor:
        """(n, C), rows sum to 1."""
        return self.logits.softmax(dim=1)

    def score(self) -> dict[str, float]:
        """top1 (fraction), nll (mean negative log-likelihood, nats), and the counts behind top1."""
        correct = int((self.logits.argmax(dim=1) == self.labels).sum())
        nll = F.cross_entropy(
            self.logits.double(), self.labels
        )  # a sum that no batch size shows in
        count = len(self.labels)
        return {"top1": correct / count, "nll": float(nll), "correct": correct, "count": count}

    def confusion(self) -> Tensor:
        """int64 (C, C): how many images of class row were called class column."""
        classes = self.logits.shape[1]
        cells = self.labels * classes + self.logits.argmax(dim=1)
        return torch.bincount(cells, minlength=classes**2).reshape(classes, classes)
