"""What happens around training: tables and checkpoints, and stopping by signal."""

import os
import shutil
import signal
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from lightning.pytorch import Callback, Trainer

from vit import loggers, runs
from vit.classifier import Classifier
from vit.runs import RunFolder
from vit.training_progress import images_per_epoch


class Stopped(Exception):
    """Training was ended by a signal, after its state was saved.

    Args:
        number: the signal's.
        folder: the run that `--resume` goes on with.
    """

    def __init__(self, number: int, folder: Path):
        super().__init__(signal.Signals(number).name)
        self.number, self.folder = number, folder


@contextmanager
def interrupted(folder: RunFolder) -> Iterator[None]:
    """Ctrl-C outside of training's own handlers, as in the final test, is `Stopped` as well.

    Lightning makes exit code 1 of it, without a word; all that a resume needs is on disk already.
    """
    try:
        yield
    except (KeyboardInterrupt, SystemExit) as stop:
        if isinstance(stop, SystemExit) and not isinstance(stop.__context__, KeyboardInterrupt):
            raise
        raise Stopped(signal.SIGINT, folder.path) from stop


class Recorder(Callback):
    """Writes a row per epoch, then saves: the last state, and the best one by validation.

    The best epoch has the highest validation top-1, at a tie the lowest NLL; without validation
    images it is the last. Checkpoints are made whole under another name and then renamed.

    Args:
        folder: where to write.
        checkpoint_steps: also save every so many steps within an epoch; 0: after epochs alone.
        patience: stop after this many epochs without a better one; 0: never.
    """

    def __init__(self, folder: RunFolder, checkpoint_steps: int, patience: int):
        self.folder, self.checkpoint_steps, self.patience = folder, checkpoint_steps, patience
        self.best: dict = {"epoch": 0}
        self.elapsed = 0.0  # seconds of this epoch before the process that is running
        self.started = time.perf_counter()

    def state_dict(self) -> dict:
        return {"best": self.best, "elapsed": self.seconds()}

    def load_state_dict(self, state: dict) -> None:
        self.best, self.elapsed = state["best"], state["elapsed"]

    def seconds(self) -> float:
        """How long this epoch has taken, over all processes that had a part in it."""
        return self.elapsed + time.perf_counter() - self.started

    def exhausted(self, epochs: int) -> bool:
        """Whether the patience is over after so many epochs."""
        return bool(self.patience) and epochs - self.best["epoch"] >= self.patience

    def on_train_start(self, trainer: Trainer, module: Classifier) -> None:
        if trainer.is_global_zero:
            for table in (self.folder.metrics, self.folder.timing):
                runs.cut_back(table, trainer.current_epoch)
        self.started = time.perf_counter()
        trainer.should_stop = self.exhausted(trainer.current_epoch)  # killed after the last epoch

    def on_train_epoch_start(self, trainer: Trainer, module: Classifier) -> None:
        self.elapsed, self.started = 0.0, time.perf_counter()

    def on_train_batch_end(self, trainer: Trainer, module: Classifier, out, batch, batch_idx):
        every = self.checkpoint_steps
        if every and between_steps(trainer, batch_idx) and trainer.global_step % every == 0:
            self.save(trainer, module)

    def on_train_epoch_end(self, trainer: Trainer, module: Classifier) -> None:
        seconds = self.seconds()
        epoch = trainer.current_epoch + 1
        module.check_finite()
        module.finish_epoch()
        row = {
            "epoch": epoch,
            "step": trainer.global_step,
            "lr": trainer.optimizers[0].param_groups[0]["lr"],
        }
        row |= {f"train_{name}": value for name, value in module.train_score.items()}
        val = module.predictions.score() if module.predictions else {}
        row |= {f"val_{name}": val.get(name) for name in ("top1", "nll")}
        better = self.is_better(val)
        if better:
            self.best = {"epoch": epoch, **val}
        if trainer.is_global_zero:
            runs.append(self.folder.metrics, row)
            loggers.log(trainer.loggers, row, trainer.global_step)
            speed = {
                "seconds": f"{seconds:.3f}",
                "images_per_second": f"{images_per_epoch(trainer) / seconds:.1f}",
                # for the next batch: share of the time that this process has spent on the epoch
                "waiting": f"{trainer.train_dataloader.waited / (seconds - self.elapsed):.4f}",
            }
            runs.append(self.folder.timing, {"epoch": epoch, **speed})
        self.save(trainer, module, better)
        trainer.should_stop = trainer.should_stop or self.exhausted(epoch)

    def is_better(self, val: dict) -> bool:
        """Whether these validation results are the best so far; without validation, always."""
        if not val or not self.best.get("count"):
            return True
        return (val["top1"], -val["nll"]) > (self.best["top1"], -self.best["nll"])

    def save(self, trainer: Trainer, module: Classifier, best: bool = False) -> None:
        """Writes last.ckpt and, where it is the best, best.ckpt; never half a file."""
        module.check_finite()
        part = self.folder.last.with_name("part.ckpt")
        trainer.save_checkpoint(part)  # every process takes part in it
        if trainer.is_global_zero:
            if best:  # first: a kill between the two leaves a best.ckpt that comes again
                publish(part, self.folder.best)
            os.replace(part, self.folder.last)


