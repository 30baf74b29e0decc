"""Orders of training images: seeded, shared by processes, and by weight."""

import pytest
import torch

from vit.datasets import Item
from vit.loaders import Part, TrainLoader


def part(count: int) -> Part:
    """Images whose first byte is their number."""
    images = torch.arange(count, dtype=torch.uint8).view(-1, 1, 1, 1).expand(-1, 3, 2, 2)
    items = [Item(str(i), "a", "train") for i in range(count)]
    return Part(images, torch.arange(count), items)


def seen(loader: TrainLoader) -> list[list[int]]:
    return [images[:, 0, 0, 0].tolist() for images, _ in loader]


def test_weighted_draws_come_as_often_as_their_weights_say():
    weights = torch.tensor([0.0, 1.0, 3.0] + [0.0] * 97)
    loader = TrainLoader(part(100), 10, 0, lambda: (0, 0), weights=weights)
    counts = torch.zeros(100)
    for epoch in range(200):
        counts += torch.bincount(loader.order(epoch), minlength=100)
    assert counts.sum() == 200 * 100
    assert set(counts.nonzero()[:, 0].tolist()) == {1, 2}
    # Binomial: 20,000 draws, probability 1/4, standard deviation 61.
    assert counts[1].item() == pytest.approx(5000, abs=250)


def test_weighted_order_follows_from_seed_and_epoch_and_begins_anywhere():
    weights = torch.rand(50, generator=torch.Generator().manual_seed(1))

    def batches(first: int, epoch: int = 3, seed: int = 7) -> list[list[int]]:
        return seen(TrainLoader(part(50), 8, seed, lambda: (epoch, first), weights=weights))

    whole = batches(0)
    assert len(whole) == 6
    assert batches(4) == whole[4:]
    assert batches(0, epoch=4) != whole
    assert batches(0, seed=8) != whole


@pytest.mark.parametrize("weighted", [False, True])
def test_processes_share_one_order(weighted):
    weights = torch.arange(1.0, 51) if weighted else None

    def batches(batch_size: int, rank: int, world_size: int) -> list[list[int]]:
        position = (2, 1)
        loader = TrainLoader(
            part(50), batch_size, 0, lambda: position, rank, world_size, weights=weights
        )
        return seen(loader)

    together = batches(8, 0, 1)
    apart = [batches(4, rank, 2) for rank in (0, 1)]
    assert [sorted(a + b) for a, b in zip(*apart, strict=True)] == list(map(sorted, together))


@pytest.mark.parametrize(
    ("weights", "message"),
    [
        (torch.ones(4), r"weights \(4,\) must be one for each image, \(5,\)"),
        (torch.zeros(5), "not negative and not all 0"),
        (torch.tensor([1.0, 1, 1, 1, -1]), "not negative"),
        (torch.tensor([1.0, 1, 1, 1, float("nan")]), "must be numbers"),
    ],
)
def test_weights_that_are_none_are_refused(weights, message):
    with pytest.raises(ValueError, match=message):
        TrainLoader(part(5), 2, 0, lambda: (0, 0), weights=weights)
