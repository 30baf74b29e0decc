"""The parts of a block beside attention, and the tables that a network's pieces are chosen from.

B batch, T tokens, D embed_dim, M width of the MLP's middle.

Source: Vaswani et al. 2017, section 3.3 (the MLP); Shazeer 2020 (arXiv 2002.05202), eq. 6 (SwiGLU).
"""

from functools import partial

import torch
from torch import Tensor, nn

from vit.architecture import Architecture

NORM_EPS = 1e-6  # the paper's code and timm use this; CLIP's and AIMv2's PyTorch's 1e-5

# Each makes a norm over the last axis of the width it is called with.
NORMS = {
    "layernorm": partial(nn.LayerNorm, eps=NORM_EPS),
    "layernorm_1e-5": partial(nn.LayerNorm, eps=1e-5),
    "rmsnorm": partial(nn.RMSNorm, eps=NORM_EPS),
    "rmsnorm_1e-5": partial(nn.RMSNorm, eps=1e-5),
}


class QuickGELU(nn.Module):
    """x times sigmoid(1.702 x), which is near GELU (arXiv 1606.08415, section 2)."""

    def forward(self, x: Tensor) -> Tensor:
        return x * torch.sigmoid(1.702 * x)


class Mlp(nn.Module):
    """Two layers on each token: (B, T, D) -> (B, T, D).

    Args:
        embed_dim: token width D.
        hidden_dim: width M between the layers.
        drop_rate: dropout after each layer, fraction in [0, 1).
        act: the activation's class.
        bias: in both layers.
        norm: of the middle, called with its width; nn.Identity for none.
    """

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        drop_rate: float = 0.0,
        act: type[nn.Module] = nn.GELU,
        bias: bool = True,
        norm=nn.Identity,
    ):
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim, bias=bias)
        self.act = act()
        self.norm = norm(hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, embed_dim, bias=bias)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        middle = self.drop(self.act(self.fc1(x)))  # (B, T, M)
        return self.drop(self.fc2(self.norm(middle)))


class SwiGlu(nn.Module):
    """An MLP whose middle is gated: (B, T, D) -> (B, T, D). Arguments as `Mlp`."""

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        drop_rate: float = 0.0,
        act: type[nn.Module] = nn.SiLU,
        bias: bool = True,
        norm=nn.Identity,
    ):
        super().__init__()
        self.fc1_g = nn.Linear(embed_dim, hidden_dim, bias=bias)
        self.fc1_x = nn.Linear(embed_dim, hidden_dim, bias=bias)
        self.act = act()
        self.norm = norm(hidden_dim)
        self.fc2 = nn.Linear(hidden_dim, embed_dim, bias=bias)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        middle = self.drop(self.act(self.fc1_g(x)) * self.fc1_x(x))  # (B, T, M)
        return self.drop(self.fc2(self.norm(middle)))


class PackedSwiGlu(nn.Module):
    """`SwiGlu` with gate and value as halves of one layer: hidden_dim counts both, M is half of it."""

    def __init__(
        self,
        embed_dim: int,
        hidden_dim: int,
        drop_rate: float = 0.0,
        act: type[nn.Module] = nn.SiLU,
        bias: bool = True,
        norm=nn.Identity,
    ):
        super().__init__()
        if hidden_dim % 2:
            raise ValueError(f"embed_dim * mlp_ratio ({hidden_dim}) must be even for swiglu_packed")
        self.fc1 = nn.Linear(embed_dim, hidden_dim, bias=bias)
        self.act = act()
        self.norm = norm(hidden_dim // 2)
        self.fc2 = nn.Linear(hidden_dim // 2, embed_dim, bias=bias)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        gate, value = self.fc1(x).chunk(2, dim=-1)  # each (B, T, M)
        return self.drop(self.fc2(self.norm(self.drop(self.act(gate) * value))))


# The class of a block's MLP and its activation; the latter alone where there is no choice of class.
MLPS = {
    "gelu": (Mlp, nn.GELU),
    "gelu_tanh": (Mlp, partial(nn.GELU, approximate="tanh")),
    "quick_gelu": (Mlp, QuickGELU),
    "swiglu": (SwiGlu, nn.SiLU),
    "swiglu_packed": (PackedSwiGlu, nn.SiLU),
}


def hidden_dim(a: Architecture) -> int:
    """Width of the first MLP layer, cut to whole numbers as timm does."""
    return int(a.embed_dim * a.mlp_ratio)


class LayerScale(nn.Module):
    """A learned factor per channel: (B, T, D) -> (B, T, D)."""

    def __init__(self, embed_dim: int, init_values: float):
        super().__init__()
        self.init_values = init_values
        self.gamma = nn.Parameter(torch.full((embed_dim,), float(init_values)))

    def forward(self, x: Tensor) -> Tensor:
        return x * self.gamma


class DropPath(nn.Module):
    """In training, leaves a residual branch out for a random share of the images."""

    def __init__(self, rate: float):
        super().__init__()
        self.rate = rate

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D): zero for the images left out, the rest scaled to keep the mean."""
        keep = torch.rand(len(x), 1, 1, device=x.device) >= self.rate
        return x * keep / (1 - self.rate)

    def extra_repr(self) -> str:
        return f"rate={self.rate:.3f}"
