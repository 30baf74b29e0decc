"""Configurations: a file's settings with what the command line changes, and what is refused.

A configuration is a YAML file with the sections data, model, optim, run (`settings.py`) and trainer,
Lightning's own; every value can be given on the command line as `--section.name VALUE`.
"""

import re
from collections.abc import Iterator
from dataclasses import dataclass, field, fields, is_dataclass
from typing import Any, Literal, get_args, get_origin

import yaml

from vit.config_files import find, read
from vit.nearest import nearest
from vit.settings import Data, Model, Optim, Run
from vit.trainer_settings import check_trainer


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
    flat = flatten(read(path))
    check_keys(flat, str(path))
    check_keys(overrides or {}, "the command line")
    trainer = flat.pop("trainer", None) or {}
    if not isinstance(trainer, dict):
        raise ValueError(f"{path}: trainer must hold names and values, as devices: 2")
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
