"""Runs that start from pretrained weights: what is taken over, each mode of tuning, and its resume."""

import json
import os
import signal
import subprocess
import sys
import time
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import safetensors
import torch
from safetensors.torch import save_file

import vit
from vit import catalogue, model_file, origin, pretrained, probe, runs
from vit import config as settings
from vit.commands import fit_probe, train
from vit.commands.finish import warn_of_missing
from vit.fitting import Preprocess
from vit.runs import RunFolder

NATIVE = {"img_size": 12, "patch_size": 4, "embed_dim": 16, "depth": 2, "num_heads": 2}
TINY = {
    "data.source": "digits",
    "model.img_size": 8,
    "optim.epochs": 3,
    "optim.warmup_epochs": 0,
    "optim.average_decay": 0.9,
    "run.precision": "32",
    "run.name": "tiny",
    "run.pictures": False,
}


def network(**changes) -> vit.VisionTransformer:
    torch.manual_seed(7)
    return vit.VisionTransformer(**NATIVE | {"num_classes": 3} | changes)


@pytest.fixture(scope="module")
def weights(tmp_path_factory) -> Path:
    """A model file of ours, of three other classes and larger images."""
    path = tmp_path_factory.mktemp("weights") / "model.safetensors"
    preprocess = Preprocess((12, 12), (0.4, 0.5, 0.6), (0.2, 0.3, 0.4), "bilinear", 0.9, "squash")
    model_file.save(path, network(), ["x", "y", "z"], preprocess)
    return path


def tiny(root: Path, weights, **changes) -> settings.Config:
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    path = root / "finetune.yaml"
    path.write_text("{}")
    given = TINY | {"model.weights": weights and str(weights), "run.root": str(root)} | changes
    return settings.load(str(path), given)


def assembled(root: Path, weights, **changes) -> train.Assembly:
    return train.assemble(tiny(root, weights, **changes), runs.create(root, "tiny"))


def refused(root: Path, weights, **changes) -> str:
    with pytest.raises(ValueError) as caught:
        assembled(root, weights, **changes)
    message = str(caught.value)
    assert "\n" not in message
    return message


def state_of(path: Path, name: str = "last") -> dict[str, torch.Tensor]:
    return torch.load(path / "checkpoints" / f"{name}.ckpt", weights_only=True)["state_dict"]


# --- What the weights bring ----------------------------------------------------------------------


def test_weights_positions_and_preprocessing_come_over_and_the_head_is_new(
    tmp_path, weights, caplog
):
    caplog.set_level("INFO", "vit")
    parts = assembled(tmp_path, weights)
    theirs, ours = network().state_dict(), parts.classifier.net.state_dict()
    changed = {"pos_embed", "head.weight", "head.bias"}
    assert all(torch.equal(ours[name], theirs[name]) for name in theirs.keys() - changed)
    assert ours["pos_embed"].shape == (1, 5, 16)
    assert ours["head.weight"].shape == (10, 16)
    preprocess = parts.data.preprocess
    assert (preprocess.size, preprocess.mean) == ((8, 8), (0.4, 0.5, 0.6))
    assert (preprocess.interpolation, preprocess.fit) == ("bilinear", "squash")
    lines = [line.strip() for line in caplog.text.splitlines()]
    count = sum(theirs[name].numel() for name in theirs.keys() - changed)
    assert f"loaded: {len(theirs) - 3} of {len(theirs)} tensors, {count:,} parameters" in lines
    assert "resized: pos_embed 1x10x16 to 1x5x16" in lines
    assert "new: head.weight, head.bias" in lines


def test_without_a_size_or_a_fit_the_weights_own_are_taken(tmp_path, weights):
    parts = assembled(tmp_path, weights, model__img_size=None)
    assert parts.data.preprocess.size == (12, 12)
    parts = assembled(tmp_path, weights, data__fit="pad", model__patch_size=2)
    assert parts.data.preprocess.fit == "pad"
    assert parts.classifier.net.grid_size == (4, 4)


