"""The network against timm's, and by what any classifier must do."""

import math

import pytest
import timm
import torch
import torch.nn.functional as F

import vit
from vit.model import Architecture
from vit.patch_embed import PatchEmbed, resize_patch_embed, resize_pos_embed

NAMES = [
    ("vit_tiny_patch16_224", {}),
    ("vit_small_patch16_224", {"img_size": (160, 224)}),
    ("deit_small_patch16_224", {}),
    ("vit_small_patch14_dinov2", {"img_size": 224, "num_classes": 7}),
    ("vit_small_patch14_reg4_dinov2", {"img_size": 224, "num_classes": 7}),
    ("vit_tiny_patch16_224", {"global_pool": "avg"}),
    ("vit_tiny_patch16_224", {"global_pool": "avg", "class_token": False}),
    ("vit_tiny_patch16_224", {"global_pool": "avg", "fc_norm": False}),
    ("vit_tiny_patch16_224", {"patch_size": (16, 32), "img_size": (32, 96), "qkv_bias": False}),
]


def randomised(name: str, arguments: dict, sharp: bool = False):
    """timm's module with every tensor drawn: LayerScale at 1e-5 would hide any error.

    With such small weights attention is nearly uniform; `sharp` enlarges those that decide it, so
    that a wrong scale, say, changes the logits by far more than the tolerance.
    """
    module = timm.create_model(name, **arguments).eval()
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in module.parameters():
            parameter.normal_(0, 0.05, generator=generator)
        for key, parameter in module.named_parameters():
            if sharp and "norm" in key and key.endswith("weight"):
                parameter.add_(1)
            elif sharp and key.endswith("qkv.weight"):
                parameter.mul_(2)
    return module


@pytest.mark.parametrize("path", ["explicit", "fused"])
@pytest.mark.parametrize("sharp", [False, True])
@pytest.mark.parametrize(("name", "arguments"), NAMES)
def test_logits_equal_timms(name, arguments, sharp, path):
    theirs = randomised(name, arguments, sharp)
    ours = vit.from_timm(theirs).use_attention(path)
    images = torch.randn(2, 3, *theirs.patch_embed.img_size)
    with torch.inference_mode():
        expected, logits = theirs(images), ours(images)
        assert (logits - expected).abs().max() <= 1e-5 * expected.abs().max()
        if sharp and path == "explicit":  # the comparison sees attention
            for block in ours.blocks:
                block.attn.scale = 0.5 * block.attn.scale
            assert (ours(images) - expected).abs().max() > 1e-3 * expected.abs().max()
    count = [sum(p.numel() for p in net.parameters()) for net in (ours, theirs)]
    assert count[0] == count[1]


def test_keyword_arguments_are_timms():
    arguments = {"img_size": 32, "patch_size": 4, "embed_dim": 96, "depth": 2, "num_heads": 3}
    arguments |= {"num_classes": 10, "reg_tokens": 4, "init_values": 0.1, "no_embed_class": True}
    theirs = timm.models.VisionTransformer(**arguments)
    vit.VisionTransformer(**arguments).load_state_dict(theirs.state_dict())


@pytest.mark.parametrize(
    ("name", "reason"),
    [
        ("vit_small_patch16_18x2_224", "blocks of kind ParallelThingsBlock"),
        ("vit_dpwee_patch16_reg1_gap_256", "blocks of kind DiffParallelScalingBlock"),
        ("vit_dwee_patch16_reg1_gap_256", "attention of kind DiffAttention"),
        ("test_vit3", "pooling over the prefix tokens"),
        ("resnet18", "ResNet"),
    ],
)
def test_other_kinds_are_refused_with_the_reason(name, reason):
    with torch.device("meta"):
        module = timm.create_model(name)
    with pytest.raises(ValueError, match="supported") as caught:
        vit.from_timm(module)
    assert reason in str(caught.value)


def small(**changes) -> vit.VisionTransformer:
    torch.manual_seed(0)
    usual = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3}
    return vit.VisionTransformer(**usual | {"num_classes": 10} | changes)


def test_first_loss_is_log_classes():
    for classes in (2, 10, 1000):
        net = small(num_classes=classes)
        images, labels = torch.randn(64, 3, 16, 16), torch.arange(64) % classes
        loss = F.cross_entropy(net(images), labels).item()
        assert loss == pytest.approx(math.log(classes), rel=0.05)


@pytest.mark.parametrize("changes", [{}, {"class_token": False, "global_pool": "avg"}])
def test_eight_images_overfit(changes):
    net = small(**changes)
    images, labels = torch.randn(8, 3, 16, 16), torch.arange(8)
    optimizer = torch.optim.AdamW(net.parameters(), lr=2e-3)
    for _ in range(200):
        loss = F.cross_entropy(net(images), labels)
        optimizer.zero_grad()
        loss.backward()
        optimizer.step()
    assert loss < 0.01


