"""The progress that training shows: a bar on a terminal, else a line per epoch."""

import time
from typing import TYPE_CHECKING

from lightning.pytorch import Callback, Trainer
from rich.console import Console
from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

from vit.classifier import Classifier
from vit.commands.progress import rate_text

if TYPE_CHECKING:
    from vit.callbacks import Recorder


class ShowProgress(Callback):
    """On a terminal a bar with loss, accuracy, images/s and time left; else a line per epoch.

    Args:
        recorder: knows the best epoch.
        style: "bar", "lines", or "auto" by whether the output is a terminal.
    """

    def __init__(self, recorder: "Recorder", style: str = "auto"):
        self.recorder = recorder
        self.console = Console()
        self.bar = style == "bar" or (style == "auto" and self.console.is_terminal)
        self.progress: Progress | None = None
        self.validation = ""
        self.began = self.shown = self.epoch_began = 0.0
        self.first_batch = 0

    def on_train_start(self, trainer: Trainer, module: Classifier) -> None:
        if not trainer.is_global_zero:
            return
        self.began = self.epoch_began = time.perf_counter()
        self.first_batch = batches_done(trainer)
        if self.bar:
            columns = (
                TextColumn("{task.description}"),
                BarColumn(bar_width=None),
                TextColumn("{task.fields[state]}"),
                TimeElapsedColumn(),
                TextColumn("left"),
                TimeRemainingColumn(),
            )
            self.progress = Progress(*columns, console=self.console, expand=True)
            total = trainer.max_epochs * trainer.num_training_batches
            self.progress.add_task("", total=total, completed=self.first_batch, state="")
            self.progress.start()

    def on_train_epoch_start(self, trainer: Trainer, module: Classifier) -> None:
        self.epoch_began = time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: Classifier, out, batch, batch_idx):
        now = time.perf_counter()
        if self.progress and (now - self.shown > 0.2):  # reading the sums waits for the device
            self.shown = now
            loss, correct, count = module.sums.tolist()
            speed = count * trainer.world_size / (now - self.epoch_began)
            state = f"loss {loss / count:.3f}  top-1 {correct / count:6.1%}"
            state += f"{self.validation}  {rate_text(speed)} images/s"
            self.progress.update(
                self.progress.task_ids[0],
                completed=batches_done(trainer) + 1,
                description=f"epoch {trainer.current_epoch + 1}/{trainer.max_epochs}",
                state=state,
            )

    def on_train_epoch_end(self, trainer: Trainer, module: Classifier) -> None:
        if not trainer.is_global_zero:
            return
        train, val = module.train_score, None
        if module.predictions:
            val = module.predictions.score()
            self.validation = f"  validation {val['top1']:6.1%}"
        if self.progress:
            self.progress.update(self.progress.task_ids[0], completed=batches_done(trainer))
            return
        line = f"epoch {trainer.current_epoch + 1:>3}/{trainer.max_epochs}"
        line += f"  loss {train['loss']:.4f}  top-1 {train['top1']:6.1%}"
        line += f"  val nll {val['nll']:.4f}  top-1 {val['top1']:6.1%}" if val else ""
        speed = rate_text(images_per_epoch(trainer) / self.recorder.seconds())
        line += f"  {speed:>8} images/s  left {self.left(trainer)}"
        best = self.recorder.best["epoch"] == trainer.current_epoch + 1
        print(line + ("  best" if val and best else ""), flush=True)

    def left(self, trainer: Trainer) -> str:
        """Time to the last epoch at this call's pace so far, as h:mm:ss."""
        done = (trainer.current_epoch + 1) * trainer.num_training_batches
        total = trainer.max_epochs * trainer.num_training_batches
        pace = (time.perf_counter() - self.began) / max(1, done - self.first_batch)
        seconds = round(pace * (total - done))
        return f"{seconds // 3600}:{seconds // 60 % 60:02}:{seconds % 60:02}"

    def on_train_end(self, trainer: Trainer, module: Classifier) -> None:
        self.stop()

    def on_exception(self, trainer: Trainer, module: Classifier, exception) -> None:
        self.stop()

    def stop(self) -> None:
        """Leaves the bar as it is and gives the terminal back."""
        if self.progress:
            self.progress.stop()
            self.progress = None


def images_per_epoch(trainer: Trainer) -> int:
    """Training images of an epoch, over all processes."""
    return trainer.num_training_batches * trainer.train_dataloader.batch_size


def batches_done(trainer: Trainer) -> int:
    """Batches of all epochs so far."""
    progress = trainer.fit_loop.epoch_loop.batch_progress.current
    return trainer.current_epoch * trainer.num_training_batches + progress.completed
