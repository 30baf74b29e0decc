"""Pictures of results: which class is taken for which, how good each is, how sure it may be.

Each function draws one, writes it as a PNG file and returns its path. C classes, n images.
"""

import math
from pathlib import Path

import numpy as np
from matplotlib.colors import PowerNorm
from matplotlib.figure import Figure

from vit.calibration import binned, calibration_error, wilson
from vit.figures import BLUE, GREY, VERMILION, as_array, save
from vit.lettering import letters, literal, short, with_glyphs
from vit.metrics import BINS

SHARES = (0, 0.01, 0.05, 0.1, 0.25, 0.5, 1)  # ticks of the confusion matrix's colour bar
FEW = 10  # images in a bin, below which its point is hollow
MOST = 30  # classes that have bars; of more the first and the last half
MEASURES = {
    "f1": ("F1", BLUE),
    "precision": ("precision", "#E69F00"),
    "recall": ("recall", "#56B4E9"),
}


def confusion(matrix, classes, path, title: str) -> Path:
    """Which class is taken for which: counts (C, C), rows true, columns predicted.

    A cell's colour is its share of the true class, on a scale that shows single errors; counts
    stand in the cells of up to 20 classes; beside it the share of each class that is right.

    Raises:
        ValueError: the matrix is not (C, C) for these classes.
    """
    counts = as_array(matrix).astype(np.int64)
    if counts.shape != (len(classes), len(classes)):
        raise ValueError(f"matrix must be (C, C) for {len(classes)} classes, got {counts.shape}")
    total = counts.sum(axis=1, keepdims=True)
    shares = np.ma.masked_invalid(counts / np.where(total, total, np.nan))
    side = min(14.0, max(4.0, 0.45 * len(counts) if len(counts) <= 20 else 0.13 * len(counts)))
    figure = Figure(figsize=(side + 3.2, side + 1.6), layout="constrained")
    cells, bars = figure.subplots(1, 2, sharey=True, width_ratios=(side, max(1.2, 0.15 * side)))
    norm = PowerNorm(0.5, 0, 1)
    picture = cells.imshow(shares, cmap="Blues", norm=norm, aspect="auto")
    cells.set_facecolor("0.9")
    name_classes(cells, classes, side)
    few = len(counts) <= 20
    if few:
        write_counts(cells, counts, norm(shares))
    right_shares(bars, 100 * shares.diagonal(), written=few)
    bar = figure.colorbar(picture, ax=[cells, bars], ticks=SHARES, aspect=30, pad=0.02)
    bar.ax.set_yticks(SHARES, [f"{100 * share:g} %" for share in SHARES])
    bar.set_label("share of the true class")
    return save(figure, path, title, confusions(counts, classes))


def write_counts(axes, counts: np.ndarray, darkness: np.ma.MaskedArray) -> None:
    """The counts (C, C) above 0 in their cells, white on dark ones; empty rows say so."""
    style = {"ha": "center", "va": "center", "fontsize": 8}
    for row, col in zip(*counts.nonzero(), strict=True):
        colour = "white" if darkness[row, col] > 0.55 else "black"
        axes.text(col, row, str(counts[row, col]), color=colour, **style)
    for row in np.flatnonzero(counts.sum(axis=1) == 0):
        axes.text(len(counts) / 2 - 0.5, row, "no images", color=GREY, **style)


def name_classes(axes, classes, side: float) -> None:
    """Class names along both axes of `side` inches, as many as have room."""
    step = math.ceil(len(classes) * 0.1 / side)
    places = range(0, len(classes), step)
    size = min(9.0, max(5.0, 60 * side * step / len(classes)))  # points
    names = [short(classes[place], 18) for place in places]
    turned = 0 if max(map(letters, names)) * size / 100 < side * step / len(classes) else 90
    axes.set_xticks(places, names, rotation=turned, fontsize=size)
    axes.set_yticks(places, names, fontsize=size)
    axes.set_xlabel("predicted class")
    axes.set_ylabel("true class")


def right_shares(axes, percent: np.ma.MaskedArray, written: bool) -> None:
    """A bar per class: how many percent of its images are called by its name."""
    if written:
        axes.barh(np.arange(len(percent)), percent.filled(0), color=BLUE, height=0.8)
        for row in np.flatnonzero(~np.ma.getmaskarray(percent)):
            axes.text(104, row, f"{percent[row]:.0f}", va="center", size=8, color=GREY)
    else:  # without gaps, which would come and go where rows are narrower than pixels
        edges = np.arange(len(percent) + 1) - 0.5
        axes.stairs(percent.filled(0), edges, orientation="horizontal", fill=True, color=BLUE)
    axes.set_xlim(0, 130 if written else 100)
    axes.set_xticks([0, 50, 100])
    axes.set_xlabel("right (%)")
    axes.tick_params(left=False, labelleft=False)
    axes.spines[["top", "right"]].set_visible(False)


