"""Where a Vision Transformer looks: network + images -> heat, one number per patch.

Source: Abnar & Zuidema 2020 (arXiv 2005.00928), section 3, attention rollout; read at the class
token's row as Dosovitskiy et al. 2021 (arXiv 2010.11929), appendix D.7, do.

B batch, L layers, T tokens = P prefix tokens + N patches, D embed_dim, H heads, K head width,
R rows (queries) formed at once.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import islice

import torch
from torch import Tensor

from vit.attention import SelfAttention
from vit.model import VisionTransformer


@torch.no_grad()
def rollout(
    net: VisionTransformer,
    images: Tensor,
    *,
    layers: slice | None = None,
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
        row_block: rows of attention formed at once; the result does not depend on it.

    Raises:
        ValueError: images without batch dimension or of another size than the network's, no layer
            selected, row_block below 1.
    """
    with evaluating(net):
        attention = collect(net, images, layers)
        v = query(net, attention[-1][1])  # (B, T)
        for module, x in reversed(attention):
            v = 0.5 * attend(module, x, v, row_block) + 0.5 * v
    return on_grid(net, v)


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


def query(net: VisionTransformer, x: Tensor) -> Tensor:
    """The tokens that the head reads, each with its share of them: tokens (B, T, D) -> (B, T)."""
    v = x.new_zeros(x.shape[:2], dtype=torch.promote_types(x.dtype, torch.float32))
    pooled = slice(0, 1)
    if net.architecture.global_pool == "avg":
        pooled = slice(net.num_prefix_tokens, None)
    v[:, pooled] = 1 / v[:, pooled].shape[1]
    return v


def attend(module: SelfAttention, x: Tensor, v: Tensor, row_block: int) -> Tensor:
    """v E_h A: row vectors (B, T) times the head mean of the attention on x (B, T, D) -> (B, T).

    Rows that v gives no weight are not formed: a class token's first step needs only its own.
    """
    product = torch.zeros_like(v)
    asked = v.any(dim=0).nonzero().flatten().tolist()  # rows with weight in some image
    if not asked:
        return product
    for rows, weights in blocks_of_rows(module, x, range(asked[0], asked[-1] + 1), row_block):
        mean = weights.to(v.dtype).mean(dim=1)  # (B, R, T)
        product += (v[:, None, rows] @ mean)[:, 0]
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


def on_grid(net: VisionTransformer, v: Tensor) -> Tensor:
    """A value per token (B, T) -> a value per patch (B, rows, cols); prefix tokens dropped."""
    return v[:, net.num_prefix_tokens :].unflatten(1, net.grid_size)


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
