"""Attention rollout against a float64 oracle on timm's own network, by hand, and by its properties.

The oracle (`timm_maps`, `full_rollout`) knows torch and timm only: hooks on timm's softmax output,
and the whole (T, T) product of the definition.
"""

import gc

import pytest
import timm
import torch
from timm.models.vision_transformer import VisionTransformer as TimmTransformer

import vit
from vit import attention_tiles
from vit.attention import SelfAttention
from vit.attention_maps import between, gathered
from vit.attention_rows import Layer, attend, blocks_of_rows, fused
from vit.explain import raw, rollout

NETS = {
    "class token": {"img_size": 32},
    "registers": {"img_size": 32, "reg_tokens": 4, "no_embed_class": True},
    "mean of patches": {"img_size": 32, "class_token": False, "global_pool": "avg"},
    "mean, with class token": {"img_size": 32, "global_pool": "avg"},
    "16x8": {"img_size": (128, 64)},
    "1x7": {"img_size": (8, 56)},
}


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
    """Networks this small would have all their columns in one."""
    monkeypatch.setattr(attention_tiles, "COLUMNS", 7)


def redrawn(net: TimmTransformer, qkv: float) -> TimmTransformer:
    """Every tensor drawn from normal(0, .05), then attention made far from uniform.

    Without the factors the scores are so small that every rollout is uniform to five digits.
    """
    torch.manual_seed(len(net.blocks))
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            tensor.normal_(0, 0.05)
            if "norm" in name and name.endswith("weight"):
                tensor.add_(1)
            if "qkv.weight" in name:
                tensor.mul_(qkv)
            if "embed" in name or "token" in name:
                tensor.mul_(10)  # tokens that differ from each other
    return net.eval()


def timm_net(depth: int = 2, **changes) -> TimmTransformer:
    """A small network of timm's."""
    plain = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
    return redrawn(TimmTransformer(depth=depth, **{**plain, **changes}), qkv=12)