def test_a_head_of_the_same_classes_is_kept(tmp_path):
    net = network(num_classes=10)
    for classes, kept in (("0123456789", True), ("9876543210", False), ("abcdefghij", False)):
        path = tmp_path / f"{classes}.safetensors"
        model_file.save(path, net, list(classes), Preprocess((12, 12)))
        head = assembled(tmp_path, path).classifier.net.head.weight
        assert torch.equal(head, net.head.weight) == kept


def test_a_head_of_nameless_classes_is_not_kept(tmp_path):
    """As many classes as the photos have, but nobody knows which."""
    path, classes = tmp_path / "model.safetensors", [*"0123456789"]
    model_file.save(path, network(num_classes=10), classes, Preprocess((12, 12)))
    start = origin.of(tiny(tmp_path, path), runs.create(tmp_path, "tiny"))
    nameless = replace(start, weights=replace(start.weights, classes=()))
    theirs = start.weights.read()["head.weight"]
    assert torch.equal(start.network(classes).head.weight, theirs)
    assert not torch.equal(nameless.network(classes).head.weight, theirs)


@pytest.mark.parametrize("kind", ["safetensors", "pth"])
def test_a_state_dict_says_by_its_name_what_it_is(tmp_path, monkeypatch, kind):
    net = network(num_classes=0, reg_tokens=2)
    row = catalogue.find("vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    about = net.architecture.non_defaults() | {"num_classes": 5, "img_size": [24, 24]}
    rows = [row | {"name": "tiny", "tag": "", "architecture": json.dumps(about)}]
    monkeypatch.setattr(catalogue, "rows", lambda: rows)
    file = tmp_path / f"a.{kind}"
    state = {name: one.clone() for name, one in net.state_dict().items()}
    save_file(state, file) if kind == "safetensors" else torch.save({"model": state}, file)
    found = pretrained.find(str(file), "tiny")
    assert found.architecture == net.architecture  # its own size and head, not the name's
    assert (found.source, found.preprocess.size) == (f"tiny from a.{kind}", (12, 12))
    with pytest.raises(ValueError, match="does not say of which network it is") as caught:
        pretrained.find(str(file))
    assert "--model.architecture NAME" in str(caught.value)
    rows[0]["architecture"] = json.dumps(net.architecture.non_defaults())
    with pytest.raises(ValueError, match="by its sizes it may be tiny"):
        pretrained.find(str(file))
    if kind == "safetensors":
        save_file(state, file, metadata={"architecture": "tiny"})
        assert pretrained.find(str(file)).architecture == net.architecture


def test_describing_weights_reads_the_header_alone(tmp_path, weights, monkeypatch):
    def never(*_, **__):
        raise AssertionError("content was read")

    monkeypatch.setattr(safetensors.torch, "load_file", never)
    monkeypatch.setattr("vit.weights.load_file", never)
    found = pretrained.find(str(weights))
    assert found.architecture == network().architecture
    assert found.classes == ("x", "y", "z")
    with pytest.raises(ValueError, match="content was read"):
        found.read()


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__depth": 6}, "model.depth is 6, but the weights"),
        ({"model__depth": 6}, "have 2: leave --model.depth out"),
        ({"model__embed_dim": 192}, "model.embed_dim is 192, but the weights"),
        ({"model__num_heads": 4}, "model.num_heads is 4"),
        ({"model__init_values": 0.1}, "model.init_values is 0.1, but"),
        ({"model__global_pool": "avg"}, "model.global_pool is avg"),
        ({"model__weights": "nowhere"}, "model.weights (nowhere): there is no file nowhere"),
        (
            {"model__weights": "vit_small_patch14_dinov2"},
            "did you mean timm:vit_small_patch14_dinov2?",
        ),
        ({"model__weights": "timm:vit_smal_patch14_dinov2"}, 'did you mean "vit_small_patch14'),
        (
            {"model__architecture": "vit_tiny_patch16_224"},
            "model.architecture (vit_tiny_patch16_224) is for files that do not say what they are",
        ),
        (
            {"model__weights": "timm:vit_tiny_patch16_224", "model__architecture": "x"},
            "model.weights (timm:vit_tiny_patch16_224) does: leave it out",
        ),
        (
            {"model__tune": "head_then_full", "optim__lr": 0},
            "optim.lr (0) must be above 0 for model.tune head_then_full",
        ),
        (
            {"model__tune": "head_then_full", "optim__head_epochs": 3},
            "optim.head_epochs (3) must be below optim.epochs (3)",
        ),
        ({"model__tune": "lora", "model__lora_rank": 17}, "lora_rank (17) must be at least 1"),
        ({"model__weights": None, "model__tune": "lora"}, "model.tune (lora) needs pretrained"),
        (
            {"model__weights": None, "model__architecture": "x"},
            "model.architecture (x) says what model.weights are of",
        ),
        ({"optim__layer_decay": 1.5}, "optim.layer_decay (1.5) must be above 0 and at most 1"),
        ({"model__lora_rank": 0}, "model.lora_rank (0) must be at least 1"),
    ],
)
def test_contradictions_are_named_with_their_cure(tmp_path, weights, changes, words):
    assert words in refused(tmp_path, **{"weights": weights} | changes)


