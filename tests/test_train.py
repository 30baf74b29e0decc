"""Training as a whole: steps, averages, schedules, chosen epochs, signals, and what a run leaves."""

import itertools
import json
import math
import os
import signal
import subprocess
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

import vit
from vit import assembly, datasets, runs
from vit import config as settings
from vit.commands import train
from vit.commands.finish import finish
from vit.commands.progress import rate_text
from vit.tuning import rate

PICTURES = ("curves", "confusion", "batch", "mistakes", "attention", "per_class", "reliability")
TINY = {
    "data.source": "digits",
    "model.img_size": 8,
    "model.patch_size": 4,
    "model.embed_dim": 16,
    "model.depth": 2,
    "model.num_heads": 2,
    "optim.epochs": 2,
    "optim.average_decay": 0.9,
    "run.precision": "32",
    "run.name": "tiny",
    "run.pictures": False,
}


def tiny(root: Path, **changes) -> settings.Config:
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    return settings.load("quickstart", TINY | {"run.root": str(root)} | changes)


def assembled(root: Path, *callbacks, **changes) -> train.Assembly:
    config = tiny(root, **changes)
    parts = train.assemble(config, runs.create(root, "tiny"))
    parts.trainer.callbacks.extend(callbacks)
    return parts


def folder_of(tmp_path: Path, counts: dict[str, int]) -> Path:
    """Class folders of small pictures, each class with a colour of its own."""
    for k, (label, count) in enumerate(counts.items()):
        (tmp_path / label).mkdir(parents=True)
        for i in range(count):
            pixels = np.random.default_rng(100 * k + i).integers(0, 90, (8, 8, 3), dtype=np.uint8)
            pixels[..., k % 3] += 150
            Image.fromarray(pixels).save(tmp_path / label / f"{i}.png")
    return tmp_path


def checkpoint(folder: Path, name: str = "last") -> dict:
    return torch.load(folder / "checkpoints" / f"{name}.ckpt", weights_only=True)


@pytest.mark.parametrize(
    ("counts", "batch_size", "accumulate", "batches"),
    [
        ({"a": 3, "b": 3}, 8, 1, 1),  # 2 of them validate: one batch of 4
        ({"a": 6, "b": 6}, 1, 1, 10),
        ({"a": 1, "b": 7}, 4, 1, 1),  # 7 train: the single one stays in training
        ({"a": 12, "b": 11}, 4, 2, 5),  # 21 train, 5 batches, 3 steps an epoch
        ({"a": 12, "b": 11}, 4, 5, 5),
    ],
)
def test_steps_follow_the_formula(tmp_path, counts, batch_size, accumulate, batches):
    run = train.start(
        tiny(
            tmp_path / "runs",
            data__source="folder",
            data__root=str(folder_of(tmp_path / "photos", counts)),
            data__batch_size=batch_size,
            optim__accumulate=accumulate,
            optim__epochs=3,
        )
    )
    assert run.summary["global_step"] == 3 * math.ceil(batches / accumulate)
    assert checkpoint(run.path)["global_step"] == run.summary["global_step"]
    assert sorted(run.model.classes) == sorted(counts)


def recorder_of(name: str, function):
    """A Lightning callback whose hook `name` calls `function`."""
    from lightning.pytorch import Callback

    return type("Recording", (Callback,), {name: staticmethod(function)})()


def losses_by_step(root: Path, path: str) -> list[float]:
    losses = []
    watch = recorder_of("on_train_batch_end", lambda *a: losses.append(a[2]["loss"].item()))
    changes = {"optim.epochs": 1, "optim.warmup_epochs": 0, "run.root": str(root)}
    config = settings.load("quickstart", changes | {"model.attention": path})
    parts = train.assemble(config, runs.create(root, path))
    parts.trainer.callbacks.append(watch)
    parts.trainer.fit(parts.classifier, parts.data)
    return losses


def test_both_paths_train_quickstart_alike(tmp_path):
    explicit, fused = (losses_by_step(tmp_path, path) for path in ("explicit", "fused"))
    assert len(explicit) == 20
    assert np.ptp(explicit) > 0.01  # they move by far more than they may differ
    assert np.abs(np.subtract(explicit, fused)).max() <= 1e-4


