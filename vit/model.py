"""The Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929), with timm's parameter names.

B batch, T tokens = P prefix tokens + N patches, D embed_dim, C classes, Q heads (one, two where a
distillation token has its own).

    images (B, 3, height, width)
      -> patch_embed (B, N, D) -> prefix tokens, positions (B, T, D)
      -> blocks: x + attention(norm(x)); x + mlp(norm(x))            eq. 2, 3
      -> norm -> pool (B, D) -> head (B, C)                          eq. 4

Published networks vary the pieces (architecture.py says which fields choose them): they are chosen
once, in the constructors; the way through them is the same for all.
"""

from collections.abc import Iterator
from dataclasses import replace

import torch
from torch import Tensor, nn

from vit.architecture import Architecture
from vit.attention import PATHS, SelfAttention
from vit.blocks import BLOCKS, Block
from vit.patch_embed import PatchEmbed, resize_pos_embed
from vit.pieces import NORM_EPS, NORMS
from vit.pooling import POOLS

__all__ = ["NORM_EPS", "Architecture", "Block", "VisionTransformer"]


class VisionTransformer(nn.Module):
    """Image classifier: (B, in_chans, height, width) -> logits (B, num_classes).

    Args:
        architecture: what the network is; the defaults where None.
        **changes: fields of `Architecture` that replace its values, so that
            `VisionTransformer(img_size=32, patch_size=4)` reads like timm's constructor.

    Attributes:
        num_prefix_tokens: P, the tokens before the patches.
        grid_size: (rows, cols) of patches in images of `img_size`.

    Raises:
        ValueError: as `Architecture`, `PatchEmbed` and `SelfAttention` do.
    """

    def __init__(self, architecture: Architecture | None = None, **changes):
        super().__init__()
        a = self.architecture = replace(architecture or Architecture(), **changes)
        self.num_prefix_tokens = a.num_prefix_tokens
        self.patch_embed = PatchEmbed(
            a.img_size,
            a.patch_size,
            a.in_chans,
            a.embed_dim,
            bias=a.embed_norm != "tokens",
            norm=norm_if(a.embed_norm == "patches", a),
            sizes=a.image_sizes,
        )
        self.grid_size = self.patch_embed.grid_size
        self.cls_token = token(int(a.class_token), a.embed_dim)
        self.dist_token = token(int(a.global_pool == "distilled"), a.embed_dim)
        self.reg_token = token(a.reg_tokens, a.embed_dim)
        self.pos_embed = token(self.patch_embed.num_patches + a.embedded_prefix, a.embed_dim)
        self.pos_drop = nn.Dropout(a.drop_rate)
        self.norm_pre = norm_if(a.embed_norm == "tokens", a)(a.embed_dim)
        rates = torch.linspace(0, a.drop_path_rate, a.depth, device="cpu").tolist()
        self.blocks = nn.ModuleList(BLOCKS[a.block](a, rate) for rate in rates)
        self.norm = norm_if(a.norm_before_pool, a)(a.embed_dim)
        self.attn_pool = POOLS[a.global_pool](a)  # timm's name; "map" alone has parameters
        self.fc_norm = norm_if(a.norm_after_pool, a)(a.embed_dim)
        self.head = head(a)
        self.head_dist = head(a) if a.global_pool == "distilled" else None
        self.initialise()

    @classmethod
    def unfilled(cls, architecture: Architecture) -> "VisionTransformer":
        """The network with memory for its weights but no values in it: `load_state_dict` follows.

        Drawing values that are replaced at once takes ten times as long as all the rest; and torch's
        own `to_empty` would import a package for symbolic mathematics first, which takes a second.
        """
        with torch.device("meta"):
            net = cls(architecture)
        for module in net.modules():
            for name, parameter in list(module.named_parameters(recurse=False)):
                setattr(module, name, nn.Parameter(torch.empty(parameter.shape)))
        return net

    def initialise(self) -> None:
        """Fresh weights: normal(0, .02) cut at two units, zero biases, as timm's and DeiT's code.

        Wider ones (Glorot's uniform) learn quickstart three times faster and end 2 to 5 points of
        test accuracy lower.
        """
        if self.patch_embed.proj.weight.is_meta:  # there is nothing to fill
            return
        for module in self.modules():
            if isinstance(module, nn.Linear):
                nn.init.trunc_normal_(module.weight, std=0.02)
                if module.bias is not None:
                    nn.init.zeros_(module.bias)
        learned = [self.pos_embed, self.dist_token, getattr(self.attn_pool, "latent", None)]
        for tokens in learned:
            if tokens is not None:
                nn.init.trunc_normal_(tokens, std=0.02)
        for prefix in (self.cls_token, self.reg_token):
            if prefix is not None:
                nn.init.normal_(prefix, std=1e-6)

    def forward(self, images: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> logits (B, num_classes), or features (B, D) without head."""
        return self.forward_head(self.forward_features(images))

    def forward_head(self, x: Tensor) -> Tensor:
        """Tokens after `norm` (B, T, D) -> logits (B, num_classes)."""
        read = self.read(x).unbind(1)
        heads = [one for one in (self.head, self.head_dist) if one is not None]
        logits = [head(tokens) for head, tokens in zip(heads, read, strict=True)]
        return sum(logits) / len(logits)

    def forward_features(self, images: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> tokens after the last block and `norm`: (B, T, D)."""
        x = self.embed(images)
        for block in self.blocks:
            x = block(x)
        return self.norm(x)

    def embed(self, images: Tensor) -> Tensor:
        """(B, in_chans, height, width) -> tokens with positions, as block 1 takes them: (B, T, D)."""
        patches = self.patch_embed(images)  # (B, N, D)
        prefix = [t for t in (self.cls_token, self.dist_token, self.reg_token) if t is not None]
        batch = images.shape[0]  # len() would bind an exported network to this one number
        prefix = [t.expand(batch, -1, -1) for t in prefix]  # (B, 1 or reg_tokens, D)
        positions = resize_pos_embed(
            self.pos_embed, self.grid_size, self.patch_embed.grid_of(images)
        )
        if self.architecture.no_embed_class:
            x = torch.cat([*prefix, patches + positions], dim=1)
        else:
            x = torch.cat([*prefix, patches], dim=1) + positions
        return self.norm_pre(self.pos_drop(x))  # (B, T, D)

    def read(self, x: Tensor) -> Tensor:
        """Tokens after `norm` (B, T, D) -> those that the heads read, one for each (B, Q, D)."""
        return self.fc_norm(self.attn_pool(x))

    def pool(self, x: Tensor) -> Tensor:
        """Tokens after `norm` (B, T, D) -> the image's features, what the head reads (B, D)."""
        return self.read(x).mean(dim=1)

    def attention_inputs(self, images: Tensor) -> Iterator[tuple[SelfAttention, Tensor]]:
        """For each block from the first: its attention module and the tokens it receives (B, T, D).

        `module.weights(x)` then gives the weights that the network itself uses on these images,
        whatever kernel computes them. A generator: it holds one block's tokens at a time.
        """
        x = self.embed(images)
        for block in self.blocks:
            yield block.attn, block.attention_input(x)
            x = block(x)

    def use_attention(self, path: str) -> "VisionTransformer":
        """Sets how all blocks compute attention ("auto", "explicit", "fused"); returns itself."""
        if path not in PATHS:
            raise ValueError(f'attention path ("{path}") must be one of {", ".join(PATHS)}')
        for block in self.blocks:
            block.attn.path = path
        return self


def token(count: int, embed_dim: int) -> nn.Parameter | None:
    """`count` learned tokens, still zero: (1, count, D); None for none."""
    return nn.Parameter(torch.zeros(1, count, embed_dim)) if count else None


def norm_if(wanted: bool, a: Architecture):
    """Makes the architecture's norm where `wanted`, else a layer that does nothing."""
    return NORMS[a.norm_layer] if wanted else nn.Identity


def head(a: Architecture) -> nn.Module:
    """The layer from features to logits: (B, D) -> (B, C), or to nothing else without classes."""
    return nn.Linear(a.embed_dim, a.num_classes) if a.num_classes else nn.Identity()
