"""The methods by name: what each takes, over which layers, how its map is called.

B batch, T tokens = P prefix tokens + N patches.
"""

import re
from collections.abc import Callable
from dataclasses import dataclass

from torch import Tensor

from vit.attention_maps import averaged, gathered, rolled
from vit.attention_rows import Fuse, check_fusing, chosen
from vit.class_maps import generic_row, gradcam_row, legrad_row


@dataclass(frozen=True)
class Ask:
    """What a row is computed with.

    Attributes:
        start: the query, each token with its share (B, T).
        fuse: the heads as one, for maps without a class; None: their mean.
        excluded: tokens taken as 0 in every row (B, T), or None.
        prefix: P.
        row_block: rows of attention formed at once.
    """

    start: Tensor
    fuse: Fuse | None
    excluded: Tensor | None
    prefix: int
    row_block: int


@dataclass(frozen=True)
class Method:
    """What sets a method apart.

    Attributes:
        words: what its map is called.
        own: the layers it is defined over.
        takes: which of the arguments that not all methods have it takes.
        row: a value per token (B, T) from the layers and what was asked.
        paper: who describes it, for what is not as they do.
        keeps_start: whether the row still holds what it began with, beside what was found.
    """

    words: str
    own: slice
    takes: tuple[str, ...]
    row: Callable[[list, Ask], Tensor]
    paper: str = ""
    keeps_start: bool = False


METHOD = {
    "rollout": Method(
        "attention rollout",
        slice(None),
        ("query", "heads", "discard"),
        lambda layers, ask: rolled(layers, ask.start, ask.row_block, ask.fuse),
        "Abnar & Zuidema 2020",
    ),
    "raw": Method(
        "attention",
        slice(-1, None),
        ("query", "heads"),
        lambda layers, ask: averaged(layers, ask.start, ask.row_block, ask.fuse),
    ),
    "affinity": Method(
        "attention gathered between patches",
        slice(-3, None),
        ("query", "heads"),
        lambda layers, ask: gathered(layers, ask.start, ask.row_block, ask.fuse, ask.prefix),
    ),
    "generic": Method(
        "generic attribution",
        slice(None),
        ("query", "target"),
        lambda layers, ask: generic_row(layers, ask.start, ask.row_block, ask.excluded),
        "Chefer et al. 2021",
        keeps_start=True,
    ),
    "legrad": Method(
        "LeGrad",
        slice(None),
        ("target",),
        lambda layers, ask: legrad_row(layers, ask.row_block),
        "Bousselham et al. 2024",
    ),
    "gradcam": Method(
        "attention GradCAM",
        slice(-1, None),
        ("target",),
        lambda layers, ask: gradcam_row(layers, ask.start, ask.row_block, ask.prefix),
    ),
}
METHODS = tuple(METHOD)
SINKS = ("show", "exclude")


def check(method: str, sinks: str, **given) -> None:
    """The method takes what is given.

    Raises:
        ValueError: it does not, or there is no such method.
    """
    if method not in METHOD:
        raise ValueError(f'method ("{method}") must be one of {", ".join(METHODS)}')
    if sinks not in SINKS:
        raise ValueError(f'sinks ("{sinks}") must be one of {", ".join(SINKS)}')
    plain = {"query": None, "target": None, "heads": "mean", "discard": 0}
    for name, value in given.items():
        asked = value is not None if plain[name] is None else value != plain[name]
        if asked and name not in METHOD[method].takes:
            able = ", ".join(one for one, how in METHOD.items() if name in how.takes)
            raise ValueError(
                f"{name} ({value}) has no meaning for {method}: leave it out, or use {able}"
            )
    check_fusing(given["heads"], given["discard"], one_head=method in ("raw", "affinity"))


def layers_used(method: str, layers: slice | str | None, depth: int) -> range:
    """The layers that a method's map is of, counted from 0 at the image."""
    if layers is None:
        layers = METHOD[method].own
    return chosen(layers_of(layers, depth) if isinstance(layers, str) else layers, depth)


def label(method: str, layers: range, depth: int, query, heads, discard, sinks) -> str:
    """A map in plain words: the method, its depth, and in what it is not its paper's."""
    words = f"{METHOD[method].words} {depth_words(layers, depth)}"
    if isinstance(heads, int):
        words += f", head {heads + 1}"
    if isinstance(query, tuple):
        words += f", as patch (row {query[0]}, column {query[1]}, from 0) sees it"
    elif query is not None:
        words += f", as patch {query} (row by row, from 0) sees it"
    return words + variants_of(method, heads, discard, sinks)


def variants_of(method: str, heads, discard, sinks) -> str:
    """In what a map is not its paper's, in brackets after its words; empty where it is plain."""
    variants = [f"{heads} over heads"] if heads in ("max", "min") else []
    variants += [f"smallest {discard:.0%} of each row discarded"] if discard else []
    variants += ["outlier patches excluded"] if sinks == "exclude" else []
    unlike = f": unlike {METHOD[method].paper}" if METHOD[method].paper else ""
    return f" ({', '.join(variants)}{unlike})" if variants else ""


def depth_words(layers: range, depth: int) -> str:
    """Which layers of a network of `depth`, in words that follow a method's."""
    if len(layers) == depth:
        return f"over all {depth} layers" if depth > 1 else "over its one layer"
    if len(layers) == 1:
        return f"of layer {layers.stop} of {depth}"
    if layers.stop == depth:
        return f"over the last {len(layers)} of {depth} layers"
    return f"over layers {layers.start + 1} to {layers.stop} of {depth}"


def layers_of(text: str, depth: int) -> slice:
    """Layers as a user writes them: "all", "last:K", "A-B" or "A", counted from 1 at the image.

    Raises:
        ValueError: none of these, or more than the network's `depth` layers.
    """
    how = f'"all", "last:K" (K from 1 to {depth}), "A-B" or "A" (from 1, at the image, to {depth})'
    if text == "all":
        return slice(0, depth)
    if last := re.fullmatch(r"last:(\d+)", text):
        first, end = depth - int(last[1]), depth
    elif span := re.fullmatch(r"(\d+)(?:-(\d+))?", text):
        first, end = int(span[1]) - 1, int(span[2] or span[1])
    else:
        raise ValueError(f'layers ("{text}") must be {how}')
    if not 0 <= first < end <= depth:
        raise ValueError(f'layers ("{text}") are not in the network\'s {depth}: give {how}')
    return slice(first, end)
