"""A training run put together: from settings to data, network, classifier and Lightning's Trainer."""

import logging
import warnings
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING

from vit import config as settings
from vit import runs
from vit.config import Config
from vit.runs import RunFolder

if TYPE_CHECKING:
    from lightning.pytorch import Trainer

    from vit.classifier import Classifier
    from vit.data import ImageData

log = logging.getLogger("vit")


@dataclass
class Assembly:
    """The parts of a training run, wired.

    Args:
        source: the pretrained weights it starts from, in words; empty from scratch.
    """

    folder: RunFolder
    config: Config
    data: "ImageData"
    classifier: "Classifier"
    trainer: "Trainer"
    source: str = ""


def assemble(config: Config, folder: RunFolder, resumed: bool = False) -> Assembly:
    """Wires a training run, each part from those before it.

    Args:
        config: all settings; "auto" values and the folder's path are resolved in what is written
            to the run's config.yaml, so that a resume computes the same.
        folder: of the run.
        resumed: the run began before: its split is followed.
    """
    import torch

    from vit import loggers, origin, tuning
    from vit.augment import Augment
    from vit.balance import class_weights
    from vit.callbacks import Recorder, StopOnSignal
    from vit.classifier import Classifier
    from vit.data import ImageData
    from vit.loaders import mix
    from vit.training_progress import ShowProgress

    start = origin.of(config, folder)
    config = resolve(origin.filled(config, start), start.architecture)
    data = ImageData(config.data, start.preprocess, config.run.seed)
    classes = data.scan(folder.split if resumed else None)
    config = replace(config, data=data.config)
    origin.warn_of_few(config, len(data.of("train")))
    torch.manual_seed(mix(config.run.seed))
    net = tuning.prepare(start.network(classes), config.model)
    net.use_attention(config.model.attention)
    varied = Augment(**{one.name: getattr(config.data, one.name) for one in fields(Augment)})
    varied = data.on_device(varied)
    mixing = (config.data.mixup, config.data.cutmix)
    weights = class_weights(data.of("train"), classes) if config.data.balance == "loss" else None
    classifier = Classifier(
        net, config.optim, varied, mixing, start.preprocess, config.run.seed, weights
    )
    if config.run.compile:
        net.compile()  # in place: names in checkpoints stay what they are
    recorder = Recorder(folder, config.run.checkpoint_steps, config.optim.patience)
    shown = ShowProgress(recorder, config.run.progress)
    logger = loggers.make(config.run.logger, folder)
    trainer = make_trainer(config, [recorder, shown, StopOnSignal(recorder)], logger)
    origin.check_processes(config, trainer.world_size)
    if not resumed and trainer.is_global_zero:
        data.write_split(folder.split)
        start.write(folder)
        runs.write_whole(folder.config, settings.as_yaml(config).encode())
    return Assembly(folder, config, data, classifier, trainer, start.source)


def resolve(config: Config, architecture) -> Config:
    """The settings with what "auto" means on this machine, and the data's full path."""
    import torch

    from vit.attention import choose_path
    from vit.inference import has_bf16

    device = device_type(config.trainer.get("accelerator", "auto"))
    precision = config.run.precision
    if precision == "auto":
        precision = "bf16" if has_bf16(device) else "32"
    elif precision == "bf16" and device == "cpu" and not has_bf16(device):
        log.warning("this processor has no bf16 arithmetic: run.precision 32 would be faster here")
    attention = config.model.attention
    if attention == "auto":
        rows, cols = (
            i // p for i, p in zip(architecture.img_size, architecture.patch_size, strict=True)
        )
        dtype = torch.bfloat16 if precision == "bf16" else torch.float32
        attention = choose_path(device, dtype, architecture.num_prefix_tokens + rows * cols)
    root = config.data.root and str(Path(config.data.root).resolve())
    return replace(
        config,
        data=replace(config.data, root=root),
        model=replace(config.model, attention=attention),
        run=replace(config.run, precision=precision),
    )


def device_type(accelerator: str) -> str:
    """The torch device that Lightning's `accelerator` will mean here: "cuda", "mps" or "cpu"."""
    import torch

    if accelerator in ("auto", "gpu", "cuda") and torch.cuda.is_available():
        return "cuda"
    if accelerator in ("auto", "gpu", "mps") and torch.backends.mps.is_available():
        return "mps"
    return "cpu"


def make_trainer(config: Config, callbacks: list, logger) -> "Trainer":
    """Lightning's Trainer, one device unless `trainer.devices` says otherwise."""
    for name in ("lightning.pytorch", "lightning.fabric", "lightning"):
        logging.getLogger(name).setLevel(logging.ERROR)  # advertisements
    # What these say is taken care of: our loader asks the trainer where to begin, there is no
    # logger, and a run without validation says so itself.
    for text in ("ended before the epoch", "logging interval", "across ranks is zero", "LeafSpec"):
        warnings.filterwarnings("ignore", f".*{text}.*")
    from lightning.pytorch import Trainer
    from lightning.pytorch.utilities.exceptions import MisconfigurationException

    ours = {
        "max_epochs": config.optim.epochs,
        "accumulate_grad_batches": config.optim.accumulate,
        "precision": {"bf16": "bf16-mixed", "32": "32-true"}[config.run.precision],
        "callbacks": callbacks,
        "logger": logger,
        "enable_checkpointing": False,
        "enable_progress_bar": False,
        "default_root_dir": config.run.root,
    }
    quiet = {"enable_model_summary": False, "num_sanity_val_steps": 0}
    try:
        return Trainer(**({"devices": 1} | quiet | config.trainer | ours))
    except (MisconfigurationException, TypeError, ValueError) as error:
        raise ValueError(f"trainer: {' '.join(str(error).split())}") from error


def describe(parts: Assembly) -> str:
    """One line for the start: images, network, machine."""
    from vit.tuning import trained

    data, net, config = parts.data, parts.classifier.net, parts.config
    counts = ", ".join(
        f"{len(data.of(part)):,} {words}"
        for part, words in (("train", "training"), ("val", "validation"), ("test", "test"))
    )
    tokens = net.num_prefix_tokens + net.patch_embed.num_patches
    total, learning = sum(p.numel() for p in net.parameters()), trained(net)
    part = f", {learning:,} of them trained ({config.model.tune})" if learning != total else ""
    trainer = parts.trainer
    device = trainer.strategy.root_device.type
    return (
        f"{counts} images in {len(data.classes)} classes; {total:,} parameters{part}, {tokens} tokens; "
        f"{data.storage(trainer.world_size // trainer.num_nodes)}; {device}, {config.run.precision} "
        f"bit, {config.model.attention} attention; {parts.folder.path}"
    ).replace("bf16 bit", "bf16")
