"""Training as a whole: steps, averages, schedules, chosen epochs, and what a run leaves."""

import itertools
import json
import math
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image
from tiny_runs import TINY, assembled, checkpoint, folder_of, recorder_of, tiny

import vit
from vit import assembly, datasets, inference, runs
from vit import config as settings
from vit.commands import train
from vit.commands.finish import finish
from vit.commands.progress import rate_text
from vit.tuning import rate

PICTURES = ("curves", "confusion", "batch", "mistakes", "attention", "per_class", "reliability")


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
    fast = inference.has_bf16(assembly.device_type("auto"))
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


def test_unreadable_photos_are_left_out_by_name(tmp_path, caplog):
    photos = folder_of(tmp_path / "photos", {"a": 6, "b": 6})
    whole = (photos / "a" / "0.png").read_bytes()
    (photos / "a" / "broken.png").write_bytes(whole[: len(whole) // 2])
    changes = {"data__root": str(photos), "data__batch_size": 1, "data__val_share": 0}
    run = train.start(tiny(tmp_path, data__source="folder", **changes))
    assert "broken.png" in caplog.text
    assert run.summary["global_step"] == 2 * 12
    assert (photos / "a" / "broken.png").read_bytes() == whole[: len(whole) // 2]


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


@pytest.mark.full
def test_an_infinite_loss_stops_with_advice(tmp_path, command):
    words = ["--optim.lr", "1e30", "--optim.clip", "0", "--optim.warmup_epochs", "0"]
    done = command(*words, "--run.root", tmp_path, check=False)
    assert done.returncode == 1
    assert "the loss is not a finite number" in done.stderr
    assert "--optim.lr" in done.stderr
    assert "Traceback" not in done.stderr
    assert not (tmp_path / "quickstart" / "1" / "checkpoints" / "last.ckpt").exists()


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
