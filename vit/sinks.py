"""Patches that collect attention without meaning: outliers, or sinks.

Large networks use a few background patches as registers (Darcet et al. 2024, arXiv 2309.16588,
section 2): they collect attention in every image, whatever is on them, and a map drawn to its
maximum shows them alone. Found here by the attention they receive, which tells more than the norm of
their tokens: in networks trained further the norms may be plain again, the attention is not.

B batch, T tokens = P prefix tokens + N patches, R rows formed at once.
"""

from torch import Tensor

from vit.attention_rows import Layer, zeros_like_row
from vit.attention_tiles import times_attention

MANY_TIMES = 10  # uniform attention, received in some layer: an outlier


def received(layer: Layer, row_block: int = 256) -> Tensor:
    """The attention each token receives, the mean over queries and heads: (B, T), sums to 1."""
    each = zeros_like_row(layer.tokens)
    each += 1 / each.shape[1]
    return times_attention(layer, each, row_block).mean(dim=1)


def outliers(layer: Layer, prefix: int, row_block: int = 256) -> Tensor:
    """Patches that receive more than ten times uniform attention in this layer: (B, T), bool.

    Prefix tokens are none: collecting is their purpose.

    Args:
        prefix: P, how many tokens before the patches.
    """
    share = received(layer, row_block)
    found = share * share.shape[1] > MANY_TIMES
    found[:, :prefix] = False
    return found