def test_the_same_value_as_the_weights_is_no_contradiction(tmp_path, weights):
    assembled(tmp_path, weights, model__depth=2, model__class_token=True, model__mlp_ratio=4)


def test_files_without_fitting_tensors_are_refused(tmp_path):
    other = tmp_path / "other.safetensors"
    save_file({"conv1.weight": torch.zeros(3), "fc.bias": torch.zeros(2)}, other)
    name = "vit_tiny_patch16_224"
    assert "none of the weights' 2 tensors has a name of this network: theirs are conv1.weight" in (
        refused(tmp_path, other, model__architecture=name, model__img_size=32)
    )
    broken = tmp_path / "broken.safetensors"
    broken.write_bytes(b"no weights")
    assert "cannot be read as weights" in refused(tmp_path, broken, model__architecture=name)


def test_few_photos_from_scratch_are_advised_of_weights(tmp_path, weights, caplog):
    from PIL import Image

    for label in "ab":
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(3):
            colour = (80 * i, 200, 40) if label == "a" else (40, 80 * i, 200)
            Image.new("RGB", (9, 9), colour).save(tmp_path / "photos" / label / f"{i}.png")
    photos = {"data__source": "folder", "data__root": str(tmp_path / "photos")}
    assembled(tmp_path, weights, **photos)
    assert "few to learn from alone" not in caplog.text
    assembled(tmp_path, None, **photos)
    assert "4 training images are few to learn from alone" in caplog.text
    assert "--config finetune" in caplog.text


def test_defaults_follow_the_mode_and_a_given_value_stands(tmp_path, weights):
    from vit.tuning import DEFAULTS

    for mode in ("full", "head_then_full", "lora"):
        optim = assembled(tmp_path, weights, model__tune=mode).config.optim
        assert {"lr": optim.lr, "layer_decay": optim.layer_decay} == DEFAULTS[mode]
        assert (optim.head_epochs > 0) == (mode == "head_then_full")
    given = assembled(tmp_path, weights, optim__lr=0.5, optim__layer_decay=0.9).config.optim
    assert (given.lr, given.layer_decay) == (0.5, 0.9)
    scratch = assembled(tmp_path, None).config
    assert (scratch.optim.lr, scratch.optim.layer_decay, scratch.model.depth) == (1e-3, 1.0, 6)


# --- Modes ---------------------------------------------------------------------------------------

MODES = {
    "full": {},
    "head_then_full": {"optim__head_epochs": 1},
    "lora": {"model__lora_rank": 2},
}


class Killed(Exception):
    pass


def killed_at(step: int):
    """A Lightning callback that fails after a step, when its checkpoint is on disk."""
    from lightning.pytorch import Callback

    class Kill(Callback):
        def on_train_batch_end(self, trainer, *_):
            if trainer.global_step == step:
                raise Killed

    return Kill()


