"""Every method against the definitions on timm's networks (tests/oracle_explain.py), and by hand."""

import gc
import resource
from contextlib import nullcontext as no_mode
from itertools import product

import oracle_explain as oracle
import pytest
import torch
from torch.utils._python_dispatch import TorchDispatchMode

import vit
from vit import attention_tiles
from vit.attention import SelfAttention
from vit.class_maps import generic_row, gradcam_row, legrad_row
from vit.explain import METHODS, explain
from vit.gradients import Traced, trace

CLASSES = ("generic", "legrad", "gradcam")
EVERY = [
    (*one, grid) for one in product((1, 2, 12, 24), (1, 3), oracle.PREFIX) for grid in oracle.GRIDS
]
# (layers, batch, prefix tokens, grid): each value of each, and each pair of prefix and grid.
SPREAD = [
    (1, 3, 0, "14x14"),
    (2, 1, 1, "14x14"),
    (1, 1, 2, "14x14"),
    (2, 1, 5, "14x14"),
    (1, 1, 8, "14x14"),
    (2, 3, 0, "16x8"),
    (12, 1, 1, "16x8"),
    (2, 3, 2, "16x8"),
    (1, 3, 5, "16x8"),
    (2, 1, 8, "16x8"),
    (24, 1, 0, "1x7"),
    (12, 3, 1, "1x7"),
    (24, 3, 2, "1x7"),
    (12, 1, 5, "1x7"),
    (24, 1, 8, "1x7"),
]
REST = [pytest.param(*one, marks=pytest.mark.full) for one in EVERY if one not in SPREAD]


@pytest.fixture(autouse=True)
def several_tiles(monkeypatch):
    """Networks this small would have all their columns in one."""
    monkeypatch.setattr(attention_tiles, "COLUMNS", 60)


def ours(reference) -> vit.VisionTransformer:
    """Our network with the weights of a timm one, loaded strictly, in float64."""
    return vit.from_timm(reference).double().eval()


def small(**changes):
    """A network, ours, and two images."""
    reference = oracle.network(**{"depth": 3, "grid": (3, 4)} | changes)
    return reference, ours(reference), oracle.pictures(reference, 2)


def agree(heat: torch.Tensor, expected: torch.Tensor, tolerance: float) -> bool:
    """Equal, by each map's largest difference over its largest value; says whether none is flat."""
    top, bottom = expected.amax((1, 2)), expected.amin((1, 2))
    assert ((heat.double() - expected).abs().amax((1, 2)) <= tolerance * top).all()
    return bool((top - bottom > 1e-3 * top).all())


@pytest.mark.parametrize(("depth", "batch", "prefix", "grid"), [*SPREAD, *REST])
def test_every_method_equals_the_oracle(depth, batch, prefix, grid):
    reference = oracle.network(depth, prefix, oracle.GRIDS[grid])
    net, images = ours(reference), oracle.pictures(reference, batch)
    single = ours(reference).float()
    for method, by_definition in oracle.METHODS.items():
        # GradCAM's map is zero where all of its terms are negative: of some class it is not.
        targets = [{"target": number} for number in range(5)] if method == "gradcam" else [{}]
        for target in targets:
            expected = by_definition(reference, images, **target)
            assert expected.shape == (batch, *oracle.GRIDS[grid])
            agree(explain(net, images, method, **target).heat, expected, 1e-10)
            heat = explain(single, images.float(), method, **target).heat
            assert heat.dtype == torch.float32
            shown = agree(heat, expected, 1e-5)
            if shown:
                break
        assert shown, f"{method}: every map is flat, nothing is compared"


def test_the_spread_has_every_value():
    for place in range(4):
        assert {one[place] for one in SPREAD} == {one[place] for one in EVERY}
    assert len({one[2:] for one in SPREAD}) == len(oracle.PREFIX) * len(oracle.GRIDS)


