"""What a training run starts from: fresh weights by the settings, or pretrained ones.

Settings that are null are the weights' to say, or, from scratch, FROM_SCRATCH's. A run with
pretrained weights writes weights.json: with it, and a checkpoint, a resume does without them.
"""

import json
import logging
from dataclasses import dataclass, fields, replace
from pathlib import Path

from vit import pretrained, tuning
from vit.architecture import Architecture
from vit.augment import Augment
from vit.config import Config
from vit.fitting import Preprocess
from vit.model import VisionTransformer
from vit.pretrained import PREFIX, Pretrained
from vit.runs import RunFolder, write_whole
from vit.settings import FROM_SCRATCH, Data, Model
from vit.weights import fit

log = logging.getLogger("vit")
VARIATIONS = [one.name for one in fields(Augment)] + ["mixup", "cutmix"]
UNVARIED = {one.name: one.default for one in fields(Data) if one.name in VARIATIONS}
UNUSED = "ddp_find_unused_parameters_true"
FEW = 5000  # training images below which pretrained weights are the better start


@dataclass(frozen=True)
class Origin:
    """Where a network comes from.

    Args:
        architecture: of the network to be trained, but for its number of classes.
        preprocess: how a photo becomes what it takes.
        source: which weights, in words; empty from scratch.
        weights: where they are; None from scratch, and where a checkpoint brings them.
    """

    architecture: Architecture
    preprocess: Preprocess
    source: str = ""
    weights: Pretrained | None = None

    def network(self, classes: list[str]) -> VisionTransformer:
        """The network at the start of training; says what of the weights went where."""
        net = VisionTransformer(self.architecture, num_classes=len(classes))
        if self.weights is not None:
            known = self.weights.classes  # none: a head of unknown classes is not theirs
            fitted = fit(
                self.weights.read(),
                self.weights.architecture,
                net,
                new_head=not known or list(known) != classes,
            )
            net.load_state_dict(fitted.state)
            log.info("weights: %s\n  %s", self.source, "\n  ".join(fitted.report()))
        return net

    def write(self, folder: RunFolder) -> None:
        """Keeps what a resume needs to know of pretrained weights."""
        if self.source:
            about = {
                "source": self.source,
                "architecture": self.architecture.non_defaults(),
                "preprocess": self.preprocess.to_dict(),
            }
            write_whole(folder.weights, json.dumps(about, indent=1).encode())


def of(config: Config, folder: RunFolder) -> Origin:
    """What a run starts from; what its folder has already is not asked of the weights again.

    Raises:
        ValueError: settings that contradict the weights, or miss them.
    """
    check_tuning(config)
    if config.model.weights is None:
        return from_scratch(config)
    if folder.last.is_file() and folder.weights.is_file():
        kept = json.loads(folder.weights.read_text(encoding="utf-8"))
        preprocess = Preprocess.from_dict(kept["preprocess"])
        return Origin(Architecture.from_dict(kept["architecture"]), preprocess, kept["source"])
    try:
        weights = pretrained.find(config.model.weights, config.model.architecture)
    except ValueError as error:
        if not folder.weights.is_file():
            raise
        raise ValueError(
            f"{folder.path} has no checkpoint yet, so it needs its weights again: {error}"
        ) from error
    architecture = changed(weights, config.model)
    preprocess = replace(
        weights.preprocess,
        size=architecture.img_size,
        fit=config.data.fit or weights.preprocess.fit,
    )
    return Origin(architecture, preprocess, weights.source, weights)


def from_scratch(config: Config) -> Origin:
    """A network by the settings alone."""
    model = {name: value for name, value in vars(config.model).items() if value is not None}
    architecture = Architecture.from_dict(FROM_SCRATCH | model)
    return Origin(architecture, Preprocess(architecture.img_size, fit=config.data.fit or "crop"))


