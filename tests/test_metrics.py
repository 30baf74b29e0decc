"""Metrics against scikit-learn, against hand-made cases, and independent of batches."""

import numpy as np
import pytest
import torch
from sklearn import metrics as sk

from vit.metrics import Predictions


def random_predictions(count=500, classes=7, seed=0) -> Predictions:
    generator = torch.Generator().manual_seed(seed)
    logits = 2 * torch.randn(count, classes, generator=generator)
    labels = torch.randint(classes - 1, (count,), generator=generator)  # the last has no image
    logits[torch.arange(count), labels] += 1.5
    return Predictions(logits, labels)


def test_equal_scikit_learns():
    predictions = random_predictions()
    names = [str(k) for k in range(7)]
    true, said = predictions.labels.numpy(), predictions.logits.argmax(1).numpy()
    probabilities = torch.softmax(predictions.logits.double(), 1).numpy()
    ours = predictions.report(names)
    columns = sk.precision_recall_fscore_support(true, said, labels=range(7), zero_division=0)
    for k, name in enumerate(names):
        for column, key in zip(columns, ("precision", "recall", "f1", "count"), strict=True):
            assert ours["per_class"][name][key] == pytest.approx(column[k], abs=1e-12)
    exact = {
        "top1": sk.accuracy_score(true, said),
        "top5": sk.top_k_accuracy_score(true, probabilities, k=5, labels=range(7)),
        "nll": sk.log_loss(true, probabilities, labels=range(7)),
        "balanced_accuracy": np.mean(columns[1][:6]),
    }
    for key, value in exact.items():
        assert ours[key] == pytest.approx(value, abs=1e-12), key
    assert ours["macro_f1"] == pytest.approx(np.mean(columns[2]), abs=1e-12)
    assert np.array_equal(predictions.confusion(), sk.confusion_matrix(true, said, labels=range(7)))


@pytest.mark.parametrize("batch_size", [1, 3, 64, 500])
def test_batches_do_not_matter(batch_size):
    whole = random_predictions()
    order = torch.randperm(500, generator=torch.Generator().manual_seed(1))
    pieces = [(whole.logits[rows], whole.labels[rows], rows) for rows in order.split(batch_size)]
    names = list("abcdefg")
    assert Predictions.of(pieces).report(names) == whole.report(names)


def test_calibration_error_by_hand():
    """Two bins: three images at .9 of which one is right, one at .6 that is right."""
    p = torch.tensor([[0.9, 0.1], [0.9, 0.1], [0.9, 0.1], [0.6, 0.4]])
    predictions = Predictions(p.log(), torch.tensor([0, 1, 1, 0]))
    assert predictions.ece() == pytest.approx((3 * (0.9 - 1 / 3) + 0.4) / 4, abs=1e-6)
    low, high = predictions.ece_interval()
    assert 0 <= low < predictions.ece() < high <= 1


@pytest.mark.parametrize("scale", [0.5, 1.0, 3.0, 100.0])
def test_temperature_undoes_a_scale(scale):
    """Labels drawn from the softmax itself: the likeliest temperature is the scale put on it."""
    generator = torch.Generator().manual_seed(0)
    logits = 2 * torch.randn(20000, 5, generator=generator)
    labels = torch.multinomial(logits.softmax(1), 1, generator=generator)[:, 0]
    predictions = Predictions(logits * scale, labels)
    temperature = predictions.fit_temperature()
    assert temperature == pytest.approx(min(4.0, scale), rel=0.05)
    assert predictions.ece(temperature) <= predictions.ece()
    assert predictions.nll(temperature) <= predictions.nll()
    said = predictions.probabilities(temperature).argmax(1)
    assert torch.equal(said, predictions.logits.argmax(1))


def test_temperature_needs_a_hundred_images():
    few = random_predictions(count=99)
    assert few.fit_temperature() == 1.0
    assert random_predictions(count=100).fit_temperature() != 1.0
