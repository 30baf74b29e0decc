"""Row vectors times attention, in tiles, against the definition in float64."""

import pytest
import torch

from vit import attention_tiles
from vit.attention import SelfAttention
from vit.attention_rows import Layer
from vit.attention_tiles import times_attention

TOKENS, HEADS, WIDTH = 23, 3, 12


@pytest.fixture(params=[4, 5, 23, 512], ids=lambda columns: f"tiles of {columns}")
def columns(request, monkeypatch) -> int:
    """Several tiles with a smaller one at the end, and all columns in one."""
    monkeypatch.setattr(attention_tiles, "COLUMNS", request.param)
    return request.param


def layer(sharpness: float = 1.0) -> Layer:
    """Attention on 2 x 23 random tokens; sharpness multiplies the scores' size."""
    dice = torch.manual_seed(0)
    module = SelfAttention(WIDTH, HEADS)
    for parameter in module.parameters():
        parameter.data = torch.randn(parameter.shape, generator=dice) * sharpness**0.5
    return Layer(module, torch.randn(2, TOKENS, WIDTH, generator=dice))


def definition(layer: Layer) -> torch.Tensor:
    """softmax(q k^T / sqrt(K)) from the module's parameters, float64: (B, H, T, T)."""
    x, width = layer.tokens.double(), WIDTH // HEADS
    weight, bias = layer.module.qkv.weight.double(), layer.module.qkv.bias.double()
    q, k, _ = (x @ weight.T + bias).reshape(2, TOKENS, 3, HEADS, width).unbind(dim=2)
    return torch.einsum("bihk,bjhk->bhij", q / width**0.5, k).softmax(dim=-1)


@pytest.mark.parametrize("row_block", [1, 6, 23, 100])
def test_equals_the_definition(columns, row_block):
    v = torch.rand(2, TOKENS, generator=torch.manual_seed(1))
    expected = torch.einsum("bi,bhij->bhj", v.double(), definition(layer()))
    got = times_attention(layer(), v, row_block)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)


def test_scores_that_overflow_after_the_first_tile(columns):
    """exp(score - the first tile's largest) is infinite for some rows here; no row's share is."""
    far = layer(sharpness=40.0)
    scores = definition(far).log().clamp(min=-1e4)
    later = scores.max(dim=-1).values - scores[..., :4].max(dim=-1).values
    assert later.max() > 90, "no row overflows, so this test shows nothing"
    v = torch.rand(2, TOKENS, generator=torch.manual_seed(1))
    expected = torch.einsum("bi,bhij->bhj", v.double(), definition(far))
    got = times_attention(far, v, 8)
    torch.testing.assert_close(got.double(), expected, rtol=1e-3, atol=1e-3)
    torch.testing.assert_close(got.sum(dim=-1), v.sum(dim=1)[:, None].expand(-1, HEADS))


def test_a_factor_for_each_entry(columns):
    v = torch.rand(2, TOKENS, generator=torch.manual_seed(1))
    factor = torch.randn(2, HEADS, TOKENS, TOKENS, generator=torch.manual_seed(2))
    got = times_attention(
        layer(), v, 6, lambda rows, cols, weights: weights * factor[:, :, rows, cols]
    )
    expected = torch.einsum("bi,bhij->bhj", v.double(), definition(layer()) * factor.double())
    torch.testing.assert_close(got.double(), expected, rtol=1e-4, atol=1e-5)


def test_bfloat16_network_gives_float32_sums(columns):
    half = layer()
    half.module.bfloat16()
    v = torch.rand(2, TOKENS, generator=torch.manual_seed(1))
    got = times_attention(Layer(half.module, half.tokens.bfloat16()), v, 6)
    assert got.dtype == torch.float32
    torch.testing.assert_close(got.sum(dim=-1), v.sum(dim=1)[:, None].expand(-1, HEADS))
    expected = torch.einsum("bi,bhij->bhj", v.double(), definition(layer()))
    torch.testing.assert_close(got.double(), expected, rtol=0.1, atol=0.1)


def test_rows_without_weight_are_not_formed(monkeypatch):
    formed, real = [], Layer.queries

    def spy(layer, rows):
        formed.append((rows.start, rows.stop))
        return real(layer, rows)

    monkeypatch.setattr(Layer, "queries", spy)
    v = torch.zeros(2, TOKENS)
    assert torch.equal(times_attention(layer(), v, 4), torch.zeros(2, HEADS, TOKENS))
    v[0, 5] = v[1, 11] = 1
    times_attention(layer(), v, 4)
    assert formed == [(5, 9), (9, 12)]


def test_no_rows_in_a_block():
    with pytest.raises(ValueError, match="at least 1 row"):
        times_attention(layer(), torch.zeros(2, TOKENS), 0)
