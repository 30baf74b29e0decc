"""The settings of a training run: four groups of values, their meaning and their range.

The `Args` below are the help texts of the command line. Imports nothing heavy.
"""

from dataclasses import dataclass
from typing import Literal


@dataclass
class Data:
    """Which images, how they are divided, and how they are varied in training.

    Args:
        source: where the images come from: the embedded `digits`, a benchmark set, which is
            downloaded once, or a `folder` of photos.
        root: the folder: class folders inside train / val (or validation) / test, or class folders
            alone; or a table, .csv or .jsonl, with path, label and perhaps split. For a benchmark
            set: where its archives are or go; null takes a cache folder.
        val_share: fraction of each class's training images set aside to choose the best epoch, where
            the folder has no validation part of its own; 0 for none.
        test_share: fraction of each class set aside for the final test, where the folder has no test
            part of its own.
        split_seed: which images those are; the same number gives the same division on any machine.
        batch_size: images per step and device; with fewer images, all of them.
        resident: hold the fitted pixels of all images in memory, or open photos batch by batch;
            auto holds what fits in 2 GiB, but opens photos where a random_resized_crop wants them
            whole.
        workers: processes that open photos while the network computes; 0 for none; auto takes one
            per core but one, at most 16. Results do not depend on it.
        strict: stop where a photo cannot be read; else it is left out and named.
        fit: how a photo becomes network pixels: crop its centre, pad it, or squash it; null: as the
            weights have it, from scratch crop.
        balance: classes of unequal size: none; sample: an epoch draws from each class alike; loss: an
            image of a rare class counts more.
        random_resized_crop: smallest and largest share of the area of a random crop that is
            enlarged to the full size, as [0.3, 1]; null for none.
        pad_crop: pixels of padding before a crop at a random place.
        flip: probability of a left-right flip.
        rotate: largest rotation, degrees either way.
        translate: largest shift, fraction of the side either way.
        policy: more changes, drawn per image: trivial (TrivialAugment), rand (RandAugment) or
            three (3-Augment).
        num_ops: operations in a row of rand.
        magnitude: strength of rand, 0 to 30.
        colour_jitter: largest change of brightness, contrast and saturation, fraction.
        erase: probability that a box of the image becomes noise.
        mixup: mixes pairs of images; alpha of the Beta distribution of the shares, 0 for none.
        cutmix: pastes a box of another image; alpha likewise. With both, each image has one of them.
    """

    source: Literal["digits", "cifar10", "cifar100", "mnist", "fashion_mnist", "folder"] = "digits"
    root: str | None = None
    val_share: float = 0.1
    test_share: float = 0.0
    split_seed: int = 0
    batch_size: int = 128
    resident: Literal["auto"] | bool = "auto"
    workers: Literal["auto"] | int = "auto"
    strict: bool = False
    fit: Literal["crop", "pad", "squash"] | None = None
    balance: Literal["none", "sample", "loss"] = "none"
    random_resized_crop: tuple[float, float] | None = None
    pad_crop: int = 0
    flip: float = 0.0
    rotate: float = 0.0
    translate: float = 0.0
    policy: Literal["none", "trivial", "rand", "three"] = "none"
    num_ops: int = 2
    magnitude: int = 9
    colour_jitter: float = 0.0
    erase: float = 0.0
    mixup: float = 0.0
    cutmix: float = 0.0

    def __post_init__(self):
        for name in ("val_share", "test_share"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"data.{name} ({getattr(self, name)}) must be at least 0 and below 1"
                )
        if self.root is not None and self.source == "digits":
            raise ValueError("data.root is of no use to digits; photos need --data.source folder")
        at_least("data", self, 1, "batch_size")
        if self.workers != "auto":
            at_least("data", self, 0, "workers")
        at_least("data", self, 0, "mixup", "cutmix")  # the rest is checked by Augment


@dataclass
class Model:
    """The network, in timm's words, and the weights it starts from.

    Args:
        weights: pretrained weights: timm:NAME or timm:NAME.TAG, as `vit models` lists them, a file
            of weights under timm's names, or a model.safetensors or run folder of this program;
            null trains from scratch. The head begins anew where the classes are others.
        architecture: a name of `vit models`, where the file of weights does not say what it is.
        tune: what learns: everything (full), a head on frozen features, in seconds (probe), the
            head alone for optim.head_epochs and then everything (head_then_full), or small matrices
            beside the attention projections, and the head (lora). All but full need weights.
        lora_rank: rank of those matrices.
        lora_alpha: lora_alpha / lora_rank multiplies them.
        img_size: image side, or [height, width], pixels; null: the weights', from scratch 32. With
            weights, their positions are resampled.
        patch_size: patch side, or [height, width], pixels; null: the weights', from scratch 4. With
            weights, their patch embedding is resampled.
        embed_dim: width of a token; null: the weights', from scratch 192.
        depth: number of blocks; null: the weights', from scratch 6.
        num_heads: attention heads per block; embed_dim must be a multiple of it; null: the
            weights', from scratch 3.
        mlp_ratio: width of the MLP over embed_dim; null: the weights', from scratch 4.
        class_token: a learned class token before the patches; null: the weights', from scratch true.
        reg_tokens: number of register tokens; null: the weights', from scratch 0.
        global_pool: what the head reads: the class token, or the mean of the patches (avg); null:
            the weights', from scratch token.
        init_values: first value of LayerScale; null: the weights', from scratch none.
        drop_rate: dropout, fraction.
        drop_path_rate: stochastic depth of the last block, fraction.
        attention: how attention is computed; auto takes the faster by a fixed table.
    """

    weights: str | None = None
    architecture: str | None = None
    tune: Literal["full", "probe", "head_then_full", "lora"] = "full"
    lora_rank: int = 8
    lora_alpha: float = 16.0
    img_size: int | tuple[int, int] | None = None
    patch_size: int | tuple[int, int] | None = None
    embed_dim: int | None = None
    depth: int | None = None
    num_heads: int | None = None
    mlp_ratio: float | None = None
    class_token: bool | None = None
    reg_tokens: int | None = None
    global_pool: Literal["token", "avg"] | None = None
    init_values: float | None = None
    drop_rate: float = 0.0
    drop_path_rate: float = 0.0
    attention: Literal["auto", "explicit", "fused"] = "auto"

    def __post_init__(self):
        at_least("model", self, 1, "lora_rank")
        at_least("model", self, 0, "lora_alpha")


