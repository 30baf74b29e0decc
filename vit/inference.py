"""The one loop over photos that `vit predict` and `vit evaluate` share.

B photos in a batch, C classes. Batches hold neighbours in the given order; a photo's numbers do not
depend on them.
"""

import copy
import logging
from collections.abc import Iterable, Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass
from itertools import islice
from typing import TYPE_CHECKING

import numpy as np
import torch
from torch import Tensor, nn

from vit import photos
from vit.normalise import normalise
from vit.photos import Loaded
from vit.rows import error_row, row_of

if TYPE_CHECKING:
    from vit.model_file import TrainedModel

log = logging.getLogger("vit")

PRECISIONS = ("32", "bf16")
DEVICES = ("auto", "cpu", "cuda", "mps")


@dataclass(frozen=True)
class Computing:
    """How a network is run over photos.

    Args:
        batch_size: photos at once.
        workers: threads that open photos; None: one per core.
        precision: "32", or "bf16" for weights and activations; a processor without bf16 computes in
            float32 all the same, which is several times faster there, and a warning says so.
        flip: whether the mirrored photo is looked at too; the logits are averaged.
        device: "cpu", "cuda", "mps", or "auto": a GPU where there is one.

    Raises:
        ValueError: a value that cannot be.
    """

    batch_size: int = 32
    workers: int | None = None
    precision: str = "32"
    flip: bool = False
    device: str = "auto"

    def __post_init__(self) -> None:
        if self.batch_size < 1:
            raise ValueError(f"batch_size ({self.batch_size}) must be at least 1")
        if self.workers is not None and self.workers < 1:
            raise ValueError(f"workers ({self.workers}) must be at least 1")
        if self.precision not in PRECISIONS:
            raise ValueError(f"precision ({self.precision}) must be {' or '.join(PRECISIONS)}")
        if self.device not in DEVICES:
            raise ValueError(f"device ({self.device}) must be one of {', '.join(DEVICES)}")


DEFAULT = Computing()


def predict(
    model: "TrainedModel",
    paths: Iterable,
    top_k: int = 5,
    threshold: float | None = None,
    computing: Computing = DEFAULT,
) -> Iterator[dict]:
    """Rows (see `vit.rows`), one per path, in their order, at constant memory.

    Args:
        model: what is asked.
        paths: files.
        top_k: classes in a row, at most as many as there are.
        threshold: probability below which the label is "unknown"; None: there is always one.
        computing: batches, workers, precision.

    Raises:
        ValueError: the network has no classes, top_k is below 1, or the device is not here.
    """
    require_classes(model)
    device_of(computing.device)
    if top_k < 1:
        raise ValueError(f"top_k ({top_k}) must be at least 1")
    return rows(model, paths, min(top_k, len(model.classes)), threshold, computing)


def require_classes(model: "TrainedModel") -> None:
    """Refuses a network that knows no classes.

    Raises:
        ValueError: it has none; says what to do.
    """
    if not model.classes:
        raise ValueError(
            "this network has no classes, only features: `vit attend` shows where it looks; to have "
            "it predict, fine-tune it on photos of your classes with `vit train --config finetune`"
        )


def rows(
    model: "TrainedModel",
    paths: Iterable,
    top_k: int,
    threshold: float | None,
    computing: Computing,
) -> Iterator[dict]:
    """`predict`, its arguments checked."""
    with closing(logits(model, paths, computing)) as answers:
        for loaded, one in answers:
            if one is None:
                yield error_row(loaded.path, loaded.error)
            else:
                yield row_of(loaded.path, likeliest(model, one, top_k), threshold)


def likeliest(model: "TrainedModel", logits: Tensor, top_k: int) -> list[tuple[str, float]]:
    """(class, probability) of the likeliest classes of one photo's logits (C,), temperature applied."""
    shares = (logits.double() / model.temperature).softmax(dim=0)
    # of equals the first, as argmax takes it in `Predictions`; bfloat16 makes equals
    order = logits.sort(descending=True, stable=True).indices[:top_k].tolist()
    return [(model.classes[place], float(f"{shares[place]:.7g}")) for place in order]


def logits(
    model: "TrainedModel", paths: Iterable, computing: Computing, opener=None
) -> Iterator[tuple[Loaded, Tensor | None]]:
    """Each photo with its logits, float32 (C,) on the CPU, or None where it could not be read.

    While the network computes a batch, threads open the photos of the next one.

    Args:
        opener: see `photos.load`.
    """
    size, workers = computing.batch_size, computing.workers
    loading = photos.load(paths, model.preprocess, workers, ahead=size, opener=opener)
    net = model.net
    if computing.precision == "bf16":
        net = in_bf16(net, device_of(computing.device).type)
    with closing(loading), on_device(net, computing.device) as device:
        while some := list(islice(loading, size)):
            pixels = [one.fitted.pixels for one in some if one.fitted]
            answers = iter(())
            if pixels:
                images = torch.from_numpy(np.stack(pixels)).to(device)
                images = normalise(images.permute(0, 3, 1, 2).contiguous(), model.preprocess)
                answers = iter(forward(net, images, computing.flip))
            for one in some:
                yield one, next(answers) if one.fitted else None


def in_bf16(net: nn.Module, device: str) -> nn.Module:
    """A copy of the network in bfloat16: as near as autocast, and 5 % faster on a CPU.

    Where bfloat16 is only emulated, the network itself: a ViT-S takes ten times as long in it there.
    """
    if device == "mps" or has_bf16(device):
        return copy.deepcopy(net).to(torch.bfloat16)
    log.warning("this %s has no bf16 arithmetic: computed in float32, which is faster here", device)
    return net


def has_bf16(device: str) -> bool:
    """Whether "cuda" or "cpu" multiplies bf16 matrices faster than float32 ones; not known of "mps"."""
    if device == "cuda":
        return torch.cuda.is_bf16_supported(including_emulation=False)
    if device == "cpu":
        return torch.cpu._is_amx_tile_supported() or torch.cpu._is_avx512_bf16_supported()
    return False


@torch.inference_mode()
def forward(net: nn.Module, images: Tensor, flip: bool) -> Tensor:
    """Normalised images (B, 3, height, width) -> logits, float32 (B, C), on the CPU."""
    images = images.to(next(net.parameters()).dtype)
    answer = net(images).float()
    if flip:
        answer = (answer + net(images.flip(-1)).float()) / 2
    return answer.cpu()


@contextmanager
def on_device(net: nn.Module, name: str) -> Iterator[torch.device]:
    """While it lasts the network is there, in evaluation mode; afterwards where it was.

    Raises:
        ValueError: this machine has no such device.
    """
    device, before = device_of(name), next(net.parameters()).device
    try:
        net.to(device).eval()
        yield device
    finally:
        net.to(before)


def device_of(name: str) -> torch.device:
    """What a name of `DEVICES` means here.

    Raises:
        ValueError: this machine has no such device.
    """
    available = {"cuda": torch.cuda.is_available(), "mps": torch.backends.mps.is_available()}
    if not available.get(name, True):
        raise ValueError(f"device ({name}) is not here: this machine has no such GPU")
    if name == "auto":
        name = next((known for known, here in available.items() if here), "cpu")
    return torch.device(name)
