"""The encoder blocks: where attention and MLP stand between the norms (Dosovitskiy et al., eq. 2, 3).

B batch, T tokens, D embed_dim, H heads, K head width, R rows asked for, M width of the MLP's middle.

Each block has `attn`, the module whose `weights` are its attention, and `attention_input(x)`, the
tokens which that module receives when the block receives x.
"""

from torch import Tensor, nn
from torch.nn import functional as F

from vit.architecture import Architecture
from vit.attention import SelfAttention
from vit.pieces import MLPS, NORMS, DropPath, LayerScale, hidden_dim


class Block(nn.Module):
    """Norms before attention and MLP, and for "sub_norm" inside: (B, T, D) -> (B, T, D).

    Args:
        architecture: the network's.
        drop_path_rate: this block's own rate.
    """

    def __init__(self, architecture: Architecture, drop_path_rate: float):
        super().__init__()
        a = architecture
        inside = NORMS[a.norm_layer] if a.block == "sub_norm" else nn.Identity
        self.norm1 = NORMS[a.norm_layer](a.embed_dim)
        self.attn = attention_of(a, inside)
        self.norm2 = NORMS[a.norm_layer](a.embed_dim)
        self.mlp = mlp_of(a, inside)
        self.ls1 = layer_scale_of(a)
        self.ls2 = layer_scale_of(a)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else None

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.ls1(self.attn(self.attention_input(x))))
        return x + self.drop(self.ls2(self.mlp(self.norm2(x))))

    def attention_input(self, x: Tensor) -> Tensor:
        """The block's tokens -> those its attention receives: (B, T, D) -> (B, T, D)."""
        return self.norm1(x)

    def drop(self, branch: Tensor) -> Tensor:
        """`branch` after stochastic depth, which acts in training alone."""
        return self.drop_path(branch) if self.drop_path and self.training else branch


class ResPostBlock(nn.Module):
    """Norms after attention and MLP, before their sums: (B, T, D) -> (B, T, D).

    Liu et al. 2022 (arXiv 2111.09883), figure 1. In place of LayerScale the norms' weights begin at
    `init_values`. Arguments as `Block`.
    """

    def __init__(self, architecture: Architecture, drop_path_rate: float):
        super().__init__()
        a = architecture
        self.attn = attention_of(a)
        self.norm1 = NORMS[a.norm_layer](a.embed_dim)
        self.mlp = mlp_of(a)
        self.norm2 = NORMS[a.norm_layer](a.embed_dim)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else None
        if a.init_values is not None:
            for norm in (self.norm1, self.norm2):
                nn.init.constant_(norm.weight, a.init_values)

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.norm1(self.attn(x)))
        return x + self.drop(self.norm2(self.mlp(x)))

    def attention_input(self, x: Tensor) -> Tensor:
        """The block's tokens, which its attention receives as they are: (B, T, D)."""
        return x

    drop = Block.drop


class ParallelBlock(nn.Module):
    """One norm, then attention and MLP side by side, projected together: (B, T, D) -> (B, T, D).

    Dehghani et al. 2023 (arXiv 2302.05442), section 2. The block is its own attention module: q, k
    and v are parts of its `in_proj`, all that follows is `SelfAttention`'s. Arguments as `Block`.
    """

    def __init__(self, architecture: Architecture, drop_path_rate: float):
        super().__init__()
        a = architecture
        self.hidden_dim, dim = hidden_dim(a), a.embed_dim
        self.in_norm = NORMS[a.norm_layer](dim)
        self.in_proj = nn.Linear(dim, self.hidden_dim + 3 * dim, bias=a.qkv_bias)
        # The MLP has a bias in any case: its own where the projection has none.
        self.mlp_bias = (
            None if a.qkv_bias else nn.Parameter(self.in_proj.weight.new_zeros(self.hidden_dim))
        )
        self.set_heads(dim, a.num_heads, NORMS[a.norm_layer] if a.qk_norm else nn.Identity)
        self.mlp_act = MLPS[a.mlp][1]()
        self.mlp_drop = nn.Dropout(a.drop_rate)
        self.attn_out_proj = nn.Linear(dim, dim, bias=a.proj_bias)
        self.mlp_out_proj = nn.Linear(self.hidden_dim, dim, bias=a.proj_bias)
        self.ls = layer_scale_of(a)
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else None

    def forward(self, x: Tensor) -> Tensor:
        widths = [self.hidden_dim] + 3 * [x.shape[-1]]
        middle, *qkv = self.in_proj(self.in_norm(x)).split(widths, dim=-1)  # (B, T, M), (B, T, D)
        mixed = self.merge_heads(self.mix(*map(self.split_heads, qkv)))  # (B, T, D)
        middle = middle if self.mlp_bias is None else middle + self.mlp_bias
        middle = self.mlp_drop(self.mlp_act(middle))
        return x + self.drop(self.ls(self.attn_out_proj(mixed) + self.mlp_out_proj(middle)))

    def attention_input(self, x: Tensor) -> Tensor:
        """The block's tokens -> those its projection receives: (B, T, D) -> (B, T, D)."""
        return self.in_norm(x)

    @property
    def attn(self) -> "ParallelBlock":
        """The module whose `weights` are this block's attention: itself."""
        return self

    def project(self, x: Tensor, part: str) -> Tensor:
        """One of the projections, `part` "q", "k" or "v": (B, R, D) -> (B, R, D)."""
        dim = x.shape[-1]
        start = self.hidden_dim + "qkv".index(part) * dim
        bias = None if self.in_proj.bias is None else self.in_proj.bias[start : start + dim]
        return F.linear(x, self.in_proj.weight[start : start + dim], bias)

    drop = Block.drop
    set_heads = SelfAttention.set_heads
    split_heads = SelfAttention.split_heads
    merge_heads = SelfAttention.merge_heads
    mix = SelfAttention.mix
    softmax_of = SelfAttention.softmax_of
    weights = SelfAttention.weights
    values = SelfAttention.values


BLOCKS = {"pre": Block, "sub_norm": Block, "res_post": ResPostBlock, "parallel": ParallelBlock}


def attention_of(a: Architecture, inside=nn.Identity) -> SelfAttention:
    """A block's attention; `inside` makes the norm of what the heads have mixed."""
    return SelfAttention(
        a.embed_dim,
        a.num_heads,
        a.qkv_bias,
        a.drop_rate,
        proj_bias=a.proj_bias,
        qk_norm=NORMS[a.norm_layer] if a.qk_norm else nn.Identity,
        mixed_norm=inside,
    )


def mlp_of(a: Architecture, inside=nn.Identity) -> nn.Module:
    """A block's MLP; `inside` makes the norm of its middle."""
    kind, act = MLPS[a.mlp]
    return kind(a.embed_dim, hidden_dim(a), a.drop_rate, act, a.proj_bias, inside)


def layer_scale_of(a: Architecture) -> nn.Module:
    """A block's LayerScale, or nothing."""
    if a.init_values is None:
        return nn.Identity()
    return LayerScale(a.embed_dim, a.init_values)
