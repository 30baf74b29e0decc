"""Files of weights under timm's names, and weights made to fit a network of another size or head.

A file is safetensors or a PyTorch checkpoint, its tensors by name, perhaps within "model" or
"state_dict", as DeiT's, MAE's and Lightning's files have it.
"""

import math
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, replace
from pathlib import Path

import torch
from safetensors import safe_open
from safetensors.torch import load_file
from torch import Tensor

from vit.architecture import Architecture
from vit.model import VisionTransformer
from vit.patch_embed import by, resize_patch_embed, resize_pos_embed

HEADS = ("head.", "head_dist.")
Shapes = dict[str, tuple[int, ...]]


@dataclass(frozen=True)
class Fit:
    """The weights of a network, and where each is from.

    Args:
        state: by name, as the network takes them.
        loaded: names of those that are as in the file.
        resized: those that were brought to another size, each with the sizes.
        new: names of those that begin anew.
    """

    state: dict[str, Tensor]
    loaded: tuple[str, ...]
    resized: tuple[str, ...]
    new: tuple[str, ...]

    def report(self) -> list[str]:
        """Three lines: loaded, resized, new."""
        count = sum(self.state[name].numel() for name in self.loaded)
        return [
            f"loaded: {len(self.loaded)} of {len(self.state)} tensors, {count:,} parameters",
            f"resized: {', '.join(self.resized) or 'nothing'}",
            f"new: {', '.join(self.new) or 'nothing'}",
        ]


def read(file: str | Path) -> dict[str, Tensor]:
    """The tensors of a file, float32.

    Raises:
        ValueError: no such file, or no tensors in it.
    """
    return {name: one.float() for name, one in opened(file, load_file).items()}


def shapes(file: str | Path) -> Shapes:
    """The sizes of a file's tensors, from its header alone.

    Raises:
        ValueError: as `read`.
    """
    return {name: tuple(one.shape) for name, one in opened(file, headers).items()}


def opened(file: str | Path, read_safetensors: Callable) -> dict[str, Tensor]:
    """The tensors of a file under their plain names, those of a PyTorch checkpoint left on disk."""
    path = Path(file)
    if not path.is_file():
        raise ValueError(f"no weights at {path}: there is no such file")
    try:
        if path.suffix == ".safetensors":
            tensors = read_safetensors(path)
        else:
            lazy = zipfile.is_zipfile(path)  # the format before 2020 is no archive
            tensors = torch.load(path, map_location="cpu", weights_only=True, mmap=lazy)
    except Exception as error:  # both libraries raise kinds of their own for damaged files
        reason = " ".join(str(error).split())[:200]
        raise ValueError(f"{path} cannot be read as weights: {reason}") from error
    for key in ("model", "state_dict"):
        tensors = tensors.get(key, tensors) if isinstance(tensors, dict) else {}
    if not tensors or not all(isinstance(one, Tensor) for one in tensors.values()):
        raise ValueError(f"{path} holds no weights: tensors by name are expected in it")
    return {name.removeprefix("module."): one for name, one in tensors.items()}


def headers(path: Path) -> dict[str, Tensor]:
    """The tensors of a safetensors file without their content."""
    with safe_open(path, "pt") as file:
        names = list(file.keys())
        sizes = {name: file.get_slice(name).get_shape() for name in names}
    return {name: torch.empty(size, device="meta") for name, size in sizes.items()}


def named_inside(path: Path) -> str | None:
    """The architecture that a safetensors file names in its header, as timm's converters write it."""
    if path.suffix != ".safetensors":
        return None
    with safe_open(path, "pt") as file:
        return (file.metadata() or {}).get("architecture")


def native_of(found: Shapes, named: Architecture) -> Architecture:
    """The network that tensors of these sizes are of: as named, at their own size and head.

    Args:
        found: sizes by timm's names.
        named: the architecture they are said to be of.
    """
    changes: dict = {"num_classes": found["head.weight"][0] if "head.weight" in found else 0}
    if "patch_embed.proj.weight" in found:
        changes["patch_size"] = found["patch_embed.proj.weight"][2:]
        rows, cols = named.grid_size
        changes["img_size"] = tuple(
            side if patch == named.patch_size[i] else named.grid_size[i] * patch
            for i, (side, patch) in enumerate(
                zip(named.img_size, changes["patch_size"], strict=True)
            )
        )
        count = found["pos_embed"][1] - named.embedded_prefix if "pos_embed" in found else 0
        side = math.isqrt(max(0, count))
        if count not in (0, rows * cols) and side * side == count:  # saved at another, square size
            changes["img_size"] = tuple(side * patch for patch in changes["patch_size"])
    return replace(named, **changes)


def fit_weights(
    tensors: dict[str, Tensor], native: Architecture, net: VisionTransformer
) -> dict[str, Tensor]:
    """The weights of a network as a network of another size and head takes them; see `fit`."""
    return fit(tensors, native, net).state


def fit(
    tensors: dict[str, Tensor], native: Architecture, net: VisionTransformer, new_head: bool = False
) -> Fit:
    """The weights of a network as a network of another size and head takes them, and a report.

    Args:
        tensors: under timm's names.
        native: the network they are of.
        net: the network they are for; its own head stays where the number of classes differs.
        new_head: its own head stays in any case.

    Raises:
        ValueError: names or shapes are missing, left over, or do not fit: says which.
    """
    wanted, fitted = net.state_dict(), dict(tensors)
    new = ()
    if new_head or native.num_classes != net.architecture.num_classes:
        new = tuple(name for name in wanted if name.startswith(HEADS))
        fitted = {name: one for name, one in fitted.items() if not name.startswith(HEADS)}
        fitted |= {name: wanted[name] for name in new}
    if "pos_embed" in fitted:
        fitted["pos_embed"] = positions_for(net.grid_size, fitted["pos_embed"], native)
    projection = "patch_embed.proj.weight"
    if projection in fitted:
        fitted[projection] = resize_patch_embed(fitted[projection], net.architecture.patch_size)
    check_names(fitted, wanted, set(new))
    resized = {
        name: f"{name} {by(tensors[name].shape)} to {by(one.shape)}"
        for name, one in fitted.items()
        if name not in new and one.shape != tensors[name].shape
    }
    loaded = tuple(name for name in fitted if name not in new and name not in resized)
    return Fit(fitted, loaded, tuple(resized.values()), new)


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


def check_names(tensors: dict[str, Tensor], wanted: dict[str, Tensor], new: set[str]) -> None:
    """Names and shapes are those wanted; `new` ones are the network's own.

    Raises:
        ValueError: some are not; the first few are named.
    """
    given = tensors.keys() - new
    if not given & wanted.keys():
        raise ValueError(
            f"none of the weights' {len(given)} tensors has a name of this network: theirs are "
            f"{', '.join(sorted(given)[:3])}, ..., its own {', '.join(list(wanted)[:3])}, ..."
        )
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
