"""A trained network in one self-describing file, model.safetensors.

Tensors stand under timm's names, float32. The metadata entry "vit" is JSON: version, architecture
(its non-defaults), classes, preprocess, temperature, metrics, source, versions. A config.json beside
the file lets `timm.create_model("local-dir:FOLDER", pretrained=True)` build the same network, where
timm has all its pieces.
"""

import json
import os
import platform
from collections.abc import Iterable
from dataclasses import dataclass, field
from importlib.metadata import version
from pathlib import Path

from safetensors import safe_open
from safetensors.torch import save as to_bytes

from vit.fitting import Preprocess
from vit.model import Architecture, VisionTransformer
from vit.runs import write_whole
from vit.timm_config import for_timm

VERSION = 1


@dataclass
class TrainedModel:
    """A network with what is needed to use it.

    Args:
        net: in evaluation mode, on the CPU.
        classes: names, in the order of the logits; none where it has no head.
        preprocess: how a photo becomes what `net` takes.
        temperature: divides the logits before the softmax, so that probabilities are calibrated.
        metrics: {"test": {...}, "val": {...}} as measured when it was saved.
    """

    net: VisionTransformer
    classes: list[str]
    preprocess: Preprocess
    temperature: float = 1.0
    metrics: dict = field(default_factory=dict)

    def predict(
        self,
        photos: str | os.PathLike | Iterable[str | os.PathLike],
        top_k: int = 5,
        threshold: float | None = None,
        **computing,
    ) -> list[dict]:
        """What it says of photos: rows as `vit predict` writes them, see `vit.rows`.

        Args:
            photos: files, folders, patterns, as the words of `vit predict`; one or several.
            top_k: classes in a row, at most as many as there are.
            threshold: probability below which the label is "unknown"; None: there is always one.
            **computing: fields of `inference.Computing`: batch_size, workers, precision, flip,
                device.

        Raises:
            ValueError: the network has no classes, or an argument that cannot be.
        """
        from vit.inference import Computing, predict
        from vit.photos import listed

        words = [photos] if isinstance(photos, (str, os.PathLike)) else photos
        return list(predict(self, listed(words), top_k, threshold, Computing(**computing)))


def save(
    path: Path,
    net: VisionTransformer,
    classes: list[str],
    preprocess: Preprocess,
    temperature: float = 1.0,
    metrics: dict | None = None,
    source: str = "",
) -> None:
    """Writes model.safetensors and, beside it, timm's config.json where timm has all its pieces.

    Args:
        path: of the safetensors file.
        net: its weights are written as float32.
        classes: names, one per logit.
        preprocess: how a photo becomes what `net` takes.
        temperature: see `TrainedModel`.
        metrics: what it reached.
        source: where it comes from, in words.

    Raises:
        ValueError: the number of classes is not the number of logits.
    """
    if len(classes) != net.architecture.num_classes:
        raise ValueError(f"{len(classes)} classes for {net.architecture.num_classes} logits")
    about = {
        "version": VERSION,
        "architecture": net.architecture.non_defaults(),
        "classes": classes,
        "preprocess": preprocess.to_dict(),
        "temperature": temperature,
        "metrics": metrics or {},
        "source": source,
        "versions": {"python": platform.python_version(), "torch": version("torch")},
    }
    tensors = {k: v.detach().cpu().float().contiguous() for k, v in net.state_dict().items()}
    content = to_bytes(tensors, metadata={"format": "pt", "vit": json.dumps(about)})
    write_whole(path, in_order(content))
    timm_config = for_timm(net.architecture, classes, preprocess)
    if timm_config is not None:
        write_whole(path.with_name("config.json"), json.dumps(timm_config, indent=1).encode())


def in_order(content: bytes) -> bytes:
    """A safetensors file with its metadata sorted: the library writes them in a random order."""
    end = 8 + int.from_bytes(content[:8], "little")
    header = json.loads(content[8:end])
    header["__metadata__"] = dict(sorted(header["__metadata__"].items()))
    text = json.dumps(header, separators=(",", ":"), ensure_ascii=False).encode()
    text += b" " * (-len(text) % 8)  # tensors begin at a multiple of 8 bytes
    return len(text).to_bytes(8, "little") + text + content[end:]


def load(model: str | Path) -> TrainedModel:
    """Reads a model back.

    Args:
        model: a model.safetensors, or the folder of a run.

    Raises:
        ValueError: no such file, not one of ours, or written by a later version of this program.
    """
    path = Path(model)
    if path.is_dir():
        path = path / "model.safetensors"
    if not path.is_file():
        raise ValueError(
            f"no model at {path}: give a model.safetensors or the folder of a finished run"
        )
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("vit")
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118
    except Exception as error:  # safetensors has its own kind for a damaged header
        raise ValueError(f"{path} is not a safetensors file: {error}") from error
    about = understood(text, path)
    if about is None:
        raise ValueError(f"{path} holds no model of this program: it does not say what it is")
    net = VisionTransformer.unfilled(Architecture.from_dict(about["architecture"]))
    net.load_state_dict(tensors)
    preprocess = Preprocess.from_dict(about["preprocess"])
    return TrainedModel(
        net.eval(),
        about["classes"],
        preprocess,
        about.get("temperature", 1.0),
        about.get("metrics", {}),
    )


def about(path: Path) -> dict | None:
    """What a safetensors file of ours says of itself, from its header; None where it is not ours.

    Raises:
        ValueError: written by a later version of this program.
    """
    try:
        with safe_open(path, "pt") as file:
            text = (file.metadata() or {}).get("vit")
    except Exception:  # no safetensors file, so none of ours
        return None
    return understood(text, path)


def understood(text: str | None, path: Path) -> dict | None:
    """The metadata entry "vit" of a file; None where it is none of ours.

    Raises:
        ValueError: written by a later version of this program.
    """
    try:
        entry = json.loads(text or "")
    except ValueError:
        return None
    if not isinstance(entry, dict) or not {"version", "architecture"} <= entry.keys():
        return None
    if entry["version"] > VERSION:
        raise ValueError(
            f"{path} is of version {entry['version']}, this program reads up to {VERSION}: update it"
        )
    return entry
