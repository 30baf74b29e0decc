"""Every plain Vision Transformer that timm knows, in our network: names, shapes, logits, attention.

The oracle of the attention tests (`timm_rollout`) knows torch and timm only: hooks on timm's softmax
output in float64, and the whole (T, T) product of the definition.
"""

import gc
import re
from functools import cache

import pytest
import timm
import torch
from torch import Tensor, nn

import vit
from vit.architecture import BLOCKS, MLPS, NORM_LAYERS, POOLS, Architecture
from vit.explain import raw, rollout
from vit.recognise import architecture_of

full = pytest.mark.full
NAMES = [
    name for module in ("vision_transformer", "deit") for name in timm.list_models(module=module)
]
REFUSED = {
    "vit_small_patch16_18x2_224": "blocks of kind ParallelThingsBlock",
    "vit_base_patch16_18x2_224": "blocks of kind ParallelThingsBlock",
    "vit_dwee_patch16_reg1_gap_256": "attention of kind DiffAttention",
    "vit_dlittle_patch16_reg1_gap_256": "attention of kind DiffAttention",
    "vit_dpwee_patch16_reg1_gap_256": "blocks of kind DiffParallelScalingBlock",
    "test_vit3": "pooling over the prefix tokens",
}
SUPPORTED = [name for name in NAMES if name not in REFUSED]
# One of each family, for the suite that always runs.
FEW = [
    "vit_small_patch16_224",
    "vit_base_patch32_clip_quickgelu_224",
    "vit_base_patch16_siglip_224",
    "vit_base_patch16_siglip_gap_224",
    "vit_giant_patch14_reg4_dinov2",
    "aimv2_large_patch14_224",
    "beit3_base_patch16_224",
    "vit_base_patch16_rpn_224",
    "vit_pwee_patch16_reg1_gap_256",
    "vit_base_patch16_xp_224",
    "vit_intern300m_patch14_448",
    "deit_tiny_distilled_patch16_224",
]
# At full size: each kind of block, MLP, norm and pooling, on any machine with 8 GB.
WHOLE = [
    ("vit_base_patch16_224", {}),
    ("vit_base_patch32_clip_224", {"img_size": (256, 192)}),
    ("vit_base_patch16_siglip_224", {}),
    ("vit_base_patch14_reg4_dinov2", {"img_size": (224, 308)}),
    ("aimv2_large_patch14_224", {}),
    ("beit3_base_patch16_224", {"img_size": 160}),
    ("vit_base_patch16_rpn_224", {}),
    ("vit_base_patch16_xp_224", {}),
    ("deit_base_distilled_patch16_224", {"img_size": (192, 256)}),
    ("vit_large_patch16_radio_v3", {"img_size": 256}),
]


def every(names: list[str], few: list[str]) -> list:
    """The names as parameters, those not in `few` in the full suite alone."""
    return [pytest.param(name, marks=() if name in few else full) for name in names]


@cache
def on_meta(name: str) -> nn.Module:
    with torch.device("meta"):
        return timm.create_model(name)


@cache
def scaled(name: str, shape: tuple[int, int] = (3, 3), draw: str = "plain") -> nn.Module:
    """timm's network of a name, of 2 blocks of width 48, for images of `shape` patches.

    All tensors are drawn from normal(0, .05). With the draw "sharp" norms are near one and q, k and
    tokens large: without it attention is uniform to five digits, and rollout shows nothing.
    """
    patch = on_meta(name).patch_embed.patch_size
    size = tuple(count * side for count, side in zip(shape, patch, strict=True))
    module = timm.create_model(name, embed_dim=48, depth=2, num_heads=3, img_size=size)
    return draw_tensors(module, draw == "sharp").eval()