def test_batch_equals_one_by_one():
    net = small(img_size=(16, 24), patch_size=(4, 8), reg_tokens=2).eval()
    images = torch.randn(5, 3, 16, 24)
    singly = torch.cat([net(image[None]) for image in images])
    torch.testing.assert_close(net(images), singly, atol=1e-6, rtol=1e-5)


def test_attention_inputs_are_what_the_modules_receive():
    net = small(reg_tokens=1).eval()
    received = []
    for block in net.blocks:
        block.attn.register_forward_pre_hook(lambda _, inputs: received.append(inputs[0]))
    images = torch.randn(2, 3, 16, 16)
    net(images)
    direct = received[:2]
    for (module, x), block, expected in zip(
        net.attention_inputs(images), net.blocks, direct, strict=True
    ):
        assert module is block.attn
        torch.testing.assert_close(x, expected)


def test_drop_path_rises_with_depth_and_acts_in_training_alone():
    net = small(depth=3, drop_path_rate=0.5)
    assert [b.drop_path.rate if b.drop_path else 0 for b in net.blocks] == [0, 0.25, 0.5]
    branch = torch.ones(4000, 1, 1)
    kept = net.blocks[2].drop(branch).flatten()
    assert set(kept.unique().tolist()) == {0.0, 2.0}
    assert kept.mean() == pytest.approx(1, abs=0.1)
    net.eval()
    assert net.blocks[2].drop(branch) is branch


def test_non_defaults_describe_an_architecture_whole():
    a = Architecture(img_size=(8, 16), patch_size=4, num_classes=3, global_pool="avg", reg_tokens=2)
    text = a.non_defaults() | {"a_later_field": 1}
    assert Architecture.from_dict(text) == a
    assert Architecture().non_defaults() == {}


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"img_size": 30, "patch_size": 4}, "img_size (30x30 pixels) must be a multiple"),
        ({"global_pool": "max"}, 'global_pool ("max") must be one of "token", "avg", "map"'),
        ({"embed_norm": True}, 'embed_norm (True) must be one of None, "tokens", "patches"'),
        ({"class_token": False}, "needs class_token"),
        ({"reg_tokens": -1}, "reg_tokens (-1) must not be negative"),
        ({"depth": 0}, "depth (0) must be at least 1"),
        ({"drop_path_rate": 1.0}, "drop_path_rate (1.0)"),
        ({"img_size": (8, 8, 8)}, "one or two whole numbers"),
    ],
)
def test_impossible_architectures_are_refused(changes, message):
    with pytest.raises(ValueError) as caught:
        small(**changes)
    assert message in str(caught.value)


def test_wrong_image_size_names_both():
    with pytest.raises(ValueError, match=r"expected images of 16x16 pixels.*got 16x20"):
        small()(torch.zeros(1, 3, 16, 20))
    with pytest.raises(ValueError, match="attention path"):
        small().use_attention("fast")


def test_pos_embed_resizes_as_timm_does():
    from timm.layers import resample_abs_pos_embed

    pos = torch.randn(1, 5 + 37 * 37, 8)
    ours = resize_pos_embed(pos, (37, 37), (16, 20))
    theirs = resample_abs_pos_embed(pos, [16, 20], [37, 37], num_prefix_tokens=5)
    torch.testing.assert_close(ours, theirs, atol=1e-6, rtol=1e-5)
    assert resize_pos_embed(pos, (37, 37), (37, 37)) is pos
    with pytest.raises(ValueError, match="fewer than the grid 40x40"):
        resize_pos_embed(pos, (40, 40), (2, 2))


def test_patch_embed_resizes_as_timm_does():
    from timm.layers.patch_embed import resample_patch_embed

    weight = torch.randn(6, 3, 16, 16)
    ours = resize_patch_embed(weight, (14, 8))
    torch.testing.assert_close(ours, resample_patch_embed(weight, [14, 8]), atol=1e-4, rtol=1e-3)
    assert resize_patch_embed(weight, (16, 16)) is weight


def test_patches_run_row_by_row():
    embed = PatchEmbed((4, 6), (2, 2), 3, 1)
    with torch.no_grad():
        embed.proj.weight.fill_(1 / 12)
        embed.proj.bias.zero_()
    values = torch.arange(6.0).reshape(2, 3).repeat_interleave(2, 0).repeat_interleave(2, 1)
    tokens = embed(values.expand(1, 3, 4, 6))
    torch.testing.assert_close(tokens.flatten(), torch.arange(6.0))


def test_fused_path_alone_equals_explicit_path_alone():
    images = torch.randn(2, 3, 16, 16)
    net = small().eval()
    explicit, fused = (net.use_attention(path)(images) for path in ("explicit", "fused"))
    torch.testing.assert_close(explicit, fused, atol=1e-6, rtol=1e-5)