def our_net(reference: TimmTransformer, depth: int = 2, **changes) -> vit.VisionTransformer:
    """Our network with timm's weights, loaded strictly."""
    plain = {"img_size": 32, "patch_size": 8, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
    net = vit.VisionTransformer(depth=depth, **{**plain, **changes}).eval()
    net.load_state_dict(reference.state_dict(), strict=True)
    return net


def both(depth: int = 2, **changes) -> tuple[TimmTransformer, vit.VisionTransformer]:
    reference = timm_net(depth, **changes)
    return reference, our_net(reference, depth, **changes)


def pictures(net, count: int = 3) -> torch.Tensor:
    torch.manual_seed(7)
    return torch.randn(count, 3, *net.patch_embed.img_size)


def timm_maps(net: TimmTransformer, images: torch.Tensor) -> list[torch.Tensor]:
    """timm's softmax output of every block, in float64: L times (B, H, T, T)."""
    maps, handles = [], []
    for block in net.blocks:
        block.attn.fused_attn = False  # the fused kernel never forms the weights
        record = block.attn.attn_drop.register_forward_hook(lambda *call: maps.append(call[2]))
        handles.append(record)
    with torch.no_grad():
        net.double()(images.double())
    for handle in handles:
        handle.remove()
    assert len(maps) == len(net.blocks)
    return maps


def full_rollout(maps: list[torch.Tensor]) -> torch.Tensor:
    """A'_L ... A'_1 with A' = 0.5 E_h A + 0.5 I, as (B, T, T) products."""
    identity = torch.eye(maps[0].shape[-1], dtype=torch.float64)
    product = identity
    for weights in maps:
        product = (0.5 * weights.mean(dim=1) + 0.5 * identity) @ product
    return product


def oracle(net: TimmTransformer, images: torch.Tensor, layers: slice = slice(None)):
    """Rollout (B, rows, cols) in float64 by definition."""
    product = full_rollout(timm_maps(net, images)[layers])
    prefix = net.num_prefix_tokens
    row = product[:, prefix:].mean(dim=1) if net.global_pool == "avg" else product[:, 0]
    rows, cols = (side // 8 for side in images.shape[-2:])
    return row[:, prefix:].reshape(len(images), rows, cols)


@pytest.mark.parametrize("batch", [1, 3])
@pytest.mark.parametrize("depth", [1, 2, 12])
@pytest.mark.parametrize("kind", NETS)
def test_rollout_equals_the_oracle(kind, depth, batch):
    reference, net = both(depth, **NETS[kind])
    images = pictures(net, batch)
    expected = oracle(reference, images)
    spread = expected.amax((1, 2)) / expected.amin((1, 2))
    assert (spread > 1.2).all(), "attention is nearly uniform: the comparison would show nothing"
    heat = rollout(net, images)
    assert heat.dtype == torch.float32 and heat.shape == expected.shape
    torch.testing.assert_close(heat.double(), expected, rtol=1e-5, atol=1e-7)
    heat = rollout(net.double(), images.double())
    torch.testing.assert_close(heat, expected, rtol=1e-11, atol=1e-14)


@pytest.mark.parametrize("layers", [slice(0, 1), slice(1, 3), slice(-2, None), slice(3, None)])
def test_rollout_over_some_layers_is_the_product_over_those(layers):
    reference, net = both(4)
    images = pictures(net)
    heat = rollout(net.double(), images.double(), layers=layers)
    torch.testing.assert_close(heat, oracle(reference, images, layers), rtol=1e-11, atol=1e-14)
    assert not torch.allclose(heat, rollout(net, images.double()), rtol=1e-2)


def test_other_readings_of_the_definition_differ_from_ours():
    """What the comparison with the oracle must be able to tell apart."""
    reference, net = both(2, reg_tokens=4)
    images = pictures(net)
    maps = timm_maps(reference, images)
    ours = rollout(net.double(), images.double()).flatten(1)
    one, two = (0.5 * weights.mean(dim=1) for weights in maps)
    identity = 0.5 * torch.eye(one.shape[-1], dtype=torch.float64)
    first_to_last = (one + identity) @ (two + identity)
    without_identity = 4 * two @ one
    largest = full_rollout([weights.amax(dim=1, keepdim=True) for weights in maps])
    for other in (first_to_last, without_identity, largest, full_rollout(maps).mT):
        assert ((other[:, 0, 5:] - ours).abs().amax(dim=1) > 0.05 * ours.amax(dim=1)).all()


def variant_maps(maps: list[torch.Tensor], heads: str, discard: float) -> list[torch.Tensor]:
    """One map per layer in place of its heads: row by row, as the definition reads."""
    out = []
    for weights in maps:
        one = {"mean": weights.mean(1), "max": weights.amax(1), "min": weights.amin(1)}[heads]
        one = one.clone()
        for row in one.flatten(0, 1):
            by_size = sorted(range(len(row)), key=lambda index: (float(row[index]), index))
            row[by_size[: int(discard * len(row))]] = 0
            row.div_(row.sum())
        out.append(one[:, None])
    return out


@pytest.mark.parametrize("discard", [0.0, 0.3, 0.9])
@pytest.mark.parametrize("heads", ["mean", "max", "min"])
@pytest.mark.parametrize("kind", ["registers", "mean of patches", "1x7"])
def test_variants_equal_the_oracle(kind, heads, discard):
    reference, net = both(3, **NETS[kind])
    images = pictures(net)
    maps = variant_maps(timm_maps(reference, images), heads, discard)
    product, prefix = full_rollout(maps), net.num_prefix_tokens
    row = product[:, 0] if prefix else product.mean(dim=1)
    heat = rollout(net.double(), images.double(), heads=heads, discard=discard, row_block=5)
    torch.testing.assert_close(heat.flatten(1), row[:, prefix:], rtol=1e-10, atol=1e-13)
    plain = rollout(net, images.double())
    assert (heads, discard) == ("mean", 0) or not torch.allclose(heat, plain, rtol=1e-5)


def test_of_equal_entries_the_first_are_discarded():
    weights = torch.full((1, 2, 1, 4), 0.25)
    assert torch.equal(fused(weights, "mean", 0.5), torch.tensor([[[0, 0, 0.5, 0.5]]]))
    assert torch.equal(fused(weights, "mean", 0.2), torch.full((1, 1, 4), 0.25))  # 0.8 of an entry


@pytest.mark.parametrize("heads", ["mean", "max", "min"])
def test_fused_rows_sum_to_one(heads):
    weights = torch.randn(2, 3, 4, 50, generator=torch.manual_seed(0)).softmax(dim=-1)
    for discard in (0.0, 0.5, 0.99):
        rows = fused(weights, heads, discard)
        torch.testing.assert_close(rows.sum(dim=-1), torch.ones(2, 4), rtol=1e-5, atol=0)
        assert (rows == 0).sum(dim=-1).eq(int(discard * 50)).all()


@pytest.mark.parametrize("head", [None, 0, 2])
@pytest.mark.parametrize("layer", [0, 2, -1, -3])
@pytest.mark.parametrize("kind", NETS)
def test_raw_equals_the_oracle(kind, layer, head):
    reference, net = both(3, **NETS[kind])
    images, prefix = pictures(net), net.num_prefix_tokens
    weights = timm_maps(reference, images)[layer]
    one = weights.mean(dim=1) if head is None else weights[:, head]
    pooled = net.architecture.global_pool == "avg"
    row = one[:, prefix:].mean(dim=1) if pooled else one[:, 0]
    heat = raw(net.double(), images.double(), layer=layer, head=head, row_block=7)
    assert heat.shape[1:] == net.grid_size
    torch.testing.assert_close(heat.flatten(1), row[:, prefix:], rtol=1e-10, atol=1e-13)


@pytest.mark.parametrize("name", ["vit_tiny_patch16_224", "vit_small_patch14_reg4_dinov2"])
def test_rollout_on_published_architectures(name):
    size = {"vit_tiny_patch16_224": (96, 64), "vit_small_patch14_reg4_dinov2": (42, 98)}[name]
    reference = redrawn(timm.create_model(name, img_size=size, num_classes=0), qkv=4)
    net = vit.VisionTransformer(
        img_size=size,
        patch_size=reference.patch_embed.patch_size,
        embed_dim=reference.embed_dim,
        num_heads=reference.blocks[0].attn.num_heads,
        reg_tokens=4 if "reg4" in name else 0,
        no_embed_class="reg4" in name,
        init_values=1.0 if "dinov2" in name else None,
        num_classes=0,
    )
    net.load_state_dict(reference.state_dict(), strict=True)
    images = pictures(net, 1)
    prefix = reference.num_prefix_tokens
    expected = full_rollout(timm_maps(reference, images))[:, 0, prefix:].float()
    assert expected.max() > 1.2 * expected.min()
    torch.testing.assert_close(rollout(net, images).flatten(1), expected, rtol=1e-5, atol=1e-8)


# --- By hand: a class token and two patches, two heads whose mean is written here -------------

FIRST = [[[0.0, 1, 0], [0, 1, 0], [1, 0, 0]], [[0, 0, 1], [0, 1, 0], [1, 0, 0]]]
SECOND = [[[1.0, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 0, 1], [0, 1, 0], [0, 1, 0]]]


def with_attention(maps: list) -> SelfAttention:
    """A module whose weights on one-hot tokens are `maps` (H, T, T): q = log A, k = I."""
    maps = torch.tensor(maps)
    heads, tokens = maps.shape[:2]
    module = SelfAttention(heads * tokens, heads, qkv_bias=False)
    wanted = maps.clamp(min=1e-30).log() / module.scale  # (H, T, T)
    with torch.no_grad():
        module.qkv.weight.zero_()
        for head in range(heads):
            part = slice(head * tokens, (head + 1) * tokens)
            module.qkv.weight[part, :tokens] = wanted[head].T
            keys = slice(heads * tokens + part.start, heads * tokens + part.stop)
            module.qkv.weight[keys, :tokens] = torch.eye(tokens)
    return module


def three_tokens(**changes) -> vit.VisionTransformer:
    net = vit.VisionTransformer(
        img_size=(2, 4), patch_size=2, embed_dim=6, num_heads=2, depth=2, **changes
    )
    x = torch.eye(3, 6)[None]
    modules = [with_attention(FIRST), with_attention(SECOND)]
    net.attention_inputs = lambda images: iter([(module, x) for module in modules])
    return net


def test_the_fixture_has_the_attention_written_above():
    weights = with_attention(FIRST).weights(torch.eye(3, 6)[None])
    torch.testing.assert_close(weights, torch.tensor([FIRST]), rtol=0, atol=1e-6)


def test_three_tokens_by_hand():
    # A'_1 = [[.5, .25, .25], [0, 1, 0], [.5, 0, .5]]
    # A'_2 = [[.75, 0, .25], [0, 1, 0], [0, .25, .75]]
    # class row: [.75, 0, .25] A'_1 = [.5, .1875, .3125]
    heat = rollout(three_tokens(), torch.zeros(1, 3, 2, 4))
    torch.testing.assert_close(heat, torch.tensor([[[0.1875, 0.3125]]]), rtol=0, atol=1e-6)
    # mean of the patch rows: [0, .625, .375] A'_1 = [.1875, .625, .1875]
    heat = rollout(three_tokens(global_pool="avg"), torch.zeros(1, 3, 2, 4))
    torch.testing.assert_close(heat, torch.tensor([[[0.625, 0.1875]]]), rtol=0, atol=1e-6)


# --- Properties --------------------------------------------------------------------------------


@pytest.mark.parametrize("path", ["explicit", "fused"])
@pytest.mark.parametrize("kind", ["registers", "mean of patches"])
def test_weights_times_values_is_what_the_block_computed(kind, path):
    _, net = both(3, **NETS[kind])
    net.use_attention(path)
    mixed = []
    for block in net.blocks:
        block.attn.proj.register_forward_pre_hook(lambda module, call: mixed.append(call[0]))
    images = pictures(net)
    with torch.no_grad():
        net(images)
        in_forward, mixed[:] = list(mixed), []
        asked = [
            module.merge_heads(module.weights(x) @ module.values(x))
            for module, x in net.attention_inputs(images)
        ]
    assert len(in_forward) == 3
    for ours, used in zip(asked, in_forward, strict=True):
        torch.testing.assert_close(ours, used, rtol=0, atol=1e-5 * float(used.abs().max()))


@pytest.mark.parametrize("kind", NETS)
def test_uniform_attention_gives_uniform_heat(kind):
    _, net = both(3, **NETS[kind])
    for block in net.blocks:
        torch.nn.init.zeros_(block.attn.qkv.weight[:24].detach())
        torch.nn.init.zeros_(block.attn.qkv.bias[:24].detach())
    heat = rollout(net, pictures(net))
    tokens, prefix = net.pos_embed.shape[1], net.num_prefix_tokens
    if net.architecture.no_embed_class:
        tokens += prefix
    started = 1 / (tokens - prefix) if net.architecture.global_pool == "avg" else 0
    expected = (1 - 0.5**3) / tokens + 0.5**3 * started
    torch.testing.assert_close(heat, torch.full_like(heat, expected), rtol=1e-5, atol=0)


def test_patches_and_prefix_share_a_mass_of_one():
    _, net = both(2, class_token=False, global_pool="avg")
    whole = rollout(net, pictures(net)).sum((1, 2))
    torch.testing.assert_close(whole, torch.ones(3), rtol=1e-5, atol=0)
    _, net = both(2, reg_tokens=4)
    share = rollout(net, pictures(net)).sum((1, 2))
    assert (share > 0.1).all() and (share < 0.75).all()  # the class row keeps a quarter for itself


@pytest.mark.parametrize("kind", NETS)
def test_batch_equals_one_by_one(kind):
    _, net = both(3, **NETS[kind])
    images = pictures(net)
    singly = torch.cat([rollout(net, image[None]) for image in images])
    torch.testing.assert_close(rollout(net, images), singly, rtol=1e-5, atol=1e-8)
    assert not torch.allclose(singly[0], singly[1], rtol=1e-3)


@pytest.mark.parametrize("row_block", [1, 3, 16, 17, 1000])
def test_result_is_independent_of_the_row_block(row_block):
    _, net = both(3, reg_tokens=2)
    images = pictures(net)
    torch.testing.assert_close(
        rollout(net, images, row_block=row_block), rollout(net, images), rtol=1e-5, atol=1e-8
    )


def test_blocks_of_rows_are_the_weights():
    _, net = both(1)
    module, x = next(net.attention_inputs(pictures(net)))
    blocks = list(blocks_of_rows(Layer(module, x), range(2, 16), 5))
    assert [(rows.start, rows.stop) for rows, _ in blocks] == [(2, 7), (7, 12), (12, 16)]
    together = torch.cat([weights for _, weights in blocks], dim=2)
    torch.testing.assert_close(together, module.weights(x, slice(2, 16)), rtol=1e-6, atol=1e-8)


def test_no_more_rows_than_asked_for(monkeypatch):
    """The class token's first step needs its own row only."""
    formed, queries = [], Layer.queries

    def spy(layer, rows):
        formed.append(rows.stop - rows.start)
        return queries(layer, rows)

    _, net = both(2)
    net.use_attention("fused")  # so that the network's own forward forms no weights
    images = pictures(net)
    monkeypatch.setattr(Layer, "queries", spy)
    rollout(net, images, row_block=7)
    assert formed == [1, 17]  # the last layer, then all 17 rows of the first


def test_each_image_has_its_own_query():
    """Also where the rows that one image asks for are not those of another; none asked: none."""
    module, x = SelfAttention(6, 2), torch.randn(3, 5, 6, generator=torch.manual_seed(0))
    v = torch.tensor([[0, 1.0, 0, 0, 0], [0, 0, 0, 0.5, 0.5], [0, 0, 0, 0, 0]])
    expected = (v[:, None] @ module.weights(x).mean(dim=1))[:, 0]
    torch.testing.assert_close(attend(Layer(module, x), v, 2, fused), expected)
    assert torch.equal(attend(Layer(module, x), torch.zeros(3, 5), 2, fused), torch.zeros(3, 5))


# --- Nothing is left behind --------------------------------------------------------------------


def test_network_is_as_before():
    _, net = both(3, reg_tokens=4)
    net = vit.VisionTransformer(net.architecture, drop_rate=0.5, drop_path_rate=0.5)
    images = pictures(net).requires_grad_()
    net.train()
    net.blocks[1].eval()
    net.head.requires_grad_(False)
    modes = [module.training for module in net.modules()]
    asked = [p.requires_grad for p in net.parameters()]
    values = [p.detach().clone() for p in net.parameters()]
    dice = torch.get_rng_state()
    heat = rollout(net, images)
    assert torch.is_grad_enabled() and not heat.requires_grad and not heat.is_inference()
    assert [module.training for module in net.modules()] == modes
    assert [p.requires_grad for p in net.parameters()] == asked
    assert all(p.grad is None for p in net.parameters()) and images.grad is None
    assert all(torch.equal(p, value) for p, value in zip(net.parameters(), values, strict=True))
    assert torch.equal(torch.get_rng_state(), dice), "dropout was on"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    assert not any(getattr(module, kind) for module in net.modules() for kind in hooks)


def test_dropout_is_off_in_training_mode():
    net = vit.VisionTransformer(
        img_size=16, patch_size=4, embed_dim=12, depth=4, drop_rate=0.5, drop_path_rate=0.5
    )
    images = pictures(net)
    assert not torch.equal(net.train()(images), net(images))
    assert torch.equal(rollout(net.train(), images), rollout(net.eval(), images))


def test_mode_is_back_after_an_error():
    net = vit.VisionTransformer(img_size=16, patch_size=4, embed_dim=12, depth=1).train()
    with pytest.raises(ValueError, match=r"expected images of 16x16 pixels.*got 24x16"):
        rollout(net, torch.zeros(1, 3, 24, 16))
    assert net.training and net.blocks[0].training


def test_nothing_is_kept_between_calls():
    _, net = both(2)
    images = pictures(net)

    def tensors():
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    rollout(net, images)
    before = tensors()
    for _ in range(20):
        rollout(net, images)
    assert tensors() <= before


# --- Errors ------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (
            {"layers": slice(2, 2)},
            r"layers \(slice\(2, 2, None\)\) selects none of the network's 2",
        ),
        ({"layers": slice(None, None, -1)}, "neighbouring layers, without step"),
        ({"row_block": 0}, r"row_block \(0\) must be at least 1"),
        ({"heads": "sum"}, r'heads \("sum"\) must be one of mean, max, min'),
        ({"discard": 1}, r"discard \(1\) must be at least 0 and below 1"),
        ({"discard": -0.1}, r"discard \(-0\.1\) must be at least 0 and below 1"),
    ],
)
def test_wrong_arguments_are_named(arguments, message):
    _, net = both(2)
    with pytest.raises(ValueError, match=message):
        rollout(net, pictures(net), **arguments)


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"layer": 2}, r"layer \(2\) must be from -2 to 1"),
        ({"layer": -3}, r"layer \(-3\) must be from -2 to 1"),
        ({"head": 3}, r"head \(3\) must be from 0 to 2"),
        ({"head": -1}, r"head \(-1\) must be from 0 to 2"),
    ],
)
def test_there_is_no_such_layer_or_head(arguments, message):
    _, net = both(2)
    with pytest.raises(ValueError, match=message):
        raw(net, pictures(net), **arguments)