def test_averaged_weights_follow_their_formula(tmp_path):
    """Recomputed in float64 from the raw weights after every step."""
    history = []

    def keep(trainer, module, *_):
        history.append({k: v.double().clone() for k, v in module.net.state_dict().items()})

    parts = assembled(tmp_path, recorder_of("on_train_batch_end", keep))
    start = {k: v.double().clone() for k, v in parts.classifier.net.state_dict().items()}
    parts.trainer.fit(parts.classifier, parts.data)
    for steps, raw in enumerate(history):
        decay = min(0.9, (1 + steps) / (10 + steps))
        start = {k: decay * start[k] + (1 - decay) * raw[k] for k in start}
    for name, value in parts.classifier.average.state_dict().items():
        torch.testing.assert_close(value.double(), start[name], atol=1e-6, rtol=1e-5)
    assert not torch.equal(parts.classifier.average.head.weight, parts.classifier.net.head.weight)


def test_learning_rate_warms_up_and_falls_as_a_cosine():
    optim = settings.Optim(epochs=10, warmup_epochs=2, lr=1.0, min_lr=0.1)
    factors = [rate(step, 100, optim) for step in range(100)]
    assert factors[:20] == pytest.approx([(step + 1) / 20 for step in range(20)])
    assert factors[20] == 1.0
    assert factors[60] == pytest.approx(0.1 + 0.9 * 0.5)
    assert all(a > b for a, b in itertools.pairwise(factors[20:]))
    assert rate(100, 100, optim) == pytest.approx(0.1)


def test_weight_decay_leaves_biases_norms_positions_and_tokens_alone(tmp_path):
    parts = assembled(tmp_path, model__reg_tokens=2)
    parts.trainer.fit(parts.classifier, parts.data)
    decayed, plain = parts.trainer.optimizers[0].param_groups
    name = {id(p): n for n, p in parts.classifier.net.named_parameters()}
    assert (decayed["weight_decay"], plain["weight_decay"]) == (0.05, 0.0)
    weights = {"qkv.weight", "proj.weight", "fc1.weight", "fc2.weight", "head.weight"}
    assert {".".join(name[id(p)].split(".")[-2:]) for p in decayed["params"]} == weights
    assert {"pos_embed", "cls_token", "reg_token"} <= {name[id(p)] for p in plain["params"]}


def test_best_epoch_is_by_validation_top1_then_nll(tmp_path):
    parts = assembled(tmp_path)
    recorder = parts.trainer.callbacks[0]
    recorder.best = {"epoch": 3, "top1": 0.5, "nll": 1.0, "count": 10}
    assert recorder.is_better({"top1": 0.6, "nll": 9.0})
    assert recorder.is_better({"top1": 0.5, "nll": 0.9})
    assert not recorder.is_better({"top1": 0.5, "nll": 1.0})
    assert not recorder.is_better({"top1": 0.4, "nll": 0.1})


def test_the_saved_model_is_the_best_epochs_average(tmp_path):
    run = train.start(tiny(tmp_path, optim__epochs=4, optim__lr=3e-3))
    rows = runs.read(run.path / "metrics.csv")
    order = [(float(row["val_top1"]), -float(row["val_nll"])) for row in rows]
    assert run.summary["best_epoch"] == 1 + order.index(max(order))
    best = checkpoint(run.path, "best")
    for name, value in run.model.net.state_dict().items():
        assert torch.equal(value, best["state_dict"][f"average.{name}"])


def test_validation_is_of_the_averaged_weights_in_float32(tmp_path):
    """Recomputed from the best checkpoint and the pixels on their own."""
    from torch.nn.functional import cross_entropy

    run = train.start(tiny(tmp_path, optim__lr=3e-3, run__precision="bf16"))
    state = checkpoint(run.path, "best")["state_dict"]
    rows = [row for row in runs.read(run.path / "split.csv") if row["split"] == "val"]
    with np.load(Path(vit.__file__).parent / "digits.npz") as digits:
        pixels = digits["images"][[int(row["id"]) for row in rows]]
        labels = torch.tensor(digits["labels"][[int(row["id"]) for row in rows]]).long()
    values = torch.tensor(np.rint(pixels * (255 / 16)) / 255, dtype=torch.float32)
    images = ((values - 0.5) / 0.5)[:, None].expand(-1, 3, -1, -1)
    nll = {}
    for name in ("average", "net"):
        start = f"{name}."
        tensors = {k.removeprefix(start): v for k, v in state.items() if k.startswith(start)}
        net = run.model.net
        net.load_state_dict(tensors)
        with torch.inference_mode():
            nll[name] = cross_entropy(net.eval()(images).double(), labels).item()
    best = runs.read(run.path / "metrics.csv")[run.summary["best_epoch"] - 1]
    assert float(best["val_nll"]) == pytest.approx(nll["average"], abs=1e-6)
    assert abs(nll["net"] - nll["average"]) > 1e-3


