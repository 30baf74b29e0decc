"""What a timm network is: its `Architecture`, or in which parts it is no plain Vision Transformer.

Works on the modules, so that whatever built them counts, and needs no import of timm.
"""

import math
from typing import TYPE_CHECKING

from torch import nn

from vit.architecture import Architecture

if TYPE_CHECKING:
    import timm

CLASSES = {"VisionTransformer", "VisionTransformerDistilled"}
NORMS = {"LayerNorm": "layernorm", "RmsNorm": "rmsnorm"}
EPSILONS = {1e-6: "", 1e-5: "_1e-5"}
ACTIVATIONS = {"GELUTanh": "gelu_tanh", "QuickGELU": "quick_gelu"}
GATED = {"SwiGLU": "swiglu", "GluMlp": "swiglu_packed"}
BLOCKS = {"Block": "pre", "ResPostBlock": "res_post", "ParallelScalingBlock": "parallel"}


def architecture_of(module: "timm.models.VisionTransformer") -> Architecture:
    """What a timm Vision Transformer is.

    Raises:
        ValueError: it has a part that ours does not have; all such parts are named.
    """
    kind = type(module).__name__
    if kind not in CLASSES:
        raise ValueError(f"{kind} is not supported: only timm's class VisionTransformer is")
    if strange := differences(module):
        raise ValueError("this Vision Transformer is not supported: " + ", ".join(strange))
    embed = module.patch_embed
    return Architecture(
        img_size=tuple(embed.img_size),
        patch_size=tuple(embed.patch_size),
        in_chans=embed.proj.in_channels,
        num_classes=module.num_classes,
        embed_dim=module.embed_dim,
        depth=len(module.blocks),
        class_token=module.cls_token is not None,
        reg_tokens=module.num_reg_tokens,
        no_embed_class=module.no_embed_class,
        embed_norm=embed_norm_of(module),
        global_pool="distilled" if hasattr(module, "dist_token") else module.global_pool,
        fc_norm=last_norm_of(module),
        image_sizes=image_sizes_of(module),
        **of_block(module.blocks[0], module.embed_dim),
    )


def of_block(block: nn.Module, embed_dim: int) -> dict:
    """The fields that a block tells."""
    parallel = hasattr(block, "in_proj")
    attention = block if parallel else block.attn
    into, out = (
        (block.in_proj, block.attn_out_proj) if parallel else (attention.qkv, attention.proj)
    )
    scale = getattr(block, "ls", getattr(block, "ls1", block))  # res-post blocks have none
    first = getattr(block.mlp, "fc1", None) or block.mlp.fc1_g if not parallel else None
    hidden = block.in_split[0] if parallel else first.out_features
    return {
        "num_heads": attention.num_heads,
        "mlp_ratio": ratio(hidden, embed_dim),
        "qkv_bias": into.bias is not None,
        "proj_bias": out.bias is not None,
        "qk_norm": not isinstance(attention.q_norm, nn.Identity),
        "init_values": getattr(scale, "init_values", None),
        "norm_layer": norm_of(block.in_norm if parallel else block.norm1),
        "mlp": mlp_of(block),
        "block": block_of(block),
    }


def ratio(hidden: int, embed_dim: int) -> float:
    """The smallest quotient whose product with embed_dim, cut to a whole number, is `hidden`."""
    quotient = hidden / embed_dim
    return quotient if int(embed_dim * quotient) == hidden else math.nextafter(quotient, math.inf)


def norm_of(norm: nn.Module) -> str | None:
    """A norm's name in our table; None where it is not in it."""
    kind, epsilon = NORMS.get(type(norm).__name__), EPSILONS.get(getattr(norm, "eps", None))
    return None if kind is None or epsilon is None else kind + epsilon


def mlp_of(block: nn.Module) -> str | None:
    """The name of a block's MLP, or of its activation, in our table; None where not in it."""
    if hasattr(block, "in_proj"):
        return activation_of(block.mlp_act)
    kind = type(block.mlp).__name__
    if kind == "Mlp":
        return activation_of(block.mlp.act)
    gated = isinstance(block.mlp.act, nn.SiLU) and not getattr(block.mlp, "gate_last", False)
    return GATED.get(kind) if gated else None


def activation_of(act: nn.Module) -> str | None:
    """The name of an activation in our table; None where it is not in it."""
    if type(act).__name__ == "GELU":
        return "gelu" if getattr(act, "approximate", "none") == "none" else "gelu_tanh"
    return ACTIVATIONS.get(type(act).__name__)


def block_of(block: nn.Module) -> str | None:
    """The name of a block's kind in our table; None where it is not in it."""
    kind = BLOCKS.get(type(block).__name__)
    if kind == "pre" and not isinstance(block.attn, nn.Identity):
        inside = [getattr(block.attn, "norm", None), getattr(block.mlp, "norm", None)]
        normed = {not isinstance(norm, (nn.Identity, type(None))) for norm in inside}
        kind = {(True,): "sub_norm", (False,): "pre"}.get(tuple(normed))
    return kind


def image_sizes_of(module: "timm.models.VisionTransformer") -> str:
    """Which images it takes, in our words."""
    if module.dynamic_img_size:
        return "multiples"
    embed = module.patch_embed
    rest = [side % patch for side, patch in zip(embed.img_size, embed.patch_size, strict=True)]
    return "cut" if any(rest) else "exact"


def embed_norm_of(module: "timm.models.VisionTransformer") -> str | None:
    """Where the norm before the first block is, in our words."""
    if not isinstance(module.norm_pre, nn.Identity):
        return "tokens"
    return None if isinstance(module.patch_embed.norm, nn.Identity) else "patches"


def last_norm_of(module: "timm.models.VisionTransformer") -> bool | str | None:
    """Where the norm after the last block is, in our words; None where the pooling expects it."""
    after = not isinstance(module.fc_norm, nn.Identity)
    if not after and isinstance(module.norm, nn.Identity):
        return "none"
    return None if after == (module.global_pool == "avg") else after


def differences(module: "timm.models.VisionTransformer") -> list[str]:
    """The parts of a timm Vision Transformer that ours cannot have, in words."""
    block, embed = module.blocks[0], module.patch_embed
    if block_of(block) is None:
        return [f"blocks of kind {type(block).__name__}"]
    attention = getattr(block, "attn", block)
    norm = norm_of(block.in_norm if attention is block else block.norm1)
    others = [module.norm, module.fc_norm, module.norm_pre, embed.norm]
    others = [norm_of(one) for one in others if not isinstance(one, nn.Identity)]
    pools = ("token", "avg", "map")
    found = {
        f"attention of kind {type(attention).__name__}": type(attention).__name__
        not in ("Attention", "ParallelScalingBlock"),
        "gated attention": getattr(attention, "gate", None) is not None,
        "one projection for attention and MLP": getattr(block, "out_proj", None) is not None,
        "MLP of another kind or activation": mlp_of(block) is None,
        "norms of another kind or epsilon": norm is None or set(others) - {norm},
        f'pooling "{module.global_pool}"': module.global_pool not in pools,
        "pooling over the prefix tokens": getattr(module, "pool_include_prefix", False),
        "both a norm before the blocks and one in the patch embedding": (
            embed_norm_of(module) == "tokens" and not isinstance(embed.norm, nn.Identity)
        ),
        "patch embedding without bias, no norm after it": (
            (embed.proj.bias is None) != (embed_norm_of(module) == "tokens")
        ),
        "no positions": module.pos_embed is None,
        "images padded to whole patches": getattr(embed, "dynamic_img_pad", False),
    }
    return [words for words, true in found.items() if true]
