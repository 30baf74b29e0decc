"""Which parameters learn and how fast: all, with less for earlier layers; the head first; or LoRA.

    full             everything, block i of n at lr * layer_decay^(n + 1 - i)
    probe            a head on frozen features, no gradient descent (vit/probe.py)
    head_then_full   optim.head_epochs with the head alone, then as full
    lora             small matrices beside the attention projections, and the head (vit/lora.py)

Layer-wise decay is BEiT's (Bao et al. 2021, arXiv 2106.08254, section 3.2) in timm's numbering; the
head first is Kumar et al. 2022 (arXiv 2202.10054): a random head's gradients spoil good features.
"""

import math
from collections.abc import Callable, Iterator
from dataclasses import replace

from torch import nn

from vit import lora
from vit.model import VisionTransformer
from vit.settings import Model, Optim

# Parameters that are no matrix of a layer: weight decay would pull them to zero for no reason.
NEVER_DECAYED = ("pos_embed", "cls_token", "dist_token", "reg_token", "attn_pool.latent")
# What settings that are null mean.
DEFAULTS = {
    "from_scratch": {"lr": 1e-3, "layer_decay": 1.0},
    "full": {"lr": 5e-4, "layer_decay": 0.65},
    "probe": {"lr": 0.0, "layer_decay": 1.0},
    "head_then_full": {"lr": 2e-4, "layer_decay": 0.65},
    "lora": {"lr": 2e-3, "layer_decay": 1.0},
}
EMBEDDING = ("cls_token", "dist_token", "reg_token", "pos_embed", "patch_embed", "norm_pre")


def prepare(net: VisionTransformer, model: Model) -> VisionTransformer:
    """Freezes and adds what the mode of tuning asks for; returns net."""
    if model.tune == "probe":
        freeze_all_but_head(net, True)
    if model.tune == "lora":
        return lora.adapt(net, model.lora_rank, model.lora_alpha)
    return net


def head_of(net: VisionTransformer) -> list[nn.Module]:
    """The layers from features to logits: one, or two with a distillation token."""
    return [head for head in (net.head, net.head_dist) if head is not None]


def trained(net: VisionTransformer) -> int:
    """How many parameters learn."""
    return sum(p.numel() for p in net.parameters() if p.requires_grad)


def freeze_all_but_head(net: VisionTransformer, frozen: bool) -> None:
    """Lets the head alone learn, or everything again."""
    net.requires_grad_(not frozen)
    for head in head_of(net):
        head.requires_grad_(True)


def layer_factor(name: str, depth: int, decay: float) -> float:
    """Share of the learning rate that a parameter gets: head 1, last block decay, ..., embedding least.

    Args:
        name: of the parameter.
        depth: number of blocks n.
        decay: factor from each layer to the one before it.
    """
    first, _, rest = name.partition(".")
    if first in EMBEDDING:
        return decay ** (depth + 1)
    if first == "blocks":
        return decay ** (depth - int(rest.partition(".")[0]))
    return decay if first == "norm" else 1.0  # the norm after the last block belongs to it


def param_groups(net: VisionTransformer, optim: Optim) -> list[dict]:
    """The optimiser's groups, the head's first: parameters of one learning rate and weight decay.

    Biases, norms, positions and tokens are never decayed. Frozen parameters are in none.
    """
    groups: dict[tuple, dict] = {}
    for name, parameter, is_head in named(net):
        bare = parameter.ndim < 2 or name.endswith(NEVER_DECAYED)
        factor = layer_factor(name, net.architecture.depth, optim.layer_decay)
        apart = is_head and optim.head_epochs > 0  # its rate has a course of its own
        group = {
            "params": [],
            "weight_decay": 0.0 if bare else optim.weight_decay,
            "lr": optim.lr * factor,
            "head": apart,
        }
        groups.setdefault((not apart, -factor, bare), group)["params"].append(parameter)
    return [groups[key] for key in sorted(groups)]


def named(net: VisionTransformer) -> Iterator[tuple[str, nn.Parameter, bool]]:
    """(name, parameter, whether it is the head's) of what learns."""
    heads = {id(p) for head in head_of(net) for p in head.parameters()}
    for name, parameter in net.named_parameters():
        if parameter.requires_grad:
            yield name, parameter, id(parameter) in heads


def schedules(groups: list[dict], steps: int, optim: Optim) -> list[Callable[[int], float]]:
    """For each group: step -> factor on its learning rate.

    Args:
        groups: as from `param_groups`.
        steps: number of all steps.
        optim: with head_epochs, the head's rate first falls from head_lr to 0 while all else rests;
            then everything warms up and falls as without.
    """
    if not optim.head_epochs:
        return [lambda step: rate(step, steps, optim)] * len(groups)
    first = steps * optim.head_epochs // optim.epochs
    alone = replace(optim, epochs=optim.head_epochs, warmup_epochs=0, head_epochs=0, min_lr=0)
    after = replace(optim, epochs=optim.epochs - optim.head_epochs, head_epochs=0)

    def factor(step: int, head: bool) -> float:
        if step >= first:
            return rate(step - first, steps - first, after)
        return rate(step, first, alone) * optim.head_lr / optim.lr if head else 0.0

    return [lambda step, head=group["head"]: factor(step, head) for group in groups]


def rate(step: int, steps: int, optim: Optim) -> float:
    """Factor on the learning rate at a step: linear warm-up, then a cosine to min_lr.

    Args:
        step: 0 for the first.
        steps: number of all steps.
        optim: lr, min_lr, epochs and warmup_epochs.
    """
    warmup = min(steps, round(steps * optim.warmup_epochs / optim.epochs))
    if step < warmup:
        return (step + 1) / warmup
    lowest = optim.min_lr / optim.lr if optim.lr else 0.0
    done = (step - warmup) / max(1, steps - warmup)
    return lowest + (1 - lowest) * 0.5 * (1 + math.cos(math.pi * min(1.0, done)))
