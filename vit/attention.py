"""Multi-head scaled dot-product self-attention, written out (Vaswani et al. 2017, section 3.2, eq. 1).

B batch, T tokens, D embed_dim, H heads, K = D / H head width, R rows (queries) asked for.

The middle of `forward`, softmax(q k^T / sqrt(K)) v, has two implementations with equal results:
"explicit" forms the (T, T) weights, "fused" hands q, k, v to PyTorch's kernel, which never does.
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

PATHS = ("auto", "explicit", "fused")

# Up to how many tokens the explicit path trains faster, by (device, dtype); beyond it, and for
# pairs not listed, the fused kernel. Obtained by benchmarks/attention.py (x86-64 with AVX512-bf16,
# explicit 1.3 to 1.5 times faster in bf16, within 10 % of each other in float32); never timed
# while a program runs, so that two starts of one run compute the same numbers.
EXPLICIT_UP_TO = {
    ("cpu", torch.bfloat16): 577,
    ("cpu", torch.float32): 32,
}


def choose_path(device_type: str, dtype: torch.dtype, tokens: int) -> str:
    """The faster path ("explicit" or "fused") for `tokens` tokens of `dtype` on `device_type`."""
    return "explicit" if tokens <= EXPLICIT_UP_TO.get((device_type, dtype), 0) else "fused"


class SelfAttention(nn.Module):
    """Every token looks at every token: (B, T, D) -> (B, T, D).

    Args:
        embed_dim: token width D, a multiple of num_heads.
        num_heads: number of heads H.
        qkv_bias: whether the projection to q, k, v has a bias.
        drop_rate: dropout on the output projection, fraction in [0, 1).
        proj_bias: whether the output projection has a bias.
        qk_norm: makes the norms on each head's q and k, called with the head width K.
        mixed_norm: makes the norm on the merged heads, called with D.

    Attributes:
        path: "explicit", "fused", or "auto" (the table above decides at each call).

    Raises:
        ValueError: embed_dim is not a multiple of num_heads.
    """

    def __init__(
        self,
        embed_dim: int,
        num_heads: int,
        qkv_bias: bool = True,
        drop_rate: float = 0.0,
        proj_bias: bool = True,
        qk_norm: Callable[[int], nn.Module] = nn.Identity,
        mixed_norm: Callable[[int], nn.Module] = nn.Identity,
    ):
        super().__init__()
        self.set_heads(embed_dim, num_heads, qk_norm)
        self.qkv = nn.Linear(embed_dim, 3 * embed_dim, bias=qkv_bias)
        self.norm = mixed_norm(embed_dim)
        self.proj = nn.Linear(embed_dim, embed_dim, bias=proj_bias)
        self.proj_drop = nn.Dropout(drop_rate)

    def set_heads(
        self,
        embed_dim: int,
        num_heads: int,
        qk_norm: Callable[[int], nn.Module] = nn.Identity,
    ) -> None:
        """What everything after the projections needs; arguments as the class's.

        From here on nothing depends on how q, k and v were projected: other modules with attention
        (vit/blocks.py, vit/pooling.py) take these methods as they are.
        """
        if embed_dim % num_heads:
            raise ValueError(
                f"embed_dim ({embed_dim}) must be a multiple of num_heads ({num_heads})"
            )
        self.num_heads = num_heads
        self.head_dim = embed_dim // num_heads
        self.scale = self.head_dim**-0.5
        self.path = "auto"
        self.q_norm = qk_norm(self.head_dim)
        self.k_norm = qk_norm(self.head_dim)

    def forward(self, x: Tensor) -> Tensor:
        """(B, T, D) -> (B, T, D)."""
        q, k, v = (self.split_heads(part) for part in self.qkv(x).chunk(3, dim=-1))
        mixed = self.mix(q, k, v)  # (B, H, T, K)
        return self.proj_drop(self.proj(self.norm(self.merge_heads(mixed))))

    def mix(self, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """softmax(q k^T / sqrt(K)) v: each (B, H, T, K) -> (B, H, T, K), by the chosen path.

        q and k are normed here, and in `softmax_of`, where there are norms for them.
        """
        path = self.path
        if path == "auto":
            path = choose_path(k.device.type, k.dtype, k.shape[-2])
        if path == "fused":
            return F.scaled_dot_product_attention(self.q_norm(q), self.k_norm(k), v)
        return self.softmax_of(q, k) @ v

    def softmax_of(self, q: Tensor, k: Tensor) -> Tensor:
        """q (B, H, R, K), k (B, H, T, K), as projected -> (B, H, R, T), each row sums to 1."""
        q, k = self.q_norm(q) * self.scale, self.k_norm(k)
        scores = q @ k.transpose(-2, -1)  # (B, H, R, T)
        return scores.softmax(dim=-1).to(k.dtype)

    def weights(self, x: Tensor, rows: slice = slice(None)) -> Tensor:
        """The attention weights that `forward(x)` uses: (B, T, D) -> (B, H, R, T), rows sum to 1.

        Args:
            x: the tokens this module receives.
            rows: which queries; a slice bounds the memory to R of T rows.
        """
        q = self.split_heads(self.project(x[:, rows], "q"))  # (B, H, R, K)
        k = self.split_heads(self.project(x, "k"))  # (B, H, T, K)
        return self.softmax_of(q, k)

    def values(self, x: Tensor) -> Tensor:
        """The values that the weights average: (B, T, D) -> (B, H, T, K)."""
        return self.split_heads(self.project(x, "v"))

    def project(self, x: Tensor, part: str) -> Tensor:
        """One third of the qkv projection, `part` "q", "k" or "v": (B, R, D) -> (B, R, D)."""
        third = "qkv".index(part)
        weight = self.qkv.weight.chunk(3)[third]
        bias = None if self.qkv.bias is None else self.qkv.bias.chunk(3)[third]
        return F.linear(x, weight, bias)

    def split_heads(self, x: Tensor) -> Tensor:
        """(B, R, D) -> (B, H, R, K)."""
        return x.unflatten(-1, (self.num_heads, self.head_dim)).transpose(1, 2)

    def merge_heads(self, x: Tensor) -> Tensor:
        """(B, H, R, K) -> (B, R, D)."""
        return x.transpose(1, 2).flatten(2)
