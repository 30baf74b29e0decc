"""Self-attention against a worked example, against itself on both paths, and by its properties."""

import pytest
import torch

from vit.attention import SelfAttention, choose_path

TOKENS = (1, 2, 65, 197, 1370)


def attention(path: str, embed_dim: int = 64, num_heads: int = 4) -> SelfAttention:
    torch.manual_seed(0)
    module = SelfAttention(embed_dim, num_heads)
    for parameter in module.parameters():
        torch.nn.init.normal_(parameter, std=0.1)
    module.path = path
    return module


@pytest.mark.parametrize("path", ["explicit", "fused"])
def test_worked_example_digit_for_digit(path):
    """Two tokens of width 4, one head, no bias, computed by hand; X W is Linear with W transposed."""
    x = torch.tensor([[[1.0, 0, 1, 0], [0, 2, 0, 2]]])
    w_q = torch.tensor([[1.0, 0, 1, 0], [0, 1, 0, 1], [1, 0, 0, 1], [0, 1, 1, 0]])
    w_k = torch.tensor([[0.0, 1, 1, 0], [1, 0, 0, 1], [0, 0, 1, 1], [1, 1, 0, 0]])
    w_v = torch.tensor([[1.0, 1, 0, 0], [0, 1, 1, 0], [0, 0, 1, 1], [1, 0, 0, 1]])
    module = SelfAttention(4, 1, qkv_bias=False)
    module.path = path
    with torch.no_grad():
        module.qkv.weight.copy_(torch.cat([w_q.T, w_k.T, w_v.T]))
        module.proj.weight.copy_(torch.eye(4))
        module.proj.bias.zero_()
    assert module.project(x, "q").tolist() == [[[2, 0, 1, 1], [0, 4, 2, 2]]]
    assert module.project(x, "k").tolist() == [[[0, 1, 2, 1], [4, 2, 0, 2]]]
    assert module.project(x, "v").tolist() == [[[1, 1, 1, 1], [2, 2, 2, 2]]]
    expected = [[0.02931223, 0.97068777], [0.26894142, 0.73105858]]
    torch.testing.assert_close(
        module.weights(x)[0, 0], torch.tensor(expected), atol=1e-8, rtol=1e-6
    )
    rows = [[1.97068777] * 4, [1.73105858] * 4]
    torch.testing.assert_close(module(x)[0], torch.tensor(rows), atol=1e-8, rtol=1e-7)


def test_each_path_is_the_one_that_was_asked_for(monkeypatch):
    calls = []
    kernel = torch.nn.functional.scaled_dot_product_attention
    monkeypatch.setattr(
        "torch.nn.functional.scaled_dot_product_attention",
        lambda *args: calls.append(args) or kernel(*args),
    )
    attention("explicit")(torch.randn(1, 5, 64))
    assert not calls
    attention("fused")(torch.randn(1, 5, 64))
    assert len(calls) == 1


@pytest.mark.parametrize("tokens", TOKENS)
@pytest.mark.parametrize(
    ("dtype", "tolerance"),
    [(torch.float32, 1e-5), (torch.bfloat16, 2e-2)],  # bf16 has 8 bits: 2^-8 = 4e-3 a rounding
)
def test_paths_agree_forward_and_backward(tokens, dtype, tolerance):
    """Relative to the largest entry, for the output and the gradients of input and weights."""
    results = {}
    for path in ("explicit", "fused"):
        module = attention(path).to(dtype)
        x = torch.randn(2, tokens, 64, generator=torch.Generator().manual_seed(1)).to(dtype)
        x.requires_grad_()
        y = module(x)
        y.square().sum().backward()
        results[path] = [y, x.grad, *(p.grad for p in module.parameters())]
    for one, other in zip(results["explicit"], results["fused"], strict=True):
        difference = (one.float() - other.float()).abs().max()
        assert difference <= tolerance * max(1e-6, other.float().abs().max())


@pytest.mark.parametrize("path", ["explicit", "fused"])
def test_weights_times_values_is_what_forward_uses(path):
    module, x = attention(path), torch.randn(3, 17, 64)
    seen = []
    module.proj.register_forward_pre_hook(lambda _, inputs: seen.append(inputs[0]))
    module(x)
    again = (module.weights(x) @ module.values(x)).transpose(1, 2).flatten(2)
    torch.testing.assert_close(again, seen[0], atol=1e-5, rtol=1e-5)


def test_rows_sum_to_one_and_slices_are_rows():
    module, x = attention("fused"), torch.randn(2, 29, 64)
    weights = module.weights(x)
    torch.testing.assert_close(weights.sum(-1), torch.ones(2, 4, 29))
    torch.testing.assert_close(module.weights(x, slice(5, 12)), weights[:, :, 5:12])


def test_permuting_tokens_permutes_the_output():
    module, x = attention("explicit"), torch.randn(1, 11, 64)
    order = torch.randperm(11)
    torch.testing.assert_close(module(x[:, order]), module(x)[:, order])


def test_table_gives_a_path_for_every_device():
    assert choose_path("cpu", torch.bfloat16, 65) == "explicit"
    assert choose_path("cpu", torch.float32, 1370) == "fused"
    assert choose_path("cuda", torch.bfloat16, 65) == "fused"


def test_width_must_be_a_multiple_of_heads():
    with pytest.raises(
        ValueError, match=r"embed_dim \(100\) must be a multiple of num_heads \(12\)"
    ):
        SelfAttention(100, 12)
