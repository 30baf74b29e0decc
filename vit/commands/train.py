"""`vit train`: from a configuration to a run folder with a trained network and its pictures."""

import argparse
import logging
import statistics
import zipfile
from dataclasses import dataclass, fields, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vit import config as settings
from vit import runs
from vit.assembly import Assembly, assemble, describe
from vit.config import Config

if TYPE_CHECKING:
    from vit.model_file import TrainedModel

log = logging.getLogger("vit")


@dataclass
class Run:
    """A run that is finished.

    Args:
        path: its folder.
        summary: the content of its summary.json.
    """

    path: Path
    summary: dict

    @property
    def model(self) -> "TrainedModel":
        """The trained network, its classes and its preprocessing."""
        from vit.model_file import load

        return load(self.path)


def train(name: str = "quickstart", **overrides: Any) -> Run:
    """Trains by a configuration, as `python train.py --config NAME` does.

    Args:
        name: a packaged configuration or a YAML file.
        **overrides: settings by their full name, as `**{"optim.lr": 1e-3}`, or by the last part of
            it where only one setting ends so, as `epochs=5`.

    Raises:
        ValueError: an unknown setting or a value out of range.
        FloatingPointError: the loss became infinite or not a number.
        MemoryError: out of memory; says which batch would fit.
    """
    known = list(settings.keys())
    full = {}
    for key, value in overrides.items():
        matches = [one for one in known if one.rpartition(".")[2] == key]
        full[matches[0] if len(matches) == 1 else key] = value
    return start(settings.load(name, full))


def start(config: Config) -> Run:
    """Makes a run folder and trains in it; where nothing could begin, the folder goes again."""
    folder = runs.create(Path(config.run.root), config.run.name)
    with runs.announced(folder):
        try:
            parts = assemble(config, folder)
        except BaseException:
            folder.remove_if_unused()
            raise
        return carry_out(parts)


def resume(path: str) -> Run:
    """Goes on with a run where its last checkpoint is, by its own settings and its own split.

    Raises:
        ValueError: no run folder there.
    """
    folder = runs.reopen(path)
    if folder.finished:
        log.warning("%s is finished already; nothing to do", path)
        return Run(folder.path, folder.read_summary())
    config = settings.load(str(folder.config))
    with runs.announced(folder):
        return carry_out(assemble(config, folder, resumed=True))


def carry_out(parts: Assembly) -> Run:
    """Trains, chooses the best epoch, tests it once, and writes model, summary and pictures.

    Raises:
        MemoryError: out of memory; says what would fit.
    """
    from vit import loggers
    from vit.callbacks import interrupted

    folder = parts.folder
    if parts.trainer.is_global_zero:
        log.info("%s", describe(parts))
    last = folder.last if folder.last.is_file() else None
    if last and not zipfile.is_zipfile(last):
        raise ValueError(f"{last} is damaged: the run cannot go on from it; start a new one")
    with interrupted(folder), loggers.closing(parts.trainer.loggers):
        if not fit(parts, last):
            raise MemoryError(explain_memory(parts))
        return Run(folder.path, completed(parts))


def completed(parts: Assembly) -> dict:
    """`finish`, whose lack of memory costs nothing of the training: a resume begins there."""
    from vit.commands.finish import finish
    from vit.data import ImagesTooLarge
    from vit.memory import ran_out

    try:
        return finish(parts)
    except Exception as error:
        if not ran_out(error):
            raise
        setting = "resident: false" if isinstance(error, ImagesTooLarge) else "a smaller batch_size"
        path = parts.folder.path
        raise MemoryError(
            f"out of memory on {parts.trainer.strategy.root_device.type} after the training, which "
            f"is kept: set {setting} under data in {path / 'config.yaml'}, then --resume {path}"
        ) from error


def fit(parts: Assembly, checkpoint: Path | None) -> bool:
    """Trains; False where memory ran out. Returning drops the error, whose frames hold tensors."""
    from vit.commands.fit_probe import fit_probe
    from vit.data import ImagesTooLarge
    from vit.memory import ran_out

    try:
        if parts.config.model.tune == "probe":
            fit_probe(parts)
            return True
        parts.trainer.fit(parts.classifier, parts.data, ckpt_path=checkpoint, weights_only=True)
    except ImagesTooLarge:  # says by itself what to do
        raise
    except Exception as error:
        if not ran_out(error):
            raise
        return False
    return True


