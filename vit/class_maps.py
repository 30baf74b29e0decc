"""Maps of a class: attention weighed by how the class's score changes with it, one query row.

Sources: Chefer, Gur & Wolf 2021, Generic attention-model explainability (arXiv 2103.15679), eq. 5 and
6 (generic attribution); Bousselham et al. 2024 (arXiv 2404.03214), section 3 (LeGrad); Chefer, Gur &
Wolf 2021, Transformer interpretability beyond attention visualization (arXiv 2012.09838), section 4
(GradCAM on attention, a baseline there).

B batch, T tokens = P prefix tokens + N patches, H heads, R rows and C columns formed at once.
"""

from collections.abc import Iterable
from functools import partial

from torch import Tensor

from vit.attention_rows import zeros_like_row
from vit.attention_tiles import times_attention
from vit.gradients import Traced


def generic_row(
    layers: list[Traced], v: Tensor, row_block: int, excluded: Tensor | None = None
) -> Tensor:
    """v R with R <- R + E_h (dS/dA * A)+ R over the layers: rows (B, T) -> (B, T).

    R begins as the identity, so v itself is part of the result: of a class token on the class token
    alone, which no map shows; of a mean of patches 1/N on each; of one patch 1 on it. That is no
    relevance that was found, and shares of the map's mass leave it out.

    Args:
        excluded: tokens taken as 0 in every row, (B, T).
    """
    for layer in reversed(layers):
        step = times_attention(layer, v, row_block, partial(times_slopes, layer)).mean(dim=1)
        v = v + (step if excluded is None else step.masked_fill(excluded, 0.0))
    return v


def times_slopes(layer: Traced, rows: slice, columns: slice, weights: Tensor) -> Tensor:
    """(dS/dA)+ * A, which is (dS/dA * A)+ as no weight is below 0: (B, H, R, C) -> (B, H, R, C)."""
    return layer.slopes(rows, columns).to(weights.dtype).clamp_(min=0).mul_(weights)


def legrad_row(layers: Iterable[Traced], row_block: int) -> Tensor:
    """The mean of (ds_l/dA_l)+ over layers, heads and queries: (B, T)."""
    rows = []
    for layer in layers:
        total, count = zeros_like_row(layer.v[:, 0]), layer.v.shape[2]
        for start in range(0, count, row_block):
            slopes = layer.slopes(slice(start, start + row_block)).to(total.dtype)
            total += slopes.clamp_(min=0).sum(dim=2).mean(dim=1)
        rows.append(total / count)
    return sum(rows) / len(rows)


def gradcam_row(layers: list[Traced], v: Tensor, row_block: int, prefix: int) -> Tensor:
    """(E_h w_h v A_h)+ with w_h the mean of v dS/dA_h over patches: (B, T), the mean over layers."""
    maps = []
    for layer in layers:
        slope = (v[:, None, None].to(layer.slope.dtype) @ layer.slope @ layer.v.mT)[:, :, 0]
        seen = times_attention(layer, v, row_block)  # (B, H, T), as the slope
        weight = slope[..., prefix:].mean(dim=-1, keepdim=True)  # (B, H, 1)
        maps.append((weight * seen).mean(dim=1).clamp(min=0))
    return sum(maps) / len(maps)