@pytest.mark.parametrize("target", [None, 3, [4, 0], torch.tensor([1, 2])])
@pytest.mark.parametrize("method", CLASSES)
def test_the_class_is_the_one_asked_for(method, target):
    reference, net, images = small(prefix=5)
    expected = oracle.METHODS[method](reference, images, target=as_given(target))
    told = explain(net, images, method, target=target)
    agree(told.heat, expected, 1e-10)
    assert torch.equal(told.targets, oracle.targets_of(reference(images), as_given(target)))
    other = explain(net, images, method, target=(told.targets + 1) % 5)
    assert not torch.allclose(other.heat, told.heat, rtol=1e-2)


def as_given(target):
    """As the oracle takes it."""
    return target.tolist() if isinstance(target, torch.Tensor) else target


@pytest.mark.parametrize("layers", [slice(0, 1), slice(1, 3), slice(-2, None), slice(0, 4)])
@pytest.mark.parametrize("method", METHODS)
def test_depth(method, layers):
    """Over some layers: the product, or the mean, of those alone."""
    reference, net, images = small(depth=4)
    more = {"target": 2} if method in CLASSES else {}
    told = explain(net, images, method, layers=layers, **more)
    assert told.layers == range(4)[layers]
    agree(told.heat, oracle.METHODS[method](reference, images, layers=layers, **more), 1e-10)
    text = f"{told.layers.start + 1}-{told.layers.stop}"
    assert torch.equal(explain(net, images, method, layers=text, **more).heat, told.heat)


@pytest.mark.parametrize("query", [0, 7, 11])
@pytest.mark.parametrize("method", ["rollout", "raw", "affinity", "generic"])
@pytest.mark.parametrize("prefix", [0, 5])
def test_any_patch_can_be_the_query(method, query, prefix):
    reference, net, images = small(prefix=prefix)
    told = explain(net, images, method, query=query)
    agree(told.heat, oracle.METHODS[method](reference, images, query=query), 1e-10)
    as_pair = explain(net, images, method, query=divmod(query, 4))
    assert torch.equal(as_pair.heat, told.heat)
    assert not torch.allclose(explain(net, images, method).heat, told.heat, rtol=1e-2)


@pytest.mark.parametrize("row_block", [1, 3, 13, 1000])
@pytest.mark.parametrize("method", METHODS)
def test_result_is_independent_of_the_row_block(method, row_block):
    _, net, images = small()
    one, other = (
        explain(net, images, method, row_block=rows, sinks="exclude") for rows in (row_block, 128)
    )
    torch.testing.assert_close(one.heat, other.heat, rtol=1e-12, atol=1e-15)
    assert torch.equal(one.outliers, other.outliers)


@pytest.mark.parametrize("prefix", oracle.PREFIX)
@pytest.mark.parametrize("method", METHODS)
def test_batch_equals_one_by_one(method, prefix):
    _, net, _ = small(prefix=prefix)
    images = oracle.pictures(oracle.network(1, 1, (3, 4)), 3)
    together = explain(net, images, method, layers="2-3")
    singly = [explain(net, image[None], method, layers="2-3") for image in images]
    for name in ("heat", "prefix_share", "outliers", "outlier_share", "targets"):
        values = [getattr(one, name) for one in singly]
        if values[0] is None:
            assert together.targets is None
        else:
            torch.testing.assert_close(getattr(together, name), torch.cat(values))
    assert not torch.allclose(singly[0].heat, singly[1].heat, rtol=1e-3)


# --- By hand: a class token and two patches, two heads; V = I, so that dS/dA = dS/dO --------------

FIRST = [[[0.0, 1, 0], [0, 1, 0], [1, 0, 0]], [[0, 0, 1], [0, 1, 0], [1, 0, 0]]]
FIRST_SLOPE = [[[1.0, 2, -1], [0, -3, 1], [4, 0, 0]], [[1, 1, 4], [0, 2, 0], [-2, 1, 1]]]
SECOND = [[[1.0, 0, 0], [0, 1, 0], [0, 0, 1]], [[0, 0, 1], [0, 1, 0], [0, 1, 0]]]
SECOND_SLOPE = [[[2.0, 0, 5], [0, -1, 0], [0, 0, 4]], [[1, 1, 6], [3, 2, 0], [0, -2, 0]]]