@pytest.fixture(scope="module")
def trained(tmp_path_factory, weights) -> dict[str, train.Assembly]:
    """Each mode, trained without a break."""
    found = {}
    for mode, changes in MODES.items():
        root = tmp_path_factory.mktemp(mode)
        parts = assembled(root, weights, model__tune=mode, run__checkpoint_steps=4, **changes)
        parts.trainer.fit(parts.classifier, parts.data)
        found[mode] = parts
    return found


@pytest.fixture(scope="module")
def finished(trained) -> train.Run:
    """The run with LoRA, tested, saved and drawn."""
    return train.carry_out(trained["lora"])


@pytest.mark.parametrize("mode", MODES)
@pytest.mark.parametrize("step", [4, 16])  # in the first epoch, where the head is alone; later
def test_killed_and_resumed_without_the_weights_equals_uninterrupted(
    tmp_path, weights, trained, mode, step
):
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(weights.read_bytes())
    changes = {"model__tune": mode, "run__checkpoint_steps": 4} | MODES[mode]
    parts = assembled(tmp_path, copy, **changes)
    parts.trainer.callbacks.append(killed_at(step))
    with pytest.raises(Killed):
        parts.trainer.fit(parts.classifier, parts.data)
    copy.unlink()
    config = settings.load(str(parts.folder.config))
    again = train.assemble(config, parts.folder, resumed=True)
    assert again.source == "/".join(copy.parts[-3:])
    again.trainer.fit(again.classifier, again.data, ckpt_path=parts.folder.last, weights_only=True)
    whole = trained[mode].folder
    one, two = state_of(whole.path), state_of(parts.folder.path)
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert whole.metrics.read_bytes() == parts.folder.metrics.read_bytes()


def test_what_is_frozen_stays_and_the_rest_learns(trained, finished):
    first = network().state_dict()
    saved = finished.model.net.state_dict()
    assert saved.keys() == first.keys()  # merged, plain names
    learned = {name for name in saved if not torch.equal(saved[name], first[name])}
    by_layer = {f"blocks.{i}.attn.{one}.weight" for i in (0, 1) for one in ("qkv", "proj")}
    assert learned - {"pos_embed"} == by_layer | {"head.weight", "head.bias"}
    assert finished.summary["parameters"] == sum(one.numel() for one in saved.values())
    assert finished.summary["trained_parameters"] == 170 + 2 * (2 * 16 + 2 * 48 + 2 * 16 + 2 * 16)
    full = state_of(trained["full"].folder.path)
    assert not any(torch.equal(full[f"net.{name}"], first[name]) for name in first)


def test_the_saved_lora_is_the_averaged_network(finished):
    """Merged by hand from the checkpoint of the chosen epoch."""
    state = state_of(finished.path, "best")
    name = "blocks.1.attn.qkv.weight"
    start = "average.blocks.1.attn.qkv.parametrizations.weight"
    scale = 16 / 2  # lora_alpha / lora_rank
    merged = state[f"{start}.original"] + scale * state[f"{start}.0.b"] @ state[f"{start}.0.a"]
    torch.testing.assert_close(finished.model.net.state_dict()[name], merged)
    assert not torch.equal(state[f"{start}.0.b"], state[f"{start}.0.b".replace("average", "net")])


def test_the_backbone_rests_while_the_head_learns(tmp_path, weights):
    parts = assembled(tmp_path, weights, model__tune="head_then_full", optim__head_epochs=1)
    before = {n: p.clone() for n, p in parts.classifier.net.named_parameters()}
    from lightning.pytorch import Callback

    seen = []

    class Look(Callback):
        def on_train_batch_end(self, trainer, module, *_):
            now = dict(module.net.named_parameters())
            changed = {name for name in now if not torch.equal(now[name], before[name])}
            graded = {name for name in now if now[name].grad is not None}
            seen.append((trainer.current_epoch, changed, graded))

    parts.trainer.callbacks.append(Look())
    parts.trainer.fit(parts.classifier, parts.data)
    head = {"head.weight", "head.bias"}
    assert all(changed == graded == head for epoch, changed, graded in seen if epoch == 0)
    assert seen[-1][1] == set(before)
    rates = [float(row["lr"]) for row in runs.read(parts.folder.metrics)]
    assert rates[0] == pytest.approx(1e-4, rel=1)  # the end of the head's own course
    assert rates[1] > 0