def first_step(root: Path, **changes) -> dict:
    """Loss and gradient norm of the first step, and the network's input and output there."""
    seen = {}
    clean = {"data__rotate": 0, "data__translate": 0}

    def enough(trainer, *_):
        trainer.should_stop = trainer.global_step > 0

    stop = recorder_of("on_train_batch_end", enough)
    parts = assembled(root, stop, **clean | changes)

    def keep(module, inputs, logits):
        seen.setdefault("input", inputs[0].detach())
        seen.setdefault("logits", logits.detach().double())

    parts.classifier.net.register_forward_hook(keep)

    def before(optimizer):
        original(optimizer)
        grads = [p.grad.flatten() for p in parts.classifier.net.parameters()]
        seen.setdefault("norm", torch.cat(grads).norm().item())

    original = parts.classifier.on_before_optimizer_step
    parts.classifier.on_before_optimizer_step = before
    step = parts.classifier.training_step

    def training_step(batch, batch_idx):
        seen.setdefault("labels", batch[1])
        loss = step(batch, batch_idx)
        seen.setdefault("loss", loss.item())
        return loss

    parts.classifier.training_step = training_step
    parts.trainer.fit(parts.classifier, parts.data)
    return seen


def test_label_smoothing_and_clipping_act(tmp_path):
    seen = first_step(tmp_path, optim__label_smoothing=0.3, optim__clip=1e-3)
    logs = seen["logits"].log_softmax(1)
    true = logs.gather(1, seen["labels"][:, None]).mean()
    assert seen["loss"] == pytest.approx(-(0.7 * true + 0.3 * logs.mean()).item(), abs=1e-5)
    assert seen["norm"] == pytest.approx(1e-3, rel=1e-2)
    assert first_step(tmp_path, optim__clip=0)["norm"] > 1e-2


def test_augmentation_and_mixing_reach_the_network(tmp_path):
    plain = first_step(tmp_path)
    turned = first_step(tmp_path, data__rotate=10)
    mixed = first_step(tmp_path, data__mixup=1.0)
    assert torch.equal(plain["labels"], turned["labels"])
    assert not torch.equal(plain["input"], turned["input"])
    assert not torch.equal(plain["input"], mixed["input"])
    assert torch.equal(plain["input"], first_step(tmp_path)["input"])


def test_accumulation_is_a_larger_batch(tmp_path):
    """Gradients of two batches of 32 against one of 64: the same first 64 images."""
    norms = [
        first_step(tmp_path, data__batch_size=b, optim__accumulate=a, optim__clip=0)["norm"]
        for b, a in ((64, 1), (32, 2))
    ]
    assert norms[1] == pytest.approx(norms[0], rel=1e-4)


def test_precision_and_attention_are_resolved_in_config_yaml(tmp_path):
    run = train.start(tiny(tmp_path, run__precision="auto"))
    written = settings.load(str(run.path / "config.yaml"))
    fast = assembly.has_bf16(assembly.device_type("auto"))
    assert written.run.precision == ("bf16" if fast else "32")
    assert written.model.attention in ("explicit", "fused")


def test_early_stopping_counts_epochs_without_a_better_one(tmp_path):
    run = train.start(tiny(tmp_path, optim__epochs=30, optim__lr=0.0, optim__patience=2))
    assert run.summary["best_epoch"] == 1
    assert run.summary["epochs"] == 3


def test_a_run_leaves_all_its_files(tmp_path):
    run = vit.train("quickstart", **(TINY | {"run.root": str(tmp_path), "run.pictures": True}))
    names = {path.name for path in run.path.iterdir()}
    pictures = {f"{name}.png" for name in PICTURES}
    tables = {"config.yaml", "split.csv", "metrics.csv", "timing.csv", "summary.json"}
    assert names == pictures | tables | {"checkpoints", "model.safetensors", "config.json"}
    assert all(Image.open(run.path / name).size[0] > 300 for name in pictures)
    assert json.loads((run.path / "summary.json").read_text()) == run.summary
    assert {p.name for p in (run.path / "checkpoints").iterdir()} == {"last.ckpt", "best.ckpt"}
    split = runs.read(run.path / "split.csv")
    assert len(split) == 1797
    assert sum(row["split"] == "test" for row in split) == run.summary["test"]["count"] == 360


