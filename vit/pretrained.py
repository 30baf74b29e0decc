"""timm's Vision Transformers in our network: the same weights under the same names, the same logits.

A name is NAME.TAG as in `vit models`, or NAME for its default weights. What a name means is looked
up in vit/models.csv, with no network access; only weights that are in no file here are fetched.
"""

import os
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import torch
from safetensors.torch import load_file
from torch import Tensor

from vit import catalogue
from vit.architecture import Architecture
from vit.images import Preprocess
from vit.model import VisionTransformer
from vit.patch_embed import by, resize_patch_embed, resize_pos_embed
from vit.recognise import architecture_of

if TYPE_CHECKING:
    import timm

__all__ = ["architecture_of", "describe", "fetch", "fit_weights", "from_timm", "network", "read"]

FITS = {"center": "crop", "border": "pad", "squash": "squash"}  # timm's crop_mode -> Preprocess.fit
HEADS = ("head.", "head_dist.")


def from_timm(
    source: "str | timm.models.VisionTransformer", pretrained: bool = False, **arguments
) -> VisionTransformer:
    """Our network with the architecture and the weights of a timm one.

    Args:
        source: a name that `timm.create_model` knows, or a timm module, whose weights are copied.
        pretrained: fetch the weights that belong to the name; else they are random.
        **arguments: for `timm.create_model`, such as img_size or num_classes.

    Raises:
        ValueError: a network that is no plain Vision Transformer; says what is different in it.
    """
    if isinstance(source, str):
        import timm

        if "_dinov3" in source:
            catalogue.find(source)  # raises, and names the nearest
        source = timm.create_model(source, pretrained=pretrained, **arguments)
    elif pretrained or arguments:
        raise ValueError("a timm module brings its own weights: give a name to choose others")
    net = VisionTransformer(architecture_of(source))
    net.load_state_dict(source.state_dict())
    return net.train(source.training)


def describe(name: str, **changes) -> tuple[Architecture, Preprocess]:
    """What the network of a name is, and how a photo becomes what it takes.

    Args:
        name: NAME.TAG, or NAME for its default weights.
        **changes: fields of `Architecture` that replace its values, such as img_size.

    Raises:
        ValueError: an unknown name, or one that is not supported: then with the reason.
    """
    row = catalogue.find(name)
    architecture = replace(Architecture.from_dict(catalogue.fields_of(row)), **changes)
    preprocess = Preprocess(
        architecture.img_size,
        mean=tuple(map(float, row["mean"].split())),
        std=tuple(map(float, row["std"].split())),
        interpolation=row["interpolation"],
        crop_pct=float(row["crop_pct"]),
        fit=FITS[row["crop_mode"]],
    )
    return architecture, preprocess


def network(
    name: str, file: str | Path | None = None, **changes
) -> tuple[VisionTransformer, Preprocess]:
    """A pretrained network in evaluation mode, and its preprocessing.

    Args:
        name: NAME.TAG, or NAME for its default weights.
        file: the weights, safetensors or PyTorch's, under timm's names; None: they are fetched.
        **changes: fields of `Architecture` that replace its values. With another img_size or
            patch_size, positions and patch embedding are resampled; with another num_classes the
            head begins anew.

    Raises:
        ValueError: as `describe`, `read`, `fetch` and `fit_weights` do.
    """
    native, _ = describe(name)
    architecture, preprocess = describe(name, **changes)
    tensors = fetch(name) if file is None else read(file)
    net = VisionTransformer(architecture)
    net.load_state_dict(fit_weights(tensors, native, net))
    return net.eval(), preprocess


def read(file: str | Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file or of a PyTorch checkpoint, float32.

    Raises:
        ValueError: no such file, or no tensors in it.
    """
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"no weights at {path}: there is no such file")
    if path.suffix == ".safetensors":
        tensors = load_file(path)
    else:
        tensors = torch.load(path, map_location="cpu", weights_only=True)
    for key in ("model", "state_dict"):  # as DeiT's, MAE's and Lightning's files have it
        tensors = tensors.get(key, tensors)
    if not tensors or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise ValueError(f"{path} holds no weights: tensors by name are expected in it")
    return {name.removeprefix("module."): one.float() for name, one in tensors.items()}


def fetch(name: str) -> dict[str, Tensor]:
    """The weights of a name: from the folder below, else from where timm fetches them.

    The folder is what VIT_WEIGHTS names, or ~/.cache/vit; a file in it is NAME.TAG.safetensors.

    Raises:
        ValueError: none are published, or they cannot be fetched: says which file to put where.
    """
    row = catalogue.find(name)
    full = catalogue.full_name(row)
    if not row["weights"]:
        raise ValueError(f"no weights are published for {full}")
    folder = Path(os.environ.get("VIT_WEIGHTS") or Path.home() / ".cache" / "vit")
    path = folder / f"{full}.safetensors"
    if path.is_file():
        return read(path)
    import timm

    try:
        return timm.create_model(full, pretrained=True).state_dict()
    except OSError as error:  # huggingface_hub's and urllib's errors all are
        raise ValueError(
            f"the weights {full} cannot be fetched ({type(error).__name__}): where there is a network, "
            f"get model.safetensors of {row['weights']} and put it here as {path}"
        ) from error


def fit_weights(
    tensors: dict[str, Tensor], native: Architecture, net: VisionTransformer
) -> dict[str, Tensor]:
    """The weights of a network as a network of another size and head takes them.

    Args:
        tensors: under timm's names.
        native: the network they are of.
        net: the network they are for; its own head stays where the number of classes differs.

    Raises:
        ValueError: names or shapes are missing, left over, or do not fit: says which.
    """
    wanted, fitted = net.state_dict(), dict(tensors)
    if native.num_classes != net.architecture.num_classes:
        fitted = {name: one for name, one in fitted.items() if not name.startswith(HEADS)}
        fitted |= {name: one for name, one in wanted.items() if name.startswith(HEADS)}
    if "pos_embed" in fitted:
        fitted["pos_embed"] = positions_for(net.grid_size, fitted["pos_embed"], native)
    projection = "patch_embed.proj.weight"
    if projection in fitted:
        fitted[projection] = resize_patch_embed(fitted[projection], net.architecture.patch_size)
    check_names(fitted, wanted)
    return fitted


def positions_for(grid: tuple[int, int], pos_embed: Tensor, native: Architecture) -> Tensor:
    """Positions (1, P + N, D) of the native network, resized to a grid of (rows, cols).

    Raises:
        ValueError: their number is not the native network's.
    """
    rows, cols = native.grid_size
    if pos_embed.shape[1] != rows * cols + native.embedded_prefix:
        raise ValueError(
            f"the weights have {pos_embed.shape[1]} positions, but images of {by(native.img_size)} "
            f"pixels need {rows * cols + native.embedded_prefix}: they are of another network or size"
        )
    return resize_pos_embed(pos_embed, native.grid_size, grid)


def check_names(tensors: dict[str, Tensor], wanted: dict[str, Tensor]) -> None:
    """Names and shapes are those wanted.

    Raises:
        ValueError: some are not; the first few are named.
    """
    wrong = [f"{name} is missing" for name in wanted if name not in tensors]
    wrong += [f"{name} is unknown" for name in tensors if name not in wanted]
    wrong += [
        f"{name} is {by(tensors[name].shape)}, not {by(wanted[name].shape)}"
        for name in wanted
        if name in tensors and tensors[name].shape != wanted[name].shape
    ]
    if wrong:
        more = f" and {len(wrong) - 3} more" if len(wrong) > 3 else ""
        raise ValueError("the weights do not fit this network: " + ", ".join(wrong[:3]) + more)
