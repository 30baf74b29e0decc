"""One call for every method: what it takes, what it says of itself, what it refuses."""

from dataclasses import fields

import pytest
import torch

import vit
from vit.explain import METHODS, SINKS, Explanation, explain, layers_of, raw, rollout


def small(**changes) -> vit.VisionTransformer:
    torch.manual_seed(0)
    plain = {"img_size": (16, 24), "patch_size": 4, "embed_dim": 24, "num_heads": 3, "depth": 4}
    return vit.VisionTransformer(**{**plain, "num_classes": 5, **changes}).eval()


IMAGES = torch.randn(2, 3, 16, 24, generator=torch.manual_seed(1))


@pytest.mark.parametrize("method", METHODS)
def test_what_comes_back(method):
    told = explain(small(), IMAGES, method)
    assert isinstance(told, Explanation) and told.method == method
    assert told.heat.shape == told.outliers.shape == (2, 4, 6)
    assert told.heat.dtype == told.prefix_share.dtype == torch.float32
    assert told.prefix_share.shape == told.outlier_share.shape == (2,)
    own = {"raw": range(3, 4), "gradcam": range(3, 4), "affinity": range(1, 4)}
    assert told.layers == own.get(method, range(4))
    if method in ("rollout", "raw", "affinity"):
        assert told.targets is None
    else:
        assert torch.equal(told.targets, small()(IMAGES).argmax(dim=1))


def test_rollout_is_what_is_asked_for_when_nothing_is():
    told = explain(small(), IMAGES)
    assert told.method == "rollout"
    torch.testing.assert_close(told.heat, rollout(small(), IMAGES))
    told = explain(small(), IMAGES, "raw", layers="2", heads=1)
    torch.testing.assert_close(told.heat, raw(small(), IMAGES, layer=1, head=1))
    told = explain(small(), IMAGES, heads="min", discard=0.5, layers="2-4")
    expected = rollout(small(), IMAGES, heads="min", discard=0.5, layers=slice(1, 4))
    torch.testing.assert_close(told.heat, expected)


def test_raw_over_several_layers_is_the_mean_of_their_maps():
    told = explain(small(), IMAGES, "raw", layers="last:3")
    one_by_one = [raw(small(), IMAGES, layer=layer) for layer in (1, 2, 3)]
    torch.testing.assert_close(told.heat, torch.stack(one_by_one).mean(dim=0))


@pytest.mark.parametrize("pool", ["map", "avg", "distilled"])
@pytest.mark.parametrize("method", METHODS)
def test_every_way_to_read_has_every_map(method, pool):
    net = small(global_pool=pool, class_token=pool == "distilled")
    told = explain(net, IMAGES, method, layers="all")
    assert told.heat.shape == (2, 4, 6) and (told.heat >= 0).all()
    assert method == "gradcam" or (told.heat > 0).any()


def test_map_pooling_starts_at_the_pools_own_row():
    """No identity is added for that step: the raw map is the pool's row times the last layer's."""
    net = small(global_pool="map", class_token=False)
    with torch.no_grad():
        row = net.attn_pool.weights(net.forward_features(IMAGES)).mean(dim=1)  # (B, 1, T)
        module, tokens = list(net.attention_inputs(IMAGES))[-1]
        expected = (row @ module.weights(tokens).mean(dim=1)).reshape(2, 4, 6)
    torch.testing.assert_close(explain(net, IMAGES, "raw").heat, expected)


LABELS = [
    ({}, "attention rollout over all 4 layers"),
    ({"layers": "last:2"}, "attention rollout over the last 2 of 4 layers"),
    ({"layers": "2-3"}, "attention rollout over layers 2 to 3 of 4"),
    ({"layers": slice(1, 2)}, "attention rollout of layer 2 of 4"),
    (
        {"query": (1, 2)},
        "attention rollout over all 4 layers, as patch (row 1, column 2, from 0) sees it",
    ),
    (
        {"heads": "max"},
        "attention rollout over all 4 layers (max over heads: unlike Abnar & Zuidema 2020)",
    ),
    (
        {"heads": "min", "discard": 0.9, "sinks": "exclude"},
        "attention rollout over all 4 layers (min over heads, smallest 90% of each row discarded, "
        "outlier patches excluded: unlike Abnar & Zuidema 2020)",
    ),
    ({"method": "raw"}, "attention of layer 4 of 4"),
    ({"method": "raw", "heads": "max"}, "attention of layer 4 of 4 (max over heads)"),
    (
        {"method": "raw", "query": 5},
        "attention of layer 4 of 4, as patch 5 (row by row, from 0) sees it",
    ),
    ({"method": "raw", "heads": 2, "layers": "1"}, "attention of layer 1 of 4, head 3"),
    (
        {"method": "affinity"},
        "attention gathered between patches over the last 3 of 4 layers",
    ),
    ({"method": "generic"}, "generic attribution over all 4 layers"),
    ({"method": "legrad"}, "LeGrad over all 4 layers"),
    ({"method": "gradcam"}, "attention GradCAM of layer 4 of 4"),
]


@pytest.mark.parametrize(("asked", "label"), LABELS)
def test_label(asked, label):
    assert explain(small(), IMAGES, **asked).label == label


