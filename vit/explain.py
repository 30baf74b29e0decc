"""Where a Vision Transformer looks: network + images -> heat, one number per patch, by any method.

The methods themselves are in attention_maps.py (no class) and class_maps.py (a class's).

B batch, T tokens = P prefix tokens + N patches.
"""

import re
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vit import gradients
from vit import sinks as sink
from vit.attention_maps import averaged, raw, rolled, rollout
from vit.attention_rows import (
    Fuse,
    Layer,
    check_fusing,
    check_images,
    chosen,
    evaluating,
    fused,
    on_grid,
    one_patch,
    what_is_read,
)
from vit.class_maps import generic_row, gradcam_row, legrad_row
from vit.model import VisionTransformer

__all__ = ["METHODS", "SINKS", "Explanation", "explain", "layers_of", "raw", "rollout"]


@dataclass(frozen=True)
class Ask:
    """What a row is computed with.

    Attributes:
        start: the query, each token with its share (B, T).
        fuse: the heads as one, for maps without a class.
        excluded: tokens taken as 0 in every row (B, T), or None.
        prefix: P.
        row_block: rows of attention formed at once.
    """

    start: Tensor
    fuse: Fuse
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
    """

    words: str
    own: slice
    takes: tuple[str, ...]
    row: Callable[[list, Ask], Tensor]


METHOD = {
    "rollout": Method(
        "attention rollout",
        slice(None),
        ("query", "heads", "discard"),
        lambda layers, ask: rolled(layers, ask.start, ask.row_block, ask.fuse),
    ),
    "raw": Method(
        "attention",
        slice(-1, None),
        ("query", "heads"),
        lambda layers, ask: averaged(layers, ask.start, ask.row_block, ask.fuse),
    ),
    "generic": Method(
        "generic attribution",
        slice(None),
        ("query", "target"),
        lambda layers, ask: generic_row(layers, ask.start, ask.row_block, ask.excluded),
    ),
    "legrad": Method(
        "LeGrad",
        slice(None),
        ("target",),
        lambda layers, ask: legrad_row(layers, ask.row_block),
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


@dataclass(frozen=True)
class Explanation:
    """Where the network looks on each of a batch of images, and what was asked.

    Attributes:
        heat: a value per patch, not normalised: (B, rows, cols). For rollout and raw, shares of a
            mass of 1 over all tokens.
        prefix_share: share of the map's mass on the prefix tokens, which heat leaves out: (B,).
        outliers: patches that collect attention everywhere (vit/sinks.py): (B, rows, cols), bool.
        outlier_share: share of heat's own mass on them, 0 where they are excluded: (B,).
        targets: the class explained, for methods that explain one: (B,); else None.
        layers: which layers the map is computed from, counted from 0 at the image.
        method: one of METHODS.
        label: the map in plain words, to stand beside it.
    """

    heat: Tensor
    prefix_share: Tensor
    outliers: Tensor
    outlier_share: Tensor
    targets: Tensor | None
    layers: range
    method: str
    label: str


@torch.no_grad()
def explain(
    net: VisionTransformer,
    images: Tensor,
    method: str = "rollout",
    *,
    layers: slice | str | None = None,
    query: int | tuple[int, int] | None = None,
    target: gradients.Target = None,
    heads: str | int = "mean",
    discard: float = 0.0,
    sinks: str = "show",
    row_block: int = 128,
) -> Explanation:
    """Where the network looks on images (B, in_chans, height, width), by any method.

    Args:
        method: one of METHODS.
        layers: which layers, as a slice counted from 0 at the image or as `layers_of` reads it;
            None: the method's own, which is all of them for rollout and the last for raw, whose
            map over several layers is the mean of theirs.
        query: the patch that looks, its number row by row or (row, col); None: what the head reads.
        target: the class to explain, one for all images or one for each, by number; None: the
            predicted one. For several classes of an image call once for each. Only for methods
            that explain a class.
        heads: "mean", "max" or "min" over heads; for raw also the number of one head.
        discard: share of each attention row, its smallest entries, taken as 0; rollout only.
        sinks: "show" or "exclude", which takes outlier patches as 0 in every row.
        row_block: rows of attention formed at once; the result does not depend on it.

    Raises:
        ValueError: a value other than written here, or an argument the method has no use for.
    """
    check(method, query=query, target=target, heads=heads, discard=discard, sinks=sinks)
    check_images(images)
    depth, prefix = len(net.blocks), net.num_prefix_tokens
    used = layers_used(method, layers, depth)
    with evaluating(net):
        seen, targets = look(net, images, method, target, used)
        kept, found = keep(seen, used, prefix, row_block)
        excluded = found if sinks == "exclude" else None
        ask = Ask(
            start=starting(net, images, kept[-1].tokens, query),
            fuse=partial(fused, heads=heads, discard=discard, excluded=excluded),
            excluded=excluded,
            prefix=prefix,
            row_block=row_block,
        )
        v = METHOD[method].row(kept, ask)
    v = v if excluded is None else v.masked_fill(excluded, 0.0)
    heat, outliers = on_grid(net, images, v), on_grid(net, images, found)
    return Explanation(
        heat,
        share(v[:, :prefix].sum(dim=1), v.sum(dim=1)),
        outliers,
        share((heat * outliers).sum(dim=(1, 2)), heat.sum(dim=(1, 2))),
        targets,
        used,
        method,
        label(method, used, depth, query=query, heads=heads, discard=discard, sinks=sinks),
    )


def look(
    net: VisionTransformer, images: Tensor, method: str, target: gradients.Target, used: range
) -> tuple[Iterable[Layer | gradients.Traced], Tensor | None]:
    """All layers, with what the method needs of each, and the classes it explains."""
    if "target" not in METHOD[method].takes:
        return (Layer(*layer) for layer in net.attention_inputs(images)), None
    if method == "legrad":
        return gradients.trace_each(net, images, target)
    return gradients.trace(net, images, target, used)


def keep(seen: Iterable, used: range, prefix: int, row_block: int) -> tuple[list, Tensor]:
    """The layers used, and the outliers found in all layers (B, T)."""
    kept, found = [], None
    for number, layer in enumerate(seen):
        here = sink.outliers(layer, prefix, row_block)
        found = here if found is None else found | here
        kept += [layer] if number in used else []
    return kept, found


def starting(net: VisionTransformer, images: Tensor, tokens: Tensor, query) -> Tensor:
    """The query, each token with its share of it: (B, T)."""
    if query is None:
        return what_is_read(net, images, tokens)
    return one_patch(net, images, tokens, query)


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
    check_fusing(given["heads"], given["discard"], one_head=method == "raw")


def layers_used(method: str, layers: slice | str | None, depth: int) -> range:
    """The layers that a method's map is of, counted from 0 at the image."""
    if layers is None:
        layers = METHOD[method].own
    return chosen(layers_of(layers, depth) if isinstance(layers, str) else layers, depth)


def share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and 0 of nothing: each (B,)."""
    return torch.where(whole > 0, part / whole, torch.zeros_like(whole))


def label(method: str, layers: range, depth: int, query, heads, discard, sinks) -> str:
    """A map in plain words: the method, its depth, and in what it is not the paper's."""
    if len(layers) == depth:
        words = f"{METHOD[method].words} over all {depth} layers" if depth > 1 else "its one layer"
    elif len(layers) == 1:
        words = f"{METHOD[method].words} of layer {layers.stop} of {depth}"
    elif layers.stop == depth:
        words = f"{METHOD[method].words} over the last {len(layers)} of {depth} layers"
    else:
        words = f"{METHOD[method].words} over layers {layers.start + 1} to {layers.stop} of {depth}"
    if isinstance(heads, int):
        words += f", head {heads + 1}"
    if query is not None:
        words += f", as patch {query} sees it"
    variants = [f"{heads} over heads"] if heads in ("max", "min") else []
    variants += [f"smallest {discard:.0%} of each row discarded"] if discard else []
    variants += ["outlier patches excluded"] if sinks == "exclude" else []
    return words + (f" ({', '.join(variants)}: not the paper's)" if variants else "")


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
