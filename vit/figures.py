"""The pictures of a run: each function draws one, writes it as a PNG file and returns its path.

Drawn on `matplotlib.figure.Figure` alone: no pyplot, so no window, no global state, any thread.
Pixels are uint8 (n, 3, height, width), tensors or arrays; C classes are named by `classes`.
"""

import math
from pathlib import Path
from textwrap import fill

import numpy as np
from matplotlib.cm import ScalarMappable
from matplotlib.colors import ListedColormap, Normalize
from matplotlib.figure import Figure
from matplotlib.text import Text
from matplotlib.ticker import FuncFormatter, MaxNLocator

from vit.commands.progress import rate_text
from vit.lettering import fonts, literal, short, with_glyphs
from vit.overlay import LEAST_TOP, MASS_BELOW_TOP, colour_map, overlay, resized, scale_top

# Okabe & Ito 2008, "Color Universal Design": told apart by all kinds of colour vision.
BLUE, VERMILION, GREEN, GREY = "#0072B2", "#D55E00", "#009E73", "#595959"

DPI = 150


def curves(rows: list[dict], path, title: str, timing: list[dict] | None = None) -> Path:
    """Loss, accuracy, learning rate and throughput over the epochs, the best epoch marked.

    Args:
        rows: a dict per epoch as in metrics.csv, numbers or their text: epoch (from 1), lr,
            train_loss, train_top1 and val_top1 (fractions), val_loss or else val_nll (nats); what
            is missing, None or empty leaves a gap.
        timing: the same for timing.csv: epoch, images_per_second; None: no panel for it.

    Raises:
        ValueError: no rows.
    """
    if not rows:
        raise ValueError("rows must hold at least one epoch; metrics.csv is still empty")
    timed = np.isfinite(column(timing or [], "images_per_second")).any()
    heights = (3, 3, 1.3, 1.3) if timed else (3, 3, 1.3)
    figure = Figure(figsize=(8, 7.5 + 1.5 * timed), layout="constrained")
    panels = figure.subplots(len(heights), 1, sharex=True, height_ratios=heights)
    loss, accuracy, rate = panels[:3]
    epochs = column(rows, "epoch")
    validated, name = "val_loss", "validation"
    if not np.isfinite(column(rows, validated)).any():
        validated, name = "val_nll", "validation (negative log-likelihood)"
    lines(loss, epochs, column(rows, "train_loss"), column(rows, validated), name)
    shares = (100 * column(rows, key) for key in ("train_top1", "val_top1"))
    lines(accuracy, epochs, *shares, "validation")
    loss.set_ylabel("loss (cross-entropy, nats)")
    accuracy.set_ylabel("top-1 accuracy (%)")
    from_zero(rate, epochs, column(rows, "lr"), "learning rate")
    if timed:
        throughput(panels[3], timing)
    mark_best(panels, rows)
    whole = MaxNLocator(10, steps=[1, 2, 5, 10], integer=True, min_n_ticks=1)
    panels[-1].xaxis.set_major_locator(whole)
    panels[-1].set(xlabel="epoch", xlim=(epochs.min() - 0.5, epochs.max() + 0.5))  # one has a width
    return save(figure, path, title)


def from_zero(axes, epochs: np.ndarray, values: np.ndarray, name: str) -> None:
    """One quantity that is never below 0, on a scale that begins there."""
    axes.plot(epochs, values, color=GREY, marker=marker(epochs))
    top = 1.1 * np.nanmax(values, initial=0)  # dots have a height too
    axes.set(ylabel=name, ylim=(0, top or None))
    axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))


def throughput(axes, timing: list[dict]) -> None:
    """Training images a second in each epoch, and their median with its number."""
    speeds = column(timing, "images_per_second")
    from_zero(axes, column(timing, "epoch"), speeds, "images/s")
    median = np.nanmedian(speeds)
    text = f"median: {rate_text(median)} images/s"
    line = axes.axhline(median, color=BLUE, linestyle="--", label=text)
    axes.legend(
        handles=[line], frameon=False, loc="lower right", bbox_to_anchor=(1, 1), borderpad=0
    )


def lines(axes, epochs: np.ndarray, train: np.ndarray, validation: np.ndarray, kind: str) -> None:
    """Training and, where there is any, validation against the epochs."""
    axes.plot(epochs, train, color=BLUE, marker=marker(epochs), label="training")
    if np.isfinite(validation).any():
        style = {"color": VERMILION, "linestyle": "--", "marker": marker(epochs)}
        axes.plot(epochs, validation, label=kind, **style)