def draw_tensors(module: nn.Module, sharp: bool = False) -> nn.Module:
    torch.manual_seed(len(list(module.parameters())))
    with torch.no_grad():
        for name, tensor in module.state_dict().items():
            tensor.normal_(0, 0.05)
            if sharp and "norm" in name and name.endswith("weight"):
                tensor.add_(1)
            if sharp and any(part in name for part in ("qkv.w", "in_proj.w", "kv.w", ".q.w")):
                tensor.mul_(12)
            if sharp and ("embed" in name or "token" in name or "latent" in name):
                tensor.mul_(10)
    return module


def pictures(module: nn.Module, count: int = 2) -> Tensor:
    torch.manual_seed(7)
    return torch.randn(count, 3, *module.patch_embed.img_size)


def relative(ours: Tensor, theirs: Tensor) -> float:
    """max |ours - theirs| over the largest value."""
    assert ours.shape == theirs.shape
    return float((ours - theirs).abs().max() / theirs.abs().max())


def assert_equal_logits(module: nn.Module, images: Tensor) -> None:
    net = vit.from_timm(module)
    with torch.inference_mode():
        expected = module(images)
        assert expected.std() > 1e-3 * expected.abs().max(), "the logits are all alike"
        assert relative(net(images), expected) <= 1e-5


def test_the_names_are_those_counted():
    assert (len(NAMES), len(SUPPORTED)) == (179, 173)
    assert set(REFUSED) <= set(NAMES) and set(FEW) <= set(SUPPORTED)


@pytest.mark.parametrize("name", every(SUPPORTED, FEW))
def test_names_and_shapes_are_timms(name):
    module = on_meta(name)
    with torch.device("meta"):
        net = vit.VisionTransformer(architecture_of(module))
    ours, theirs = (
        {key: tuple(value.shape) for key, value in one.state_dict().items()}
        for one in (net, module)
    )
    assert ours == theirs
    assert net.num_prefix_tokens == module.num_prefix_tokens


@pytest.mark.parametrize("shape", [(3, 3), (2, 5)])
@pytest.mark.parametrize("name", every(SUPPORTED, FEW))
def test_logits_are_timms(name, shape):
    module = scaled(name, shape)
    assert_equal_logits(module, pictures(module))


@pytest.mark.parametrize("name", every(SUPPORTED, FEW))
def test_logits_are_timms_with_attention_far_from_uniform(name):
    module = scaled(name, draw="sharp")
    assert_equal_logits(module, pictures(module))


@full
@pytest.mark.parametrize(("name", "arguments"), WHOLE)
def test_logits_are_timms_at_full_size(name, arguments):
    gc.collect()
    module = draw_tensors(timm.create_model(name, **arguments)).eval()
    assert_equal_logits(module, pictures(module, 1))


@pytest.mark.parametrize("name", REFUSED)
def test_the_others_are_refused_with_the_reason(name):
    module = on_meta(name)
    with pytest.raises(ValueError, match="supported") as caught:
        architecture_of(module)
    assert REFUSED[name] in str(caught.value)


@pytest.mark.parametrize("name", ["vit_intern300m_patch14_448", "test_vit4"])
def test_images_of_any_size_where_timm_takes_them(name):
    module = scaled(name)
    patch = module.patch_embed.patch_size[0]
    net = vit.from_timm(module)
    images = torch.randn(2, 3, 4 * patch, 2 * patch, generator=torch.manual_seed(1))
    with torch.inference_mode():
        assert relative(net(images), module(images)) <= 1e-5
    assert rollout(net, images).shape == (2, 4, 2)
    with pytest.raises(ValueError, match=r"must be a multiple of patch_size"):
        net(images[..., 1:])


def test_what_is_left_over_beside_whole_patches_is_not_seen():
    module = timm.create_model(
        "vit_so400m_patch14_siglip_384", embed_dim=48, depth=2, num_heads=3, img_size=(34, 44)
    )
    net = vit.from_timm(draw_tensors(module.eval()))
    images = pictures(module)
    with torch.inference_mode():
        assert relative(net(images), module(images)) <= 1e-5
    assert net.grid_size == rollout(net, images).shape[1:] == (2, 3)
    with pytest.raises(ValueError, match="expected images of 34x44 pixels"):
        net(images[..., :42])


