"""Low-rank adaptation (Hu et al. 2021, LoRA, arXiv 2106.09685): W + alpha / rank * B A, W frozen.

The sum is a parametrisation of the layer's weight, so that whoever reads `weight` reads the sum:
forward, attention pictures, and merging, which writes it into the weight itself.

D_in, D_out of a layer; r rank.
"""

import math

import torch
from torch import Tensor, nn
from torch.nn.utils import parametrize

from vit.model import VisionTransformer

# The projections of attention: to q, k, v, and of the merged heads; then the parallel block's.
ADAPTED = ("qkv", "proj", "in_proj", "attn_out_proj")
HEADS = ("head", "head_dist")


class LowRank(nn.Module):
    """Adds a matrix of rank r to a weight: (D_out, D_in) -> (D_out, D_in); at first the zero one.

    Args:
        weight: of the layer.
        rank: r, at least 1.
        alpha: the matrix is multiplied by alpha / rank.

    Raises:
        ValueError: the rank is not between 1 and the weight's smaller side.
    """

    def __init__(self, weight: Tensor, rank: int, alpha: float):
        super().__init__()
        rows, cols = weight.shape
        if not 1 <= rank <= min(rows, cols):
            raise ValueError(
                f"model.lora_rank ({rank}) must be at least 1 and at most {min(rows, cols)}, the "
                "smaller side of the adapted weights"
            )
        self.scale = alpha / rank
        self.a = nn.Parameter(weight.new_empty(rank, cols))
        self.b = nn.Parameter(weight.new_zeros(rows, rank))
        nn.init.kaiming_uniform_(self.a, a=math.sqrt(5))

    def forward(self, weight: Tensor) -> Tensor:
        return weight + self.scale * (self.b @ self.a)


def adapt(net: VisionTransformer, rank: int, alpha: float) -> VisionTransformer:
    """Freezes all but the head, and gives the attention projections a LowRank each; returns net."""
    net.requires_grad_(False)
    for name in HEADS:
        if getattr(net, name, None) is not None:
            getattr(net, name).requires_grad_(True)
    for layer in adapted_layers(net):
        low_rank = LowRank(layer.weight.detach(), rank, alpha)
        parametrize.register_parametrization(layer, "weight", low_rank)
    return net


def merge(net: VisionTransformer) -> VisionTransformer:
    """Writes the sums into the weights themselves: equal outputs, plain names; returns net."""
    with torch.no_grad():
        for layer in adapted_layers(net):
            if parametrize.is_parametrized(layer, "weight"):
                parametrize.remove_parametrizations(layer, "weight", leave_parametrized=True)
    return net


def adapted_layers(net: VisionTransformer) -> list[nn.Linear]:
    """The attention projections of all blocks."""
    return [
        getattr(block.attn, name)
        for block in net.blocks
        for name in ADAPTED
        if hasattr(block.attn, name)
    ]
