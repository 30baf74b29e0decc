"""config.json in timm's form, by which `timm.create_model("local-dir:FOLDER")` builds our network.

JSON holds no classes: what timm takes as a class (kinds of blocks and MLPs, norms of another
epsilon) comes from a base name that has it, all else from arguments.
"""

from vit.architecture import Architecture
from vit.fitting import Preprocess

CROP_MODES = {"crop": "center", "pad": "border", "squash": "squash"}
ACTIVATIONS = {"swiglu": "silu", "swiglu_packed": "silu"}
PLAIN = "vit_tiny_patch16_224"
# (norm, gated MLP, block) -> a name of timm's with these classes
BASES = {
    ("layernorm", "", "pre"): PLAIN,
    ("rmsnorm", "", "pre"): PLAIN,
    ("layernorm_1e-5", "", "pre"): "vit_base_patch32_clip_224",
    ("layernorm", "swiglu_packed", "pre"): "vit_giant_patch14_dinov2",
    ("rmsnorm", "swiglu_packed", "pre"): "vit_giant_patch14_dinov2",
    ("rmsnorm_1e-5", "swiglu", "pre"): "aimv2_large_patch14_224",
    ("layernorm", "", "res_post"): "vit_base_patch16_rpn_224",
    ("rmsnorm", "", "res_post"): "vit_base_patch16_rpn_224",
    ("layernorm", "", "parallel"): "vit_base_patch16_xp_224",
    ("rmsnorm", "", "parallel"): "vit_base_patch16_xp_224",
}


def base_of(a: Architecture) -> str | None:
    """The name of timm's whose classes are those of the architecture; None where there is none."""
    gated = a.mlp if a.mlp in ACTIVATIONS and a.block != "parallel" else ""
    base = BASES.get((a.norm_layer, gated, "pre" if a.block == "sub_norm" else a.block))
    if a.global_pool == "distilled":
        return "deit_tiny_distilled_patch16_224" if base == PLAIN else None
    needs_patches = base == "aimv2_large_patch14_224"
    if needs_patches != (a.embed_norm == "patches") and a.norm_layer.endswith("1e-5"):
        return None
    return base


def for_timm(architecture: Architecture, classes: list[str], preprocess: Preprocess) -> dict | None:
    """The content of config.json; None where no name of timm's has the architecture's classes."""
    a, base = architecture, base_of(architecture)
    if base is None:
        return None
    distilled = a.global_pool == "distilled"
    return {
        "architecture": base,
        "num_classes": a.num_classes,
        "model_args": arguments_of(a),
        "pretrained_cfg": {
            "input_size": [a.in_chans, *preprocess.size],
            "mean": list(preprocess.mean),
            "std": list(preprocess.std),
            "interpolation": preprocess.interpolation,
            "crop_pct": preprocess.crop_pct,
            "crop_mode": CROP_MODES[preprocess.fit],
            "num_classes": a.num_classes,
            "label_names": classes,
            "first_conv": "patch_embed.proj",
            "classifier": ["head", "head_dist"] if distilled else "head",
        },
    }


def arguments_of(a: Architecture) -> dict:
    """What timm's constructor takes to build the architecture on the base."""
    same = "img_size patch_size in_chans embed_dim depth num_heads mlp_ratio qkv_bias proj_bias qk_norm"
    same += " class_token reg_tokens no_embed_class"
    arguments = {name: getattr(a, name) for name in same.split()} | {
        "init_values": a.init_values,
        "dynamic_img_size": a.image_sizes == "multiples",
        "global_pool": "token" if a.global_pool == "distilled" else a.global_pool,
        "fc_norm": a.norm_after_pool,
        "final_norm": a.fc_norm != "none",
        "pre_norm": a.embed_norm == "tokens",
        "act_layer": ACTIVATIONS.get(a.mlp, a.mlp),
    }
    if a.init_values is None and a.block != "parallel":
        arguments["init_values"] = 0.0  # timm drops null, and the base may have one; 0 is none
    if a.block == "sub_norm":
        arguments |= {"scale_attn_norm": True, "scale_mlp_norm": True}
    if not a.norm_layer.endswith("1e-5"):
        arguments["norm_layer"] = a.norm_layer
        if a.embed_norm == "patches":
            arguments["embed_norm_layer"] = a.norm_layer
    return arguments