def by_hand() -> list[Traced]:
    """The two layers above: q = log A, k = I."""
    module, eye = SelfAttention(6, 2), torch.eye(3).expand(1, 2, 3, 3)
    layers = []
    for weights, slope in ((FIRST, FIRST_SLOPE), (SECOND, SECOND_SLOPE)):
        q = torch.tensor([weights]).clamp(min=1e-30).log() / module.scale
        layers.append(Traced(module, q, eye, eye, torch.tensor([slope])))
        torch.testing.assert_close(module.softmax_of(q, eye)[0], torch.tensor(weights))
    return layers


CLASS_TOKEN = torch.tensor([[1.0, 0, 0]])


def test_generic_attribution_by_hand():
    # (dS/dA * A)+, the mean of the heads: [[0, 1, 2], [0, 1, 0], [2, 0, 0]] in the first layer,
    # [[1, 0, 3], [0, 1, 0], [0, 0, 2]] in the second.
    # (I + second)(I + first), class row: [2, 0, 3] [[1, 1, 2], [0, 2, 0], [2, 0, 1]] = [8, 2, 7]
    row = generic_row(by_hand(), CLASS_TOKEN, row_block=2)
    torch.testing.assert_close(row, torch.tensor([[8.0, 2, 7]]))
    # without the last token as a column: [2, 0, 0] [[1, 1, 0], [0, 2, 0], [2, 0, 1]] = [2, 2, 0]
    excluded = torch.tensor([[False, False, True]])
    row = generic_row(by_hand(), CLASS_TOKEN, 2, excluded)
    torch.testing.assert_close(row, torch.tensor([[2.0, 2, 0]]))


@pytest.mark.parametrize("prefix", [0, 1, 5])
def test_the_identity_is_no_share_of_generic_attribution(prefix):
    """The prefix's share is of what the layers add to R, not of the row with which R begins."""
    reference, net, images = small(prefix=prefix)
    maps, grads = oracle.slopes(reference, images, None)
    count = maps[0].shape[-1]
    product = torch.eye(count, dtype=torch.float64).expand(len(images), -1, -1)
    for weights, grad in zip(maps, grads, strict=True):
        product = product + (grad * weights).clamp(min=0).mean(1) @ product
    row = oracle.read_out(reference, product - torch.eye(count, dtype=torch.float64))
    told = explain(net, images, "generic")
    expected = row[:, :prefix].sum(1) / row.sum(1)
    torch.testing.assert_close(told.prefix_share, expected.to(told.prefix_share.dtype))


def test_legrad_by_hand():
    # Positive slopes of a column, summed over both heads and three queries, over 6:
    # first layer (5 + 1) / 6, (2 + 4) / 6, (1 + 5) / 6; second (2 + 4) / 6, (0 + 3) / 6, (9 + 6) / 6
    row = legrad_row(by_hand(), row_block=2)
    torch.testing.assert_close(row, torch.tensor([[1, 0.75, 1.75]]))


def test_gradcam_by_hand():
    # Second layer, class row: heads' weights (0 + 5) / 2 and (1 + 6) / 2, attention [1, 0, 0] and
    # [0, 0, 1]: [2.5, 0, 3.5] / 2. First: (2 - 1) / 2 and (1 + 4) / 2; [0, 1, 0] and [0, 0, 1].
    first, second = by_hand()
    row = gradcam_row([second], CLASS_TOKEN, 2, prefix=1)
    torch.testing.assert_close(row, torch.tensor([[1.25, 0, 1.75]]))
    row = gradcam_row([first], CLASS_TOKEN, 2, prefix=1)
    torch.testing.assert_close(row, torch.tensor([[0, 0.25, 1.25]]))
    row = gradcam_row([first, second], CLASS_TOKEN, 2, prefix=1)
    torch.testing.assert_close(row, torch.tensor([[0.625, 0.125, 1.5]]))


def test_gradcam_shows_nothing_where_all_speaks_against():
    against = [Traced(one.module, one.q, one.k, one.v, -one.slope) for one in by_hand()]
    assert not gradcam_row(against, CLASS_TOKEN, 2, prefix=1).any()


# --- dS/dA is what it claims to be ------------------------------------------------------------------