# --- The fields ----------------------------------------------------------------------------------


def test_every_value_of_every_table_builds_a_network_all_of_which_learns():
    """Gradients reach every parameter, and the fields written down build the same network."""
    tables = {"norm_layer": NORM_LAYERS, "mlp": MLPS, "block": BLOCKS, "global_pool": POOLS}
    tables |= {"embed_norm": ("tokens", "patches"), "fc_norm": (True, "none"), "qk_norm": (True,)}
    small = {"img_size": 8, "patch_size": 4, "embed_dim": 24, "depth": 2, "num_classes": 5}
    images = torch.randn(2, 3, 8, 8, generator=torch.manual_seed(0))
    for field, values in tables.items():
        for value in values:
            net = vit.VisionTransformer(**small, **{field: value})
            draw_tensors(net, sharp=True)
            net(images).square().sum().backward()
            idle = [name for name, one in net.named_parameters() if not one.grad.abs().sum()]
            assert not idle, (field, value)
            again = vit.VisionTransformer(Architecture.from_dict(net.architecture.non_defaults()))
            again.load_state_dict(net.state_dict())
            torch.testing.assert_close(again(images), net(images))


@full
def test_no_field_is_used_by_a_single_name():
    used = dict.fromkeys(vars(Architecture()), 0)
    for name in SUPPORTED:
        for field in architecture_of(on_meta(name)).non_defaults():
            used[field] += 1
    assert len(used) <= 24
    unused = {field for field, count in used.items() if not count}
    assert unused == {"in_chans", "drop_rate", "drop_path_rate"}  # grey images, and training
    assert 1 not in used.values()
    told = re.findall(r"^ +(\w+): \[(\d+)\]", Architecture.__doc__, re.MULTILINE)
    assert {field: int(count) for field, count in told} == used


# --- Attention -----------------------------------------------------------------------------------

KINDS = {
    "class token": "vit_small_patch16_224",
    "registers": "vit_small_patch14_reg4_dinov2",
    "distilled": "deit_tiny_distilled_patch16_224",
    "mean of patches": "vit_base_patch16_siglip_gap_224",
    "mean, with registers": "vit_medium_patch16_reg4_gap_256",
    "learned query": "vit_base_patch16_siglip_224",
    "norm before the blocks": "vit_base_patch32_clip_224",
    "sub-norm": "beit3_base_patch16_224",
    "res-post": "vit_base_patch16_rpn_224",
    "parallel": "vit_pwee_patch16_reg1_gap_256",
    "parallel, norms on q and k": "vit_base_patch16_xp_224",
    "gated MLP, RMSNorm": "aimv2_large_patch14_224",
}


def timm_weights(module: nn.Module, images: Tensor) -> tuple[list[Tensor], Tensor | None]:
    """timm's softmax outputs (B, H, T, T) of the blocks, and the learned query's (B, H, 1, N)."""
    maps, handles, last = [], [], []
    for block in module.blocks:
        attention = getattr(block, "attn", block)
        attention.fused_attn = False  # the fused kernel never forms the weights
        record = attention.attn_drop.register_forward_hook(lambda *call: maps.append(call[2]))
        handles.append(record)
    handles.append(module.norm.register_forward_hook(lambda *call: last.append(call[2])))
    with torch.no_grad():
        module.double()(images.double())
        row = query_row(module, last[0]) if module.global_pool == "map" else None
    for handle in handles:
        handle.remove()
    return maps, row


def query_row(module: nn.Module, tokens: Tensor) -> Tensor:
    """softmax(q k^T / sqrt(K)) of timm's attention pooling, from its layers."""
    pool = module.attn_pool
    q = pool.q(pool.latent)[0, 0]  # (D,)
    k = pool.kv(tokens[:, module.num_prefix_tokens :])[..., : len(q)]  # (B, N, D)
    heads = [slice(i, i + pool.head_dim) for i in range(0, len(q), pool.head_dim)]
    scores = [k[..., h] @ q[h] / pool.head_dim**0.5 for h in heads]
    return torch.stack(scores, 1).softmax(-1)[:, :, None]


