"""Configurations: a file's settings with what the command line changes, and what is refused.

A configuration is a YAML file with the sections data, model, optim, run (`settings.py`) and trainer,
Lightning's own; every value can be given on the command line as `--section.name VALUE`.
"""

import difflib
import inspect
import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from pathlib import Path
from typing import Any, Literal, get_args, get_origin

import yaml

from vit.settings import Data, Model, Optim, Run

# Trainer arguments that a setting of ours decides; naming them twice could only contradict.
OWNED_BY = {
    "max_epochs": "optim.epochs",
    "accumulate_grad_batches": "optim.accumulate",
    "gradient_clip_val": "optim.clip",
    "precision": "run.precision",
    "default_root_dir": "run.root",
    "callbacks": "run.checkpoint_steps",
    "enable_checkpointing": "run.checkpoint_steps",
    "enable_progress_bar": "run.progress",
    "logger": "run.logger",
}
# Trainer arguments that end or divide epochs in a way that an exact resume, or the choice of the
# best epoch after each one, cannot follow.
REFUSED = [
    "max_steps",
    "min_steps",
    "min_epochs",
    "max_time",
    "check_val_every_n_epoch",
    "val_check_interval",
    "fast_dev_run",
    "limit_test_batches",
    "overfit_batches",
    "reload_dataloaders_every_n_epochs",
    "num_sanity_val_steps",
    "barebones",
]

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


@dataclass
class Config:
    """Everything a run is told.

    Args:
        trainer: any argument of lightning.Trainer, as `--trainer.devices 2`.
    """

    data: Data = field(default_factory=Data)
    model: Model = field(default_factory=Model)
    optim: Optim = field(default_factory=Optim)
    run: Run = field(default_factory=Run)
    trainer: dict[str, Any] = field(default_factory=dict)


class UniqueKeys(yaml.SafeLoader):
    """Safe YAML that refuses a key given twice, of which YAML would silently take the second."""

    def construct_mapping(self, node, deep=False):
        seen = set()
        for named, _ in node.value:
            key = self.construct_object(named, deep)
            if key in seen:
                said = f'"{key}" is given twice'
                raise yaml.constructor.ConstructorError(None, None, said, named.start_mark)
            seen.add(key)
        return super().construct_mapping(node, deep)


def find(name: str) -> Path:
    """The file of a configuration: a path, or the name of a packaged one.

    Raises:
        ValueError: neither; names the packaged ones.
    """
    if Path(name).is_file():
        return Path(name)
    for folder in packaged():
        if (folder / f"{name}.yaml").is_file():
            return folder / f"{name}.yaml"
    known = sorted(path.stem for folder in packaged() for path in folder.glob("*.yaml"))
    raise ValueError(
        f'no configuration "{name}": give a YAML file or one of {", ".join(known)}'
        + nearest(name, known)
    )


def packaged() -> list[Path]:
    """The folder of the configurations that come with the package (wheel, or a checkout)."""
    here = Path(__file__).parent
    return [folder for folder in (here / "configs", here.parent / "configs") if folder.is_dir()]


def keys(settings=Config, prefix: str = "") -> Iterator[str]:
    """The dotted names of all settings: data.source, ..., trainer."""
    for one in fields(settings):
        if is_dataclass(one.type):
            yield from keys(one.type, f"{prefix}{one.name}.")
        else:
            yield prefix + one.name


def flatten(tree: dict, prefix: str = "") -> dict[str, Any]:
    """{"optim": {"lr": 1}} -> {"optim.lr": 1}; the trainer's own values stay whole."""
    flat = {}
    for key, value in tree.items():
        name = f"{prefix}{key}"
        if isinstance(value, dict) and name != "trainer":
            flat |= flatten(value, f"{name}.")
        else:
            flat[name] = value
    return flat


def check_keys(names, where: str) -> None:
    """Refuses names that are no setting.

    Raises:
        ValueError: for the first unknown one, with the nearest known.
    """
    known = list(keys())
    for name in names:
        if name not in known and not name.startswith("trainer."):
            raise ValueError(f'unknown setting "{name}" in {where}' + nearest(name, known))


def check_trainer(settings: dict[str, Any]) -> None:
    """Refuses Trainer arguments that Lightning does not have, or that a setting of ours decides.

    Raises:
        ValueError: for the first such one, with the nearest or the right name.
    """
    if not settings:
        return
    from lightning.pytorch import Trainer

    known = list(inspect.signature(Trainer).parameters)
    for name in settings:
        if name in OWNED_BY:
            raise ValueError(f"trainer.{name} is decided by {OWNED_BY[name]}; set that")
        if name in REFUSED:
            raise ValueError(
                f"trainer.{name} is not supported: training goes by whole epochs (optim.epochs, "
                "optim.patience), each followed by its validation"
            )
        if name not in known:
            raise ValueError(
                f'unknown setting "trainer.{name}"'
                + nearest(f"trainer.{name}", [f"trainer.{one}" for one in known])
            )


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