def test_label_of_a_network_with_one_layer():
    assert explain(small(depth=1), IMAGES).label == "attention rollout over its one layer"
    assert explain(small(depth=1), IMAGES, "raw").label == "attention over its one layer"


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("all", slice(0, 12)),
        ("last:1", slice(11, 12)),
        ("last:12", slice(0, 12)),
        ("1", slice(0, 1)),
        ("12", slice(11, 12)),
        ("3-5", slice(2, 5)),
        ("1-12", slice(0, 12)),
    ],
)
def test_layers_as_a_user_writes_them(text, expected):
    assert layers_of(text, 12) == expected


@pytest.mark.parametrize("text", ["last:0", "last:13", "0", "13", "5-3", "0-2", "11-13"])
def test_layers_that_are_not_there(text):
    with pytest.raises(
        ValueError, match=rf'layers \("{text}"\) are not in the network\'s 12: give'
    ):
        layers_of(text, 12)


@pytest.mark.parametrize("text", ["", "last", "last:", "last:-1", "-3", "3-", "two", "1,2", "1:3"])
def test_layers_that_mean_nothing(text):
    with pytest.raises(
        ValueError, match=r'layers \(".*"\) must be "all", "last:K" \(K from 1 to 12'
    ):
        layers_of(text, 12)


WRONG = [
    (
        {"method": "grad"},
        r'method \("grad"\) must be one of rollout, raw, affinity, generic, legrad, gradcam',
    ),
    ({"sinks": "hide"}, r'sinks \("hide"\) must be one of show, exclude'),
    ({"target": 0}, r"target \(0\) has no meaning for rollout: .*use generic, legrad, gradcam"),
    ({"method": "raw", "discard": 0.5}, r"discard \(0\.5\) has no meaning for raw: .*use rollout"),
    (
        {"method": "legrad", "query": 0},
        r"query \(0\) has no meaning for legrad: .*use rollout, raw, affinity, generic",
    ),
    ({"method": "generic", "heads": "max"}, r"heads \(max\) has no meaning for generic"),
    ({"heads": 1}, r'heads \("1"\) must be one of mean, max, min$'),
    (
        {"method": "raw", "heads": "sum"},
        r'heads \("sum"\) must be one of mean, max, min, or the number of one',
    ),
    ({"method": "raw", "heads": 3}, r"heads \(3\) must be from 0 to 2"),
    ({"method": "raw", "heads": -1}, r"heads \(-1\) must be from 0 to 2"),
    ({"discard": 1.0}, r"discard \(1\.0\) must be at least 0 and below 1"),
    ({"row_block": 0}, r"row_block \(0\) must be at least 1"),
    ({"layers": slice(4, 9)}, r"layers .* selects none of the network's 4 layers"),
    ({"layers": "last:9"}, r'layers \("last:9"\) are not in the network\'s 4'),
    ({"query": 24}, r"query \(24\) is no patch of the 4x6 grid: .*0 to 23.*\(3, 5\)"),
    ({"query": -1}, r"query \(-1\) is no patch of the 4x6 grid"),
    ({"query": (4, 0)}, r"query \(\(4, 0\)\) is no patch of the 4x6 grid"),
    ({"method": "legrad", "target": 5}, r"target \(5\) must be class numbers from 0 to 4"),
    ({"method": "gradcam", "target": -1}, r"target \(-1\) must be class numbers from 0 to 4"),
    (
        {"method": "generic", "target": [0, 1, 2]},
        r"target \(\[0, 1, 2\]\) must be one class or one for each of the 2 images; .*call once",
    ),
    ({"method": "generic", "target": [0.5, 1.0]}, r"target .* must be class numbers"),
]


@pytest.mark.parametrize(("asked", "message"), WRONG)
def test_what_is_refused(asked, message):
    with pytest.raises(ValueError, match=message):
        explain(small(), IMAGES, **asked)


@pytest.mark.parametrize("method", METHODS)
def test_one_image_needs_a_batch_dimension(method):
    with pytest.raises(ValueError, match=r"images must be \(B, .*got \(3, 16, 24\).*image\[None\]"):
        explain(small(), IMAGES[0], method)
    with pytest.raises(ValueError, match=r"expected images of 16x24 pixels.*got 24x16"):
        explain(small(), IMAGES.mT, method)


@pytest.mark.parametrize("method", ["generic", "legrad", "gradcam"])
def test_without_a_head_there_is_no_class(method):
    with pytest.raises(ValueError, match="has no head, so there is no class to explain: use roll"):
        explain(small(num_classes=0), IMAGES, method)


def test_what_is_offered():
    assert METHODS == ("rollout", "raw", "affinity", "generic", "legrad", "gradcam")
    assert SINKS == ("show", "exclude")
    assert [one.name for one in fields(Explanation)] == [
        "heat",
        "prefix_share",
        "outliers",
        "outlier_share",
        "targets",
        "layers",
        "method",
        "label",
    ]


@pytest.mark.parametrize("method", METHODS)
def test_half_precision(method):
    """What a network in bfloat16 computes is summed in float32."""
    exact = explain(small(), IMAGES, method, target=None)
    told = explain(small().bfloat16(), IMAGES.bfloat16(), method)
    assert told.heat.dtype == told.prefix_share.dtype == torch.float32
    top = exact.heat.amax((1, 2), keepdim=True)
    assert ((told.heat - exact.heat).abs() <= 0.05 * top + 1e-6).all()
