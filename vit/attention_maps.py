"""Maps of attention alone, which know of no class: rollout, the weights as they are, affinity.

Sources: Abnar & Zuidema 2020 (arXiv 2005.00928), section 3, attention rollout; read at the class
token's row as Dosovitskiy et al. 2021 (arXiv 2010.11929), appendix D.7, do. Xu et al. 2022,
MCTformer (arXiv 2203.02891), section 3.3: attention between patches refines a class's map.

B batch, L layers, T tokens = P prefix tokens + N patches, D embed_dim.
"""

from itertools import islice

import torch
from torch import Tensor

from vit.attention_rows import (
    Fuse,
    Layer,
    as_shares,
    attend,
    blocks_of_rows,
    check_fusing,
    check_images,
    chosen,
    evaluating,
    fused,
    fusing,
    on_grid,
    what_is_read,
)
from vit.model import VisionTransformer


@torch.no_grad()
def rollout(
    net: VisionTransformer,
    images: Tensor,
    *,
    layers: slice | None = None,
    heads: str = "mean",
    discard: float = 0.0,
    row_block: int = 256,
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
    fuse = fusing(heads, discard)
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
    row_block: int = 256,
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
    fuse = fusing("mean" if head is None else head)
    with evaluating(net):
        kept = collect(net, images, range(layer % depth, layer % depth + 1))
        v = averaged(kept, what_is_read(net, images, kept[-1].tokens), row_block, fuse)
    return on_grid(net, images, v)


def rolled(layers: list[Layer], v: Tensor, row_block: int, fuse: Fuse | None) -> Tensor:
    """v A'_b ... A'_a over neighbouring layers: rows (B, T) -> (B, T)."""
    for layer in reversed(layers):
        v = 0.5 * attend(layer, v, row_block, fuse) + 0.5 * v
    return v


def averaged(layers: list[Layer], v: Tensor, row_block: int, fuse: Fuse | None) -> Tensor:
    """The mean of v A_l over layers: rows (B, T) -> (B, T)."""
    return sum(attend(layer, v, row_block, fuse) for layer in layers) / len(layers)


def gathered(
    layers: list[Layer], v: Tensor, row_block: int, fuse: Fuse | None, prefix: int
) -> Tensor:
    """Affinity: A"_b ... A"_a r over the layers a to b, r the row v A_b: rows (B, T) -> (B, T).

    A" is the attention between patches alone, rows that sum to 1. So a patch's value is what the
    query gives to the patches that this patch itself looks at: an object's patches look at each
    other, and what falls on the background by chance is left to itself. MCTformer does this once,
    with the mean of all layers; layer by layer over the last three was found better
    (benchmarks/explain.py). The prefix tokens have 0.
    """
    heat = attend(layers[-1], v, row_block, fuse)[:, prefix:]
    whole = fuse or fused
    for layer in layers:
        steps = [
            between(whole(weights.to(v.dtype)), prefix) @ heat[..., None]  # (B, R, 1)
            for _, weights in blocks_of_rows(layer, range(prefix, v.shape[1]), row_block)
        ]
        heat = torch.cat(steps, dim=1)[..., 0]
    return torch.nn.functional.pad(heat, (prefix, 0))


def between(rows: Tensor, prefix: int) -> Tensor:
    """Rows (B, R, T) -> what they give to patches, as shares of it: (B, R, N)."""
    return as_shares(rows[..., prefix:])


def collect(net: VisionTransformer, images: Tensor, layers: range) -> list[Layer]:
    """The given layers, each with the tokens it receives."""
    check_images(images)
    seen = islice(net.attention_inputs(images), layers.start, layers.stop)
    return [Layer(module, tokens) for module, tokens in seen]