def test_models_say_where_they_are_from(weights, finished):
    about = model_file.about(finished.path / "model.safetensors")
    where = "/".join(weights.parts[-3:])
    assert about["source"] == f"{where}, fine-tuned (lora) on digits"
    assert finished.model.preprocess.mean == (0.4, 0.5, 0.6)


def test_a_run_goes_on_from_another_run(tmp_path, finished):
    parts = assembled(tmp_path, finished.path)
    own = finished.model.net.state_dict()
    ours = parts.classifier.net.state_dict()
    assert all(torch.equal(ours[name], own[name]) for name in own)  # the head too


def test_a_resume_without_checkpoint_says_what_is_missing(tmp_path, weights):
    copy = tmp_path / "copy.safetensors"
    copy.write_bytes(weights.read_bytes())
    parts = assembled(tmp_path, copy)
    copy.unlink()
    with pytest.raises(ValueError, match="has no checkpoint yet, so it needs its weights again"):
        train.resume(str(parts.folder.path))


# --- The probe -----------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def probed(tmp_path_factory, weights) -> train.Run:
    root = tmp_path_factory.mktemp("probe")
    return train.start(tiny(root, weights, model__tune="probe", data__flip=0.5, run__pictures=True))


def test_a_probe_leaves_what_any_run_leaves(probed):
    names = {path.name for path in probed.path.iterdir()}
    tables = {"config.yaml", "split.csv", "weights.json", "metrics.csv", "timing.csv"}
    pictures = {"curves", "confusion", "batch", "mistakes", "attention", "per_class", "reliability"}
    files = {"summary.json", "model.safetensors", "config.json", "checkpoints"}
    assert names == tables | files | {f"{name}.png" for name in pictures}
    assert probed.summary["test"]["count"] == 360
    assert probed.summary["test"]["top1"] > 0.5  # random features; chance is 0.1
    assert probed.summary["trained_parameters"] == 170


def test_a_probe_takes_the_strength_of_highest_validation_accuracy(probed):
    rows = runs.read(probed.path / "metrics.csv")
    assert [float(row["l2"]) for row in rows] == list(probe.STRENGTHS)
    order = [(float(row["val_top1"]), -float(row["val_nll"])) for row in rows]
    best = rows[order.index(max(order))]
    assert probed.summary["l2"] == float(best["l2"])
    assert len(set(order)) > 3  # the strengths differ
    val = probed.summary["val"]  # of the whole network with its new head
    assert val["top1"] == float(best["val_top1"])
    assert val["nll"] == pytest.approx(float(best["val_nll"]), abs=1e-4)


def test_a_probe_changes_the_head_alone_and_varies_nothing(tmp_path, probed, weights):
    first = assembled(tmp_path, weights).classifier.net.state_dict()
    saved = probed.model.net.state_dict()
    changed = {name for name in saved if not torch.equal(saved[name], first[name])}
    assert changed == {"head.weight", "head.bias"}
    assert settings.load(str(probed.path / "config.yaml")).data.flip == 0


def test_a_probe_says_that_it_is_float32(tmp_path, weights):
    for tune, precision in (("probe", "32"), ("full", "bf16")):
        parts = assembled(tmp_path, weights, model__tune=tune, run__precision="bf16")
        assert parts.config.run.precision == precision


