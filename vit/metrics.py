"""How good predictions are: counts and likelihoods over a whole set, independent of its batches.

n images, C classes. Everything is computed from all logits at once, in float64.
"""

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

BINS = 15  # of the expected calibration error (Guo et al. 2017, arXiv 1706.04599)
RESAMPLES = 1000  # of the bootstrap behind its interval
LEAST_TO_CALIBRATE = 100  # validation images below which a temperature would be noise
TEMPERATURES = (0.25, 4.0)


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

    def probabilities(self, temperature: float = 1.0) -> Tensor:
        """float64 (n, C), rows sum to 1: the softmax of logits / temperature."""
        return (self.logits.double() / temperature).softmax(dim=1)

    def correct(self) -> Tensor:
        """bool (n,): whether the likeliest class is the true one."""
        return self.logits.argmax(dim=1) == self.labels

    def score(self) -> dict[str, float]:
        """top1 (fraction), nll (mean negative log-likelihood, nats), and the counts behind top1."""
        correct, count = int(self.correct().sum()), len(self.labels)
        return {"top1": correct / count, "nll": self.nll(), "correct": correct, "count": count}

    def nll(self, temperature: float = 1.0) -> float:
        """Mean negative log-likelihood of the true classes, nats."""
        return float(F.cross_entropy(self.logits.double() / temperature, self.labels))

    def confusion(self) -> Tensor:
        """int64 (C, C): how many images of class row were called class column."""
        classes = self.logits.shape[1]
        cells = self.labels * classes + self.logits.argmax(dim=1)
        return torch.bincount(cells, minlength=classes**2).reshape(classes, classes)

    def per_class(self, classes: list[str]) -> dict[str, dict[str, float]]:
        """{class: {"precision", "recall", "f1" (fractions), "count" (true images)}}.

        A class that is never predicted has precision 0, one without images recall 0.
        """
        # From the counts in float64: torchmetrics' own are float32, equal to seven digits alone.
        cells = self.confusion().double()
        hits, true, said = cells.diagonal(), cells.sum(dim=1), cells.sum(dim=0)
        measured = {
            "precision": hits / said.clamp(min=1),
            "recall": hits / true.clamp(min=1),
            "f1": 2 * hits / (said + true).clamp(min=1),
        }
        return {
            label: {name: float(values[i]) for name, values in measured.items()}
            | {"count": int(true[i])}
            for i, label in enumerate(classes)
        }

    def report(self, classes: list[str], temperature: float = 1.0) -> dict:
        """Everything: `score`, and top5, macro_f1, balanced_accuracy, ece with its 95 % interval,
        per_class, and nll and ece after the temperature (nll_calibrated, ece_calibrated).

        Balanced accuracy is the mean recall of the classes that have images; top5 is left out
        below six classes.
        """
        per_class = self.per_class(classes)
        present = [one for one in per_class.values() if one["count"]]
        result = dict(self.score())
        if len(classes) > 5:
            hits = (self.logits.topk(5, dim=1).indices == self.labels[:, None]).any(dim=1)
            result["top5"] = int(hits.sum()) / len(hits)
        result["macro_f1"] = sum(one["f1"] for one in per_class.values()) / len(per_class)
        result["balanced_accuracy"] = sum(one["recall"] for one in present) / len(present)
        result["ece"] = self.ece()
        result["ece_low"], result["ece_high"] = self.ece_interval()
        result["nll_calibrated"] = self.nll(temperature)
        result["ece_calibrated"] = self.ece(temperature)
        return result | {"per_class": per_class}

    def ece(self, temperature: float = 1.0) -> float:
        """Expected calibration error: mean |accuracy - confidence| over 15 bins by confidence."""
        confidence = self.probabilities(temperature).amax(dim=1)
        return float(binned_error(confidence, self.correct().double()))

    def ece_interval(self) -> tuple[float, float]:
        """95 % interval of `ece` over a seeded bootstrap of the images."""
        confidence, correct = self.probabilities().amax(dim=1), self.correct().double()
        generator = torch.Generator().manual_seed(0)
        count = len(correct)
        draws = []
        for _ in range(RESAMPLES):
            rows = torch.randint(count, (count,), generator=generator)
            draws.append(binned_error(confidence[rows], correct[rows]))
        low, high = torch.stack(draws).quantile(torch.tensor([0.025, 0.975]).double()).tolist()
        return low, high

    def fit_temperature(self) -> float:
        """The temperature in [0.25, 4] that these images are likeliest under; 1 where it can't help.

        Likelihood is concave in 1 / temperature (Guo et al. 2017), so a golden-section search
        finds its top. Below 100 images, or where calibration would get worse, it is 1.
        """
        if len(self.labels) < LEAST_TO_CALIBRATE:
            return 1.0
        low, high = 1 / TEMPERATURES[1], 1 / TEMPERATURES[0]
        golden = (5**0.5 - 1) / 2
        for _ in range(60):
            left, right = high - golden * (high - low), low + golden * (high - low)
            if self.nll(1 / left) < self.nll(1 / right):
                high = right
            else:
                low = left
        temperature = 2 / (low + high)
        return temperature if self.ece(temperature) <= self.ece() else 1.0


def binned_error(confidence: Tensor, correct: Tensor) -> Tensor:
    """Expected calibration error of n images: float64 (n,), (n,) of 0 or 1 -> scalar."""
    bins = (confidence * BINS).ceil().long().clamp(1, BINS) - 1  # (0, 1/15], (1/15, 2/15], ...
    gap = torch.zeros(BINS, dtype=torch.float64).index_add(0, bins, correct - confidence)
    return gap.abs().sum() / len(correct)