def marker(epochs: np.ndarray) -> str:
    """Dots where the epochs are so few that a line alone would show little or, for one, nothing."""
    return "o" if len(epochs) <= 20 else ""


def mark_best(panels, rows: list[dict]) -> None:
    """A line through all panels at the epoch whose weights were kept, and legends that say so."""
    best = best_row(rows)
    epoch, top1 = int(float(best["epoch"])), column([best], "val_top1")[0]
    text = f"last epoch: {epoch} (no validation)"
    if np.isfinite(top1):
        text = f"best epoch: {epoch} ({100 * top1:.1f} %)"
        panels[1].plot([epoch], [100 * top1], "o", ms=9, mfc="none", color=GREEN, clip_on=False)
    for axes in panels:
        axes.axvline(epoch, color=GREEN, linestyle=":", label=text)
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
    for axes in panels[:2]:  # a white ground: the best epoch's line may pass below the words
        axes.legend(framealpha=1, edgecolor="none")


def best_row(rows: list[dict]) -> dict:
    """The epoch with the highest validation top-1, at a tie the lowest NLL; else the last one."""
    top1, nll = column(rows, "val_top1"), column(rows, "val_nll")
    if not np.isfinite(top1).any():
        return rows[-1]
    order = np.lexsort((np.nan_to_num(nll, nan=np.inf), -np.nan_to_num(top1, nan=-1.0)))
    return rows[order[0]]


def column(rows: list[dict], key: str) -> np.ndarray:
    """One quantity of all epochs, float64; nan where it is missing."""
    values = (row.get(key) for row in rows)
    return np.array([math.nan if value in (None, "") else float(value) for value in values])


def batch(images, labels, classes, path, title: str, whole: int | None = None) -> Path:
    """Up to 32 images as the network sees them, after augmentation, with their class.

    Args:
        whole: of how many they are; None: of those given.
    """
    images = as_array(images)
    shown = images[:32]
    captions = [(short(classes[label], 16), "black") for label in as_array(labels)[:32]]
    height, width = images.shape[-2:]
    count = f"{len(shown)} of {whole or len(images):,}"
    note = f"{count} images of {height} x {width} pixels (height x width)"
    return save(grid([upright(image) for image in shown], captions, 8)[0], path, title, note)


def mistakes(images, labels, probabilities, classes, path, title: str, names=None) -> Path:
    """Up to 24 wrong answers, the surest first; without any, the least sure right ones.

    Args:
        images: uint8 (n, 3, height, width), or number -> (3, height, width).
        probabilities: (n, C).
        names: what to write below each image, such as its file's name.
    """
    labels, probabilities = as_array(labels).astype(int), as_array(probabilities)
    said = probabilities.argmax(axis=1)
    sure = probabilities[np.arange(len(said)), said]
    wrong = np.flatnonzero(said != labels)
    if len(wrong):
        chosen = wrong[np.argsort(-sure[wrong], kind="stable")][:24]
        note = f"{len(wrong)} of {len(labels)} wrong, the surest first"
        note += f"; the first {len(chosen)}" if len(chosen) < len(wrong) else ""
    else:
        chosen = np.argsort(sure, kind="stable")[:24]
        note = f"No mistakes among {len(labels)}: the least sure right answers, least sure first"
    captions = []
    for index in chosen:
        label = labels[index]
        text = f"said {percent_of(classes[said[index]], sure[index])}"
        if said[index] != label:
            text += f"\nis {percent_of(classes[label], probabilities[index, label])}"
        if names is not None:
            text += f"\n{short(names[index], 20)}"
        captions.append((text, "black"))
    shown = map(images, chosen) if callable(images) else as_array(images)[chosen]
    pictures = [upright(as_array(image)) for image in shown]
    return save(grid(pictures, captions, 6)[0], path, title, note)


def percent_of(name, probability: float) -> str:
    """("cat", 0.93) -> "cat (93 %)"."""
    return f"{short(name, 14)} ({100 * probability:.0f} %)"


