"""What a network is: the fields in which published Vision Transformers differ, in timm's words.

D embed_dim, K head width, P tokens before the patches.

The defaults are the plain Vision Transformer (Dosovitskiy et al. 2021, arXiv 2010.11929) at the
size Ti/16. Of the 179 Vision Transformers in timm 1.0.31 these fields describe 173; the number before
each field's meaning says how many of the 173 leave its default. None is there for a single name; those
of no name are for grey images and for training.
"""

from dataclasses import asdict, dataclass, fields

IMAGE_SIZES = ("exact", "multiples", "cut")
EMBED_NORMS = (None, "tokens", "patches")
NORM_LAYERS = ("layernorm", "layernorm_1e-5", "rmsnorm", "rmsnorm_1e-5")
MLPS = ("gelu", "gelu_tanh", "quick_gelu", "swiglu", "swiglu_packed")
BLOCKS = ("pre", "sub_norm", "res_post", "parallel")
POOLS = ("token", "avg", "map", "distilled")
FC_NORMS = (None, True, False, "none")


@dataclass(frozen=True)
class Architecture:
    """What a network is, in timm's words; the defaults are ViT-Ti/16.

    Args:
        img_size: [114] image side or (height, width), pixels.
        patch_size: [76] patch side or (height, width), pixels.
        in_chans: [0] colour channels.
        num_classes: [90] outputs of the head; 0 means no head, features come out.
        embed_dim: [169] token width D.
        depth: [101] number of blocks.
        num_heads: [168] attention heads per block; embed_dim must be a multiple of it.
        mlp_ratio: [53] width of the MLP's first layer over embed_dim.
        qkv_bias: [24] bias in the projection to q, k, v; off: El-Nouby et al. 2024, AIMv2.
        proj_bias: [12] bias in all other layers of a block; off: AIMv2 (arXiv 2411.14402, section 3).
        qk_norm: [3] norms on each head's q and k (Dehghani et al. 2023, arXiv 2302.05442, section 2).
        init_values: [47] first value of LayerScale (Touvron et al. 2021, arXiv 2103.17239).
        class_token: [75] a learned class token before the patches; off: Zhai et al. 2022, Scaling ViT
            (arXiv 2106.04560, section 3).
        reg_tokens: [34] learned register tokens (Darcet et al. 2024, arXiv 2309.16588) after it.
        no_embed_class: [40] positions for the patches alone, none for the prefix tokens (Touvron et al.
            2022, DeiT III, arXiv 2204.07118).
        embed_norm: [41] a norm before the first block: "tokens", on all of them, after the positions,
            and patches without bias (Radford et al. 2021, CLIP, arXiv 2103.00020); "patches",
            before the positions (AIMv2); none: without.
        norm_layer: [46] "layernorm" (Ba et al. 2016, arXiv 1607.06450), "rmsnorm" (Zhang & Sennrich
            2019, arXiv 1910.07467), each with epsilon 1e-6, or 1e-5 as "layernorm_1e-5", ...
        mlp: [36] the MLP's activation, "gelu" (Hendrycks & Gimpel 2016, arXiv 1606.08415), "gelu_tanh",
            its approximation by tanh, "quick_gelu", that by a sigmoid (section 2 there, CLIP), or
            a gated MLP (Shazeer 2020, arXiv 2002.05202), "swiglu" with gate and value in two
            layers, "swiglu_packed" with both in one.
        block: [9] where a block has its norms: "pre", before attention and MLP; "sub_norm", also inside
            both (Wang et al. 2022, Magneto, arXiv 2210.06423); "res_post", after both (Liu et al.
            2022, Swin V2, arXiv 2111.09883); "parallel", one before both, which act side by side
            (Dehghani et al. 2023, arXiv 2302.05442).
        global_pool: [85] what the head reads: "token" (the class token), "avg" (mean of the patches),
            "map" (attention with one learned query, Zhai et al. 2022), "distilled" (the class and
            a distillation token, a head each, averaged; Touvron et al. 2021, arXiv 2012.12877).
        fc_norm: [47] the last norm after the pooling (true) in place of before it (false), or nowhere
            ("none": Heinrich et al. 2024, RADIO, arXiv 2412.07679); none: after it exactly for "avg".
        image_sizes: [6] which images it takes: "exact", of img_size alone, a multiple of the patch's;
            "multiples", of any size that is, with positions resized at each call (Chen et al. 2024,
            InternVL, arXiv 2312.14238); "cut", of img_size alone, of which what is left over beside
            whole patches, to the right and below, is not seen (Zhai et al. 2023, SigLIP, arXiv
            2303.15343: 384 pixels in patches of 14).
        drop_rate: [0] dropout after positions, projections and MLP layers, fraction in [0, 1).
        drop_path_rate: [0] stochastic depth (Huang et al. 2016, arXiv 1603.09382) of the last block,
            rising linearly from 0 at the first, fraction in [0, 1).

    Raises:
        ValueError: a value out of range, or pooling of a class token that is not there.
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
    proj_bias: bool = True
    qk_norm: bool = False
    init_values: float | None = None
    class_token: bool = True
    reg_tokens: int = 0
    no_embed_class: bool = False
    embed_norm: str | None = None
    norm_layer: str = "layernorm"
    mlp: str = "gelu"
    block: str = "pre"
    global_pool: str = "token"
    fc_norm: bool | str | None = None
    image_sizes: str = "exact"
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
        one_of("image_sizes", self.image_sizes, IMAGE_SIZES)
        one_of("embed_norm", self.embed_norm, EMBED_NORMS)
        one_of("norm_layer", self.norm_layer, NORM_LAYERS)
        one_of("mlp", self.mlp, MLPS)
        one_of("block", self.block, BLOCKS)
        one_of("global_pool", self.global_pool, POOLS)
        one_of("fc_norm", self.fc_norm, FC_NORMS)
        if self.global_pool in ("token", "distilled") and not self.class_token:
            raise ValueError(
                f'global_pool "{self.global_pool}" needs class_token; without one use "avg" or "map"'
            )

    @property
    def num_prefix_tokens(self) -> int:
        """P: tokens before the patches."""
        return int(self.class_token) + int(self.global_pool == "distilled") + self.reg_tokens

    @property
    def norm_after_pool(self) -> bool:
        """Whether the last norm acts on the pooled token (`fc_norm`) and not on all (`norm`)."""
        return self.global_pool == "avg" if self.fc_norm is None else self.fc_norm is True

    @property
    def norm_before_pool(self) -> bool:
        """Whether the last norm acts on all tokens (`norm`)."""
        return not self.norm_after_pool and self.fc_norm != "none"

    @property
    def grid_size(self) -> tuple[int, int]:
        """(rows, cols) of patches."""
        rows, cols = (
            side // patch for side, patch in zip(self.img_size, self.patch_size, strict=True)
        )
        return rows, cols

    @property
    def embedded_prefix(self) -> int:
        """How many of the prefix tokens have positions."""
        return 0 if self.no_embed_class else self.num_prefix_tokens

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


def one_of(name: str, value, known: tuple) -> None:
    """Checks a field against its table.

    Raises:
        ValueError: `value` is not in it.
    """
    if value not in known:
        shown = '"' + value + '"' if isinstance(value, str) else value
        words = ", ".join(f'"{one}"' if isinstance(one, str) else str(one) for one in known)
        raise ValueError(f"{name} ({shown}) must be one of {words}")


def pair(size) -> tuple[int, int]:
    """8 -> (8, 8); (8, 4) -> (8, 4): (height, width).

    Raises:
        ValueError: not one or two whole numbers above zero.
    """
    both = (size, size) if isinstance(size, int) else tuple(size)
    if len(both) != 2 or any(not isinstance(side, int) or side < 1 for side in both):
        raise ValueError(f"a size must be one or two whole numbers of pixels, got {size!r}")
    return both
