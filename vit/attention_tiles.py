"""Row vectors times each head's attention, the matrix formed in tiles that stay in the cache.

B batch, T tokens, H heads, K head width, R rows (queries) and C columns (keys) formed at once.

What a map costs is forming scores again, and a block of whole rows is too long for a core's cache
where there are thousands of tokens: at 4,097, on two cores, tiles took two thirds of the time. A
row's sum, by which softmax divides, is known after its last tile; dividing the vector in its place
costs nothing.
"""

import math
from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from vit.attention import SelfAttention

COLUMNS = 512  # of a tile, on a CPU
LARGE = 1e30  # of float32's 3e38; a share divided by it still has all its digits

Weigh = Callable[[slice, slice, Tensor], Tensor]  # rows, columns, tile (B, H, R, C) -> (B, H, R, C)


class Attention(Protocol):
    """A layer's attention, from which rows can be formed."""

    module: SelfAttention

    def queries(self, rows: slice) -> Tensor:
        """As projected, of some rows: (B, H, R, K)."""

    def keys(self) -> Tensor:
        """As projected: (B, H, T, K)."""


@torch.no_grad()
def times_attention(
    layer: Attention, v: Tensor, row_block: int, weigh: Weigh | None = None
) -> Tensor:
    """v A_h for each head: row vectors v (B, T), in float32 at least -> (B, H, T).

    Rows that v gives no weight are not formed: a class token's first step needs only its own.

    Args:
        row_block: R, at most.
        weigh: makes of a tile what stands in its place: a product with a factor for each entry.

    Raises:
        ValueError: no rows in a block.
    """
    if row_block < 1:
        raise ValueError(f"row_block ({row_block}) must be at least 1 row")
    rows, columns = asked(v), tile_columns(v)
    q, keys = projected(layer, slice(rows.start, rows.stop), columns, v.dtype)
    batch, heads = len(v), len(q) // len(v)
    room = [v.new_empty(len(q) * min(row_block, len(rows)) * key.shape[2]) for key in keys]
    product = v.new_zeros(len(q), 1, v.shape[1])  # (B * H, 1, T)
    for start in range(0, len(rows), row_block):
        tiles, sums = powers(q[:, start : start + row_block], keys, room)
        block = slice(rows.start + start, rows.start + start + tiles[0].shape[1])
        shares = v[:, block].repeat_interleave(heads, dim=0)[:, None] / sums  # (B * H, 1, R)
        for cols, tile in zip(columns, tiles, strict=True):
            factor = weigh(block, cols, tile.unflatten(0, (batch, heads))) if weigh else tile
            product[:, :, cols] += shares @ factor.view(tile.shape)
    return product.view(batch, heads, -1)


def projected(
    layer: Attention, rows: slice, columns: list[slice], dtype: torch.dtype
) -> tuple[Tensor, list[Tensor]]:
    """Queries (B * H, R, K) and tiles of keys (B * H, K, C) whose products are scores / ln 2.

    The scores of each row are less their mean, which softmax does not see: it takes from all keys
    what they share. e^score is 2^(score / ln 2), which is the faster power.
    """
    q = layer.module.q_norm(layer.queries(rows)).to(dtype).flatten(0, 1)
    k = layer.module.k_norm(layer.keys()).to(dtype).flatten(0, 1)
    shared, scale = k.mean(dim=1, keepdim=True), layer.module.scale / math.log(2)
    return q, [((k[:, cols] - shared) * scale).mT.contiguous() for cols in columns]


def powers(q: Tensor, keys: list[Tensor], room: list[Tensor]) -> tuple[list[Tensor], Tensor]:
    """2^(q k) in tiles (B * H, R, C), and each row's sum over all of them (B * H, 1, R).

    As scores have mean 0, no sum is below T. Where one is above `LARGE`, powers are near overflowing:
    they are formed again, with each row shifted by its largest score. Scores 69 above their mean are
    rare in trained networks, so looking for the largest first would be time lost.

    Args:
        q: queries (B * H, R, K).
        keys: a tile of columns each, (B * H, K, C).
        room: for a tile each, written over: memory of this size is slow to get.
    """
    tiles = products(q, keys, room)
    sums = sum(tile.exp2_().sum(dim=-1, keepdim=True) for tile in tiles)  # (B * H, R, 1)
    if not (sums < LARGE).all():
        tiles = products(q, keys, room)
        top = torch.cat([tile.amax(dim=-1, keepdim=True) for tile in tiles], dim=-1)
        top = top.amax(dim=-1, keepdim=True)
        sums = sum(tile.sub_(top).exp2_().sum(dim=-1, keepdim=True) for tile in tiles)
    return tiles, sums.mT


def products(q: Tensor, keys: list[Tensor], room: list[Tensor]) -> list[Tensor]:
    """q k in tiles, as `powers`."""
    shapes = [(*q.shape[:2], key.shape[2]) for key in keys]
    return [
        torch.bmm(q, key, out=space[: math.prod(shape)].view(shape))
        for key, space, shape in zip(keys, room, shapes, strict=True)
    ]


def tile_columns(v: Tensor) -> list[slice]:
    """The columns of each tile, for row vectors (B, T): all at once where there is no CPU's cache."""
    count = v.shape[1]
    width = COLUMNS if v.device.type == "cpu" else count
    return [slice(start, min(start + width, count)) for start in range(0, count, width)]


def asked(v: Tensor) -> range:
    """The rows from the first to the last with weight in some image, of (B, T)."""
    weighty = v.any(dim=0).nonzero().flatten().tolist()
    return range(weighty[0], weighty[-1] + 1) if weighty else range(0)
