"""timm's Vision Transformers in our network: the same weights under the same names, the same logits.

A name is NAME.TAG as in `vit models`, or NAME for its default weights. What a name means is looked
up in vit/models.csv, with no network access; only weights that are in no file here are fetched.
"""

import os
import socket
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlparse
from urllib.request import getproxies

from torch import Tensor

from vit import catalogue, model_file
from vit.architecture import Architecture
from vit.fitting import Preprocess
from vit.model import VisionTransformer
from vit.recognise import architecture_of
from vit.user_cache import user_cache
from vit.weights import Shapes, fit_weights, named_inside, native_of, read, shapes

if TYPE_CHECKING:
    import timm

__all__ = [
    "Pretrained",
    "architecture_of",
    "describe",
    "fetch",
    "find",
    "fit_weights",
    "from_timm",
    "network",
    "read",
]

PREFIX = "timm:"
FITS = {"center": "crop", "border": "pad", "squash": "squash"}  # timm's crop_mode -> Preprocess.fit


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
    same_head = architecture.num_classes == native.num_classes
    net = (VisionTransformer.unfilled if same_head else VisionTransformer)(architecture)
    net.load_state_dict(fit_weights(tensors, native, net))
    return net.eval(), preprocess


def fetch(name: str) -> dict[str, Tensor]:
    """The weights of a name: from the folder below, else from where timm fetches them.

    The folder is what VIT_WEIGHTS names, or the user's cache folder; a file in it is
    NAME.TAG.safetensors.

    Raises:
        ValueError: none are published, or they cannot be fetched: says which file to put where.
    """
    row = catalogue.find(name)
    full = catalogue.full_name(row)
    if not row["weights"]:
        raise ValueError(f"no weights are published for {full}")
    folder = Path(os.environ.get("VIT_WEIGHTS") or user_cache())
    path = folder / f"{full}.safetensors"
    if path.is_file():
        return read(path)
    if (
        not hub_has_a_name()
    ):  # the cache alone, with no minute of retries; read when timm is imported
        os.environ.setdefault("HF_HUB_OFFLINE", "1")
    import timm

    try:
        return timm.create_model(full, pretrained=True).state_dict()
    except MemoryError:
        raise
    except (
        Exception
    ) as error:  # what the hub's client and its HTTP library raise has no common kind
        raise ValueError(
            f"the weights {full} cannot be fetched ({type(error).__name__}): where there is a network, "
            f"get model.safetensors of {row['weights']} and put it here as {path}"
        ) from error


def hub_has_a_name() -> bool:
    """The hub's host can be looked up, or a proxy does that."""
    endpoint = os.environ.get("HF_ENDPOINT", "https://huggingface.co")
    try:
        socket.getaddrinfo(urlparse(endpoint).hostname, None)
    except OSError:
        return bool(getproxies())
    return True


@dataclass(frozen=True)
class Pretrained:
    """Weights that are somewhere, described without reading them.

    Args:
        source: what they are, in words.
        architecture: the network they are of.
        preprocess: how a photo becomes what it takes.
        classes: of its head, where their names are known.
        read: gives the tensors, by timm's names.
    """

    source: str
    architecture: Architecture
    preprocess: Preprocess
    classes: tuple[str, ...]
    read: Callable[[], dict[str, Tensor]]


def find(weights: str, architecture: str | None = None) -> Pretrained:
    """What `model.weights` means; of files the headers alone are read.

    Args:
        weights: timm:NAME or timm:NAME.TAG; a file of weights under timm's names; a model.safetensors
            of this program; or the folder of a run.
        architecture: a name of `vit models`, for a file that does not say what it is.

    Raises:
        ValueError: nothing there, or an architecture that is missing or not needed.
    """
    if weights.startswith(PREFIX):
        if architecture is not None:
            raise ValueError(not_needed(architecture, weights))
        name = weights.removeprefix(PREFIX)
        full = catalogue.full_name(catalogue.find(name))
        return Pretrained(PREFIX + full, *describe(name), (), lambda: fetch(name))
    path = Path(weights)
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.is_file():
        names = {row["name"] for row in catalogue.rows()}
        hint = f"; did you mean {PREFIX}{weights}?" if weights.partition(".")[0] in names else ""
        raise ValueError(f"model.weights ({weights}): there is no file {path}{hint}")
    about = model_file.about(path)
    if about is None:
        return bare(path, architecture)
    if architecture is not None:
        raise ValueError(not_needed(architecture, weights))
    native, preprocess = about["architecture"], Preprocess.from_dict(about["preprocess"])
    return Pretrained(
        "/".join(path.absolute().parts[-3:]),
        Architecture.from_dict(native),
        preprocess,
        tuple(about["classes"]),
        lambda: read(path),
    )


def not_needed(architecture: str, weights: str) -> str:
    """The message for an architecture beside weights that say what they are."""
    return (
        f"model.architecture ({architecture}) is for files that do not say what they are; "
        f"model.weights ({weights}) does: leave it out"
    )


def bare(path: Path, architecture: str | None) -> Pretrained:
    """A file of tensors alone; what they are of is told, or else a name in the file's header."""
    found = shapes(path)
    architecture = architecture or named_inside(path)
    if architecture is None:
        likely = " or ".join(candidates(found))
        raise ValueError(
            f"{path} does not say of which network it is: add --model.architecture NAME, a name of "
            f"`vit models`" + (f"; by its sizes it may be {likely}" if likely else "")
        )
    named, preprocess = describe(architecture)
    native = native_of(found, named)
    preprocess = replace(preprocess, size=native.img_size)
    return Pretrained(
        f"{architecture} from {path.name}", native, preprocess, (), lambda: read(path)
    )


def candidates(found: Shapes) -> list[str]:
    """Up to three names of networks whose tensors have these sizes, by those that tell most."""
    if not {"patch_embed.proj.weight", "pos_embed"} <= found.keys():
        return []
    depth = len({name.split(".")[1] for name in found if name.startswith("blocks.")})
    width, _, *patch = found["patch_embed.proj.weight"]
    registers = found.get("reg_token", (1, 0))[1]
    names = []
    for row in (row for row in catalogue.rows() if not row["refused"]):
        a = Architecture.from_dict(catalogue.fields_of(row))
        positions = a.grid_size[0] * a.grid_size[1] + a.embedded_prefix
        same = (a.embed_dim, a.depth, list(a.patch_size)) == (width, depth, patch)
        if same and (a.reg_tokens, positions) == (registers, found["pos_embed"][1]):
            names.append(row["name"])
    return list(dict.fromkeys(names))[:3]