def timm_rollout(module: nn.Module, images: Tensor) -> Tensor:
    """Rollout over the patches (B, N) in float64 by definition."""
    maps, row = timm_weights(module, images)
    identity = torch.eye(maps[0].shape[-1], dtype=torch.float64)
    product = identity
    for weights in maps:
        product = (0.5 * weights.mean(dim=1) + 0.5 * identity) @ product
    prefix = module.num_prefix_tokens
    if row is not None:
        read = (row.mean(dim=1) @ product[:, prefix:])[:, 0]
    elif module.global_pool == "avg":
        read = product[:, prefix:].mean(dim=1)
    else:
        read = product[:, : 2 if hasattr(module, "dist_token") else 1].mean(dim=1)
    return read[:, prefix:]


@pytest.mark.parametrize("kind", KINDS)
def test_rollout_equals_the_oracle(kind):
    module = scaled(KINDS[kind], (3, 4), draw="sharp")
    net, images = vit.from_timm(module), pictures(module, 3)
    heat = rollout(net, images)
    exact = rollout(net.double(), images.double())
    expected = timm_rollout(module, images)
    module.float()
    assert (expected.amax(1) > 1.2 * expected.amin(1)).all(), "nearly uniform: would show nothing"
    assert heat.shape == (3, 3, 4)
    torch.testing.assert_close(exact.flatten(1), expected, rtol=1e-10, atol=1e-13)
    torch.testing.assert_close(heat.flatten(1).double(), expected, rtol=1e-4, atol=1e-6)


@pytest.mark.parametrize("path", ["explicit", "fused"])
@pytest.mark.parametrize("kind", KINDS)
def test_weights_times_values_is_what_the_block_computed(kind, path):
    module = scaled(KINDS[kind], (3, 4), draw="sharp")
    net, images = vit.from_timm(module).use_attention(path), pictures(module)
    mixed = []
    for block in net.blocks:
        after = getattr(block, "attn_out_proj", None) or block.attn.norm
        after.register_forward_pre_hook(lambda _, inputs: mixed.append(inputs[0]))
    with torch.no_grad():
        net(images)
        used, mixed[:] = list(mixed), []
        asked = [
            attention.merge_heads(attention.weights(x) @ attention.values(x))
            for attention, x in net.attention_inputs(images)
        ]
    assert len(used) == 2
    for ours, theirs in zip(asked, used, strict=True):
        assert relative(ours, theirs) <= 1e-5


def test_the_learned_querys_row_times_values_is_what_pooling_computed():
    module = scaled("vit_base_patch16_siglip_224", draw="sharp")
    net, images = vit.from_timm(module), pictures(module)
    pool, read = net.attn_pool, []
    pool.proj.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    with torch.no_grad():
        tokens = net.forward_features(images)
        pool(tokens)
        again = pool.merge_heads(pool.weights(tokens) @ pool.project(tokens)[2])
    assert relative(again, read[0]) <= 1e-5
    torch.testing.assert_close(pool.shares(tokens).sum(1), torch.ones(2))


@pytest.mark.parametrize("kind", ["distilled", "learned query", "mean, with registers"])
def test_raw_reads_what_the_head_reads(kind):
    module = scaled(KINDS[kind], (3, 4), draw="sharp")
    net, images = vit.from_timm(module).double(), pictures(module).double()
    maps, row = timm_weights(module, images)
    module.float()
    prefix, last = module.num_prefix_tokens, maps[-1][:, 1]
    read = {
        "distilled": lambda: last[:, :2].mean(1),
        "learned query": lambda: (row.mean(1) @ last)[:, 0],
        "mean, with registers": lambda: last[:, prefix:].mean(1),
    }[kind]()
    heat = raw(net, images, head=1)
    torch.testing.assert_close(heat.flatten(1), read[:, prefix:], rtol=1e-10, atol=1e-13)
