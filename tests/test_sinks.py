"""Patches that collect attention: found by what they receive, left out as the definition reads."""

import oracle_explain as oracle
import pytest
import torch

import vit
from vit.attention import SelfAttention
from vit.attention_rows import Layer
from vit.explain import METHODS, explain
from vit.sinks import outliers, received

TOKENS = 30


def layer_of(weights: torch.Tensor) -> Layer:
    """One head whose weights on one-hot tokens are `weights` (T, T): q = log A, k = I."""
    count = len(weights)
    module = SelfAttention(count, 1, qkv_bias=False)
    with torch.no_grad():
        module.qkv.weight[:count] = (weights.log() / module.scale).T
        module.qkv.weight[count : 2 * count] = torch.eye(count)
    return Layer(module, torch.eye(count)[None])


def with_share(share: float, token: int) -> torch.Tensor:
    """Every row gives one token `share` and spreads the rest: (T, T)."""
    weights = torch.full((TOKENS, TOKENS), (1 - share) / (TOKENS - 1))
    weights[:, token] = share
    return weights


def planted(prefix: int, patch: int, grid: tuple[int, int] = (6, 5), **more):
    """A timm network in whose first layer nearly every query looks at one patch, and two images."""
    net = oracle.network(2, prefix, grid, **more)
    attention, width = net.blocks[0].attn, oracle.PLAIN["embed_dim"]
    with torch.no_grad():
        attention.qkv.bias[:width] = 2.0
        direction = attention.qkv.weight[width : 2 * width].T @ attention.qkv.bias[:width]
        first = net.pos_embed.shape[1] - grid[0] * grid[1]
        net.pos_embed[0, first + patch] = 20 * direction / direction.norm()
    return net, oracle.pictures(net, 2)


def test_received_is_the_mean_of_the_columns():
    weights = torch.rand(TOKENS, TOKENS, generator=torch.manual_seed(0)).softmax(dim=1)
    for row_block in (1, 7, 100):
        torch.testing.assert_close(received(layer_of(weights), row_block)[0], weights.mean(dim=0))


@pytest.mark.parametrize(("share", "found"), [(0.30, False), (0.34, True), (0.9, True)])
def test_more_than_ten_times_uniform_is_an_outlier(share, found):
    """Uniform is 1 / 30: the limit lies at a third."""
    expected = torch.zeros(1, TOKENS, dtype=torch.bool)
    expected[0, 7] = found
    assert torch.equal(outliers(layer_of(with_share(share, 7)), 1), expected)


def test_prefix_tokens_are_no_outliers():
    layer = layer_of(with_share(0.9, 4))
    assert not outliers(layer, 5).any()
    assert outliers(layer, 4).sum() == 1


@pytest.mark.parametrize("method", METHODS)
@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_a_planted_sink_is_found_whichever_layers_are_shown(method, prefix):
    reference, images = planted(prefix, patch=13)
    net = vit.from_timm(reference).double().eval()
    expected = oracle.on_grid(reference, oracle.outlier_tokens(reference, images))
    assert expected[:, 2, 3].all() and expected.sum() == 2
    for layers in ("2", "all"):
        told = explain(net, images, method, layers=layers)
        assert told.outliers.dtype == torch.bool
        assert torch.equal(told.outliers, expected)
        share = told.heat[:, 2, 3] / told.heat.sum((1, 2)).clamp(min=1e-300)
        torch.testing.assert_close(told.outlier_share, share)


@pytest.mark.parametrize("method", METHODS)
def test_a_network_without_sinks_has_none(method):
    net = vit.from_timm(oracle.network(2, 1, (6, 5))).double().eval()
    images = oracle.pictures(oracle.network(2, 1, (6, 5)), 2)
    told, same = (explain(net, images, method, sinks=one) for one in ("show", "exclude"))
    assert not told.outliers.any() and not told.outlier_share.any()
    torch.testing.assert_close(told.heat, same.heat)


@pytest.mark.parametrize("prefix", [0, 1, 2, 5])
@pytest.mark.parametrize(
    ("method", "more"),
    [
        ("rollout", {}),
        ("rollout", {"heads": "max", "discard": 0.3}),
        ("raw", {}),
        ("raw", {"heads": 1}),
        ("affinity", {}),
        ("generic", {}),
    ],
)
def test_exclusion_equals_the_oracle(method, more, prefix):
    reference, images = planted(prefix, patch=7)
    net = vit.from_timm(reference).double().eval()
    excluded = oracle.outlier_tokens(reference, images)
    layers = slice(0, 2)
    expected = oracle.METHODS[method](reference, images, layers=layers, excluded=excluded, **more)
    expected = expected.masked_fill(oracle.on_grid(reference, excluded), 0)
    told = explain(net, images, method, layers=layers, sinks="exclude", **more)
    torch.testing.assert_close(told.heat, expected, rtol=1e-6, atol=1e-12)
    assert not told.outlier_share.any() and "outlier patches excluded" in told.label
    shown = explain(net, images, method, layers=layers, **more)
    assert not torch.allclose(shown.heat, told.heat, rtol=1e-2)


@pytest.mark.parametrize("method", ["legrad", "gradcam"])
def test_exclusion_leaves_a_hole_where_rows_are_not_shared_out(method):
    reference, images = planted(1, patch=7)
    net = vit.from_timm(reference).double().eval()
    target = next(one for one in range(5) if explain(net, images, method, target=one).heat.any())
    shown, told = (
        explain(net, images, method, target=target, sinks=one) for one in ("show", "exclude")
    )
    torch.testing.assert_close(told.heat, shown.heat.masked_fill(shown.outliers, 0))


def test_shares_of_a_map_by_hand():
    """All of the mass: 1 for rollout, of which the prefix has what the patches lack."""
    reference, images = planted(5, patch=13)
    told = explain(vit.from_timm(reference).double().eval(), images)
    torch.testing.assert_close(told.prefix_share, 1 - told.heat.sum((1, 2)))
    assert (told.outlier_share > 0.1).all()
