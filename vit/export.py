"""A trained network as a file that runs without this program: ONNX, or PyTorch's exported program.

Either takes `images`, float32 (B, 3, height, width), normalised, B any number, and gives `logits`,
float32 (B, C) (`features` where there is no head). What is needed besides travels in the file: the
class names, the preprocessing, and the temperature that divides the logits before the softmax.
"""

import importlib.util
import json
import logging
import warnings
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch
from torch import Tensor

from vit.model_file import TrainedModel

FORMATS = ("onnx", "pt2")
NEEDED = {"onnx": ("onnx", "onnxscript", "onnxruntime"), "pt2": ()}
TOLERANCE = (
    1e-4  # largest difference of a logit, relative to the largest logit where that is above 1
)
BATCHES = (1, 5)  # that are compared
OPSET = 18

BATCH = torch.export.Dim("batch", min=1)
Runner = Callable[[Tensor], Tensor]


class ParityError(FloatingPointError):
    """The exported file computes something else than the network."""


def export(
    model: TrainedModel, path: Path, kind: str, opset: int | None = None
) -> dict[int, float]:
    """Writes the file and compares it with the network.

    Args:
        model: what is written, in float32.
        path: the file; it is there afterwards only where it computes the same.
        kind: "onnx" or "pt2".
        opset: of ONNX; None: 18.

    Returns:
        Images in a batch -> the largest difference of an output, see `TOLERANCE`.

    Raises:
        ValueError: an unknown kind, an opset without ONNX, or a package that is missing.
        ParityError: the outputs differ; no file is left.
    """
    check(kind, opset)
    with TemporaryDirectory(prefix=f".{path.name}.", dir=path.parent) as folder:
        part = Path(folder) / path.name
        with quiet():
            run = (
                write_onnx(model, part, opset or OPSET)
                if kind == "onnx"
                else write_pt2(model, part)
            )
        differences = {size: difference(model, run, size) for size in BATCHES}
        for worst in differences.values():
            if worst <= TOLERANCE:  # nan is not
                continue
            raise ParityError(
                f"the exported network differs from the original by {worst:.1e}, more than "
                f"{TOLERANCE:.0e}: {path} is not written"
            )
        for file in Path(folder).iterdir():  # above 2 GB ONNX keeps the weights in a second one
            file.replace(path.parent / file.name)
    return differences


def check(kind: str, opset: int | None) -> None:
    """Whether it can be done here.

    Raises:
        ValueError: it cannot; says what to do.
    """
    if kind not in FORMATS:
        raise ValueError(f"format ({kind}) must be {' or '.join(FORMATS)}")
    if opset is not None and kind != "onnx":
        raise ValueError(f"opset ({opset}) is ONNX's: leave it out for {kind}")
    if opset is not None and not 18 <= opset <= 23:
        raise ValueError(f"opset ({opset}) must be in 18 to 23")
    missing = [name for name in NEEDED[kind] if importlib.util.find_spec(name) is None]
    if missing:
        raise ValueError(
            f"exporting to {kind} needs {', '.join(missing)}: pip install {' '.join(missing)}"
        )


def about(model: TrainedModel) -> dict[str, str]:
    """What travels in the file, each entry JSON."""
    entries = {
        "classes": model.classes,
        "preprocess": model.preprocess.to_dict(),
        "temperature": model.temperature,
    }
    return {name: json.dumps(value, ensure_ascii=False) for name, value in entries.items()}


def write_pt2(model: TrainedModel, path: Path) -> Runner:
    """PyTorch's exported program, with `about` as its extra files NAME.json; returns it, read back."""
    images = images_for(model, 2)
    with torch.no_grad():
        program = torch.export.export(
            model.net.eval(), (images,), dynamic_shapes=({0: BATCH},), strict=False
        )
    extra = {f"{name}.json": text for name, text in about(model).items()}
    torch.export.save(program, path, extra_files=extra)
    return torch.export.load(path).module()


def write_onnx(model: TrainedModel, path: Path, opset: int) -> Runner:
    """ONNX with `about` among its metadata_props; returns it as onnxruntime runs it on the CPU."""
    import onnxruntime

    written = torch.onnx.export(
        model.net.eval(),
        (images_for(model, 2),),
        input_names=["images"],
        output_names=["logits" if model.classes else "features"],
        dynamic_shapes=({0: BATCH},),
        opset_version=opset,
        dynamo=True,
        verbose=False,
    )
    written.model.metadata_props.update(about(model))
    written.save(path)
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda images: torch.from_numpy(session.run(None, {"images": images.numpy()})[0])


def images_for(model: TrainedModel, size: int) -> Tensor:
    """Seeded noise with the spread of normalised photos: (size, C, height, width)."""
    channels = model.net.architecture.in_chans
    noise = np.random.default_rng(0).standard_normal((size, channels, *model.preprocess.size))
    return torch.from_numpy(noise.astype(np.float32))


@torch.no_grad()
def difference(model: TrainedModel, run: Runner, size: int) -> float:
    """The largest difference of an output over a batch; outputs above 1 count relatively."""
    images = images_for(model, size)
    expected, got = model.net(images), run(images)
    if expected.shape != got.shape:
        return float("inf")
    return float((got - expected).abs().max() / expected.abs().max().clamp(min=1))


@contextmanager
def quiet() -> Iterator[None]:
    """The exporters' remarks on their own inner workings are not shown."""
    loggers = [logging.getLogger(name) for name in ("torch.onnx", "onnxscript", "onnx_ir")]
    before = [logger.level for logger in loggers]
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")
        for logger in loggers:
            logger.setLevel(logging.ERROR)
        try:
            yield
        finally:
            for logger, level in zip(loggers, before, strict=True):
                logger.setLevel(level)