def attention(images, heats, labels, predicted, classes, path, title: str) -> Path:
    """A dozen images beside where the network looks: heats (n, rows, cols), one scale for all.

    Args:
        labels: the true classes, numbers (n,).
        predicted: the classes that the network says, numbers (n,).
    """
    images, heats = as_array(images)[:12], as_array(heats)[:12]
    labels, predicted = (as_array(numbers)[:12].astype(int) for numbers in (labels, predicted))
    top = scale_top(heats)
    pairs = [pair(upright(image), heat, top) for image, heat in zip(images, heats, strict=True)]
    captions = []
    for label, said in zip(labels, predicted, strict=True):
        text, colour = f"{short(classes[said], 16)} (right)", "black"
        if said != label:
            text = f"said {short(classes[said], 16)}, is {short(classes[label], 16)}"
            colour = VERMILION
        captions.append((text, colour))
    figure, panels = grid(pairs, captions, 4)
    heat_scale(figure, panels, top)
    note = (
        "Left what the network sees, right where it looks; 1 is what each patch would get if "
        "attention were spread evenly. The scale ends where the patches above it hold "
        f"{100 * (1 - MASS_BELOW_TOP):.0f} % of all attention, but not below {LEAST_TOP:g}."
    )
    return save(figure, path, title, note)


def heat_scale(figure: Figure, panels: np.ndarray, top: float) -> None:
    """The colour bar beside the panels, from 0 to the top in times the mean, and more above it."""
    scale = ScalarMappable(Normalize(0, top), ListedColormap(colour_map() / 255))
    thin = 4 * figure.get_figheight()  # times as high as wide: a quarter of an inch at any height
    bar = figure.colorbar(scale, ax=panels, extend="max", aspect=thin, pad=0.02)
    bar.ax.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:g}"))
    bar.set_label("attention, times the mean")


def pair(photo: np.ndarray, heat: np.ndarray, top: float) -> np.ndarray:
    """The photo (height, width, 3) and, right of it, the same under the heat, both enlarged."""
    side = max(photo.shape)
    photo = resized(photo, side * math.ceil(240 / side))  # pixels: whole ones become squares
    gap = np.full((len(photo), max(photo.shape) // 40, 3), 255, np.uint8)
    return np.hstack([photo, gap, np.asarray(overlay(photo, heat, top=top))])


def grid(
    pictures: list[np.ndarray], captions: list[tuple[str, str]], columns: int
) -> tuple[Figure, np.ndarray]:
    """Pictures (height, width, 3), each above its (caption, colour) -> figure and its panels."""
    if not pictures:
        raise ValueError("images must hold at least one image, got none")
    columns = min(columns, len(pictures))
    rows = math.ceil(len(pictures) / columns)
    height, width = pictures[0].shape[:2]
    panel = min(3.5, 11 / columns)  # inches
    deep = max(caption.count("\n") for caption, _ in captions) + 1
    tall = min(panel * height / width, 12 / rows) + 0.15 * deep + 0.15
    size = (max(5.0, columns * panel), max(2.8, rows * tall + 0.7))
    figure = Figure(figsize=size, layout="constrained")
    panels = figure.subplots(rows, columns, squeeze=False)
    for axes in panels.flat:
        axes.set(xticks=[], yticks=[])
        axes.spines[:].set_visible(False)
    for axes, picture, (caption, colour) in zip(panels.flat, pictures, captions, strict=False):
        axes.imshow(picture)  # enlarged: its pixels as squares; reduced: smoothed
        axes.set_xlabel(caption, fontsize=8, color=colour)
    return figure, panels


def upright(image: np.ndarray) -> np.ndarray:
    """(3, height, width) -> (height, width, 3)."""
    return image.transpose(1, 2, 0)


def as_array(values) -> np.ndarray:
    """Tensor, list or array -> array."""
    return np.asarray(values.detach().cpu() if hasattr(values, "detach") else values)


def save(figure: Figure, path, title: str, note: str = "") -> Path:
    """Writes the figure with its title and, below it, a note."""
    width = figure.get_figwidth()  # inches; a letter takes a ninth of one in 12 points
    title = with_glyphs(" ".join(str(title).split()))
    figure.suptitle(literal(fill(title, int(width * 9))), fontsize=12)
    if note:
        figure.supxlabel(fill(note, int(width * 12)), fontsize=9, color=GREY)
    for text in figure.findobj(Text):
        text.set_fontfamily(fonts()[1])
    figure.savefig(path, dpi=DPI)
    return Path(path)
