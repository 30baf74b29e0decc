"""The training system on real steps: mixed batches of any size, evaluation unvaried, compiled."""

import pytest
import torch
from torch.nn.functional import cross_entropy

from vit import classifier, runs
from vit import config as settings
from vit.commands import train
from vit.model_file import load

SMALL = {
    "model.embed_dim": "16",
    "model.depth": "1",
    "model.num_heads": "2",
    "optim.epochs": "1",
    "run.precision": "32",
    "run.pictures": "false",
}


def assembled(root, **changes) -> train.Assembly:
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    config = settings.load("quickstart", SMALL | {"run.root": str(root)} | changes)
    return train.assemble(config, runs.create(root, "small"))


@pytest.mark.parametrize("mixing", [("0.8", "0"), ("0", "1.0"), ("0.8", "1.0")])
@pytest.mark.parametrize(
    ("batch_size", "images", "sizes"), [(1, 6, [1] * 6), (5, 13, [5, 5]), (64, 9, [9])]
)
def test_batches_of_any_size_are_mixed(tmp_path, monkeypatch, mixing, batch_size, images, sizes):
    parts = assembled(
        tmp_path, data__batch_size=batch_size, data__mixup=mixing[0], data__cutmix=mixing[1]
    )
    few = [item for item in parts.data.items if item.split == "train"][:images]
    rest = [item for item in parts.data.items if item.split != "train"]
    parts.data.items = few + rest
    seen = []

    def spy(logits, targets, **options):
        if targets.ndim == 2:  # shares of the classes: a training step's
            seen.append(targets.detach().clone())
        return cross_entropy(logits, targets, **options)

    monkeypatch.setattr(classifier.F, "cross_entropy", spy)
    parts.trainer.fit(parts.classifier, parts.data)
    assert [len(targets) for targets in seen] == sizes
    for targets in seen:
        assert targets.shape[1] == 10 and (targets >= 0).all()
        assert torch.allclose(targets.sum(dim=1), torch.ones(len(targets)))
    assert 0 < parts.classifier.train_score["loss"] < 10


def test_evaluation_sees_the_images_as_they_are(tmp_path):
    """Every change of training images is at its strongest; validation and test have none of it."""
    config = settings.load(
        "quickstart",
        SMALL
        | {"run.root": str(tmp_path), "data.erase": "1", "data.flip": "1", "data.rotate": "90"}
        | {"data.colour_jitter": "0.9", "data.policy": "trivial", "data.mixup": "1"}
        | {"model.drop_rate": "0.5", "model.drop_path_rate": "0.5", "data.cutmix": "1"},
    )
    run = train.start(config)
    model = load(run.path)
    from sklearn.datasets import load_digits

    images, labels = load_digits(return_X_y=True)
    split = [row for row in runs.read(run.path / "split.csv") if row["split"] == "test"]
    rows = [int(row["id"]) for row in split]
    pixels = torch.tensor(images[rows].reshape(-1, 1, 8, 8) * (255 / 16)).round().float()
    pixels = (pixels.expand(-1, 3, 8, 8) / 255 - 0.5) / 0.5
    with torch.inference_mode():
        logits = model.net(pixels).double()
    nll = cross_entropy(logits, torch.tensor(labels[rows]).long()).item()
    assert run.summary["test"]["nll"] == pytest.approx(nll, abs=1e-6)


@pytest.mark.full
def test_compiled_in_place(tmp_path):
    """The same losses, and no other names in any file."""
    plain = train.train("quickstart", **SMALL, **{"run.root": str(tmp_path)})
    compiled = train.train("quickstart", **SMALL, **{"run.root": str(tmp_path)}, compile=True)
    for name in ("last", "best"):
        theirs, ours = (
            torch.load(run.path / "checkpoints" / f"{name}.ckpt", weights_only=True)
            for run in (plain, compiled)
        )
        assert list(ours["state_dict"]) == list(theirs["state_dict"])
    first, second = (runs.read(run.path / "metrics.csv")[0] for run in (plain, compiled))
    assert float(second["train_loss"]) == pytest.approx(float(first["train_loss"]), rel=1e-4)
    images = torch.rand(3, 3, 8, 8)
    with torch.inference_mode():
        logits = [load(run.path).net(images) for run in (plain, compiled)]
    assert torch.allclose(*logits, atol=1e-3)
