"""The end of a training run: the chosen weights tested once, saved, and drawn."""

import json
import logging
import statistics
from importlib.metadata import version
from typing import TYPE_CHECKING

import torch

from vit import explain, figures, loggers, looking, lora, model_file, runs
from vit.loaders import Part, mix
from vit.metrics import Predictions
from vit.probe import WITHOUT_VALIDATION
from vit.probe_figure import strengths
from vit.question import DEFAULT_METHOD, Question
from vit.result_pictures import draw_results
from vit.tuning import trained

if TYPE_CHECKING:
    from vit.assembly import Assembly

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
    judged = {part: judge(parts, part) for part in ("val", "test") if parts.data.of(part)}
    judged = {part: one for part, one in judged.items() if one}  # limit_val_batches 0: nothing
    parts.data.close()
    warn_of_missing(judged, parts.config.model.tune)
    best, learning = best["callbacks"]["Recorder"]["best"], trained(parts.classifier.net)
    lora.merge(parts.classifier.average)
    temperature = judged["val"].fit_temperature() if "val" in judged else 1.0
    if not parts.trainer.is_global_zero:
        return {}
    summary = summarise(parts, judged, temperature, best) | {"trained_parameters": learning}
    results = {part: summary[part] for part in ("test", "val")}
    scores = {f"final_{part}_{name}": v for part, one in results.items() for name, v in one.items()}
    loggers.log(parts.trainer.loggers, scores, summary["global_step"])
    model_file.save(
        parts.folder.model,
        parts.classifier.average.cpu(),
        parts.data.classes,
        parts.data.preprocess,
        temperature,
        results,
        described(parts),
    )
    if parts.config.run.pictures:
        draw(parts, judged, temperature)
    text = json.dumps(summary, indent=1, ensure_ascii=False) + "\n"
    runs.write_whole(parts.folder.summary, text.encode())
    return summary


def described(parts: "Assembly") -> str:
    """Where the network comes from, in words, for its file."""
    config = parts.config
    if not parts.source:
        return f"trained from scratch on {config.data.source}"
    return f"{parts.source}, fine-tuned ({config.model.tune}) on {config.data.source}"


def judge(parts: "Assembly", part: str) -> Predictions | None:
    """What the chosen weights say of the validation or the test images."""
    run = parts.trainer.test if part == "test" else parts.trainer.validate
    parts.classifier.predictions = None
    run(parts.classifier, parts.data, verbose=False)
    return parts.classifier.predictions


def warn_of_missing(judged: dict[str, Predictions], tune: str) -> None:
    """Says what a missing part means for the results."""
    if "val" not in judged:
        taken = f"L2 strength {WITHOUT_VALIDATION:g}" if tune == "probe" else "the last epoch"
        log.warning("no validation part: %s is taken", taken)
    if "test" not in judged:
        log.warning("no test part: the results are of validation, which also chose what was kept")


def summarise(
    parts: "Assembly", judged: dict[str, Predictions], temperature: float, best: dict
) -> dict:
    """The numbers of a run: results, the chosen epoch, time, sizes, versions."""
    timing = runs.read(parts.folder.timing)
    speeds = [float(row["images_per_second"]) for row in timing]
    results = {
        part: judged[part].report(parts.data.classes, temperature) if part in judged else {}
        for part in ("test", "val")
    }
    return results | {
        "best_epoch": best["epoch"],
        **({"l2": best["l2"]} if "l2" in best else {}),
        "epochs": len(runs.read(parts.folder.metrics)),
        "global_step": torch.load(parts.folder.last, weights_only=True)["global_step"],
        "temperature": temperature,
        "seconds": round(sum(float(row["seconds"]) for row in timing), 3),
        "images_per_second": statistics.median(speeds),
        "parameters": sum(p.numel() for p in parts.classifier.average.parameters()),
        "images": {part: len(of) for part in reversed(WORDS) if (of := parts.data.of(part))},
        "seed": parts.config.run.seed,
        "threads": torch.get_num_threads(),
        "versions": {name: version(name) for name in ("torch", "lightning")},
    }


def draw(parts: "Assembly", judged: dict[str, Predictions], temperature: float) -> None:
    """The run's pictures; those of results show the test images, or the part the title says."""
    folder = parts.folder
    name = f"{folder.path.parent.name}/{folder.path.name}"
    rows, timing = runs.read(folder.metrics), runs.read(folder.timing)
    if parts.config.model.tune == "probe":
        strengths(rows, folder.picture("curves"), f"{name}: a linear head on frozen features")
    else:
        figures.curves(rows, folder.picture("curves"), f"{name}: training", timing)
    draw_batch(parts, f"{name}: training images as the network sees them")
    part = next((part for part in ("test", "val") if part in judged), "train")
    if part in judged:
        shown = parts.data.load(part)
        draw_results(
            judged[part],
            parts.data.classes,
            temperature,
            lambda row: shown.pixels(torch.tensor([row]))[0],
            [item.id for item in shown.items],
            folder.picture,
            f"{name}: {WORDS[part]} images",
        )
    draw_attention(parts, parts.data.load(part), name, f"{WORDS[part]} images")


def draw_batch(parts: "Assembly", title: str) -> None:
    """The first training images of the first epoch, augmented."""
    train, classes = parts.data.load("train"), parts.data.classes
    seed = parts.config.run.seed
    rows = torch.arange(0, len(train), max(1, len(train) // SHOWN))[:SHOWN]
    torch.manual_seed(mix(seed, 0, 0, 0))
    images = parts.classifier.augment(train.pixels(rows, (seed, 0)))
    labels = train.labels.cpu()[rows]
    figures.batch(images, labels, classes, parts.folder.picture("batch"), title, len(train))


@torch.inference_mode()
def draw_attention(parts: "Assembly", part: Part, name: str, kind: str) -> None:
    """What `vit attend` shows, of images spread evenly through the part."""
    net = parts.classifier.average.eval()
    rows = torch.linspace(0, len(part) - 1, min(PICTURED, len(part))).long()
    images, labels = part.pixels(rows), part.labels.cpu()[rows]
    pixels = parts.classifier.normalised(images)
    layers = looking.own_layers(DEFAULT_METHOD, len(net.blocks))
    seen = explain.explain(net, pixels, DEFAULT_METHOD, layers=layers)
    label = looking.named(seen, Question(), len(net.blocks))
    figures.attention(
        images,
        seen.heat,
        labels,
        net(pixels).argmax(dim=1),
        parts.data.classes,
        parts.folder.picture("attention"),
        f"{name}: where it looks: {label} ({kind})",
    )
