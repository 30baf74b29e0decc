"""What learns and how fast: LoRA, layer-wise decay, the head first, the probe, unequal classes."""

import copy

import numpy as np
import pytest
import timm
import torch
import torch.nn.functional as F
from sklearn.linear_model import LogisticRegression
from timm.optim import param_groups_layer_decay

import vit
from vit import lora, probe, tuning
from vit.balance import class_weights
from vit.datasets import Item
from vit.loaders import Part, TrainLoader
from vit.settings import Model, Optim

SMALL = {"img_size": 16, "patch_size": 8, "embed_dim": 12, "depth": 2, "num_heads": 3}


def network(**changes) -> vit.VisionTransformer:
    """A small network whose every parameter differs from its first value."""
    torch.manual_seed(0)
    net = vit.VisionTransformer(**SMALL | {"num_classes": 4} | changes)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.add_(0.1 * torch.randn_like(parameter))
    return net.eval()


def images(count: int = 3) -> torch.Tensor:
    return torch.randn(count, 3, 16, 16, generator=torch.Generator().manual_seed(1))


# --- LoRA ----------------------------------------------------------------------------------------


def adapted(net: vit.VisionTransformer, rank: int = 2, alpha: float = 6.0):
    """The network with matrices of rank `rank` that are not zero, and what they add by layer."""
    lora.adapt(net, rank, alpha)
    added = {}
    torch.manual_seed(2)
    for name, module in net.named_modules():
        if isinstance(module, lora.LowRank):
            torch.nn.init.normal_(module.b, std=0.3)
            layer = name.removesuffix(".parametrizations.weight.0")
            added[f"{layer}.weight"] = alpha / rank * (module.b @ module.a).detach()
    return net, added


@pytest.mark.parametrize(
    ("changes", "layers"),
    [({}, {"attn.qkv", "attn.proj"}), ({"block": "parallel"}, {"in_proj", "attn_out_proj"})],
)
def test_lora_adds_its_product_to_the_attention_projections(changes, layers):
    plain = network(**changes)
    net, added = adapted(copy.deepcopy(plain))
    assert set(added) == {f"blocks.{i}.{layer}.weight" for i in range(2) for layer in layers}
    state = plain.state_dict()
    by_hand = network(**changes)
    by_hand.load_state_dict(state | {name: state[name] + one for name, one in added.items()})
    with torch.no_grad():
        torch.testing.assert_close(net(images()), by_hand(images()))
        assert (net(images()) - plain(images())).abs().max() > 1e-2


def test_lora_begins_as_the_network_itself():
    plain = network()
    with torch.no_grad():
        assert torch.equal(lora.adapt(copy.deepcopy(plain), 2, 4.0)(images()), plain(images()))


def test_merged_lora_has_plain_names_and_the_same_logits():
    net, _ = adapted(network())
    with torch.no_grad():
        before = net(images())
        heat = vit.rollout(net, images())
        lora.merge(net)
        assert torch.equal(net(images()), before)
        assert torch.equal(vit.rollout(net, images()), heat)
    assert net.state_dict().keys() == network().state_dict().keys()
    vit.VisionTransformer(net.architecture).load_state_dict(net.state_dict())


def test_a_copy_of_an_adapted_network_is_its_own():
    net, _ = adapted(network())
    other = copy.deepcopy(net)
    with torch.no_grad():
        before = net(images())
        next(m for m in other.modules() if isinstance(m, lora.LowRank)).b.add_(1.0)
        assert torch.equal(net(images()), before)
        assert not torch.equal(other(images()), before)


@pytest.mark.parametrize("rank", [0, 13])
def test_a_rank_that_the_weights_do_not_have_is_refused(rank):
    with pytest.raises(
        ValueError, match=rf"lora_rank \({rank}\) must be at least 1 and at most 12"
    ):
        lora.adapt(network(), rank, 1.0)


def gradients(net: vit.VisionTransformer) -> set[str]:
    """Names of the parameters that a backward pass reaches."""
    F.cross_entropy(net(images()), torch.tensor([0, 1, 2])).backward()
    return {name for name, p in net.named_parameters() if p.grad is not None}


HEAD = {"head.weight", "head.bias"}


def test_gradients_reach_what_the_mode_trains():
    assert gradients(tuning.prepare(network(), Model(tune="probe"))) == HEAD
    names = gradients(tuning.prepare(network(), Model(tune="lora", lora_rank=2)))
    low_rank = {
        f"blocks.{i}.attn.{layer}.parametrizations.weight.0.{one}"
        for i in range(2)
        for layer in ("qkv", "proj")
        for one in "ab"
    }
    assert names == HEAD | low_rank
    net = tuning.prepare(network(), Model(tune="head_then_full"))
    tuning.freeze_all_but_head(net, True)
    assert gradients(net) == HEAD
    tuning.freeze_all_but_head(net, False)
    assert gradients(net) == {name for name, _ in net.named_parameters()}


