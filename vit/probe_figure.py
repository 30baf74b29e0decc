"""The picture of a probe's training: loss and accuracy against the L2 strength."""

from pathlib import Path

import numpy as np
from matplotlib.figure import Figure

from vit.figures import BLUE, GREEN, VERMILION, best_row, column, save


def strengths(rows: list[dict], path, title: str) -> Path:
    """Training and validation for each strength, the chosen one marked.

    Args:
        rows: a dict per strength as in metrics.csv, numbers or their text: l2, train_loss, train_top1,
            val_nll, val_top1; validation may be missing.
    """
    figure = Figure(figsize=(8, 6.5), layout="constrained")
    loss, accuracy = panels = figure.subplots(2, 1, sharex=True)
    l2, best = column(rows, "l2"), best_row(rows)
    draw(loss, l2, column(rows, "train_loss"), column(rows, "val_nll"))
    draw(accuracy, l2, *(100 * column(rows, key) for key in ("train_top1", "val_top1")))
    loss.set_ylabel("negative log-likelihood (nats)")
    accuracy.set_ylabel("top-1 accuracy (%)")
    accuracy.set(xlabel="L2 strength: stronger to the right", xscale="log")
    accuracy.set_ylim(top=min(accuracy.get_ylim()[1], 101))  # no accuracy is above 100, dots are
    top1 = column([best], "val_top1")[0]
    reached = f" ({100 * top1:.1f} %)" if np.isfinite(top1) else " (no validation)"
    for axes in panels:
        text = f"chosen: {float(best['l2']):g}{reached}"
        axes.axvline(float(best["l2"]), color=GREEN, linestyle=":", label=text)
        axes.grid(color="0.9")
        axes.spines[["top", "right"]].set_visible(False)
        axes.legend(frameon=False)
    return save(figure, path, title)


def draw(axes, l2: np.ndarray, train: np.ndarray, validation: np.ndarray) -> None:
    """Training and, where there is any, validation against the strengths."""
    axes.plot(l2, train, "o-", color=BLUE, label="training")
    if np.isfinite(validation).any():
        axes.plot(l2, validation, "o--", color=VERMILION, label="validation")
