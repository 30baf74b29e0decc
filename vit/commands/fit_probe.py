"""A probe's training: features of all images, a head for each L2 strength, the best one kept.

What is done is found again by a resume: features batch by batch, the chosen head in best.ckpt.
"""

import time
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor

from vit import probe, runs
from vit.balance import class_weights
from vit.callbacks import publish
from vit.commands.progress import Progress, rate_text
from vit.normalise import normalise

if TYPE_CHECKING:
    from vit.assembly import Assembly

PARTS = ("train", "val")
WORDS = {"train": "training", "val": "validation", "test": "test"}


def fit_probe(parts: "Assembly") -> None:
    """Puts the best head into the network and leaves the tables and checkpoints of a training.

    Raises:
        FloatingPointError: features that are no finite numbers.
    """
    if parts.folder.best.is_file():
        publish(parts.folder.best, parts.folder.last)  # a kill may have come between the two
        return
    began = time.perf_counter()
    known = {part: extract(parts, part) for part in PARTS if parts.data.of(part)}
    seconds = time.perf_counter() - began
    rows, layers = tried(parts, known)
    best = best_of(rows)
    probe.put_into(parts.classifier.net, layers[best["epoch"] - 1])
    runs.write(parts.folder.metrics, rows)
    speed = f"{sum(map(len, known.values())) / seconds:.1f}"
    spent = f"{time.perf_counter() - began:.3f}"
    row = {"epoch": best["epoch"], "seconds": spent, "images_per_second": speed}
    runs.write(parts.folder.timing, [row])
    save(parts, best)


def extract(parts: "Assembly", part: str) -> Tensor:
    """What the head reads of the images of a part, float32 (n, F); kept in the run's folder.

    An image's features come from the same batch whenever they are computed, so that a resumed run
    has the same bits.
    """
    data, net = parts.data, parts.classifier.net.eval()
    device = parts.trainer.strategy.root_device
    data.trainer = parts.trainer
    loaded = data.placed(part, device)
    net.to(device)
    kept = open_features(parts, part)
    batches = torch.arange(len(loaded)).split(data.config.batch_size)
    missing = [rows for rows in batches if np.isnan(kept[rows.numpy()]).any()]
    began, count = time.perf_counter(), sum(map(len, missing))
    with Progress(count, f"{WORDS[part]} images") as progress:
        for images, _, rows in loaded.batches(missing):
            pixels = normalise(images.to(device), data.preprocess)
            features = probe.features_of(net, pixels).float().cpu()
            if not features.isfinite().all():
                raise FloatingPointError(
                    f"the network's features of {part} images are no finite numbers: the weights "
                    "are damaged, or of another network"
                )
            kept[rows.cpu().numpy()] = features.numpy()
            progress.advance(len(rows))
    if count:
        speed = count / (time.perf_counter() - began)
        print(
            f"features of {count:,} {WORDS[part]} images  {rate_text(speed)} images/s", flush=True
        )
    return torch.from_numpy(np.array(kept))


def open_features(parts: "Assembly", part: str) -> np.memmap:
    """The file of a part's features, (n, F); not a number where they are still missing."""
    net = parts.classifier.net
    shape = (len(parts.data.of(part)), net.architecture.embed_dim * len(probe.head_of(net)))
    path = parts.folder.features(part)
    if path.is_file():
        kept = np.lib.format.open_memmap(path, mode="r+")
        if kept.shape == shape:
            return kept
    fresh = path.with_name("part.npy")
    np.lib.format.open_memmap(fresh, mode="w+", dtype=np.float32, shape=shape)[:] = np.nan
    fresh.replace(path)
    return np.lib.format.open_memmap(path, mode="r+")


def tried(parts: "Assembly", features: dict[str, Tensor]) -> tuple[list[dict], list[probe.Linear]]:
    """A row of results and a layer for each strength; without validation for one alone."""
    data, validated = parts.data, "val" in features
    labels = {part: data.load(part).labels.cpu() for part in features}
    balanced = data.config.balance != "none"  # over all images at once both kinds are the same
    weights = class_weights(data.of("train"), data.classes) if balanced else None
    strengths = probe.STRENGTHS if validated else (probe.WITHOUT_VALIDATION,)
    found = probe.fits(features["train"], labels["train"], len(data.classes), strengths, weights)
    rows, layers = [], []
    for number, (l2, layer) in enumerate(found, start=1):
        train = layer.predictions(features["train"], labels["train"]).score()
        val = layer.predictions(features["val"], labels["val"]).score() if validated else {}
        row = {"epoch": number, "l2": l2, "train_loss": train["nll"], "train_top1": train["top1"]}
        rows.append(row | {f"val_{name}": val.get(name) for name in ("top1", "nll")})
        layers.append(layer)
        show(rows[-1], len(strengths))
    return rows, layers


def show(row: dict, count: int) -> None:
    """A line on one strength, as training has one for an epoch."""
    line = f"L2 strength {row['epoch']}/{count}  {row['l2']:<6g}  loss {row['train_loss']:.4f}"
    line += f"  top-1 {row['train_top1']:6.1%}"
    if row["val_top1"] is not None:
        line += f"  val nll {row['val_nll']:.4f}  top-1 {row['val_top1']:6.1%}"
    print(line, flush=True)


def best_of(rows: list[dict]) -> dict:
    """The row of highest validation top-1, at a tie of lowest NLL; without validation the only one."""
    if len(rows) == 1:
        return rows[0]
    return max(rows, key=lambda row: (row["val_top1"], -row["val_nll"]))


def save(parts: "Assembly", best: dict) -> None:
    """Writes best.ckpt and last.ckpt as a training would leave them.

    last.ckpt comes last: with it, a resume asks for no weights, and what it holds must be whole.
    """
    chosen = {"epoch": best["epoch"], "l2": best["l2"]}
    checkpoint = {
        "state_dict": parts.classifier.state_dict(),
        "global_step": 0,
        "callbacks": {"Recorder": {"best": chosen}},
    }
    part = parts.folder.last.with_name("part.ckpt")
    torch.save(checkpoint, part)
    publish(part, parts.folder.best)
    part.replace(parts.folder.last)
