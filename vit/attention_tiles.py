"""Row vectors times each head's attention, the matrix formed in tiles that stay in the cache.

B batch, T tokens, H heads, K head width, R rows (queries) and C columns (keys) formed at once.

What a map costs is forming scores again, and a block of whole rows is too long for a core's cache
where there are thousands of tokens: in tiles the same sums take half the time (benchmarks/rollout.py).
A row's sum, by which softmax divides, is known after its last tile; dividing the vector in its place
costs nothing.
"""

from collections.abc import Callable
from typing import Protocol

import torch
from torch import Tensor

from vit.attention import SelfAttention

COLUMNS = 512  # of a tile, on a CPU

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
    """v A_h for each head: row vectors (B, T) -> (B, H, T).

    Rows that v gives no weight are not formed: a class token's first step needs only its own.

    Args:
        row_block: R, at most.
        weigh: makes of a tile what stands in its place: a product with a factor for each entry.

    Raises:
        ValueError: no rows in a block.
    """
    if row_block < 1:
        raise ValueError(f"row_block ({row_block}) must be at least 1 row")
    keys = layer.module.k_norm(layer.keys()) * layer.module.scale  # (B, H, T, K)
    product = v.new_zeros(*keys.shape[:2], v.shape[1])
    columns = tile_columns(v)
    tiles_of_keys = [keys[:, :, cols].mT.contiguous() for cols in columns]  # (B, H, K, C) each
    rows = asked(v)
    for start in rows[::row_block]:
        block = slice(start, min(start + row_block, rows.stop))
        tiles, sums = exponentials(
            layer.module.q_norm(layer.queries(block)), tiles_of_keys, v.dtype
        )
        shares = v[:, None, None, block] / sums  # (B, H, 1, R)
        for cols, tile in zip(columns, tiles, strict=True):
            factor = tile if weigh is None else weigh(block, cols, tile)
            product[:, :, cols] += (shares @ factor)[:, :, 0]
    return product


def exponentials(q: Tensor, keys: list[Tensor], dtype: torch.dtype) -> tuple[list[Tensor], Tensor]:
    """Weights not yet divided: tiles (B, H, R, C), and each row's sum over all of them (B, H, 1, R).

    Each row is shifted by its largest score in the first tile, so its sum is at least 1. Where a
    later score is larger by so much that its exponential overflows, the rows are formed whole.

    Args:
        q: queries (B, H, R, K).
        keys: scaled, a tile of columns each, (B, H, K, C).
        dtype: of the weights.
    """
    tiles = [(q @ tile).to(dtype) for tile in keys[:1]]
    if len(keys) > 1:
        top = tiles[0].amax(dim=-1, keepdim=True)  # (B, H, R, 1)
        tiles[0].sub_(top).exp_()
        tiles += [(q @ tile).to(dtype).sub_(top).exp_() for tile in keys[1:]]
        sums = sum(tile.sum(dim=-1) for tile in tiles)[:, :, None]
        if sums.isfinite().all():
            return tiles, sums
        tiles = [(q @ tile).to(dtype) for tile in keys]
    weights = torch.cat(tiles, dim=-1).softmax(dim=-1)
    return list(weights.split([tile.shape[-1] for tile in keys], dim=-1)), weights.new_ones(())


def tile_columns(v: Tensor) -> list[slice]:
    """The columns of each tile, for row vectors (B, T): all at once where there is no CPU's cache."""
    count = v.shape[1]
    width = COLUMNS if v.device.type == "cpu" else count
    return [slice(start, min(start + width, count)) for start in range(0, count, width)]


def asked(v: Tensor) -> range:
    """The rows from the first to the last with weight in some image, of (B, T)."""
    weighty = v.any(dim=0).nonzero().flatten().tolist()
    return range(weighty[0], weighty[-1] + 1) if weighty else range(0)
