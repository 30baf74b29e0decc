"""Where a Vision Transformer looks: network + images -> heat, one number per patch.

Source: Abnar & Zuidema 2020 (arXiv 2005.00928), section 3, attention rollout; read at the class
token's row as Dosovitskiy et al. 2021 (arXiv 2010.11929), appendix D.7, do.

B batch, T tokens = P prefix tokens + N patches.
"""

import re
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from vit import sinks as sink
from vit.attention_rows import (
    OVER_HEADS,
    Fuse,
    Layer,
    attend,
    check_images,
    chosen,
    evaluating,
    fused,
    on_grid,
    one_patch,
    what_is_read,
)
from vit.model import VisionTransformer


@dataclass(frozen=True)
class Method:
    """What sets a method apart.

    Args:
        words: what its map is called.
        own: the layers it is defined over.
        takes: which of the arguments that not all methods have it takes.
    """

    words: str
    own: slice
    takes: tuple[str, ...]


METHOD = {
    "rollout": Method("attention rollout", slice(None), ("query", "heads", "discard")),
    "raw": Method("attention", slice(-1, None), ("query", "heads")),
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
    target: int | Sequence[int] | Tensor | None = None,
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
    used, depth = layers_used(method, layers, len(net.blocks)), len(net.blocks)
    with evaluating(net):
        kept, found, targets = [], None, None
        for number, (module, tokens) in enumerate(net.attention_inputs(images)):
            layer = Layer(module, tokens)
            here = sink.outliers(layer, net.num_prefix_tokens, row_block)
            found = here if found is None else found | here
            kept += [layer] if number in used else []
        fuse = partial(fused, heads=heads, discard=discard)
        if sinks == "exclude":
            fuse = partial(fuse, excluded=found)
        tokens = kept[-1].tokens
        if query is None:
            start = what_is_read(net, images, tokens)
        else:
            start = one_patch(net, images, tokens, query)
        v = (rolled if method == "rollout" else averaged)(kept, start, row_block, fuse)
    heat, outliers = on_grid(net, images, v), on_grid(net, images, found)
    return Explanation(
        heat,
        share(v[:, : net.num_prefix_tokens].sum(dim=1), v.sum(dim=1)),
        outliers,
        share((heat * outliers).sum(dim=(1, 2)), heat.sum(dim=(1, 2))),
        targets,
        used,
        method,
        label(method, used, depth, query=query, heads=heads, discard=discard, sinks=sinks),
    )


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
        if value != plain[name] and name not in METHOD[method].takes:
            able = ", ".join(one for one, how in METHOD.items() if name in how.takes)
            raise ValueError(
                f"{name} ({value}) has no meaning for {method}: leave it out, or use {able}"
            )
    check_fusing(given["heads"], given["discard"], one_head=method == "raw")


def check_fusing(heads: str | int, discard: float, one_head: bool = False) -> None:
    """How heads become one map is known.

    Raises:
        ValueError: it is not.
    """
    if heads not in OVER_HEADS and not (one_head and isinstance(heads, int)):
        more = ", or the number of one" if one_head else ""
        raise ValueError(f'heads ("{heads}") must be one of {", ".join(OVER_HEADS)}{more}')
    if not 0 <= discard < 1:
        raise ValueError(f"discard ({discard}) must be at least 0 and below 1")


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


@torch.no_grad()
def rollout(
    net: VisionTransformer,
    images: Tensor,
    *,
    layers: slice | None = None,
    heads: str = "mean",
    discard: float = 0.0,
    row_block: int = 128,
) -> Tensor:
    """Attention rollout: images (B, in_chans, height, width) -> heat (B, rows, cols).

    The network's query row of A'_L ... A'_2 A'_1, where A'_l is half the head mean of layer l's
    attention and half the identity. Not normalised: the row sums to 1 over all tokens, so 1 minus
    the sum of a map is the share on the prefix tokens, which are dropped.

    Each layer's input is kept, (B, T, D), and attention is formed `row_block` rows at a time:
    O(L T D + row_block * T) memory, never a (T, T) matrix.

    Args:
        layers: which layers, counted from 0 at the image, as a slice without step; None: all.
        heads: "mean" is the paper's; "max" and "min" are common variants and not the paper's.
        discard: share of each attention row, its smallest entries, taken as 0; a fraction in
            [0, 1), and not the paper's where it is above 0.
        row_block: rows of attention formed at once; the result does not depend on it.

    Raises:
        ValueError: images without batch dimension or of another size than the network's, no layer
            selected, another value of an argument than written here.
    """
    check_fusing(heads, discard)
    fuse = partial(fused, heads=heads, discard=discard)
    with evaluating(net):
        kept = collect(net, images, chosen(layers, len(net.blocks)))
        v = rolled(kept, what_is_read(net, images, kept[-1].tokens), row_block, fuse)
    return on_grid(net, images, v)


@torch.no_grad()
def raw(
    net: VisionTransformer,
    images: Tensor,
    *,
    layer: int = -1,
    head: int | None = None,
    row_block: int = 128,
) -> Tensor:
    """One layer's attention, the query row: images (B, C, height, width) -> heat (B, rows, cols).

    As unnormalised as `rollout`: 1 minus the sum of a map is the share on the prefix tokens.

    Args:
        layer: counted from 0 at the image, or from -1 at the head.
        head: one head, counted from 0; None: their mean.
        row_block: rows of attention formed at once; the result does not depend on it.

    Raises:
        ValueError: no such layer or head, or images as in `rollout`.
    """
    depth = len(net.blocks)
    if not -depth <= layer < depth:
        raise ValueError(f"layer ({layer}) must be from {-depth} to {depth - 1}")
    count = net.blocks[layer].attn.num_heads
    if head is not None and not 0 <= head < count:
        raise ValueError(f"head ({head}) must be from 0 to {count - 1}")
    fuse = partial(fused, heads="mean" if head is None else head)
    with evaluating(net):
        kept = collect(net, images, range(layer % depth, layer % depth + 1))
        v = averaged(kept, what_is_read(net, images, kept[-1].tokens), row_block, fuse)
    return on_grid(net, images, v)


def rolled(layers: list[Layer], v: Tensor, row_block: int, fuse: Fuse) -> Tensor:
    """v A'_b ... A'_a over neighbouring layers: rows (B, T) -> (B, T)."""
    for layer in reversed(layers):
        v = 0.5 * attend(layer, v, row_block, fuse) + 0.5 * v
    return v


def averaged(layers: list[Layer], v: Tensor, row_block: int, fuse: Fuse) -> Tensor:
    """The mean of v A_l over layers: rows (B, T) -> (B, T)."""
    return sum(attend(layer, v, row_block, fuse) for layer in layers) / len(layers)


def collect(net: VisionTransformer, images: Tensor, layers: range) -> list[Layer]:
    """The given layers, each with the tokens it receives."""
    check_images(images)
    seen = islice(net.attention_inputs(images), layers.start, layers.stop)
    return [Layer(module, tokens) for module, tokens in seen]


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