def test_the_trained_parameters_are_counted():
    assert tuning.trained(tuning.prepare(network(), Model(tune="probe"))) == 4 * 12 + 4
    net = tuning.prepare(network(), Model(tune="lora", lora_rank=2))
    assert tuning.trained(net) == 52 + 2 * (2 * 12 + 36 * 2 + 2 * 12 + 12 * 2)
    assert tuning.trained(network()) == sum(p.numel() for p in network().parameters())


# --- Learning rates ------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("name", "changes"),
    [
        ("vit_tiny_patch16_224", {}),
        ("vit_tiny_patch16_224", {"reg_tokens": 2, "global_pool": "avg"}),
        ("vit_tiny_patch16_224", {"pre_norm": True, "init_values": 1e-5}),
        ("deit_tiny_distilled_patch16_224", {}),
    ],
)
def test_layer_decay_is_timms(name, changes):
    module = timm.create_model(name, img_size=32, depth=3, num_classes=5, **changes)
    names = {id(p): n for n, p in module.named_parameters()}
    theirs = {
        names[id(p)]: (0.1 * group["lr_scale"], group["weight_decay"])
        for group in param_groups_layer_decay(
            module, 0.05, module.no_weight_decay(), layer_decay=0.7
        )
        for p in group["params"]
    }
    net = vit.from_timm(module)
    names = {id(p): n for n, p in net.named_parameters()}
    optim = Optim(lr=0.1, weight_decay=0.05, layer_decay=0.7, head_epochs=0)
    groups = tuning.param_groups(net, optim)
    ours = {names[id(p)]: (g["lr"], g["weight_decay"]) for g in groups for p in g["params"]}
    assert ours.keys() == theirs.keys()
    for one, values in theirs.items():
        assert ours[one] == pytest.approx(values), one
    assert ours["head.weight"][0] == pytest.approx(0.1)
    assert ours["blocks.0.attn.qkv.weight"][0] == pytest.approx(0.1 * 0.7**3)
    assert ours["pos_embed"][0] == min(lr for lr, _ in ours.values())
    rates = [group["lr"] for group in groups]
    assert rates == sorted(rates, reverse=True)  # the head's first: the one that tables show


def test_the_head_learns_first_and_then_everything_warms_up():
    optim = Optim(epochs=10, head_epochs=2, warmup_epochs=2, lr=1e-3, head_lr=1e-2, layer_decay=0.5)
    groups = tuning.param_groups(network(), optim)
    factors = tuning.schedules(groups, 100, optim)
    rates = np.array(
        [[g["lr"] * f(s) for s in range(100)] for g, f in zip(groups, factors, strict=True)]
    )
    is_head = np.array([group["head"] for group in groups])
    assert is_head.sum() == 2  # weight and bias
    assert rates[is_head, 0] == pytest.approx(1e-2)
    assert (np.diff(rates[is_head, :20]) < 0).all()
    assert (rates[~is_head, :20] == 0).all()
    assert rates[is_head, 20] == pytest.approx(1e-3 / 20)  # 20 steps of warm-up
    assert rates[:, 39] == pytest.approx([group["lr"] for group in groups])
    assert (np.diff(rates[:, 40:]) < 0).all()


# --- The probe -----------------------------------------------------------------------------------


def blobs(count: int = 90, classes: int = 3, width: int = 7) -> tuple[torch.Tensor, torch.Tensor]:
    """Features of overlapping classes, with means and deviations far from 0 and 1."""
    generator = torch.Generator().manual_seed(3)
    labels = torch.arange(count) % classes
    features = torch.randn(count, width, generator=generator)
    features += 0.8 * torch.randn(classes, width, generator=generator)[labels]
    return features * torch.logspace(-2, 2, width) + 5, labels


@pytest.mark.parametrize("weighted", [False, True])
@pytest.mark.parametrize("l2", [1.0, 0.01, 1e-4])
def test_the_probes_optimum_is_scikit_learns(l2, weighted):
    features, labels = blobs()
    scaled = features.double().numpy()
    scaled = (scaled - scaled.mean(axis=0)) / scaled.std(axis=0)
    weights = {0: 2.0, 1: 0.5, 2: 0.7} if weighted else None
    theirs = LogisticRegression(
        C=1 / (l2 * len(labels)), tol=1e-10, max_iter=10000, class_weight=weights
    ).fit(scaled, labels.numpy())
    given = torch.tensor(list(weights.values())) if weighted else None
    fitted = dict(probe.fits(features, labels, 3, (1.0, l2), given))
    ours = (features.double() @ fitted[l2].weight.T + fitted[l2].bias).softmax(dim=1)
    assert np.abs(ours.numpy() - theirs.predict_proba(scaled)).max() <= 1e-4
    assert ours.amax() - ours.amin() > 0.3  # far from saying nothing