def test_a_single_image_needs_a_batch_dimension():
    _, net = both(1)
    with pytest.raises(ValueError, match=r"images must be \(B, .*got \(3, 32, 32\).*image\[None\]"):
        rollout(net, pictures(net)[0])


# --- Affinity ----------------------------------------------------------------------------------


def test_affinity_by_hand():
    first = [[[0.5, 0.25, 0.25], [0.2, 0.2, 0.6], [0.5, 0.5, 1e-12]]]
    second = [[[0.2, 0.6, 0.2], [0.5, 0.25, 0.25], [0.1, 0.3, 0.6]]]
    layers = [Layer(with_attention(maps), torch.eye(3, 3)[None]) for maps in (first, second)]
    # r = [.6, .2]; first [[.25, .75], [1, 0]] r = [.3, .6];
    # second [[.5, .5], [1/3, 2/3]] of it = [.45, .5]
    row = gathered(layers, torch.tensor([[1.0, 0, 0]]), 2, fused, prefix=1)
    torch.testing.assert_close(row, torch.tensor([[0, 0.45, 0.5]]), rtol=0, atol=1e-6)


def test_affinity_of_uniform_attention_between_patches_is_flat():
    maps = [[[0.2, 0.6, 0.2], [0.5, 0.25, 0.25], [0.2, 0.4, 0.4]]]
    layers = [Layer(with_attention(maps), torch.eye(3, 3)[None])]
    row = gathered(layers, torch.tensor([[1.0, 0, 0]]), 2, fused, prefix=1)
    torch.testing.assert_close(row, torch.tensor([[0, 0.4, 0.4]]))


def test_a_share_of_a_row_is_not_lost_to_rounding():
    """0.29 * 100 is 28.999... in binary: 29 of 100 entries are meant."""
    weights = torch.rand(1, 2, 3, 100).softmax(dim=-1)
    assert ((fused(weights, discard=0.29) == 0).sum(dim=-1) == 29).all()


def test_a_row_of_nothing_stays_nothing():
    """Where all weights of a row are 0: the least of heads that see different tokens, say."""
    apart = torch.tensor([[[[1.0, 0, 0]], [[0.0, 1, 0]]]])
    assert torch.equal(fused(apart, heads="min"), torch.zeros(1, 1, 3))
    assert torch.equal(between(torch.tensor([[[1.0, 0, 0]]]), prefix=1), torch.zeros(1, 1, 2))
