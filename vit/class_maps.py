"""Maps of a class: attention weighed by how the class's score changes with it, one query row.

Sources: Chefer, Gur & Wolf 2021, Generic attention-model explainability (arXiv 2103.15679), eq. 5 and
6 (generic attribution); Bousselham et al. 2024 (arXiv 2404.03214), section 3 (LeGrad); Chefer, Gur &
Wolf 2021, Transformer interpretability beyond attention visualization (arXiv 2012.09838), section 4
(GradCAM on attention, a baseline there).

B batch, T tokens = P prefix tokens + N patches, H heads, R rows formed at once.
"""

from collections.abc import Iterable

import torch
from torch import Tensor

from vit.attention_rows import asked, blocks_of_rows, zeros_like_row
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
        step = torch.zeros_like(v)
        for rows, weights in blocks_of_rows(layer, asked(v), row_block):
            weighed = layer.slopes(rows).to(v.dtype) * weights.to(v.dtype)  # (B, H, R, T)
            step += (v[:, None, rows] @ weighed.clamp(min=0).mean(dim=1))[:, 0]
        v = v + (step if excluded is None else step.masked_fill(excluded, 0.0))
    return v


def legrad_row(layers: Iterable[Traced], row_block: int) -> Tensor:
    """The mean of (ds_l/dA_l)+ over layers, heads and queries: (B, T)."""
    rows = []
    for layer in layers:
        total, count = zeros_like_row(layer.v[:, 0]), layer.v.shape[2]
        for start in range(0, count, row_block):
            slopes = layer.slopes(slice(start, start + row_block)).to(total.dtype)
            total += slopes.clamp(min=0).mean(dim=1).sum(dim=1)
        rows.append(total / count)
    return sum(rows) / len(rows)


def gradcam_row(layers: list[Traced], v: Tensor, row_block: int, prefix: int) -> Tensor:
    """(E_h w_h v A_h)+ with w_h the mean of v dS/dA_h over patches: (B, T), the mean over layers."""
    maps = []
    for layer in layers:
        slope = seen = 0
        for rows, weights in blocks_of_rows(layer, asked(v), row_block):
            part = v[:, None, None, rows]
            slope = slope + (part @ layer.slopes(rows).to(v.dtype))[:, :, 0]  # (B, H, T)
            seen = seen + (part @ weights.to(v.dtype))[:, :, 0]  # (B, H, T)
        weight = slope[..., prefix:].mean(dim=-1, keepdim=True)  # (B, H, 1)
        maps.append((weight * seen).mean(dim=1).clamp(min=0))
    return sum(maps) / len(maps)
