"""The explanation methods by their definitions, on timm's own networks: torch and timm alone.

Everything is formed whole, in float64: each layer's softmax output A (B, H, T, T) and dS/dA, caught by
hooks on timm's modules, and (T, T) products of them. Slow, and nothing is shared with the package.
"""

from contextlib import contextmanager

import torch
from timm.models.deit import VisionTransformerDistilled
from timm.models.vision_transformer import VisionTransformer
from torch import Tensor

PATCH = 2
PLAIN = {"patch_size": PATCH, "embed_dim": 24, "num_heads": 3, "num_classes": 5}
# Tokens before the patches -> what gives them in timm.
PREFIX = {
    0: {"class_token": False, "global_pool": "avg"},
    1: {},
    2: {"distilled": True},
    5: {"reg_tokens": 4, "no_embed_class": True},
    8: {"reg_tokens": 7},
}
GRIDS = {"14x14": (14, 14), "16x8": (16, 8), "1x7": (1, 7)}


def network(depth: int = 2, prefix: int = 1, grid: tuple[int, int] = (1, 7), **more):
    """A small network of timm's with random weights, in float64, attention far from uniform."""
    arguments = {**PLAIN, **PREFIX[prefix], "img_size": tuple(PATCH * n for n in grid), **more}
    kind = VisionTransformerDistilled if arguments.pop("distilled", False) else VisionTransformer
    torch.manual_seed(100 * depth + prefix)
    net = kind(depth=depth, **arguments)
    with torch.no_grad():
        for name, tensor in net.state_dict().items():
            tensor.normal_(0, 0.05)
            if "norm" in name and name.endswith("weight"):
                tensor.add_(1)
            if "qkv.weight" in name:
                tensor.mul_(5)  # without it the scores are near 0 and every map is uniform
            if "embed" in name or "token" in name or "head" in name:
                tensor.mul_(10)  # tokens and classes that differ from each other
    assert net.num_prefix_tokens == prefix
    return net.eval().double()


def pictures(net, count: int) -> Tensor:
    """Random images (B, 3, height, width), in float64."""
    torch.manual_seed(7)
    return torch.randn(count, 3, *net.patch_embed.img_size, dtype=torch.float64)


@contextmanager
def hooked(modules, hook):
    """Inside, `hook` is called as a forward hook of each module."""
    handles = [module.register_forward_hook(hook) for module in modules]
    try:
        yield
    finally:
        for handle in handles:
            handle.remove()


def run(net, images: Tensor) -> tuple[list[Tensor], list[Tensor], Tensor]:
    """Softmax outputs, block outputs, logits: with their graph."""
    maps, outputs = [], []
    for block in net.blocks:
        block.attn.fused_attn = False  # the fused kernel never forms the weights
    with (
        hooked([b.attn.attn_drop for b in net.blocks], lambda *call: maps.append(call[2])),
        hooked(net.blocks, lambda *call: outputs.append(call[2])),
    ):
        logits = net(images)
    assert len(maps) == len(outputs) == len(net.blocks)
    return maps, outputs, logits


def targets_of(logits: Tensor, target) -> Tensor:
    """The classes explained: those given, else the predicted ones."""
    if target is None:
        return logits.argmax(1)
    return torch.tensor([target] * len(logits) if isinstance(target, int) else target)


def read_out(net, rows: Tensor) -> Tensor:
    """(B, T, T) or (B, H, T, T) -> the row of what the head reads: (B, T) or (B, H, T)."""
    if net.global_pool == "avg":
        return rows[..., net.num_prefix_tokens :, :].mean(-2)
    if isinstance(net, VisionTransformerDistilled):
        return rows[..., :2, :].mean(-2)
    return rows[..., 0, :]


def row_of(net, rows: Tensor, query) -> Tensor:
    """What the head reads, or one patch's row."""
    return read_out(net, rows) if query is None else rows[..., net.num_prefix_tokens + query, :]


def on_grid(net, row: Tensor) -> Tensor:
    """(B, T) -> (B, rows, cols)."""
    return row[:, net.num_prefix_tokens :].reshape(len(row), *net.patch_embed.grid_size)


def outlier_tokens(net, images: Tensor) -> Tensor:
    """Patches whose column of some layer's head mean sums to more than 10: (B, T)."""
    maps, _, _ = run(net, images)
    found = torch.stack([one.mean(1).sum(1) > 10 for one in maps]).any(0)
    found[:, : net.num_prefix_tokens] = False
    return found