def between_steps(trainer: Trainer, batch_idx: int) -> bool:
    """Whether a step is complete after this batch and the epoch goes on: a place to save.

    After the last batch of an epoch the validation and the epoch's row still belong to it, and
    gradients under accumulation are in no checkpoint.
    """
    done = batch_idx + 1
    return done % trainer.accumulate_grad_batches == 0 and done < trainer.num_training_batches


def publish(part: Path, target: Path) -> None:
    """Gives a finished file a second name at once, replacing what had it."""
    spare = target.with_name("spare.ckpt")
    spare.unlink(missing_ok=True)
    try:
        os.link(part, spare)
    except OSError:  # a file system without links
        shutil.copyfile(part, spare)
    os.replace(spare, target)


class StopOnSignal(Callback):
    """Ctrl-C and SIGTERM: saves after the batch (or validation) at hand and stops; twice: at once.

    Args:
        recorder: does the saving.
    """

    SIGNALS = (signal.SIGINT, signal.SIGTERM)

    def __init__(self, recorder: Recorder):
        self.recorder = recorder
        self.number = 0
        self.before: dict = {}

    def on_train_start(self, trainer: Trainer, module: Classifier) -> None:
        # Here and not earlier: Lightning has set its own by now, which would not save.
        if threading.current_thread() is threading.main_thread():  # Python allows it there alone
            self.before = {number: signal.signal(number, self.receive) for number in self.SIGNALS}

    def receive(self, number: int, frame) -> None:
        """The handler."""
        if self.number:
            if sys.stdout.isatty():
                os.write(1, b"\x1b[?25h\n")  # the bar had hidden the cursor
            os._exit(128 + number)
        self.number = number

    def on_train_batch_end(self, trainer: Trainer, module: Classifier, out, batch, batch_idx):
        if between_steps(trainer, batch_idx) and self.wanted(trainer):
            self.recorder.save(trainer, module)
            raise Stopped(self.number or signal.SIGTERM, self.recorder.folder.path)

    def on_train_epoch_end(self, trainer: Trainer, module: Classifier) -> None:
        if self.wanted(trainer):  # the recorder has just saved
            raise Stopped(self.number or signal.SIGTERM, self.recorder.folder.path)

    def wanted(self, trainer: Trainer) -> bool:
        """Whether any process was signalled; all agree on it, so that none waits for another."""
        if trainer.world_size == 1:
            return bool(self.number)
        return trainer.strategy.reduce_boolean_decision(bool(self.number), all=False)

    def on_train_end(self, trainer: Trainer, module: Classifier) -> None:
        self.restore()

    def on_exception(self, trainer: Trainer, module: Classifier, exception) -> None:
        self.restore()

    def restore(self) -> None:
        """Puts back the handlers that were there before training."""
        for number, handler in self.before.items():
            signal.signal(number, handler)
        self.before = {}
