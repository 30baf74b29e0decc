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


def scores(layer: Layer) -> torch.Tensor:
    """q k^T / sqrt(K) from the module's parameters, float64: (B, H, T, T)."""
    x, width = layer.tokens.double(), WIDTH // HEADS
    weight, bias = layer.module.qkv.weight.double(), layer.module.qkv.bias.double()
    q, k, _ = (x @ weight.T + bias).reshape(2, TOKENS, 3, HEADS, width).unbind(dim=2)
    return torch.einsum("bihk,bjhk->bhij", q / width**0.5, k)


def definition(layer: Layer) -> torch.Tensor:
    """softmax(q k^T / sqrt(K)), float64: (B, H, T, T)."""
    return scores(layer).softmax(dim=-1)


@pytest.mark.parametrize("row_block", [1, 6, 23, 100])
def test_equals_the_definition(columns, row_block):
    v = torch.rand(2, TOKENS, generator=torch.manual_seed(1))
    expected = torch.einsum("bi,bhij->bhj", v.double(), definition(layer()))
    got = times_attention(layer(), v, row_block)
    torch.testing.assert_close(got.double(), expected, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize("offset", [-150.0, 150.0, 0.0])
def test_scores_whose_powers_leave_float32(columns, offset):
    """Rows whose scores are all near 150, or -150, or differ by hundreds."""
    far = layer(sharpness=1.0 if offset else 60.0)
    if offset:  # the same score in every pair, by one more dimension of q and k
        far.module.qkv.weight.data[: 2 * WIDTH, 0] = 0
        far.tokens[..., 0] = 0
        far.module.qkv.bias.data[: WIDTH : WIDTH // HEADS] = offset
        far.module.qkv.weight.data[: 2 * WIDTH : WIDTH // HEADS] = 0
        far.module.qkv.bias.data[WIDTH : 2 * WIDTH : WIDTH // HEADS] = 2.0  # offset * 2 / sqrt(4)
    found = scores(far)
    found = found if offset else found - found.mean(dim=-1, keepdim=True)
    assert found.logsumexp(dim=-1).abs().max() > 100, "no row is out of range: shows nothing"
    v = torch.rand(2, TOKENS, generator=torch.manual_seed(1))
    expected = torch.einsum("bi,bhij->bhj", v.double(), scores(far).softmax(dim=-1))
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
    assert formed == [(0, 0), (5, 12)]


def test_no_rows_in_a_block():
    with pytest.raises(ValueError, match="at least 1 row"):
        times_attention(layer(), torch.zeros(2, TOKENS), 0)


def test_memory_is_of_some_rows(columns, monkeypatch):
    formed, real = [], attention_tiles.powers

    def spy(q, keys, room):
        tiles, sums = real(q, keys, room)
        formed.append(tiles[0].shape[1])
        return tiles, sums

    monkeypatch.setattr(attention_tiles, "powers", spy)
    times_attention(layer(), torch.ones(2, TOKENS), 7)
    assert formed == [7, 7, 7, 2]
