"""A network's attention, a block of rows at a time: what every explanation is computed from.

B batch, T tokens = P prefix tokens + N patches, D embed_dim, H heads, K head width, R rows
(queries) formed at once.

A layer is kept as its attention module and the tokens it received, (B, T, D), or as the queries and
keys it made of them (vit/gradients.py). Its (T, T) matrix is formed in blocks of R rows, which are
used and dropped: O(T D + R T) memory.
"""

import math
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor

from vit.attention import SelfAttention
from vit.attention_tiles import asked, times_attention
from vit.model import VisionTransformer
from vit.pooling import AttentionPool

Fuse = Callable[[Tensor], Tensor]  # all heads' weights as one: (B, H, R, T) -> (B, R, T)

OVER_HEADS = {"mean": torch.mean, "max": torch.amax, "min": torch.amin}


@dataclass(frozen=True)
class Layer:
    """A layer's attention on the tokens it received (B, T, D)."""

    module: SelfAttention
    tokens: Tensor

    def queries(self, rows: slice) -> Tensor:
        """As projected, of some rows: (B, H, R, K)."""
        return self.module.split_heads(self.module.project(self.tokens[:, rows], "q"))

    def keys(self) -> Tensor:
        """As projected: (B, H, T, K)."""
        return self.module.split_heads(self.module.project(self.tokens, "k"))


def chosen(layers: slice | None, depth: int) -> range:
    """The layers of a slice, counted from 0 at the image; None: all.

    Raises:
        ValueError: a slice with a step, or of no layer.
    """
    layers = slice(None) if layers is None else layers
    if layers.step not in (None, 1):
        raise ValueError(f"layers ({layers}) must be a slice of neighbouring layers, without step")
    if not range(depth)[layers]:
        raise ValueError(f"layers ({layers}) selects none of the network's {depth} layers")
    return range(depth)[layers]


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


def check_images(images: Tensor) -> None:
    """Images are a batch.

    Raises:
        ValueError: they are not.
    """
    if images.ndim != 4:
        raise ValueError(
            f"images must be (B, channels, height, width), got {tuple(images.shape)}; "
            "for a single image pass image[None]"
        )


def what_is_read(net: VisionTransformer, images: Tensor, tokens: Tensor) -> Tensor:
    """The tokens that the head reads, each with its share of them: (B, T).

    The class token; the mean of it and the distillation token; the mean of the patches; or the row
    of the learned query's own attention, which needs the network's last tokens.

    Args:
        tokens: any layer's (B, T, D).
    """
    pools = isinstance(net.attn_pool, AttentionPool)
    return net.attn_pool.shares(net.forward_features(images) if pools else tokens)


def one_patch(
    net: VisionTransformer, images: Tensor, tokens: Tensor, patch: int | tuple[int, int]
) -> Tensor:
    """One patch as the query, 1 at its token: (B, T).

    Args:
        tokens: any layer's (B, T, D).
        patch: its number, row by row from 0, or (row, col).

    Raises:
        ValueError: the grid has no such patch.
    """
    rows, cols = net.patch_embed.grid_of(images)
    row, col = divmod(patch, cols) if isinstance(patch, int) else patch
    if not (0 <= row < rows and 0 <= col < cols):
        raise ValueError(
            f"query ({patch}) is no patch of the {rows}x{cols} grid: give its number from 0 to "
            f"{rows * cols - 1}, or (row, col) from (0, 0) to ({rows - 1}, {cols - 1})"
        )
    v = zeros_like_row(tokens)
    v[:, net.num_prefix_tokens + row * cols + col] = 1
    return v


def zeros_like_row(tokens: Tensor) -> Tensor:
    """A zero for each token, in float32 at least: (B, T, D) -> (B, T)."""
    return tokens.new_zeros(
        tokens.shape[:2], dtype=torch.promote_types(tokens.dtype, torch.float32)
    )


def fused(
    weights: Tensor,
    heads: str | int = "mean",
    discard: float = 0.0,
    excluded: Tensor | None = None,
) -> Tensor:
    """All heads' attention as one: (B, H, R, T) -> (B, R, T), each row sums to 1.

    Args:
        heads: "mean", "max" or "min" over heads, or the number of one.
        discard: share of each row, its smallest entries, taken as 0.
        excluded: tokens taken as 0 in every row, (B, T).
    """
    rows = weights[:, heads] if isinstance(heads, int) else OVER_HEADS[heads](weights, dim=1)
    smallest = math.floor(discard * rows.shape[-1] + 1e-9)  # 0.29 * 100 is just below 29
    whole = (heads == "mean" or isinstance(heads, int)) and not smallest and excluded is None
    if excluded is not None:
        rows = rows.masked_fill(excluded[:, None], 0.0)
    if smallest:
        order = rows.argsort(dim=-1, stable=True)  # of equal ones the first counts as smaller
        rows = rows.scatter(-1, order[..., :smallest], 0.0)
    return rows if whole else as_shares(rows)


def as_shares(rows: Tensor) -> Tensor:
    """Each row divided by its sum; a row of zeros stays one: (..., T)."""
    return rows / rows.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(rows.dtype).tiny)


def fusing(
    heads: str | int = "mean", discard: float = 0.0, excluded: Tensor | None = None
) -> Fuse | None:
    """`fused` with these arguments; None where that is the heads' mean, which `attend` has faster."""
    if heads == "mean" and not discard and excluded is None:
        return None
    return partial(fused, heads=heads, discard=discard, excluded=excluded)


def attend(layer: Layer, v: Tensor, row_block: int, fuse: Fuse | None = None) -> Tensor:
    """v A: row vectors (B, T) times the layer's fused attention -> (B, T).

    Args:
        fuse: None: the heads' mean, for which each head is multiplied by itself.
    """
    if fuse is None:
        return times_attention(layer, v, row_block).mean(dim=1)
    product = torch.zeros_like(v)
    for rows, weights in blocks_of_rows(layer, asked(v), row_block):
        product += (v[:, None, rows] @ fuse(weights.to(v.dtype)))[:, 0]
    return product


def blocks_of_rows(layer: Layer, rows: range, row_block: int) -> Iterator[tuple[slice, Tensor]]:
    """The layer's weights (B, H, R, T) for each block of at most row_block of the `rows`.

    The keys are the same for every block and projected once.
    """
    if row_block < 1:
        raise ValueError(f"row_block ({row_block}) must be at least 1 row")
    k = layer.keys() if rows else None
    for start in rows[::row_block]:
        block = slice(start, min(start + row_block, rows.stop))
        yield block, layer.module.softmax_of(layer.queries(block), k)


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
