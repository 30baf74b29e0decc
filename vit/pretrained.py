"""timm's Vision Transformers in our network: the same weights under the same names, the same logits."""

from typing import TYPE_CHECKING

from torch import nn

from vit.model import NORM_EPS, Architecture, VisionTransformer

if TYPE_CHECKING:
    import timm


def from_timm(
    source: "str | timm.models.VisionTransformer", pretrained: bool = False, **arguments
) -> VisionTransformer:
    """Our network with the architecture and the weights of a timm one.

    Args:
        source: a name that `timm.create_model` knows, or a timm module, whose weights are copied.
        pretrained: fetch the weights that belong to the name; else they are random.
        **arguments: for `timm.create_model`, such as img_size or num_classes.

    Raises:
        ValueError: a network that is no plain Vision Transformer; says what is different in it.
    """
    if isinstance(source, str):
        import timm

        source = timm.create_model(source, pretrained=pretrained, **arguments)
    elif pretrained or arguments:
        raise ValueError("a timm module brings its own weights: give a name to choose others")
    net = VisionTransformer(architecture_of(source))
    net.load_state_dict(source.state_dict())
    return net.train(source.training)


def architecture_of(module: "timm.models.VisionTransformer") -> Architecture:
    """What a timm Vision Transformer is.

    Raises:
        ValueError: it has a part that ours does not have; all such parts are named.
    """
    name = type(module).__name__
    if name != "VisionTransformer":
        raise ValueError(f"{name} is not supported: only timm's class VisionTransformer is")
    if strange := differences(module):
        raise ValueError("this Vision Transformer is not supported: " + ", ".join(strange))
    block, embed = module.blocks[0], module.patch_embed
    return Architecture(
        img_size=tuple(embed.img_size),
        patch_size=tuple(embed.patch_size),
        in_chans=embed.proj.in_channels,
        num_classes=module.num_classes,
        embed_dim=module.embed_dim,
        depth=len(module.blocks),
        num_heads=block.attn.num_heads,
        mlp_ratio=block.mlp.fc1.out_features / module.embed_dim,
        qkv_bias=block.attn.qkv.bias is not None,
        init_values=getattr(block.ls1, "init_values", 1e-5)
        if hasattr(block.ls1, "gamma")
        else None,
        class_token=module.cls_token is not None,
        reg_tokens=module.num_reg_tokens,
        no_embed_class=module.no_embed_class,
        global_pool=module.global_pool,
        fc_norm=not isinstance(module.fc_norm, nn.Identity),
    )


def differences(module: "timm.models.VisionTransformer") -> list[str]:
    """The parts of a timm Vision Transformer that a plain one does not have, in words."""
    block = module.blocks[0]
    mlp, attention = type(block.mlp).__name__, block.attn
    last = module.norm if isinstance(module.fc_norm, nn.Identity) else module.fc_norm
    found = {
        f"blocks of kind {type(block).__name__}": type(block).__name__ != "Block",
        f'pooling "{module.global_pool}"': module.global_pool not in ("token", "avg"),
        "pooling over the prefix tokens": getattr(module, "pool_include_prefix", False),
        "norm before the blocks": not isinstance(module.norm_pre, nn.Identity),
        "norm in the patch embedding": not isinstance(module.patch_embed.norm, nn.Identity),
        "patch embedding without bias": module.patch_embed.proj.bias is None,
        "images of any size": getattr(module, "dynamic_img_size", False),
        f"MLP of kind {mlp}": mlp != "Mlp",
        "norms on q and k": not isinstance(getattr(attention, "q_norm", None), nn.Identity),
        "attention output without bias": attention.proj.bias is None,
        "both a last norm and a norm after pooling": not plain_end(module),
    }
    if mlp == "Mlp":
        act = block.mlp.act
        exact = type(act) is nn.GELU and act.approximate == "none"
        found[f"activation {act}"] = not exact
        found["norm in the MLP"] = not isinstance(block.mlp.norm, nn.Identity)
    norms = [last] if isinstance(block.attn, nn.Identity) else [last, block.norm1]
    for norm in norms:
        usual = isinstance(norm, nn.LayerNorm) and norm.eps == NORM_EPS
        found[f"norm {norm}"] = not usual
    return [words for words, true in found.items() if true]


def plain_end(module: "timm.models.VisionTransformer") -> bool:
    """Whether exactly one norm stands between the last block and the head."""
    return isinstance(module.norm, nn.Identity) != isinstance(module.fc_norm, nn.Identity)