@pytest.mark.parametrize("prefix", [0, 1, 2])
def test_slopes_equal_finite_differences(prefix):
    """One entry of A moved up and down in timm's network, which then goes on as usual."""
    reference, net, images = small(prefix=prefix)
    layers, targets = trace(net, images, None, range(3))
    tokens = layers[0].q.shape[2]
    dice, step = torch.Generator().manual_seed(0), 1e-5

    def score(layer, place, change) -> float:
        def moved(module, given, weights):
            weights = weights.clone()
            weights[place] += change
            return weights

        with torch.no_grad(), oracle.hooked([reference.blocks[layer].attn.attn_drop], moved):
            return float(reference(images)[place[0], targets[place[0]]])

    oracle.run(reference, images)  # from here on timm forms the weights
    for layer in (0, 1, 2):
        for _ in range(6):
            sizes = (2, 3, 1 if layer == 2 and prefix else tokens, tokens)
            place = tuple(int(torch.randint(size, (), generator=dice)) for size in sizes)
            up, down = score(layer, place, step), score(layer, place, -step)
            row = layers[layer].slopes(slice(place[2], place[2] + 1))
            ours = float(row[place[0], place[1], 0, place[3]])
            assert abs(ours) > 1e-6
            assert ours == pytest.approx((up - down) / (2 * step), rel=1e-4, abs=1e-7)


@pytest.mark.parametrize("path", ["explicit", "fused"])
@pytest.mark.parametrize("block", ["pre", "sub_norm", "res_post", "parallel"])
def test_traced_attention_times_values_is_what_the_block_computed(block, path):
    net = vit.VisionTransformer(
        img_size=(12, 8), patch_size=2, embed_dim=24, depth=2, num_classes=5, block=block
    )
    net.use_attention(path).eval()
    images = torch.randn(2, 3, 12, 8, generator=torch.manual_seed(0))
    mixed = []
    for one in net.blocks:
        after = one.attn_out_proj if block == "parallel" else one.attn.norm
        after.register_forward_pre_hook(lambda module, call: mixed.append(call[0]))
    with torch.no_grad():
        net(images)
    used = list(mixed)
    layers, _ = trace(net, images, None, range(2))
    assert len(used) == len(layers) == 2
    for layer, merged in zip(layers, used, strict=True):
        whole = layer.module.softmax_of(layer.queries(slice(None)), layer.keys()) @ layer.v
        whole = layer.module.merge_heads(whole)
        torch.testing.assert_close(whole, merged, rtol=0, atol=1e-5 * float(merged.abs().max()))


@pytest.mark.parametrize("block", ["sub_norm", "res_post", "parallel"])
def test_slopes_of_every_kind_of_block(block):
    """The network moved a little along a direction of O changes as the slopes say."""
    net = vit.VisionTransformer(
        img_size=(6, 4), patch_size=2, embed_dim=12, depth=2, num_classes=3, block=block
    )
    for tensor in net.parameters():
        torch.nn.init.normal_(tensor.detach(), std=0.3)
    net.double().eval()
    images = torch.randn(1, 3, 6, 4, generator=torch.manual_seed(0)).double()
    layers, targets = trace(net, images, None, range(2))
    direction = torch.randn(layers[0].v.shape, generator=torch.manual_seed(1)).double()
    for number, layer in enumerate(layers):
        said = []
        for step in (1e-5, -1e-5):
            moved = layer.module.merge_heads(direction) * step
            after = net.blocks[number]
            after = after.attn_out_proj if block == "parallel" else after.attn.norm
            handle = after.register_forward_pre_hook(lambda module, call, by=moved: (call[0] + by,))
            said.append(net(images)[0, targets[0]].item())
            handle.remove()
        found = (said[0] - said[1]) / 2e-5
        assert abs(found) > 1e-4
        assert float((layer.slope * direction).sum()) == pytest.approx(found, rel=1e-5)


# --- Nothing is left behind, nothing large is formed ------------------------------------------------