def make_parser(**options):
    """A jsonargparse parser with one option per setting."""
    from jsonargparse import ArgumentParser

    parser = ArgumentParser(exit_on_error=False, **options)
    for section in (Data, Model, Optim, Run):
        parser.add_class_arguments(section, section.__name__.lower())
    parser.add_argument(
        "--trainer",
        type=dict[str, Any],
        default={},
        help="any argument of lightning.Trainer, as --trainer.devices 2",
    )
    return parser


def load(name: str, overrides: dict[str, Any] | None = None) -> Config:
    """Reads a configuration and changes some of its values.

    Args:
        name: a YAML file, or the name of a packaged configuration.
        overrides: {"optim.lr": 1e-3}; values may be texts, as on the command line.

    Raises:
        ValueError: an unknown setting, or a value that is not of its type or range.
    """
    from jsonargparse import ArgumentError

    path = find(name)
    try:
        values = yaml.load(path.read_text(encoding="utf-8"), UniqueKeys) or {}
    except (yaml.YAMLError, UnicodeDecodeError) as error:
        raise ValueError(f"{path} is not YAML: {' '.join(str(error).split())}") from error
    if not isinstance(values, dict):
        raise ValueError(f"{path} must hold the sections data, model, optim, run, trainer")
    flat = flatten(values)
    check_keys(flat, str(path))
    check_keys(overrides or {}, "the command line")
    trainer = flat.pop("trainer", None) or {}
    arguments = [f"--{key}={as_text(value)}" for key, value in (flat | (overrides or {})).items()]
    try:
        parsed = (parser := make_parser()).instantiate(parser.parse_args(arguments))
    except (ArgumentError, ValueError, TypeError) as error:
        raise ValueError(in_plain_words(str(error))) from error
    config = Config(parsed.data, parsed.model, parsed.optim, parsed.run, trainer | parsed.trainer)
    config.run.name = config.run.name or path.stem
    check_trainer(config.trainer)
    return config


def help_texts() -> dict[str, str]:
    """{"optim.lr": "highest learning rate", ...}, from the docstrings above."""
    from docstring_parser import parse

    return {
        f"{section.__name__.lower()}.{one.arg_name}": " ".join(one.description.split()).rstrip(".")
        for section in (Data, Model, Optim, Run)
        for one in parse(section.__doc__).params
    }


def as_text(value: Any) -> str:
    """A value as one would type it: None -> "null", (8, 16) -> "[8, 16]"."""
    if isinstance(value, str):
        return value
    value = list(value) if isinstance(value, tuple) else value
    return yaml.safe_dump(value, default_flow_style=True, width=10**6).split("\n")[0]


def in_plain_words(message: str) -> str:
    """jsonargparse's message on one line: 'optim.lr: expected a number, got abc'."""
    message = " ".join(message.split())
    key = re.match(r'Parser key "([^"]+)": ', message)
    got = re.search(r"(?:Got value|Given value): ?(.*?)(?: Given value type.*)?$", message)
    if not key or not got:
        return message
    section, _, name = key[1].partition(".")
    for settings in (Data, Model, Optim, Run):
        for one in fields(settings):
            if (settings.__name__.lower(), one.name) == (section, name):
                return f"{key[1]}: expected {describe(one.type)}, got {got[1] or 'nothing'}"
    return message


def describe(kind) -> str:
    """A type in plain words: Literal["a", "b"] -> 'one of a, b'; int -> 'a whole number'."""
    plain = {int: "a whole number", float: "a number", bool: "true or false", str: "a text"}
    plain |= {type(None): "null", tuple[int, int]: "[height, width]"}
    plain[tuple[float, float]] = "[smallest, largest]"
    if kind in plain:
        return plain[kind]
    if get_origin(kind) is Literal:
        return "one of " + ", ".join(get_args(kind))
    return " or ".join(describe(part) for part in get_args(kind))


def as_yaml(config: Config) -> str:
    """All values, as `load` reads them."""
    tree = {
        section.name: dict(vars(value)) if is_dataclass(value) else value
        for section in fields(config)
        for value in [getattr(config, section.name)]
    }
    for section in ("data", "model"):  # YAML's own tuples are read by Python alone
        values = tree[section].items()
        tree[section] = {k: list(v) if isinstance(v, tuple) else v for k, v in values}
    return yaml.safe_dump(tree, sort_keys=False, allow_unicode=True)