def confusions(counts: np.ndarray, classes, most: int = 3) -> str:
    """In words: how many are right, and the most frequent confusions."""
    text = f"{counts.trace()} of {counts.sum()} right"
    wrong = counts - np.diag(counts.diagonal())
    order = np.argsort(-wrong, axis=None, kind="stable")[:most]
    pairs = [np.unravel_index(place, wrong.shape) for place in order]
    found = [
        f"{short(classes[true], 18)} taken for {short(classes[said], 18)} ({wrong[true, said]})"
        for true, said in pairs
        if wrong[true, said]
    ]
    return f"{text}. Most often: {', '.join(found)}." if found else f"{text}."


def reliability(confidence, correct, calibrated, path, title: str, note: str = "") -> Path:
    """Whether it is right as often as it says, before and after the temperature.

    The answers are put into bins of equal width by their confidence, as the expected calibration
    error does (Guo et al. 2017, arXiv 1706.04599): the share of right ones over the mean
    confidence, with 95 % intervals, and below it how many images each bin has.

    Args:
        confidence: (n,) probability of the class that is said, fraction in [0, 1].
        correct: bool (n,), whether that class is the true one.
        calibrated: `confidence` after the temperature; equal ones are drawn once.
        note: what to say besides, such as the temperature.

    Raises:
        ValueError: arrays that are empty or of different lengths, or no fractions.
    """
    before, after = (as_array(values).astype(float) for values in (confidence, calibrated))
    correct = as_array(correct).astype(bool)
    if not (before.shape == after.shape == correct.shape == (len(correct),) and len(correct)):
        shapes = f"{before.shape}, {correct.shape} and {after.shape}"
        raise ValueError(
            f"confidence, correct and calibrated must all be (n,), n > 0, got {shapes}"
        )
    for name, values in {"confidence": before, "calibrated": after}.items():
        if not (values.min() >= 0 and values.max() <= 1 + 1e-6):  # a sum of float32 may exceed 1
            raise ValueError(f"{name} must be fractions, got {values.min():g} to {values.max():g}")
    series = [
        ("before temperature", before, VERMILION, "s"),
        ("after temperature", after, BLUE, "o"),
    ]
    if np.array_equal(before, after):
        series = [("temperature changes nothing", after, BLUE, "o")]
    figure = Figure(figsize=(6.8, 6.6 + len(series)), layout="constrained")
    heights = (5, *[0.9] * len(series))
    diagram, *histograms = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    diagram.plot([0, 100], [0, 100], ":", color=GREY, label="ideal: right as often as it says")
    for (name, values, colour, shape), histogram in zip(series, histograms, strict=True):
        count, sure, right = binned(values, correct)
        label = f"{name}: ECE {100 * calibration_error(count, sure, right):.1f} %"
        draw_bins(diagram, count, sure, right, {"color": colour, "marker": shape, "label": label})
        draw_counts(
            histogram, count, "images" if len(series) == 1 else f"images\n{name.split()[0]}", colour
        )
    explain_sides(diagram)
    histograms[-1].set_xlabel("how sure it is: probability of its answer (%)")
    words = (
        f"{correct.sum():,} of {len(correct):,} right. ECE (expected calibration error): how far the "
        f"points are from the ideal, averaged over the images. {BINS} bins with 95 % Wilson "
        f"intervals; hollow: under {FEW} images."
    )
    note = literal(with_glyphs(note))
    return save(figure, path, title, f"{note} {words}".strip())


def draw_bins(axes, count: np.ndarray, sure: np.ndarray, right: np.ndarray, style: dict) -> None:
    """Points with their intervals, in percent; of few images hollow and pale, of none left out."""
    pale = {"markerfacecolor": "white", "alpha": 0.5, "linestyle": "", "label": None}
    for chosen, look in ((count >= FEW, {}), ((count > 0) & (count < FEW), pale)):
        x, y = sure[chosen], right[chosen]
        low, high = wilson(y, count[chosen])
        lengths = 100 * np.array([y - low, high - y])
        axes.errorbar(100 * x, 100 * y, lengths, capsize=3, elinewidth=1, **style | look)