def as_one(weights: Tensor, heads="mean", discard: float = 0.0, excluded=None) -> Tensor:
    """(B, H, T, T) -> (B, T, T), row by row as the definition reads."""
    if isinstance(heads, int):
        one = weights[:, heads].clone()
    else:
        one = {"mean": weights.mean(1), "max": weights.amax(1), "min": weights.amin(1)}[heads]
        one = one.clone()
    for image, matrix in enumerate(one):
        if excluded is not None:
            matrix[:, excluded[image]] = 0
        for row in matrix if int(discard * len(matrix)) else ():
            row[torch.sort(row, stable=True).indices[: int(discard * len(row))]] = 0
    return one / one.sum(-1, keepdim=True)


def rollout(net, images, layers=slice(None), query=None, **fusing) -> Tensor:
    """A'_b ... A'_a with A' = half the fused attention and half the identity."""
    with torch.no_grad():
        maps, _, _ = run(net, images)
    product = torch.eye(maps[0].shape[-1], dtype=torch.float64)
    for weights in maps[layers]:
        product = (0.5 * as_one(weights, **fusing) + 0.5 * torch.eye(len(weights[0, 0]))) @ product
    return on_grid(net, row_of(net, product, query))


def raw(net, images, layers=slice(-1, None), query=None, **fusing) -> Tensor:
    """The mean of the layers' fused attention."""
    with torch.no_grad():
        maps, _, _ = run(net, images)
    mean = torch.stack([as_one(weights, **fusing) for weights in maps[layers]]).mean(0)
    return on_grid(net, row_of(net, mean, query))


def affinity(net, images, layers=slice(-3, None), query=None, **fusing) -> Tensor:
    """A patch's value: what its product of patch-to-patch attention gives, of the query's row."""
    with torch.no_grad():
        maps, _, _ = run(net, images)
    fused = [as_one(weights, **fusing) for weights in maps[layers]]
    value = row_of(net, fused[-1], query)
    prefix = net.num_prefix_tokens
    for one in fused:
        patches = one[:, prefix:, prefix:]
        patches = patches / patches.sum(-1, keepdim=True)
        moved = torch.einsum("bij,bj->bi", patches, value[:, prefix:])
        value = torch.cat([value[:, :prefix], moved], dim=1)
    return on_grid(net, value)


def slopes(net, images, target=None) -> tuple[list[Tensor], list[Tensor]]:
    """A and dS/dA of each layer, S the logit of the class."""
    maps, _, logits = run(net, images)
    score = logits.gather(1, targets_of(logits, target)[:, None]).sum()
    return [one.detach() for one in maps], list(torch.autograd.grad(score, maps))


def generic(net, images, target=None, layers=slice(None), query=None, excluded=None) -> Tensor:
    """R <- R + E_h (dS/dA * A)+ R from R = I (Chefer et al. 2021b, eq. 5 and 6)."""
    maps, grads = slopes(net, images, target)
    product = torch.eye(maps[0].shape[-1], dtype=torch.float64).expand(len(images), -1, -1)
    for weights, grad in zip(maps[layers], grads[layers], strict=True):
        weighed = (grad * weights).clamp(min=0).mean(1)
        if excluded is not None:
            weighed = weighed.masked_fill(excluded[:, None, :], 0)
        product = product + weighed @ product
    return on_grid(net, row_of(net, product, query))


def legrad(net, images, target=None, layers=slice(None)) -> Tensor:
    """Mean over layers, heads, queries of (ds_l/dA_l)+, s_l from the layer's mean token."""
    maps, outputs, logits = run(net, images)
    classes = targets_of(logits, target)
    total = []
    for weights, tokens in list(zip(maps, outputs, strict=True))[layers]:
        mean = net.fc_norm(net.norm(tokens.mean(1)))
        said = net.head(mean)
        if isinstance(net, VisionTransformerDistilled):
            said = (said + net.head_dist(mean)) / 2
        score = said.gather(1, classes[:, None]).sum()
        [grad] = torch.autograd.grad(score, [weights], retain_graph=True)
        total.append(grad.clamp(min=0).mean((1, 2)))
    return on_grid(net, torch.stack(total).mean(0))


def gradcam(net, images, target=None, layers=slice(-1, None)) -> Tensor:
    """(E_h w_h A_h)+ in the row that the head reads, w_h the mean of dS/dA_h over patches."""
    maps, grads = slopes(net, images, target)
    total = []
    for weights, grad in list(zip(maps, grads, strict=True))[layers]:
        factor = read_out(net, grad)[..., net.num_prefix_tokens :].mean(-1, keepdim=True)  # B, H, 1
        total.append((factor * read_out(net, weights)).mean(1).clamp(min=0))
    return on_grid(net, torch.stack(total).mean(0))


METHODS = {
    "rollout": rollout,
    "raw": raw,
    "affinity": affinity,
    "generic": generic,
    "legrad": legrad,
    "gradcam": gradcam,
}
