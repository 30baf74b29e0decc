"""The attention of every head for itself: network + images -> a map for each head of each layer.

B batch, L layers, H heads, T tokens = P prefix tokens + N patches, R rows (queries) formed at once.
"""

import torch
from torch import Tensor

from vit.attention_rows import (
    Layer,
    check_images,
    evaluating,
    one_patch,
    what_is_read,
)
from vit.attention_tiles import times_attention
from vit.model import VisionTransformer


@torch.no_grad()
def head_maps(
    net: VisionTransformer,
    images: Tensor,
    layers: range,
    query: tuple[int, int] | None = None,
    row_block: int = 256,
) -> Tensor:
    """The query's attention by each head of each layer, in one pass: (B, L, H, rows, cols).

    Not normalised: 1 minus the sum of a map is the share on the prefix tokens.

    Args:
        layers: counted from 0 at the image.
        query: the patch (row, col) that looks; None: what the head reads.
        row_block: rows of attention formed at once.

    Raises:
        ValueError: images without batch dimension, or no such patch.
    """
    check_images(images)
    found = []
    with evaluating(net):
        for number, (module, tokens) in enumerate(net.attention_inputs(images)):
            if number not in layers:
                continue
            if query is None:
                v = what_is_read(net, images, tokens)
            else:
                v = one_patch(net, images, tokens, query)
            found.append(by_head(Layer(module, tokens), v, row_block))
    grid = net.patch_embed.grid_of(images)
    return torch.stack(found, dim=1)[..., net.num_prefix_tokens :].unflatten(-1, grid)


def by_head(layer: Layer, v: Tensor, row_block: int) -> Tensor:
    """v A_h for each head: rows (B, T) -> (B, H, T)."""
    return times_attention(layer, v, row_block)