def test_equal_runs_have_equal_metrics_and_another_seed_has_not(tmp_path):
    one, two, other = (train.start(tiny(tmp_path, run__seed=seed)) for seed in (1, 1, 2))
    tables = [(run.path / "metrics.csv").read_bytes() for run in (one, two, other)]
    assert tables[0] == tables[1] != tables[2]
    assert [run.path.name for run in (one, two, other)] == ["1", "2", "3"]


def test_without_validation_the_last_epoch_is_taken_and_said(tmp_path, caplog):
    photos = folder_of(tmp_path / "photos", {"a": 5, "b": 5})
    run = train.start(
        tiny(
            tmp_path,
            data__source="folder",
            data__root=str(photos),
            data__val_share=0,
            run__pictures=True,
        )
    )
    assert (run.summary["best_epoch"], run.summary["val"], run.summary["test"]) == (2, {}, {})
    assert "the last epoch is taken" in caplog.text
    assert not (run.path / "confusion.png").exists()


def test_test_images_are_read_once_and_last(tmp_path, monkeypatch):
    """A spy on the source itself."""
    read = []
    original = datasets.Digits.open

    def spy(self, item, at_least):
        read.append((item.split, item.id))
        return original(self, item, at_least)

    monkeypatch.setattr(datasets.Digits, "open", spy)
    parts = assembled(tmp_path)
    parts.trainer.fit(parts.classifier, parts.data)
    assert {split for split, _ in read} == {"train", "val"}
    finish(parts)
    tested = [item_id for split, item_id in read if split == "test"]
    assert len(tested) == len(set(tested)) == 360


def test_validation_images_are_never_trained_on(tmp_path):
    parts = assembled(tmp_path)
    parts.trainer.fit(parts.classifier, parts.data)
    ids = {part: {i.id for i in parts.data.load(part).items} for part in ("train", "val", "test")}
    assert not ids["train"] & (ids["val"] | ids["test"])
    assert len(set.union(*ids.values())) == 1797


def test_a_signal_in_validation_saves_what_an_uninterrupted_run_saves(tmp_path):
    """Raw and averaged weights are each what they say, and the run goes on to the same end."""
    from vit.callbacks import Stopped

    def strike(trainer, module, batch, batch_idx, *_):
        if trainer.current_epoch == 0 and batch_idx == 1:
            os.kill(os.getpid(), signal.SIGINT)

    whole = assembled(tmp_path, data__batch_size=16)
    states = []
    keep = recorder_of(
        "on_train_epoch_end",
        lambda t, m: states.append({k: v.clone() for k, v in m.state_dict().items()}),
    )
    whole.trainer.callbacks.append(keep)
    whole.trainer.fit(whole.classifier, whole.data)
    struck = assembled(
        tmp_path, recorder_of("on_validation_batch_start", strike), data__batch_size=16
    )
    handlers = [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)]
    with pytest.raises(Stopped):
        struck.trainer.fit(struck.classifier, struck.data)
    assert [signal.getsignal(s) for s in (signal.SIGINT, signal.SIGTERM)] == handlers
    saved = checkpoint(struck.folder.path)["state_dict"]
    assert set(saved) == set(states[0])
    assert all(torch.equal(saved[k], states[0][k]) for k in saved)
    assert not torch.equal(saved["net.head.weight"], saved["average.head.weight"])
    resumed = train.resume(str(struck.folder.path))
    ends = [checkpoint(path)["state_dict"] for path in (whole.folder.path, resumed.path)]
    assert all(torch.equal(ends[0][k], ends[1][k]) for k in ends[0])