# What null means where there are no weights to say it.
FROM_SCRATCH = {
    "img_size": 32,
    "patch_size": 4,
    "embed_dim": 192,
    "depth": 6,
    "num_heads": 3,
    "mlp_ratio": 4.0,
    "class_token": True,
    "reg_tokens": 0,
    "global_pool": "token",
    "init_values": None,
}


@dataclass
class Optim:
    """How the network learns: AdamW, a warm-up, then a cosine down to min_lr.

    Args:
        epochs: passes over the training images.
        lr: highest learning rate, the head's; null: 1e-3 from scratch, and of pretrained weights 5e-4
            for full, 2e-4 for head_then_full, 2e-3 for lora.
        min_lr: last learning rate.
        warmup_epochs: epochs over which the rate rises from 0; may be a fraction.
        weight_decay: AdamW's, on weight matrices; biases, norms, positions and tokens have none.
        beta2: AdamW's second decay rate.
        label_smoothing: share of the target spread over all classes, fraction.
        clip: largest norm of the gradient; 0 for no limit.
        accumulate: batches whose gradients make one step.
        average_decay: decay of the averaged weights, which are the ones validated and saved; 0: none.
        patience: stop after this many epochs without a better validation result; 0: never.
        layer_decay: factor on the learning rate from each block to the one before it, above 0, at
            most 1; null: 0.65 where all of pretrained weights learn, else 1.
        head_epochs: with model.tune head_then_full, the epochs at the start in which the head alone
            learns.
        head_lr: the learning rate at which it does so, falling to 0.
    """

    epochs: int = 100
    lr: float | None = None
    min_lr: float = 0.0
    warmup_epochs: float = 5.0
    weight_decay: float = 0.05
    beta2: float = 0.999
    label_smoothing: float = 0.1
    clip: float = 1.0
    accumulate: int = 1
    average_decay: float = 0.999
    patience: int = 0
    layer_decay: float | None = None
    head_epochs: int = 2
    head_lr: float = 1e-2

    def __post_init__(self):
        at_least("optim", self, 1, "epochs", "accumulate")
        at_least("optim", self, 0, "lr", "min_lr", "warmup_epochs", "weight_decay", "clip")
        at_least("optim", self, 0, "patience", "head_epochs", "head_lr")
        if self.layer_decay is not None and not 0 < self.layer_decay <= 1:
            raise ValueError(
                f"optim.layer_decay ({self.layer_decay}) must be above 0 and at most 1"
            )
        for name in ("beta2", "label_smoothing", "average_decay"):
            if not 0 <= getattr(self, name) < 1:
                raise ValueError(
                    f"optim.{name} ({getattr(self, name)}) must be at least 0 and below 1"
                )


@dataclass
class Run:
    """Where results go and how the machine is used.

    Args:
        name: folder of the run under root; null takes the configuration's name.
        root: folder of all runs.
        seed: of the first weights, the order of images, and all chance in training.
        precision: of training: auto takes bf16 where the processor has it, else 32. Validation, test
            and predictions are in 32 always.
        checkpoint_steps: also save every so many steps within an epoch; 0 saves after epochs alone.
        progress: a live bar, or a plain line per epoch; auto takes the bar on a terminal.
        compile: translate the network for this machine first (torch.compile): a minute or more at
            the start, faster steps afterwards on a GPU.
        logger: one of Lightning's loggers beside the run's own tables; but for csv its package
            must be installed.
        pictures: draw the run's pictures at its end, which takes some seconds.
    """

    name: str | None = None
    root: str = "runs"
    seed: int = 0
    precision: Literal["auto", "32", "bf16"] = "auto"
    checkpoint_steps: int = 0
    progress: Literal["auto", "bar", "lines"] = "auto"
    compile: bool = False
    logger: Literal["none", "csv", "tensorboard", "wandb", "mlflow"] = "none"
    pictures: bool = True

    def __post_init__(self):
        at_least("run", self, 0, "checkpoint_steps", "seed")
        if self.name is not None and (not self.name or {"/", "\\"} & set(self.name)):
            raise ValueError(f'run.name ("{self.name}") must be the name of a folder, not a path')


def at_least(section: str, settings, low: float, *names: str) -> None:
    """Checks settings against a lower limit.

    Raises:
        ValueError: one is below `low`.
    """
    for name in names:
        value = getattr(settings, name)
        if value is not None and not value >= low:  # this way nan is refused, too
            raise ValueError(f"{section}.{name} ({value}) must be at least {low}")