def explain_sides(axes) -> None:
    """Percent axes, and what it means to be above or below the diagonal."""
    ground = {"facecolor": "white", "edgecolor": "none", "alpha": 0.8, "pad": 1}
    style = {"color": GREY, "fontsize": 9, "style": "italic", "bbox": ground}
    axes.text(2, 98, "underconfident:\nright more often than it says", va="top", **style)
    axes.text(98, 2, "overconfident:\nright less often than it says", ha="right", **style)
    axes.set(xlim=(-2, 102), ylim=(-2, 102), ylabel="how often it is right: accuracy (%)")
    axes.legend(frameon=False, loc="lower left", bbox_to_anchor=(0, 1), borderpad=0)
    axes.grid(color="0.9")
    axes.spines[["top", "right"]].set_visible(False)


def draw_counts(axes, count: np.ndarray, name: str, colour: str) -> None:
    """A bar per bin with its number of images written above it."""
    width = 100 / BINS
    centres = width * (np.arange(BINS) + 0.5)
    axes.bar(centres, count, width, color=colour, edgecolor="white")
    for centre, images in zip(centres[count > 0], count[count > 0], strict=True):
        axes.annotate(
            f"{images}", (centre, images), (0, 2), textcoords="offset points", ha="center", size=7
        )
    axes.set(ylabel=name, yticks=[], ylim=(0, 1.35 * count.max()))
    axes.spines[["top", "right", "left"]].set_visible(False)


def per_class(scores: dict[str, dict], classes, path, title: str) -> Path:
    """Precision, recall and F1 of each class as bars, the worst F1 first, with its images.

    Of more than 30 classes the 15 worst and the 15 best.

    Args:
        scores: per class precision, recall, f1 (fractions) and count (true images).

    Raises:
        ValueError: scores and classes name different classes, or no class has images.
    """
    differing = sorted(set(scores) ^ set(classes))
    if differing:
        raise ValueError(f"scores and classes must name the same classes, not so: {differing[:5]}")
    seen = [name for name in classes if scores[name]["count"]]
    if not seen:
        raise ValueError("scores must hold at least one class with images (count > 0)")
    ranked = sorted(seen, key=lambda name: scores[name]["f1"])
    half = MOST // 2 if len(ranked) > MOST else len(ranked)
    left_out = ranked[half:-half]
    drawn = [name for name in ranked if name not in left_out]
    places = np.arange(len(drawn)) + (np.arange(len(drawn)) >= half)  # a gap that says how many
    figure = Figure(figsize=(7.5, 0.34 * (places[-1] + 1) + 1.9), layout="constrained")
    axes = figure.subplots()
    for offset, (key, (label, colour)) in zip((-0.26, 0, 0.26), MEASURES.items(), strict=True):
        values = [100 * scores[name][key] for name in drawn]
        axes.barh(places + offset, values, 0.24, color=colour, label=label)
    macro = 100 * np.mean([one["f1"] for one in scores.values()])
    axes.axvline(macro, color=GREY, linestyle=":", label=f"macro F1 {macro:.1f} %")
    if left_out:
        low, high = (100 * scores[left_out[end]]["f1"] for end in (0, -1))
        text = f"… {len(left_out)} classes left out, F1 {low:.1f} to {high:.1f} % …"
        style = {"ha": "center", "va": "center", "color": GREY, "backgroundcolor": "white"}
        axes.text(50, half, text, size=9, **style)
    write_columns(axes, places, [scores[name] for name in drawn])
    axes.set_yticks(places, [short(name, 24) for name in drawn], fontsize=9)
    note = (
        "Worst F1 first. Precision: of the images called so, the share that is right; recall: of "
    )
    note += "the class's images, the share that is found; F1: their harmonic mean."
    if len(seen) < len(scores):
        missing = f"classes without images ({len(scores) - len(seen)})"
        note += f" Not drawn: {missing}, which count as 0 in macro F1."
    return save(figure, path, title, note)


def write_columns(axes, places: np.ndarray, scores: list[dict]) -> None:
    """F1 and the number of images right of the bars, percent axes, legend above them."""
    style = {"ha": "right", "va": "center", "fontsize": 9}
    for x, head in ((112, "F1 (%)"), (128, "images")):
        axes.text(x, -0.9, head, color=GREY, **style)
    for place, one in zip(places, scores, strict=True):
        axes.text(112, place, f"{100 * one['f1']:.1f}", **style)
        axes.text(128, place, f"{one['count']:,}", **style)
    axes.set(xlim=(0, 129), ylim=(places[-1] + 0.6, -1.3), xticks=range(0, 101, 20))
    axes.set_xlabel("percent", x=50 / 129)
    axes.tick_params(left=False)
    axes.spines[["top", "right"]].set_visible(False)
    axes.spines["bottom"].set_bounds(0, 100)
    line, *bars = axes.get_legend_handles_labels()[0]
    style = {"loc": "lower left", "bbox_to_anchor": (0, 1), "borderpad": 0}
    axes.legend(handles=[*bars, line], frameon=False, ncols=4, **style)