def test_unreadable_photos_are_left_out_by_name(tmp_path, caplog):
    photos = folder_of(tmp_path / "photos", {"a": 6, "b": 6})
    whole = (photos / "a" / "0.png").read_bytes()
    (photos / "a" / "broken.png").write_bytes(whole[: len(whole) // 2])
    changes = {"data__root": str(photos), "data__batch_size": 1, "data__val_share": 0}
    run = train.start(tiny(tmp_path, data__source="folder", **changes))
    assert "broken.png" in caplog.text
    assert run.summary["global_step"] == 2 * 12
    assert (photos / "a" / "broken.png").read_bytes() == whole[: len(whole) // 2]


@pytest.mark.parametrize(  # the first two write settings and split
    "moment", [4, *(pytest.param(moment, marks=pytest.mark.full) for moment in (3, 5, 6, 7, 8))]
)
def test_a_kill_at_any_moment_of_saving_is_made_good(tmp_path, monkeypatch, moment):
    """Fails at the n-th file operation of two epochs' tables and checkpoints, then resumes."""
    from vit import callbacks

    whole = train.start(tiny(tmp_path / "whole", run__checkpoint_steps=9))
    calls = []

    def failing(function):
        def call(*args, **kwargs):
            calls.append(function)
            if len(calls) == moment:
                raise RuntimeError("killed")
            return function(*args, **kwargs)

        return call

    with monkeypatch.context() as patch:
        patch.setattr(callbacks.os, "replace", failing(os.replace))
        patch.setattr(callbacks.os, "link", failing(os.link))
        patch.setattr(callbacks.runs, "append", failing(runs.append))
        with pytest.raises(RuntimeError, match="killed"):
            train.start(tiny(tmp_path / "part", run__checkpoint_steps=9))
    resumed = train.resume(str(tmp_path / "part" / "tiny" / "1"))
    tables = [(run.path / "metrics.csv").read_bytes() for run in (whole, resumed)]
    assert tables[0] == tables[1]
    states = [checkpoint(run.path)["state_dict"] for run in (whole, resumed)]
    assert all(torch.equal(states[0][k], states[1][k]) for k in states[0])
    assert whole.summary["test"] == resumed.summary["test"]


def test_killed_after_early_stopping_trains_no_more(tmp_path, monkeypatch):
    from vit.commands import finish as ending

    changes = {"optim__epochs": 30, "optim__lr": 0.0, "optim__patience": 2}

    def killed(*_):
        raise RuntimeError("killed")

    with monkeypatch.context() as patch:
        patch.setattr(ending, "judge", killed)
        with pytest.raises(RuntimeError, match="killed"):
            train.start(tiny(tmp_path, **changes))
    assert train.resume(str(tmp_path / "tiny" / "1")).summary["epochs"] == 3


@pytest.mark.full
def test_two_processes_share_a_folder_and_count_exactly(tmp_path, command):
    """Their test counts equal a one-process evaluation; no image counts twice."""
    words = ["--trainer.devices", 2, "--trainer.accelerator", "cpu", "--optim.epochs", 2]
    command(*words, "--trainer.strategy", "ddp", "--run.root", tmp_path)
    assert [path.name for path in (tmp_path / "quickstart").iterdir()] == ["1"]
    own = json.loads((tmp_path / "quickstart" / "1" / "summary.json").read_text())
    words = ["evaluate", "digits", "--model", tmp_path / "quickstart" / "1"]
    again = json.loads(command(*words, script="vit").stdout)
    assert (own["test"]["correct"], own["test"]["count"]) == (again["correct"], 360)
    assert own["test"]["nll"] == pytest.approx(again["nll"], abs=1e-6)
    assert own["test"]["ece"] == pytest.approx(again["ece"], abs=1e-6)


QUICK = ["--run.pictures", "false"]
KILLED = [*QUICK, "--optim.epochs", "3", "--run.checkpoint_steps", "3"]


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory, command) -> Path:
    root = tmp_path_factory.mktemp("whole")
    command(*KILLED, "--run.root", root)
    return root / "quickstart" / "1"


@pytest.mark.parametrize(  # in the first epoch, the first again, the second
    "saves", [pytest.param(1, marks=pytest.mark.full), 4, pytest.param(9, marks=pytest.mark.full)]
)
def test_killed_and_resumed_equals_uninterrupted(tmp_path, command, uninterrupted, saves):
    """SIGKILL of README's command after the n-th checkpoint; then --resume."""
    folder = tmp_path / "quickstart" / "1"
    start = [sys.executable, "train.py", *KILLED, "--run.root", str(tmp_path)]
    process = subprocess.Popen(start, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)
    seen, last = set(), folder / "checkpoints" / "last.ckpt"
    while len(seen) < saves:
        assert process.poll() is None, "the run ended before it could be killed"
        if last.exists():
            seen.add(last.stat().st_mtime_ns)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert checkpoint(folder)["global_step"] % 20, "a checkpoint within an epoch was meant"
    assert not (folder / "summary.json").exists()
    command("--resume", folder)
    one, two = checkpoint(uninterrupted), checkpoint(folder)
    assert one["state_dict"].keys() == two["state_dict"].keys()
    assert all(torch.equal(v, two["state_dict"][k]) for k, v in one["state_dict"].items())
    ours, theirs = (c["optimizer_states"][0]["state"] for c in (one, two))
    assert ours.keys() == theirs.keys()
    assert all(torch.equal(v, theirs[i][k]) for i in ours for k, v in ours[i].items())
    assert one["lr_schedulers"] == two["lr_schedulers"]
    tables = [(path / "metrics.csv").read_bytes() for path in (uninterrupted, folder)]
    assert tables[0] == tables[1]
    ends = [json.loads((path / "summary.json").read_text()) for path in (uninterrupted, folder)]
    assert ends[0]["test"] == ends[1]["test"]
    assert (uninterrupted / "split.csv").read_bytes() == (folder / "split.csv").read_bytes()


@pytest.mark.full
@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 143)])
def test_a_signal_saves_and_says_how_to_go_on(tmp_path, command, number, code):
    start = [sys.executable, "train.py", *QUICK, "--run.root", str(tmp_path)]
    options = {"cwd": Path(__file__).parents[1], "text": True}
    pipes = {"stdout": subprocess.PIPE, "stderr": subprocess.PIPE}
    process = subprocess.Popen(start, **options, **pipes)
    process.stdout.readline()  # the first epoch is over
    process.send_signal(number)
    _, messages = process.communicate(timeout=60)
    assert process.returncode == code
    folder = tmp_path / "quickstart" / "1"
    assert f"python train.py --resume {folder}" in messages
    assert "Traceback" not in messages
    assert checkpoint(folder)["global_step"] >= 20


