"""A trained network by what a user calls it: a run, a model file, a published name, bare weights."""

import logging
from dataclasses import replace
from pathlib import Path

from vit import catalogue, pretrained
from vit.class_names import published_classes
from vit.fitting import Preprocess
from vit.model import VisionTransformer
from vit.model_file import TrainedModel, about
from vit.model_file import load as load_file
from vit.weights import named_inside, native_of

log = logging.getLogger("vit")

PREFIX = "timm:"


def open_model(
    model: str | Path,
    architecture: str | None = None,
    img_size: int | tuple[int, int] | None = None,
) -> TrainedModel:
    """Opens a trained network.

    Args:
        model: the folder of a run, a model.safetensors of this program, timm:NAME or timm:NAME.TAG
            as `vit models` lists them, or a state dict under timm's names (safetensors or .pth).
        architecture: for a state dict, which does not say what it is: a name of `vit models`.
        img_size: pixels, a side or (height, width), where it is not the network's own; positions
            are resampled.

    Raises:
        ValueError: no such model, or an architecture that is missing or not needed.
    """
    name, changes = str(model), size_change(img_size)
    if name.startswith(PREFIX):
        name = name.removeprefix(PREFIX)
        if architecture is not None:
            raise ValueError(f"--architecture ({architecture}) goes with a file, not with {model}")
        net, preprocess = pretrained.network(name, **changes)
        row = catalogue.find(name)
        return TrainedModel(net, published_classes(int(row["classes"]), row["tag"]), preprocess)
    path = Path(model)
    if path.is_file() and about(path) is None:
        return bare(path, architecture, changes)
    opened = load_file(path)
    if architecture is not None:
        raise ValueError(f"--architecture ({architecture}) is not needed: {path} says what it is")
    return resized(opened, changes) if changes else opened


load = open_model  # as `vit.load`


def size_change(img_size: int | tuple[int, int] | None) -> dict:
    """The changed field of the architecture, (height, width)."""
    if img_size is None:
        return {}
    return {"img_size": (img_size, img_size) if isinstance(img_size, int) else tuple(img_size)}


def bare(path: Path, architecture: str | None, changes: dict) -> TrainedModel:
    """A network from a state dict and its architecture's name, given or in the file's header.

    Size and head are the file's.

    Raises:
        ValueError: no name, or weights that are not its.
    """
    tensors = pretrained.read(path)
    architecture = architecture or named_inside(path)
    if architecture is None:
        raise ValueError(
            f"{path} holds weights but does not say of which network: add --architecture NAME, "
            "one of `vit models`"
        )
    row = catalogue.find(architecture)
    named, preprocess = pretrained.describe(architecture)
    native = native_of({name: tuple(one.shape) for name, one in tensors.items()}, named)
    wanted, classes = replace(native, **changes), native.num_classes
    preprocess = replace(preprocess, size=wanted.img_size)
    net = VisionTransformer.unfilled(wanted)
    net.load_state_dict(pretrained.fit_weights(tensors, native, net))
    if classes == 1000:
        log.info("%s names no classes: its 1,000 are taken for ImageNet's", path)
    tag = row["tag"] if classes == int(row["classes"]) else ""
    return TrainedModel(net.eval(), published_classes(classes, tag), preprocess)


def resized(model: TrainedModel, changes: dict) -> TrainedModel:
    """A model of this program at another image size."""
    native = model.net.architecture
    net = VisionTransformer.unfilled(replace(native, **changes))
    net.load_state_dict(pretrained.fit_weights(model.net.state_dict(), native, net))
    preprocess = Preprocess.from_dict(
        model.preprocess.to_dict() | {"size": net.architecture.img_size}
    )
    return replace(model, net=net.eval(), preprocess=preprocess)