def check_tuning(config: Config) -> None:
    """Settings of tuning that make sense together.

    Raises:
        ValueError: they do not.
    """
    model, optim = config.model, config.optim
    if model.weights is None and model.tune != "full":
        raise ValueError(
            f"model.tune ({model.tune}) needs pretrained weights: give --model.weights, or train "
            "everything with --model.tune full"
        )
    if model.weights is None and model.architecture is not None:
        raise ValueError(
            f"model.architecture ({model.architecture}) says what model.weights are of: give those too"
        )
    if model.tune == "head_then_full" and optim.lr == 0:
        raise ValueError(
            "optim.lr (0) must be above 0 for model.tune head_then_full: after the head everything "
            "is trained; for the head alone give --model.tune probe"
        )
    if model.tune == "head_then_full" and optim.head_epochs >= optim.epochs:
        raise ValueError(
            f"optim.head_epochs ({optim.head_epochs}) must be below optim.epochs ({optim.epochs}): "
            "after them everything is trained"
        )


def check_processes(config: Config, count: int) -> None:
    """Modes of tuning that several processes cannot share, or not without being told how.

    Raises:
        ValueError: such a mode, in `count` processes.
    """
    tune, strategy = config.model.tune, config.trainer.get("strategy")
    if count > 1 and tune == "probe":
        raise ValueError(f"model.tune probe runs in one process: leave out what makes {count}")
    if count > 1 and tune == "head_then_full" and strategy != UNUSED:
        raise ValueError(
            f"model.tune head_then_full in {count} processes needs --trainer.strategy {UNUSED}: "
            "while the head learns, the rest of the network has no gradients to share"
        )


def changed(weights: Pretrained, model: Model) -> Architecture:
    """The architecture of weights with the changes that settings may make.

    Raises:
        ValueError: a setting that would be another network.
    """
    native, changes = weights.architecture, {}
    for name in FROM_SCRATCH:
        value = getattr(model, name)
        if name in ("img_size", "patch_size"):
            changes |= {name: value} if value is not None else {}
        elif value is not None and value != getattr(native, name):
            raise ValueError(
                f"model.{name} is {value}, but the weights {weights.source} have "
                f"{getattr(native, name)}: leave --model.{name} out, or train from scratch "
                "without --model.weights"
            )
    rates = {name: getattr(model, name) for name in ("drop_rate", "drop_path_rate")}
    return replace(native, **changes, **rates)


def filled(config: Config, origin: Origin) -> Config:
    """The settings with numbers for what is null: those of the mode of tuning, and from scratch all.

    A probe's features are of the images as they are, in float32: nothing is left of their variation.
    """
    model, optim = config.model, config.optim
    given = {name: value for name, value in vars(optim).items() if value is not None}
    mode = tuning.DEFAULTS[model.tune if origin.source else "from_scratch"]
    optim = replace(optim, **(mode | given))
    if model.tune != "head_then_full":
        optim = replace(optim, head_epochs=0)
    if origin.source:
        weights = model.weights
        if not weights.startswith(PREFIX):
            weights = str(Path(weights).absolute())
        data = config.data
        if model.tune == "probe":
            data, optim = replace(data, **UNVARIED), replace(optim, average_decay=0.0)
            config = replace(config, run=replace(config.run, precision="32"))
        return replace(config, data=data, optim=optim, model=replace(model, weights=weights))
    sizes = {name: getattr(origin.architecture, name) for name in FROM_SCRATCH}
    sizes |= {name: value for name, value in vars(model).items() if value is not None}
    return replace(
        config,
        optim=optim,
        model=replace(model, **sizes),
        data=replace(config.data, fit=origin.preprocess.fit),
    )


def warn_of_few(config: Config, count: int) -> None:
    """Says where photos are too few to learn from alone."""
    if config.model.weights is None and config.data.source == "folder" and count < FEW:
        log.warning(
            "%s training images are few to learn from alone: pretrained weights need far fewer "
            "(--config finetune)",
            f"{count:,}",
        )
