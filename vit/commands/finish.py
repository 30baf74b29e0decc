"""The end of a training run: the chosen weights tested once, saved, and drawn."""

import json
import logging
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch

from vit import explain, figures, model_file, runs
from vit.loaders import Part, mix
from vit.metrics import Predictions

if TYPE_CHECKING:
    from vit.commands.train import Assembly

log = logging.getLogger("vit")
PICTURED = 12  # images in attention.png
SHOWN = 32  # images in batch.png
WORDS = {"test": "test", "val": "validation", "train": "training"}


def finish(parts: "Assembly") -> dict:
    """Takes the best epoch's averaged weights, tests them, and writes everything that is left.

    Returns:
        The content of summary.json, which is written last.
    """
    best = torch.load(parts.folder.best, map_location="cpu", weights_only=True)
    parts.classifier.load_state_dict(best["state_dict"])
    part = next((p for p in ("test", "val") if parts.data.of(p)), "train")
    predictions = judge(parts, part)
    summary = summarise(parts, predictions if part == "test" else None)
    if not parts.trainer.is_global_zero:
        return summary
    net = parts.classifier.average.cpu()
    model_file.save(
        parts.folder.model,
        net,
        parts.data.classes,
        parts.data.preprocess,
        {"test": summary["test"], "val": summary["val"]},
        f"trained from scratch on {parts.config.data.source}",
    )
    draw(parts, part, predictions)
    runs.replace(parts.folder.summary, json.dumps(summary, indent=1) + "\n")
    return summary


def judge(parts: "Assembly", part: str) -> Predictions | None:
    """What the chosen weights say of the test images, or of validation where there are none."""
    if part == "test":
        parts.trainer.test(parts.classifier, parts.data, verbose=False)
        return parts.classifier.predictions
    if part == "val":
        log.warning("no test part: the pictures are of validation images, which chose the epoch")
        parts.trainer.validate(parts.classifier, parts.data, verbose=False)
        return parts.classifier.predictions
    log.warning("no validation and no test part: the last epoch is taken, and nothing is measured")
    return None


def summarise(parts: "Assembly", tested: Predictions | None) -> dict:
    """The numbers of a run: results, the chosen epoch, time, sizes, versions."""
    recorder = parts.trainer.callbacks[0]
    timing = runs.read(parts.folder.timing)
    seconds = sum(float(row["seconds"]) for row in timing)
    speeds = sorted(float(row["images_per_second"]) for row in timing)
    net = parts.classifier.net
    return {
        "test": tested.score() if tested else {},
        "val": {key: value for key, value in recorder.best.items() if key != "epoch"},
        "best_epoch": recorder.best["epoch"],
        "epochs": len(timing),
        "global_step": torch.load(parts.folder.last, weights_only=True)["global_step"],
        "seconds": round(seconds, 3),
        "images_per_second": speeds[len(speeds) // 2] if speeds else None,
        "parameters": sum(p.numel() for p in net.parameters()),
        "images": {part: len(parts.data.of(part)) for part in ("train", "val", "test")},
        "seed": parts.config.run.seed,
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("torch", "lightning")},
    }


def draw(parts: "Assembly", part: str, predictions: Predictions | None) -> None:
    """The run's pictures; those of results show the test images, or the part the title says."""
    folder, classes = parts.folder, parts.data.classes
    name = f"{folder.path.parent.name}/{folder.path.name}"
    figures.curves(runs.read(folder.metrics), folder.picture("curves"), f"{name}: training")
    draw_batch(parts, f"{name}: training images as the network sees them")
    shown = parts.data.load(part)
    if predictions is not None:
        words = f"{name}: {WORDS[part]} images"
        figures.confusion(predictions.confusion(), classes, folder.picture("confusion"), words)
        figures.mistakes(
            shown.images.cpu(),
            predictions.labels,
            predictions.probabilities(),
            classes,
            folder.picture("mistakes"),
            f"{words}, mistakes",
            [item.id for item in shown.items],
        )
    layers = parts.config.model.depth
    words = f"where it looks: attention rollout over all {layers} layers ({WORDS[part]} images)"
    draw_attention(parts, shown, f"{name}: {words}")


def draw_batch(parts: "Assembly", title: str) -> None:
    """The first training images of the first epoch, augmented."""
    train, classes = parts.data.load("train"), parts.data.classes
    torch.manual_seed(mix(parts.config.run.seed, 0, 0, 0))
    images = parts.classifier.augment(train.images[:: max(1, len(train) // SHOWN)][:SHOWN].cpu())
    labels = train.labels[:: max(1, len(train) // SHOWN)][:SHOWN].cpu()
    figures.batch(images, labels, classes, parts.folder.picture("batch"), title)


@torch.inference_mode()
def draw_attention(parts: "Assembly", part: Part, title: str) -> None:
    """Attention rollout over images spread evenly through the part."""
    net = parts.classifier.average.eval()
    rows = torch.linspace(0, len(part) - 1, min(PICTURED, len(part))).long()
    images, labels = part.images[rows].cpu(), part.labels[rows].cpu()
    pixels = parts.classifier.normalised(images)
    figures.attention(
        images,
        explain.rollout(net, pixels),
        labels,
        net(pixels).argmax(dim=1),
        parts.data.classes,
        parts.folder.picture("attention"),
        title,
    )
