"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929), with timm's parameter names.

B batch, T tokens = P prefix tokens + N patches, D embed_dim, C classes.

    images (B, 3, height, width)
      -> patch_embed (B, N, D) -> prefix tokens, positions (B, T, D)
      -> blocks: x + attention(norm(x)); x + mlp(norm(x))            eq. 2, 3
      -> norm -> pool (B, D) -> head (B, C)                          eq. 4
"""

from collections.abc import Iterator
from dataclasses import asdict, dataclass, fields, replace

import torch
from torch import Tensor, nn

from vit.attention import PATHS, SelfAttention
from vit.patch_embed import PatchEmbed

NORM_EPS = 1e-6  # the paper's code and timm use this, not PyTorch's 1e-5


@dataclass(frozen=True)
class Architecture:
    """What a network is, in timm's words; the defaults are ViT-Ti/16.

    Args:
        img_size: image side or (height, width), pixels.
        patch_size: patch side or (height, width), pixels.
        in_chans: colour channels.
        num_classes: outputs of the head; 0 means no head, features come out.
        embed_dim: token width D.
        depth: number of blocks.
        num_heads: attention heads per block; embed_dim must be a multiple of it.
        mlp_ratio: width of the MLP over embed_dim.
        qkv_bias: bias in the projection to q, k, v.
        init_values: first value of LayerScale (Touvron et al. 2021, arXiv 2103.17239); none: without.
        class_token: a learned class token before the patches.
        reg_tokens: learned register tokens (Darcet et al. 2024, arXiv 2309.16588) after it.
        no_embed_class: positions for the patches alone, none for the prefix tokens.
        global_pool: what the head reads: "token" (the class token) or "avg" (mean of the patches).
        fc_norm: norm after the pooling in place of before it; none: exactly for "avg".
        drop_rate: dropout after positions, projections and MLP layers, fraction in [0, 1).
        drop_path_rate: stochastic depth (Huang et al. 2016, arXiv 1603.09382) of the last block,
            rising linearly from 0 at the first, fraction in [0, 1).

    Raises:
        ValueError: a value out of range, or "token" pooling without a class token.
    """

    img_size: int | tuple[int, int] = 224
    patch_size: int | tuple[int, int] = 16
    in_chans: int = 3
    num_classes: int = 1000
    embed_dim: int = 192
    depth: int = 12
    num_heads: int = 3
    mlp_ratio: float = 4.0
    qkv_bias: bool = True
    init_values: float | None = None
    class_token: bool = True
    reg_tokens: int = 0
    no_embed_class: bool = False
    global_pool: str = "token"
    fc_norm: bool | None = None
    drop_rate: float = 0.0
    drop_path_rate: float = 0.0

    def __post_init__(self):
        for name in ("img_size", "patch_size"):
            object.__setattr__(self, name, pair(getattr(self, name)))
        for name in ("in_chans", "embed_dim", "depth", "num_heads"):
            if getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 1")
        for name in ("reg_tokens", "num_classes", "mlp_ratio"):
            if getattr(self, name) < 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must not be negative")
        for name in ("drop_rate", "drop_path_rate"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be at least 0 and below 1")
        if self.global_pool not in ("token", "avg"):
            raise ValueError(f'global_pool ("{self.global_pool}") must be "token" or "avg"')
        if self.global_pool == "token" and not self.class_token:
            raise ValueError('global_pool "token" needs class_token; without one use "avg"')

    @property
    def num_prefix_tokens(self) -> int:
        """P: tokens before the patches."""
        return int(self.class_token) + self.reg_tokens

    @property
    def norm_after_pool(self) -> bool:
        """Whether the last norm acts on the pooled token (`fc_norm`) and not on all (`norm`)."""
        return self.global_pool == "avg" if self.fc_norm is None else self.fc_norm

    def non_defaults(self) -> dict:
        """The fields that differ from the defaults, as plain JSON values."""
        plain = Architecture()
        return {
            name: list(value) if isinstance(value, tuple) else value
            for name, value in asdict(self).items()
            if value != getattr(plain, name)
        }

    @classmethod
    def from_dict(cls, values: dict) -> "Architecture":
        """The inverse of `non_defaults`; keys that are no field are ignored (a later version's)."""
        return cls(
            **{field.name: values[field.name] for field in fields(cls) if field.name in values}
        )


class Mlp(nn.Module):
    """Two layers on each token: (B, T, D) -> (B, T, D)."""

    def __init__(self, embed_dim: int, hidden_dim: int, drop_rate: float):
        super().__init__()
        self.fc1 = nn.Linear(embed_dim, hidden_dim)
        self.act = nn.GELU()
        self.fc2 = nn.Linear(hidden_dim, embed_dim)
        self.drop = nn.Dropout(drop_rate)

    def forward(self, x: Tensor) -> Tensor:
        return self.drop(self.fc2(self.drop(self.act(self.fc1(x)))))


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


class Block(nn.Module):
    """Pre-norm encoder block: (B, T, D) -> (B, T, D).

    Args:
        architecture: the network's.
        drop_path_rate: this block's own rate.
    """

    def __init__(self, architecture: Architecture, drop_path_rate: float):
        super().__init__()
        a = architecture
        self.norm1 = nn.LayerNorm(a.embed_dim, eps=NORM_EPS)
        self.attn = SelfAttention(a.embed_dim, a.num_heads, a.qkv_bias, a.drop_rate)
        self.norm2 = nn.LayerNorm(a.embed_dim, eps=NORM_EPS)
        self.mlp = Mlp(a.embed_dim, int(a.embed_dim * a.mlp_ratio), a.drop_rate)
        scaled = a.init_values is not None
        self.ls1 = LayerScale(a.embed_dim, a.init_values) if scaled else nn.Identity()
        self.ls2 = LayerScale(a.embed_dim, a.init_values) if scaled else nn.Identity()
        self.drop_path = DropPath(drop_path_rate) if drop_path_rate else None

    def forward(self, x: Tensor) -> Tensor:
        x = x + self.drop(self.ls1(self.attn(self.norm1(x))))
        return x + self.drop(self.ls2(self.mlp(self.norm2(x))))

    def drop(self, branch: Tensor) -> Tensor:
        """`branch` after stochastic depth, which acts in training alone."""
        return self.drop_path(branch) if self.drop_path and self.training else branch


class VisionTransformer(nn.Module):
    """Image classifier: (B, in_chans, height, width) -> logits (B, num_classes).

    Args:
        architecture: what the network is; the defaults where None.
        **changes: fields of `Architecture` that replace its values, so that
            `VisionTransformer(img_size=32, patch_size=4)` reads like timm's constructor.

    Attributes:
        num_prefix_tokens: P, the tokens before the patches.
        grid_size: (rows, cols) of patches.

    Raises:
        ValueError: as `Architecture`, `PatchEmbed` and `SelfAttention` do.
    """

    def __init__(self, architecture: Architecture | None = None, **changes):
        super().__init__()
        a = self.architecture = replace(architecture or Architecture(), **changes)
        self.num_prefix_tokens = a.num_prefix_tokens
        self.patch_embed = PatchEmbed(a.img_size, a.patch_size, a.in_chans, a.embed_dim)
        self.grid_size = self.patch_embed.grid_size
        self.cls_token = token(1, a.embed_dim) if a.class_token else None
        self.reg_token = token(a.reg_tokens, a.embed_dim) if a.reg_tokens else None
        embedded = self.patch_embed.num_patches + (0 if a.no_embed_class else a.num_prefix_tokens)
        self.pos_embed = token(embedded, a.embed_dim)
        self.pos_drop = nn.Dropout(a.drop_rate)
        rates = torch.linspace(0, a.drop_path_rate, a.depth).tolist()
        self.blocks = nn.ModuleList(Block(a, rate) for rate in rates)
        before, after = nn.Identity(), nn.LayerNorm(a.embed_dim, eps=NORM_EPS)
        if not a.norm_after_pool:
            before, after = after, before
        self.norm, self.fc_norm = before, after
        self.head = nn.Linear(a.embed_dim, a.num_classes) if a.num_classes else nn.Identity()
        self.initialise()

    def initialise(self) -> None:
        """Fresh weights: normal(0, .02) cut at two units, zero biases, as timm's and DeiT's code.

        Wider ones (Glorot's uniform) learn quickstart three times faster and end 2 to 5 points of
        test accuracy lower.
        """
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        nn.init.trunc_normal_(self.pos_embed, std=0.02)
        for prefix in (self.cls_token, self.reg_token):
            if prefix is not None:
                nn.init.normal_(prefix, std=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> logits (B, num_classes), or features (B, D) without head."""
        return self.head(self.pool(self.forward_features(images)))

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> tokens after the last block and `norm`: (B, T, D)."""
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def embed(self, images: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> tokens with positions, as block 1 takes them: (B, T, D)."""
        patches = self.patch_embed(images)  # (B, N, D)
        prefix = [t for t in (self.cls_token, self.reg_token) if t is not None]
        prefix = [t.expand(len(images), -1, -1) for t in prefix]  # (B, 1 or reg_tokens, D)
        if self.architecture.no_embed_class:
            x = torch.cat([*prefix, patches + self.pos_embed], dim=1)
        else:
            x = torch.cat([*prefix, patches], dim=1) + self.pos_embed
        return self.pos_drop(x)  # (B, T, D)

    def pool(self, x: Tensor) -> Tensor:
        """Tokens after `norm` (B, T, D) -> what the head reads (B, D)."""
        if self.architecture.global_pool == "token":
            pooled = x[:, 0]
        else:
            pooled = x[:, self.num_prefix_tokens :].mean(dim=1)
        return self.fc_norm(pooled)

    def attention_inputs(self, images: Tensor) -> Iterator[tuple[SelfAttention, Tensor]]:
        """For each block from the first: its attention module and the tokens it receives (B, T, D).

        `module.weights(x)` then gives the weights that the network itself uses on these images,
        whatever kernel computes them. A generator: it holds one block's tokens at a time.
        """
        x = self.embed(images)
        for block in self.blocks:
            yield block.attn, block.norm1(x)
            x = block(x)

    def use_attention(self, path: str) -> "VisionTransformer":
        """Sets how all blocks compute attention ("auto", "explicit", "fused"); returns itself."""
        if path not in PATHS:
            raise ValueError(f'attention path ("{path}") must be one of {", ".join(PATHS)}')
        for block in self.blocks:
            block.attn.path = path
        return self


def token(count: int, embed_dim: int) -> nn.Parameter:
    """`count` learned tokens, still zero: (1, count, D)."""
    return nn.Parameter(torch.zeros(1, count, embed_dim))


def pair(size) -> tuple[int, int]:
    """8 -> (8, 8); (8, 4) -> (8, 4): (height, width).

    Raises:
        ValueError: not one or two whole numbers above zero.
    """
    both = (size, size) if isinstance(size, int) else tuple(size)
    if len(both) != 2 or any(not isinstance(side, int) or side < 1 for side in both):
        raise ValueError(f"a size must be one or two whole numbers of pixels, got {size!r}")
    return both