def explain_memory(parts: Assembly) -> str:
    """What to do about too little memory; in one process, tried out."""
    from vit import memory

    size, config = parts.config.data.batch_size, parts.config
    where = parts.trainer.strategy.root_device.type
    height, width = parts.classifier.preprocess.size
    said = f"out of memory on {where}: {size} images of {height}x{width} pixels do not fit"
    if config.model.tune == "probe":
        return f"{said}; halve --data.batch_size: of a probe it is of no influence on the result"
    if parts.trainer.world_size > 1:
        return f"{said}; halve --data.batch_size and double --optim.accumulate"
    memory.release()
    device = parts.trainer.strategy.root_device
    precision = parts.trainer.precision_plugin
    fits = memory.fitting(lambda n: parts.classifier.try_step(n, device, precision), size)
    return f"{said}; {memory.advice(fits, size, config.optim.accumulate)}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's own options; the settings come from `config`."""
    parser.add_argument("--config", metavar="NAME", help="a YAML file or a packaged name")
    parser.add_argument("--resume", metavar="RUN", help="go on with a run, as runs/quickstart/1")
    parser.add_argument("--seeds", type=int, metavar="N", help="N runs with N seeds, and a table")
    parser.add_argument("--compile", action="store_true", help="the same as --run.compile true")


def print_help(parser: argparse.ArgumentParser) -> None:
    """The command's options, then one line for every setting."""
    parser.print_help()
    helps = settings.help_texts()
    print(
        "\nsettings (--section.name VALUE), with quickstart's own values in configs/quickstart.yaml:"
    )
    for section in (settings.Data, settings.Model, settings.Optim, settings.Run):
        for one in fields(section):
            name = f"{section.__name__.lower()}.{one.name}"
            print(
                f"  --{name}\n        {helps[name]} ({settings.describe(one.type)}; {one.default})"
            )
    print("  --trainer.NAME\n        any argument of lightning.Trainer, as --trainer.devices 2")


def run(arguments: argparse.Namespace, overrides: dict[str, str]) -> int:
    """Carries the command out; returns the exit code."""
    if arguments.compile:
        overrides = overrides | {"run.compile": "true"}
    if arguments.resume is not None:
        if arguments.config or arguments.seeds or overrides:
            raise ValueError(
                "--resume goes on by the run's own config.yaml: it takes no other setting "
                f"({', '.join(overrides) or '--config or --seeds'} given)"
            )
        report(resume(arguments.resume))
        return 0
    config = settings.load(arguments.config or "quickstart", overrides)
    if arguments.seeds is None:
        report(start(config))
        return 0
    if arguments.seeds < 1:
        raise ValueError(f"--seeds ({arguments.seeds}) must be at least 1")
    check_alone(config)
    several(config, arguments.seeds)
    return 0


def check_alone(config: Config) -> None:
    """Several runs in one go are those of one process.

    Raises:
        ValueError: settings that make more processes.
    """
    for name in ("devices", "num_nodes"):
        value = config.trainer.get(name, 1)
        one = isinstance(value, list) and len(value) == 1
        if not one and str(value) != "1":
            raise ValueError(
                f"--seeds makes its runs in one process: --trainer.{name} ({value}) must be 1; for "
                "several processes start a run for each seed, with --run.seed"
            )


def several(config: Config, count: int) -> None:
    """Runs with `count` seeds from run.seed on, and prints a table and a line for the header."""
    results = []
    for seed in range(config.run.seed, config.run.seed + count):
        run = start(replace(config, run=replace(config.run, seed=seed)))
        report(run)
        results.append((seed, run.path, run.summary))
    part = "test" if results[0][2].get("test") else "val"
    print(
        f"\n{'seed':>5} {'epoch':>6} {part + ' top-1':>12} {part + ' nll':>10} {'seconds':>8}  run"
    )
    for seed, path, one in results:
        score = one.get(part) or {}
        print(
            f"{seed:>5} {one['best_epoch']:>6} {score.get('top1', float('nan')):>12.2%}"
            f" {score.get('nll', float('nan')):>10.4f} {one['seconds']:>8.1f}  {path}"
        )
    tops = [one[part]["top1"] for _, _, one in results if one.get(part)]
    if tops:
        seconds = statistics.median(one["seconds"] for _, _, one in results)
        spread = statistics.stdev(tops) if len(tops) > 1 else 0.0
        print(
            f"# {part} top-1 {statistics.mean(tops):.2%} ± {spread:.2%} over {len(tops)} seeds "
            f"(lowest {min(tops):.2%}), {seconds:.0f} s of training each"
        )


def report(run: Run) -> None:
    """Prints what a run reached and where its files are; in one process of several."""
    summary = run.summary
    if not summary:
        return
    for part, words in (("val", "validation"), ("test", "test")):
        if score := summary.get(part):
            line = f"{words}: top-1 {score['top1']:.2%} ({score['correct']} of {score['count']})"
            print(f"{line}, nll {score['nll']:.4f}")
    chosen = f"epoch {summary['best_epoch']}" if "l2" not in summary else f"L2 {summary['l2']:g}"
    print(f"best {chosen}, {summary['seconds']:.0f} s of training")
    print(f"model, tables and pictures: {run.path}", flush=True)
