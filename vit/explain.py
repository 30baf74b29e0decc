"""Where a Vision Transformer looks: network + images -> heat, one number per patch.

Source: Abnar & Zuidema 2020 (arXiv 2005.00928), section 3, attention rollout; read at the class
token's row as Dosovitskiy et al. 2021 (arXiv 2010.11929), appendix D.7, do.

B batch, L layers, T tokens = P prefix tokens + N patches, D embed_dim, H heads, K head width,
R rows (queries) formed at once.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from functools import partial
from itertools import islice

import torch
from torch import Tensor

from vit.attention import SelfAttention
from vit.model import VisionTransformer
from vit.pooling import AttentionPool

OVER_HEADS = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


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
    if heads not in OVER_HEADS:
        raise ValueError(f'heads ("{heads}") must be one of {", ".join(OVER_HEADS)}')
    if not 0 <= discard < 1:
        raise ValueError(f"discard ({discard}) must be at least 0 and below 1")
    fuse = partial(fused, heads=heads, discard=discard)
    with evaluating(net):
        attention = collect(net, images, layers)
        v = query(net, images, attention[-1][1])  # (B, T)
        for module, x in reversed(attention):
            v = 0.5 * attend(module, x, v, row_block, fuse) + 0.5 * v
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
    fuse = fused if head is None else lambda weights: weights[:, head]
    with evaluating(net):
        [(module, x)] = collect(net, images, slice(layer % depth, layer % depth + 1))
        v = attend(module, x, query(net, images, x), row_block, fuse)
    return on_grid(net, images, v)


def fused(weights: Tensor, heads: str = "mean", discard: float = 0.0) -> Tensor:
    """All heads' attention as one: (B, H, R, T) -> (B, R, T), each row sums to 1."""
    rows = OVER_HEADS[heads](weights, dim=1)
    smallest = int(discard * rows.shape[-1])
    if smallest:
        order = rows.argsort(dim=-1, stable=True)  # of equal ones the first counts as smaller
        rows = rows.scatter(-1, order[..., :smallest], 0.0)
    if heads == "mean" and not smallest:
        return rows
    return rows / rows.sum(dim=-1, keepdim=True)


def collect(
    net: VisionTransformer, images: Tensor, layers: slice | None
) -> list[tuple[SelfAttention, Tensor]]:
    """The selected layers' attention modules, each with the tokens it receives (B, T, D)."""
    if images.ndim != 4:
        raise ValueError(
            f"images must be (B, channels, height, width), got {tuple(images.shape)}; "
            "for a single image pass image[None]"
        )
    depth = len(net.blocks)
    layers = slice(None) if layers is None else layers
    if layers.step not in (None, 1):
        raise ValueError(f"layers ({layers}) must be a slice of neighbouring layers, without step")
    chosen = range(depth)[layers]
    if not chosen:
        raise ValueError(f"layers ({layers}) selects none of the network's {depth} layers")
    return list(islice(net.attention_inputs(images), chosen.start, chosen.stop))


def query(net: VisionTransformer, images: Tensor, x: Tensor) -> Tensor:
    """The tokens that the head reads, each with its share of them: (B, T).

    The class token; the mean of it and the distillation token; the mean of the patches; or the row
    of the learned query's own attention, which needs the network's last tokens.

    Args:
        x: any layer's tokens (B, T, D).
    """
    last = net.forward_features(images) if isinstance(net.attn_pool, AttentionPool) else x
    return net.attn_pool.shares(last)


def attend(
    module: SelfAttention, x: Tensor, v: Tensor, row_block: int, fuse: Callable[[Tensor], Tensor]
) -> Tensor:
    """v A: row vectors (B, T) times the fused attention on the tokens x (B, T, D) -> (B, T).

    Rows that v gives no weight are not formed: a class token's first step needs only its own.

    Args:
        fuse: all heads' weights as one, (B, H, R, T) -> (B, R, T).
    """
    product = torch.zeros_like(v)
    asked = v.any(dim=0).nonzero().flatten().tolist()  # rows with weight in some image
    if not asked:
        return product
    for rows, weights in blocks_of_rows(module, x, range(asked[0], asked[-1] + 1), row_block):
        product += (v[:, None, rows] @ fuse(weights.to(v.dtype)))[:, 0]
    return product


def blocks_of_rows(
    module: SelfAttention, x: Tensor, rows: range, row_block: int
) -> Iterator[tuple[slice, Tensor]]:
    """`module.weights(x, block)` (B, H, R, T) for each block of at most row_block of the `rows`.

    The keys are the same for every block and projected once, which `weights` alone would repeat.
    """
    if row_block < 1:
        raise ValueError(f"row_block ({row_block}) must be at least 1 row")
    k = module.split_heads(module.project(x, "k"))  # (B, H, T, K)
    for start in rows[::row_block]:
        block = slice(start, min(start + row_block, rows.stop))
        q = module.split_heads(module.project(x[:, block], "q"))  # (B, H, R, K)
        yield block, module.softmax_of(q, k)


def on_grid(net: VisionTransformer, images: Tensor, v: Tensor) -> Tensor:
    """A value per token (B, T) -> a value per patch (B, rows, cols); prefix tokens dropped."""
    return v[:, net.num_prefix_tokens :].unflatten(1, net.patch_embed.grid_of(images))


@contextmanager
def evaluating(net: VisionTransformer) -> Iterator[None]:
    """Dropout and stochastic depth are off inside; each module's own mode is back afterwards."""
    training = [module for module in net.modules() if module.training]
    net.eval()
    try:
        yield
    finally:
        for module in training:
            module.training = True
