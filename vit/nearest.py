"""Names that are not known, and what may have been meant."""

import difflib

# What other programs call a setting, where the letters alone would lead to a wrong one.
OTHER_WORDS = {
    "learning_rate": "optim.lr",
    "lr0": "optim.lr",
    "max_epochs": "optim.epochs",
    "num_epochs": "optim.epochs",
    "num_train_epochs": "optim.epochs",
    "imgsz": "model.img_size",
    "image_size": "model.img_size",
    "pretrained": "model.weights",
    "checkpoint": "model.weights",
    "amp": "run.precision",
    "ema_decay": "optim.average_decay",
    "gradient_accumulation_steps": "optim.accumulate",
    "hflip": "data.flip",
    "num_workers": "data.workers",
}


def nearest(name: str, known: list[str]) -> str:
    """', did you mean "..."?' or nothing; the last part counts where the section is missing."""
    if (ours := OTHER_WORDS.get(name.rpartition(".")[2])) in known:
        return f'; did you mean "{ours}"?'
    close = difflib.get_close_matches(name, known, n=1, cutoff=0.6)
    if not close:
        by_last = {one.rpartition(".")[2]: one for one in known}
        last = difflib.get_close_matches(name.rpartition(".")[2], by_last, n=1, cutoff=0.75)
        close = [by_last[one] for one in last]
    return f'; did you mean "{close[0]}"?' if close else ""