@pytest.mark.full
def test_an_infinite_loss_stops_with_advice(tmp_path, command):
    words = ["--optim.lr", "1e30", "--optim.clip", "0", "--optim.warmup_epochs", "0"]
    done = command(*words, "--run.root", tmp_path, check=False)
    assert done.returncode == 1
    assert "the loss is not a finite number" in done.stderr
    assert "--optim.lr" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "quickstart" / "1" / "checkpoints" / "last.ckpt").exists()


@pytest.mark.full
def test_a_finished_run_is_not_run_again(tmp_path, command):
    command(*QUICK, "--optim.epochs", 1, "--run.root", tmp_path)
    folder = tmp_path / "quickstart" / "1"
    before = {path: path.stat().st_mtime_ns for path in folder.rglob("*")}
    done = command("--resume", folder)
    assert "finished already" in done.stderr
    assert {path: path.stat().st_mtime_ns for path in folder.rglob("*")} == before


def test_trains_outside_the_main_thread(tmp_path):
    with ThreadPoolExecutor(1) as pool:
        run = pool.submit(train.start, tiny(tmp_path, optim__epochs=1)).result()
    assert run.summary["global_step"] == 20
    assert not list(run.path.glob("*.png"))  # as run.pictures says


@pytest.mark.parametrize(
    ("speed", "said"), [(0.34, "0.34"), (6.274, "6.27"), (75.21, "75.2"), (12345.6, "12,346")]
)
def test_slow_training_has_a_speed_too(speed, said):
    assert rate_text(speed) == said


def test_validation_may_be_switched_off(tmp_path):
    run = train.start(tiny(tmp_path, trainer__limit_val_batches=0))
    assert (run.summary["val"], run.summary["best_epoch"]) == ({}, 2)
    assert run.summary["test"]["count"] == 360


INTERRUPTED_IN_TEST = """
import os, signal, sys
from lightning.pytorch import Callback
from vit import assembly, cli

signal.signal(signal.SIGINT, signal.default_int_handler)  # in the background it is ignored

class CtrlC(Callback):
    def on_test_batch_start(self, *_):
        os.kill(os.getpid(), signal.SIGINT)

make = assembly.make_trainer
assembly.make_trainer = lambda config, callbacks, *rest: make(config, [*callbacks, CtrlC()], *rest)
sys.exit(cli.train(sys.argv[1:]))
"""


@pytest.mark.full
def test_ctrl_c_in_the_final_test_says_how_to_go_on(tmp_path, command):
    words = [*QUICK, "--run.root", tmp_path, "--optim.epochs", "1", "--model.depth", "1"]
    done = subprocess.run(
        [sys.executable, "-c", INTERRUPTED_IN_TEST, *map(str, words)],
        capture_output=True,
        text=True,
        check=False,
        cwd=Path(__file__).parents[1],
    )
    folder = tmp_path / "quickstart" / "1"
    assert done.returncode == 130, done.stderr
    assert f"python train.py --resume {folder}" in done.stderr and "Traceback" not in done.stderr
    command("--resume", folder)
    summary = json.loads((folder / "summary.json").read_text())
    assert summary["test"]["count"] == 360
