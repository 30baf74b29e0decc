"""How a class's score changes with attention: one run of the network, forward and backward.

B batch, T tokens, D embed_dim, H heads, K head width, R rows formed at once.

S is the class's score, A a layer's attention, V its values, O = A V what its heads mix. No graph of
(T, T) is needed: one ordinary backward pass through whatever kernel computed O gives dS/dO, and
dS/dA = (dS/dO) V^T is formed in the same blocks of rows as A.
"""

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial

import torch
from torch import Tensor, nn

from vit.attention import SelfAttention
from vit.model import VisionTransformer

Target = int | Sequence[int] | Tensor | None


@dataclass(frozen=True)
class Traced:
    """A layer's attention as the network ran it, and the slope of a score.

    Attributes:
        q, k, v: as projected, each (B, H, T, K).
        slope: dS/dO (B, H, T, K); None where it was not asked for.
    """

    module: SelfAttention
    q: Tensor
    k: Tensor
    v: Tensor
    slope: Tensor | None

    @property
    def tokens(self) -> Tensor:
        """What stands for the layer's tokens where their number and type matter: (B, T, D)."""
        return self.module.merge_heads(self.v)

    def queries(self, rows: slice) -> Tensor:
        """As projected, of some rows: (B, H, R, K)."""
        return self.q[:, :, rows]

    def keys(self) -> Tensor:
        """As projected: (B, H, T, K)."""
        return self.k

    def slopes(self, rows: slice, columns: slice = slice(None)) -> Tensor:
        """dS/dA of some rows and columns: (B, H, R, C)."""
        return self.slope[:, :, rows] @ self.v[:, :, columns].mT


def trace(
    net: VisionTransformer, images: Tensor, target: Target, layers: range
) -> tuple[list[Traced], Tensor]:
    """One forward and one backward pass: all layers, those chosen with slopes, and the classes (B,).

    Args:
        target: the class, one for all images or one for each; None: the predicted one.
        layers: those whose slope is wanted.

    Raises:
        ValueError: a network without head, or no such class.
    """
    check_head(net)
    with differentiable(images) as pixels, recording(net.blocks, layers.start) as calls:
        logits = net.forward(pixels)  # as it is written, where the network is compiled too
        targets = classes(logits, target)
        mixed = [calls[number].mixed for number in layers]
        slopes = torch.autograd.grad(score(logits, targets), mixed)
    slope = dict(zip(layers, slopes, strict=True))
    return [call.traced(slope.get(number)) for number, call in enumerate(calls)], targets


def trace_each(
    net: VisionTransformer, images: Tensor, target: Target
) -> tuple[Iterator[Traced], Tensor]:
    """All layers, each with the slope of the score that its own output already has, one by one.

    That score is what the head says when the mean of the layer's tokens stands for all of them; its
    backward pass needs this one block. Arguments as `trace`.
    """
    check_head(net)
    with differentiable(images) as pixels, torch.no_grad():
        targets = classes(net.forward(pixels), target)
    return local_slopes(net, images, targets), targets


def local_slopes(net: VisionTransformer, images: Tensor, targets: Tensor) -> Iterator[Traced]:
    """The layers of `trace_each`."""
    with differentiable(images) as pixels, torch.no_grad():
        x = net.embed(pixels)
    for block in net.blocks:
        with differentiable(x), recording([block]) as [call]:
            after = block(x)
            logits = net.forward_head(net.norm(means(net, after)))
            [slope] = torch.autograd.grad(score(logits, targets), [call.mixed])
        x = after.detach()
        yield call.traced(slope)


def means(net: VisionTransformer, x: Tensor) -> Tensor:
    """Tokens (B, T, D) -> their mean in place of the prefix and of one patch: (B, P + 1, D)."""
    return x.mean(dim=1, keepdim=True).expand(-1, net.num_prefix_tokens + 1, -1)


@dataclass
class Call:
    """What one call of a layer's `mix` got and gave: each (B, H, T, K), mixed with its graph."""

    module: SelfAttention
    q: Tensor | None = None
    k: Tensor | None = None
    v: Tensor | None = None
    mixed: Tensor | None = None

    def mix(self, start: bool, q: Tensor, k: Tensor, v: Tensor) -> Tensor:
        """`SelfAttention.mix`, kept; at the `start` the graph begins."""
        mixed = type(self.module).mix(self.module, q, k, v)
        self.q, self.k, self.v = q.detach(), k.detach(), v.detach()
        self.mixed = mixed.detach().requires_grad_() if start else mixed
        return self.mixed

    def traced(self, slope: Tensor | None) -> Traced:
        """Without the graph."""
        return Traced(self.module, self.q, self.k, self.v, slope)


@contextmanager
def recording(blocks: Iterable[nn.Module], start: int = 0) -> Iterator[list[Call]]:
    """Inside, what each block's heads mix is kept as the network runs.

    Args:
        start: the block at which the graph begins: what comes before needs no slope.
    """
    calls = [Call(block.attn) for block in blocks]
    for number, call in enumerate(calls):
        call.module.mix = partial(call.mix, number == start)  # on this instance, before the class's
    try:
        yield calls
    finally:
        for call in calls:
            del call.module.mix


@contextmanager
def differentiable(tensor: Tensor) -> Iterator[Tensor]:
    """Inside, a graph can be built, whatever mode is on outside; gives the tensor to begin with."""
    with torch.inference_mode(False), torch.enable_grad():
        yield tensor.clone() if tensor.is_inference() else tensor


def check_head(net: VisionTransformer) -> None:
    """There are classes.

    Raises:
        ValueError: the network has no head.
    """
    if isinstance(net.head, nn.Identity):
        raise ValueError(
            "the network has no head, so there is no class to explain: use rollout or raw, or train "
            "a head first (vit train --config finetune)"
        )


def classes(logits: Tensor, target: Target) -> Tensor:
    """The class of each image: (B,), from the target or else predicted.

    Raises:
        ValueError: no such class, or not one for each image.
    """
    batch, count = logits.shape
    if target is None:
        return logits.argmax(dim=1)
    targets = torch.as_tensor(target, device=logits.device)
    if targets.ndim > 1 or (targets.ndim == 1 and len(targets) != batch):
        raise ValueError(
            f"target ({targets.tolist()}) must be one class or one for each of the {batch} images; "
            "for several classes of an image call once for each"
        )
    if targets.is_floating_point() or not ((targets >= 0) & (targets < count)).all():
        raise ValueError(f"target ({targets.tolist()}) must be class numbers from 0 to {count - 1}")
    return targets.long().expand(batch)


def score(logits: Tensor, targets: Tensor) -> Tensor:
    """The images' own logits of their class, summed: images do not meet, so gradients do not."""
    return logits.gather(1, targets[:, None]).sum()
