"""Where a Vision Transformer looks: network + images -> heat, one number per patch, by any method.

The methods themselves are in attention_maps.py (no class) and class_maps.py (a class's).

B batch, T tokens = P prefix tokens + N patches.
"""

from collections.abc import Iterable
from dataclasses import dataclass

import torch
from torch import Tensor

from vit import gradients
from vit import sinks as sink
from vit.attention_maps import raw, rollout
from vit.attention_rows import (
    Layer,
    check_images,
    evaluating,
    fusing,
    on_grid,
    one_patch,
    what_is_read,
)
from vit.methods import METHOD, METHODS, SINKS, Ask, check, label, layers_of, layers_used
from vit.model import VisionTransformer

__all__ = ["METHOD", "METHODS", "SINKS", "Explanation", "explain", "layers_of", "raw", "rollout"]


@dataclass(frozen=True)
class Explanation:
    """Where the network looks on each of a batch of images, and what was asked.

    Attributes:
        heat: a value per patch, not normalised: (B, rows, cols). For rollout and raw, shares of a
            mass of 1 over all tokens.
        prefix_share: share of the map's mass on the prefix tokens, which heat leaves out: (B,); of
            generic without the identity that it begins with.
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
    row_block: int = 256,
) -> Explanation:
    """Where the network looks on images (B, in_chans, height, width), by any method.

    Args:
        method: one of METHODS.
        layers: which layers, as a slice counted from 0 at the image or as `layers_of` reads it;
            None: the method's own (vit/methods.py): all of them for rollout, the last for raw, whose
            map over several layers is the mean of theirs.
        query: the patch that looks, its number row by row or (row, col); None: what the head reads.
        target: the class to explain, one for all images or one for each, by number; None: the
            predicted one. For several classes of an image call once for each. Only for methods
            that explain a class.
        heads: "mean", "max" or "min" over heads; for raw and affinity also the number of
            one head.
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
    check_head_number(net, heads)
    with evaluating(net):
        seen, targets = look(net, images, method, target, used)
        kept, found = keep(seen, used, prefix, row_block)
        excluded = found if sinks == "exclude" else None
        ask = Ask(
            start=starting(net, images, kept[-1].tokens, query),
            fuse=fusing(heads, discard, excluded),
            excluded=excluded,
            prefix=prefix,
            row_block=row_block,
        )
        v = METHOD[method].row(kept, ask)
    v = v if excluded is None else v.masked_fill(excluded, 0.0)
    heat, outliers = on_grid(net, images, v), on_grid(net, images, found)
    mass = found_mass(method, v, ask)
    return Explanation(
        heat,
        share(mass[:, :prefix].sum(dim=1), mass.sum(dim=1)),
        outliers,
        share((heat * outliers).sum(dim=(1, 2)), heat.sum(dim=(1, 2))),
        targets,
        used,
        method,
        label(method, used, depth, query=query, heads=heads, discard=discard, sinks=sinks),
    )


def found_mass(method: str, v: Tensor, ask: Ask) -> Tensor:
    """A row (B, T) without what it began with, where the method keeps that in it."""
    if not METHOD[method].keeps_start:
        return v
    start = ask.start if ask.excluded is None else ask.start.masked_fill(ask.excluded, 0.0)
    return (v - start).clamp(min=0)  # what is rounded below 0 is nothing


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


def share(part: Tensor, whole: Tensor) -> Tensor:
    """part / whole, and 0 of nothing: each (B,)."""
    return torch.where(whole > 0, part / whole, torch.zeros_like(whole))


def check_head_number(net: VisionTransformer, heads: str | int) -> None:
    """The layers have a head of that number, where it is one.

    Raises:
        ValueError: they do not.
    """
    count = net.architecture.num_heads
    if isinstance(heads, int) and not 0 <= heads < count:
        raise ValueError(f"heads ({heads}) must be from 0 to {count - 1}")