def test_a_killed_probe_computes_what_is_missing_alone(tmp_path, weights, probed, monkeypatch):
    calls = []
    original = probe.features_of

    def failing(net, images):
        calls.append(len(images))
        if len(calls) == 5:
            raise Killed
        return original(net, images)

    monkeypatch.setattr(probe, "features_of", failing)
    parts = assembled(tmp_path, weights, model__tune="probe", data__flip=0.5)
    with pytest.raises(Killed):
        fit_probe.fit_probe(parts)
    config = settings.load(str(parts.folder.config))
    again = train.assemble(config, parts.folder, resumed=True)
    fit_probe.fit_probe(again)
    counts = [len(again.data.of(part)) for part in ("train", "val")]
    assert len(calls) - 1 == sum(-(-count // 128) for count in counts)  # none twice but the failed
    for part in ("train", "val"):
        kept, whole = (np.load(f.features(part)) for f in (parts.folder, RunFolder(probed.path)))
        assert np.isfinite(whole).all()
        assert np.array_equal(kept, whole)
    for name in ("metrics.csv", "split.csv"):
        assert (parts.folder.path / name).read_bytes() == (probed.path / name).read_bytes()
    one, two = state_of(parts.folder.path), state_of(probed.path)
    assert one.keys() == two.keys()
    assert all(torch.equal(one[name], two[name]) for name in two)


def test_a_probe_killed_between_its_checkpoints_is_made_good(tmp_path, weights, monkeypatch):
    """best.ckpt is there, last.ckpt is not; the head is not fitted again."""
    original = fit_probe.publish

    def killed(part, target):
        original(part, target)
        raise Killed

    parts = assembled(tmp_path, weights, model__tune="probe")
    with monkeypatch.context() as patch:
        patch.setattr(fit_probe, "publish", killed)
        with pytest.raises(Killed):
            fit_probe.fit_probe(parts)
    assert not parts.folder.last.exists()
    monkeypatch.setattr(probe, "fits", None)
    fit_probe.fit_probe(parts)
    assert parts.folder.last.read_bytes() == parts.folder.best.read_bytes()


def test_a_probe_without_validation_says_which_strength_it_takes(tmp_path, weights, caplog):
    parts = assembled(tmp_path, weights, model__tune="probe", data__val_share=0)
    fit_probe.fit_probe(parts)
    (row,) = runs.read(parts.folder.metrics)
    assert (float(row["l2"]), row["val_top1"]) == (0.03, "")
    warn_of_missing({}, "probe")
    assert "no validation part: L2 strength 0.03 is taken" in caplog.text


def test_damaged_weights_are_found_by_their_features(tmp_path):
    net = network()
    torch.nn.init.constant_(net.norm.weight, float("nan"))
    path = tmp_path / "damaged.safetensors"
    model_file.save(path, net, ["x", "y", "z"], Preprocess((12, 12)))
    parts = assembled(tmp_path, path, model__tune="probe")
    with pytest.raises(FloatingPointError, match="features of train images are no finite numbers"):
        fit_probe.fit_probe(parts)


@pytest.mark.parametrize(
    ("changes", "words"),
    [
        ({"model__tune": "probe"}, "model.tune probe runs in one process: leave out what makes 2"),
        (
            {"model__tune": "head_then_full"},
            "in 2 processes needs --trainer.strategy ddp_find_unused_parameters_true",
        ),
    ],
)
def test_modes_that_processes_cannot_share_are_refused(tmp_path, weights, changes, words):
    several = {"trainer__devices": 2, "trainer__accelerator": "cpu"}
    assert words in refused(tmp_path, weights, **several | changes)
    config = tiny(tmp_path, weights, **changes)
    config.trainer["strategy"] = "ddp_find_unused_parameters_true"
    if config.model.tune != "probe":
        origin.check_processes(config, 2)
    origin.check_processes(config, 1)


@pytest.mark.parametrize("balance", ["sample", "loss"])
def test_balanced_runs_resume_by_their_own_settings(tmp_path, weights, balance):
    parts = assembled(tmp_path, weights, data__balance=balance)
    again = train.assemble(settings.load(str(parts.folder.config)), parts.folder, resumed=True)
    assert again.config.data.balance == balance
    has = again.classifier.class_weights
    assert (has is not None) == (balance == "loss")
    again.data.trainer = again.trainer
    assert (again.data.image_weights() is not None) == (balance == "sample")
    assert again.classifier.state_dict().keys() == parts.classifier.state_dict().keys()


# --- Real kills, real weights --------------------------------------------------------------------


@pytest.mark.full
@pytest.mark.parametrize("mode", [*MODES, "probe"])
def test_sigkill_and_resume_equal_uninterrupted(tmp_path, weights, command, mode):
    words = ["--model.tune", mode, "--run.checkpoint_steps", "5", "--model.weights", weights]
    for key, value in (TINY | {"optim.epochs": 2, "optim.head_epochs": 1}).items():
        words += [f"--{key}", value]
    (tmp_path / "c.yaml").write_text("{}")
    words += ["--config", tmp_path / "c.yaml"]
    command(*words, "--run.root", tmp_path / "whole")
    start = [sys.executable, "train.py", *map(str, words), "--run.root", str(tmp_path / "part")]
    folder = tmp_path / "part" / "tiny" / "1"
    wanted = folder / "checkpoints" / ("features_train.npy" if mode == "probe" else "last.ckpt")
    process = subprocess.Popen(start, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)
    while not wanted.exists():
        assert process.poll() is None, "the run ended before it could be killed"
        time.sleep(0.001)
    os.kill(process.pid, signal.SIGKILL)
    process.wait()
    assert not (folder / "summary.json").exists()
    command("--resume", folder)
    whole = tmp_path / "whole" / "tiny" / "1"
    one, two = state_of(whole), state_of(folder)
    assert one.keys() == two.keys()
    assert all(torch.equal(value, two[name]) for name, value in one.items())
    assert (whole / "metrics.csv").read_bytes() == (folder / "metrics.csv").read_bytes()


@pytest.fixture(scope="module")
def food(tmp_path_factory, shared, dinov2) -> train.Run:
    """A probe of real weights on real photos in three classes, with a test part of their own."""
    root = tmp_path_factory.mktemp("food")
    changes = {
        "data.root": str(shared / "data" / "pizza_steak_sushi"),
        "model.weights": str(dinov2),
        "model.architecture": "vit_small_patch14_dinov2",
        "run.root": str(root),
    }
    return train.start(settings.load("finetune", changes))


@pytest.mark.full
def test_a_probe_on_real_weights_beats_its_neighbours(food):
    from sklearn.neighbors import KNeighborsClassifier

    assert food.summary["test"]["count"] == 75
    assert food.summary["test"]["top1"] > 0.8  # the largest class: 0.41
    split = runs.read(food.path / "split.csv")
    labels = {part: [r["class"] for r in split if r["split"] == part] for part in ("train", "val")}
    kept = {part: np.load(RunFolder(food.path).features(part)) for part in labels}
    neighbours = KNeighborsClassifier(10, metric="cosine").fit(kept["train"], labels["train"])
    assert food.summary["val"]["top1"] > neighbours.score(kept["val"], labels["val"])


@pytest.mark.full
def test_features_are_timms_on_the_photo_as_timm_prepares_it(food, shared, dinov2):
    import timm
    from PIL import Image
    from timm.data import create_transform
    from timm.models.vision_transformer import checkpoint_filter_fn

    name = "vit_small_patch14_dinov2"
    module = timm.create_model(name, img_size=224, num_classes=0).eval()
    module.load_state_dict(checkpoint_filter_fn(safetensors.torch.load_file(dinov2), module))
    config = timm.get_pretrained_cfg(name)
    transform = create_transform(
        (3, 224, 224), mean=config.mean, std=config.std, interpolation="bicubic", crop_pct=1.0
    )
    rows = [row for row in runs.read(food.path / "split.csv") if row["split"] == "train"]
    features = np.load(RunFolder(food.path).features("train"))
    for i in range(0, len(rows), 50):
        photo = Image.open(shared / "data" / "pizza_steak_sushi" / rows[i]["id"]).convert("RGB")
        with torch.inference_mode():
            theirs = module(transform(photo)[None])[0].numpy()
        # Pixels may differ by 1 of 255 where a large JPEG was decoded smaller.
        assert np.abs(features[i] - theirs).max() <= 0.05 * np.abs(theirs).max()
        assert np.corrcoef(features[i], theirs)[0, 1] > 0.999
