"""The training system around a network: loss, optimiser, schedule, averaged weights, validation.

B batch, C classes.
"""

import copy

import torch
import torch.distributed as dist
import torch.nn.functional as F
from lightning.pytorch import LightningModule
from torch import Tensor

from vit.augment import Augment
from vit.fitting import Preprocess
from vit.loaders import mix
from vit.metrics import Predictions
from vit.mixing import mixup_cutmix
from vit.model import VisionTransformer
from vit.normalise import normalise
from vit.settings import Optim
from vit.tuning import freeze_all_but_head, param_groups, schedules


class Classifier(LightningModule):
    """Trains `net`; validates and tests `average`, the running mean of its weights.

    Args:
        net: the network.
        config: how it learns.
        augment: uint8 (B, 3, height, width) -> the same, varied.
        mixing: (mixup, cutmix), the alphas of `mixing.mixup_cutmix`.
        preprocess: mean and standard deviation that the network takes.
        seed: of all chance in training.
        class_weights: (C,), how much an image of each class counts in the loss; None: all the same.

    Attributes:
        average: the averaged network; `net` itself where average_decay is 0. A network of its own,
            never exchanged with `net`, so a checkpoint of any moment holds both as they are named.
        train_score: {"loss", "top1"} of the epoch that has just ended.
        predictions: of the validation or test that has just ended.
    """

    def __init__(
        self,
        net: VisionTransformer,
        config: Optim,
        augment: Augment,
        mixing: tuple[float, float],
        preprocess: Preprocess,
        seed: int,
        class_weights: Tensor | None = None,
    ):
        super().__init__()
        self.net, self.config = net, config
        self.augment, self.mixing = augment, mixing
        self.preprocess, self.seed = preprocess, seed
        self.register_buffer("class_weights", class_weights, persistent=False)
        self.average = net
        if config.average_decay:
            self.average = copy.deepcopy(net).requires_grad_(False)
        self.sums = torch.zeros(3)  # loss * images, right ones, images of this epoch so far
        self.train_score: dict[str, float] = {}
        self.pieces: list[tuple[Tensor, Tensor, Tensor]] = []
        self.predictions: Predictions | None = None

    def on_train_epoch_start(self) -> None:
        self.sums = torch.zeros(3, device=self.device)
        self.predictions = None

    def on_train_batch_start(self, batch, batch_idx: int) -> None:
        """All chance in a batch follows from its place, so no generator's state need be saved."""
        torch.manual_seed(mix(self.seed, self.global_rank, self.current_epoch, batch_idx))
        if self.config.head_epochs:
            freeze_all_but_head(self.net, self.current_epoch < self.config.head_epochs)

    def training_step(self, batch: tuple[Tensor, Tensor], batch_idx: int) -> Tensor:
        images, labels = batch
        images = self.normalised(self.augment(images))
        targets = labels  # (B,), or with mixing shares of the classes (B, C)
        if any(self.mixing):
            mixup, cutmix = self.mixing
            classes = self.net.architecture.num_classes
            images, targets = mixup_cutmix(
                images, labels, mixup=mixup, cutmix=cutmix, num_classes=classes
            )
        logits = self.net(images).float()  # (B, C)
        loss = self.loss(logits, targets)
        with torch.no_grad():
            correct = (logits.argmax(dim=1) == labels).sum()
            self.sums += torch.stack([loss * len(labels), correct, correct.new_tensor(len(labels))])
        return loss

    def loss(self, logits: Tensor, targets: Tensor) -> Tensor:
        """Mean cross-entropy of logits (B, C) for classes (B,) or shares of them (B, C).

        With class weights w, the mean of w_y times an image's own. PyTorch's would divide by the
        weights of the batch at hand, so that a batch of rare images alone counted no more, and
        weigh the smoothed share of each class by that class: rare ones would be predicted always.
        """
        smoothing, weights = self.config.label_smoothing, self.class_weights
        if weights is None:
            return F.cross_entropy(logits, targets, label_smoothing=smoothing)
        each = F.cross_entropy(logits, targets, label_smoothing=smoothing, reduction="none")
        counts = weights[targets] if targets.ndim == 1 else targets @ weights  # (B,)
        return (counts * each).mean()

    def try_step(self, count: int, device: torch.device, precision) -> None:
        """A whole training step on blank images, to see whether memory is enough for it.

        Args:
            count: images.
            device: where.
            precision: Lightning's precision plugin.
        """
        self.to(device)
        images = torch.zeros(count, 3, *self.preprocess.size, dtype=torch.uint8, device=device)
        labels = torch.zeros(count, dtype=torch.long, device=device)
        self.sums = torch.zeros(3, device=device)
        if self.config.head_epochs:  # the head alone needs less than what comes after it
            freeze_all_but_head(self.net, False)
        optimizer = torch.optim.AdamW(self.net.parameters(), lr=0.0, fused=True)
        with precision.forward_context():
            loss = self.training_step((images, labels), 0)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()

    def normalised(self, images: Tensor) -> Tensor:
        """uint8 (B, 3, height, width) -> float32, as the network takes them."""
        return normalise(images, self.preprocess)

    def on_before_optimizer_step(self, optimizer) -> None:
        if self.config.clip:
            torch.nn.utils.clip_grad_norm_(self.net.parameters(), self.config.clip)

    def optimizer_step(self, *args, **kwargs) -> None:
        super().optimizer_step(*args, **kwargs)
        self.update_average()

    @torch.no_grad()
    def update_average(self) -> None:
        """average <- d average + (1 - d) net; d rises with the steps n as (1 + n) / (10 + n)."""
        if self.average is self.net:
            return
        steps = self.global_step
        decay = min(self.config.average_decay, (1 + steps) / (10 + steps))
        ours, theirs = list(self.average.parameters()), list(self.net.parameters())
        torch._foreach_lerp_(ours, theirs, 1 - decay)

    def check_finite(self) -> None:
        """Called before anything is saved.

        Raises:
            FloatingPointError: the loss has become infinite or not a number in this epoch.
        """
        finite = [parameter.isfinite().all() for parameter in self.net.parameters()]
        if not (torch.isfinite(self.all_sums()[0]) and torch.stack(finite).all()):
            raise FloatingPointError(
                f"the loss is not a finite number any more (epoch {self.current_epoch + 1}): the "
                f"steps are too large. Lower --optim.lr (it is {self.config.lr:g}), raise "
                f"--optim.warmup_epochs (it is {self.config.warmup_epochs:g}), keep --optim.clip 1, "
                "or train with --run.precision 32. The last checkpoint is from before it happened."
            )

    def finish_epoch(self) -> None:
        """Sets `train_score` from the batches of the epoch, those of all processes."""
        loss, correct, count = self.all_sums().tolist()
        self.train_score = {"loss": loss / count, "top1": correct / count}

    def all_sums(self) -> Tensor:
        """`sums` over all processes."""
        sums = self.sums.clone()
        if dist.is_available() and dist.is_initialized():
            dist.all_reduce(sums)
        return sums

    def evaluate(self, batch: tuple[Tensor, Tensor, Tensor]) -> None:
        """Keeps the averaged network's logits of a batch, computed in float32 always."""
        images, labels, rows = batch
        with torch.autocast(self.device.type, enabled=False):
            logits = self.average(self.normalised(images))
        self.pieces.append((logits.cpu(), labels.cpu(), rows.cpu()))

    def validation_step(self, batch, batch_idx: int) -> None:
        self.evaluate(batch)

    def test_step(self, batch, batch_idx: int) -> None:
        self.evaluate(batch)

    def on_validation_epoch_end(self) -> None:
        self.predictions = Predictions.of(gather(self.pieces))
        self.pieces = []

    def on_test_epoch_end(self) -> None:
        self.on_validation_epoch_end()

    def configure_optimizers(self) -> dict:
        """AdamW (Loshchilov & Hutter 2019, arXiv 1711.05101), its rate set anew at every step."""
        groups = param_groups(self.net, self.config)
        factors = schedules(groups, int(self.trainer.estimated_stepping_batches), self.config)
        betas = (0.9, self.config.beta2)
        optimizer = torch.optim.AdamW(groups, lr=self.config.lr, betas=betas, fused=True)
        schedule = torch.optim.lr_scheduler.LambdaLR(optimizer, factors)
        return {
            "optimizer": optimizer,
            "lr_scheduler": {"scheduler": schedule, "interval": "step"},
        }

    def on_save_checkpoint(self, checkpoint: dict) -> None:
        checkpoint["epoch_sums"] = self.all_sums().cpu()

    def on_load_checkpoint(self, checkpoint: dict) -> None:
        first = self.global_rank == 0  # the sum over all processes is kept by one
        self.sums = checkpoint["epoch_sums"] if first else torch.zeros(3)

    def on_train_start(self) -> None:
        self.sums = self.sums.to(self.device)


def gather(pieces: list) -> list:
    """The batches of all processes."""
    if not (dist.is_available() and dist.is_initialized()):
        return pieces
    everyone: list[list] = [[] for _ in range(dist.get_world_size())]
    dist.all_gather_object(everyone, pieces)
    return [piece for part in everyone for piece in part]