def test_a_feature_that_never_varies_is_of_no_influence():
    features, labels = blobs()
    features[:, 2] = 4.0
    ((_, layer),) = probe.fits(features, labels, 3, (0.1,))
    assert layer.weight.isfinite().all()
    assert layer.weight[:, 2].abs().max() < 1e-12


@pytest.mark.parametrize("pool", ["token", "avg", "distilled"])
def test_a_fitted_head_says_what_its_layer_says(pool):
    net = network(global_pool=pool)
    features = probe.features_of(net, images())
    heads = 2 if pool == "distilled" else 1
    assert features.shape == (3, 12 * heads)
    torch.manual_seed(4)
    layer = probe.Linear(torch.randn(4, 12 * heads).double(), torch.randn(4).double())
    probe.put_into(net, layer)
    said = layer.predictions(features, torch.tensor([0, 1, 2])).logits
    with torch.no_grad():
        torch.testing.assert_close(net(images()), said, atol=1e-5, rtol=1e-5)


# --- Classes of unequal size ---------------------------------------------------------------------

ITEMS = [Item(str(i), label, "train") for i, label in enumerate("aaaaaaaabb")]


def test_every_class_counts_the_same():
    weights = class_weights(ITEMS, ["a", "b", "c"])
    assert weights.tolist() == pytest.approx([10 / (3 * 8), 10 / (3 * 2), 0])
    labels = torch.tensor([0] * 8 + [1] * 2)
    assert class_weights(ITEMS, ["a", "b"])[labels].mean() == pytest.approx(1)


def test_a_balanced_epoch_draws_from_each_class_alike():
    labels = torch.tensor([0] * 190 + [1] * 10)
    part = Part(torch.zeros(200, 3, 1, 1, dtype=torch.uint8), labels, [])
    items = [Item(str(i), "ab"[label], "train") for i, label in enumerate(labels.tolist())]
    weights = class_weights(items, ["a", "b"])[labels]
    drawn = [0, 0]
    for epoch in range(10):
        loader = TrainLoader(part, 20, 0, lambda epoch=epoch: (epoch, 0), weights=weights)
        for _, some in loader:
            drawn[0] += len(some)
            drawn[1] += int(some.sum())
    assert drawn[0] == 2000
    assert 0.45 < drawn[1] / drawn[0] < 0.55  # unbalanced: 0.05


@pytest.mark.parametrize("mixed", [False, True])
def test_a_weighted_loss_is_the_mean_of_the_weighted_images(mixed):
    from vit.augment import Augment
    from vit.classifier import Classifier

    optim = Optim(lr=0.1, layer_decay=1.0, label_smoothing=0.2, average_decay=0)
    weights = torch.tensor([0.5, 2.0, 1.0, 0.1])
    preprocess = vit.Preprocess((16, 16))
    classifier = Classifier(network(), optim, Augment(), (0, 0), preprocess, 0, weights)
    logits = torch.randn(5, 4, generator=torch.Generator().manual_seed(5))
    labels = torch.tensor([0, 1, 1, 3, 2])
    shares = F.one_hot(labels, 4).float()
    if mixed:
        shares = 0.7 * shares + 0.3 * shares.flip(0)
    smooth = 0.8 * shares + 0.2 / 4
    each = -(smooth * logits.log_softmax(dim=1)).sum(dim=1)
    by_hand = sum(each[i] * sum(shares[i] * weights) for i in range(5)) / 5
    loss = classifier.loss(logits, shares if mixed else labels)
    assert loss.item() == pytest.approx(by_hand.item(), rel=1e-5)


def test_smoothing_does_not_make_a_weighted_loss_prefer_the_rare_class():
    """Two classes that can be told apart, 50 to 1: the best logits are those of the right class."""
    from vit.augment import Augment
    from vit.classifier import Classifier

    labels = torch.tensor([0] * 50 + [1])
    items = [Item(str(i), "ab"[label], "train") for i, label in enumerate(labels.tolist())]
    weights = class_weights(items, ["a", "b"])
    optim = Optim(lr=0.1, layer_decay=1.0, label_smoothing=0.1, average_decay=0)
    classifier = Classifier(
        network(), optim, Augment(), (0, 0), vit.Preprocess((16, 16)), 0, weights
    )
    logits = torch.zeros(2, 2, requires_grad=True)  # of each class's images
    optimizer = torch.optim.SGD([logits], lr=0.5)
    for _ in range(200):
        optimizer.zero_grad()
        classifier.loss(logits[labels], labels).backward()
        optimizer.step()
    assert logits.argmax(dim=1).tolist() == [0, 1]
    assert torch.allclose(logits.softmax(dim=1).diagonal(), torch.tensor(0.95), atol=0.01)