@pytest.mark.parametrize("method", METHODS)
def test_network_is_as_before(method):
    reference, _, images = small()
    net = vit.from_timm(reference).double()
    net = vit.VisionTransformer(net.architecture, drop_rate=0.5, drop_path_rate=0.5).double()
    net.train()
    net.blocks[1].eval()
    net.head.requires_grad_(False)
    net.blocks[0].mlp.fc1.weight.grad = torch.ones_like(net.blocks[0].mlp.fc1.weight)
    images.requires_grad_()
    attributes = [set(vars(module)) for module in net.modules()]
    modes = [module.training for module in net.modules()]
    asked = [one.requires_grad for one in net.parameters()]
    values = [one.detach().clone() for one in net.parameters()]
    dice = torch.get_rng_state()
    told = explain(net, images, method)
    assert torch.is_grad_enabled()
    assert not told.heat.requires_grad and not told.heat.is_inference()
    assert [module.training for module in net.modules()] == modes
    assert [set(vars(module)) for module in net.modules()] == attributes
    assert [one.requires_grad for one in net.parameters()] == asked
    assert images.grad is None
    assert sum(one.grad is not None for one in net.parameters()) == 1
    assert net.blocks[0].mlp.fc1.weight.grad.eq(1).all()
    assert all(torch.equal(one, value) for one, value in zip(net.parameters(), values, strict=True))
    assert torch.equal(torch.get_rng_state(), dice), "dropout was on"
    hooks = ("_forward_hooks", "_forward_pre_hooks", "_backward_hooks")
    assert not any(getattr(module, kind) for module in net.modules() for kind in hooks)
    torch.testing.assert_close(told.heat, explain(net.eval(), images, method).heat)


@pytest.mark.parametrize("method", METHODS)
def test_any_mode_of_gradients_will_do(method):
    _, net, images = small(prefix=2)
    expected = explain(net, images, method).heat
    heats = []
    for trainable, mode in ((True, torch.no_grad), (True, torch.inference_mode), (False, no_mode)):
        net.requires_grad_(trainable)
        with mode():
            heats.append(explain(net, images.clone(), method).heat)
    for heat in heats:  # not bit by bit: where a tensor lies in memory decides its kernels
        torch.testing.assert_close(heat.clone(), expected, rtol=1e-10, atol=1e-15)


@pytest.mark.parametrize("method", CLASSES)
def test_network_is_as_before_after_an_error(method):
    _, net, images = small()
    net.train()
    with pytest.raises(ValueError, match=r"target \(5\) must be class numbers from 0 to 4"):
        explain(net, images, method, target=5)
    assert net.training and "mix" not in vars(net.blocks[0].attn)


@pytest.mark.parametrize("method", METHODS)
def test_memory_is_flat_after_a_hundred_calls(method):
    _, net, images = small(depth=1, grid=(1, 7))

    def tensors() -> int:
        gc.collect()
        return sum(issubclass(type(thing), torch.Tensor) for thing in gc.get_objects())

    for _ in range(5):
        explain(net, images, method)
    before, peak = tensors(), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    for _ in range(100):
        explain(net, images, method)
    assert tensors() <= before
    grown = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - peak
    assert grown < 20_000  # KiB


class Largest(TorchDispatchMode):
    """Inside, the number of elements of the largest tensor that any operation gives."""

    elements = 0

    def __torch_dispatch__(self, function, types, args=(), kwargs=None):
        given = function(*args, **(kwargs or {}))
        for one in given if isinstance(given, tuple | list) else (given,):
            if isinstance(one, torch.Tensor):
                self.elements = max(self.elements, one.numel())
        return given


@pytest.mark.parametrize("method", METHODS)
def test_no_square_of_the_tokens_is_ever_formed(method):
    net = vit.VisionTransformer(
        img_size=(48, 48), patch_size=2, embed_dim=24, depth=2, num_heads=3, num_classes=4
    ).eval()
    images, tokens = torch.randn(1, 3, 48, 48), 24 * 24 + 1
    with Largest() as largest:
        explain(net, images, method, row_block=16, sinks="exclude")
    rows, hidden = 3 * 16 * tokens, 4 * 24 * tokens
    assert 0 < largest.elements <= max(rows, hidden) < tokens * tokens
