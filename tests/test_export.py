"""Exported networks: read by their own readers alone, they say what the network says."""

import json
import math
import sys

import numpy as np
import onnx
import onnxruntime
import pytest
import torch

import vit
from vit import export
from vit.cli import main
from vit.fitting import Preprocess

CLASSES = ["10", "2", "a b", "猫", "O'Brien", "<b>x</b>"]
# one of each kind of pooling, tokens, blocks: what the tracers may stumble over
KINDS = [
    {},
    {"class_token": False, "global_pool": "map", "reg_tokens": 2, "no_embed_class": True},
    {"block": "parallel", "qk_norm": True, "qkv_bias": False, "image_sizes": "multiples"},
    {"global_pool": "distilled", "mlp": "swiglu", "norm_layer": "rmsnorm"},
]


def saved(folder, classes=CLASSES, **changes) -> vit.VisionTransformer:
    usual = {"img_size": (8, 12), "patch_size": 4, "embed_dim": 12, "depth": 1, "num_heads": 2}
    net = vit.VisionTransformer(**usual | {"num_classes": len(classes)} | changes)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.5, generator=generator)
    preprocess = Preprocess((8, 12), std=(0.2, 0.3, 0.4), fit="pad")
    vit.save(folder / "model.safetensors", net, classes, preprocess, 1.7)
    return net.eval()


def images(size: int) -> torch.Tensor:
    return torch.from_numpy(np.random.default_rng(7).random((size, 3, 8, 12), np.float32)) * 4 - 2


def check_embedded(texts: dict[str, str]) -> None:
    assert json.loads(texts["classes"]) == CLASSES
    assert json.loads(texts["temperature"]) == 1.7
    preprocess = json.loads(texts["preprocess"])
    assert (preprocess["size"], preprocess["fit"]) == ([8, 12], "pad")
    assert preprocess["std"] == [0.2, 0.3, 0.4]


def check_outputs(run, net) -> None:
    for size in (1, 2, 7):
        with torch.inference_mode():
            expected = net(images(size)).numpy()
        np.testing.assert_allclose(run(images(size)), expected, atol=1e-4, rtol=1e-5)


def in_onnxruntime(path):
    session = onnxruntime.InferenceSession(path, providers=["CPUExecutionProvider"])
    return lambda pixels: session.run(["logits"], {"images": pixels.numpy()})[0]


def test_onnx_by_the_command(tmp_path, capsys):
    net = saved(tmp_path)
    words = ["export", "--model", str(tmp_path), "--format", "onnx"]
    assert main(words) == 0
    said = capsys.readouterr().out.splitlines()
    assert [line.split(":")[0] for line in said] == ["batch of 1", "batch of 5", "written"]
    assert all(float(line.split()[-1]) <= 1e-4 for line in said[:2])
    path = tmp_path / "model.onnx"
    model = onnx.load(path)
    onnx.checker.check_model(model)
    check_embedded({entry.key: entry.value for entry in model.metadata_props})
    check_outputs(in_onnxruntime(path), net)
    assert sorted(one.name for one in tmp_path.iterdir()) == sorted(
        ["config.json", "model.onnx", "model.safetensors"]
    )


def test_pt2_by_the_command(tmp_path, capsys):
    net = saved(tmp_path)
    path = tmp_path / "other.pt2"
    assert main(["export", "--model", str(tmp_path), "--output", str(path)]) == 0
    assert f"written: {path}" in capsys.readouterr().out
    texts = dict.fromkeys(["classes.json", "preprocess.json", "temperature.json"], "")
    program = torch.export.load(path, extra_files=texts).module()
    check_embedded({name.removesuffix(".json"): text for name, text in texts.items()})
    check_outputs(lambda pixels: program(pixels).detach().numpy(), net)


@pytest.mark.full
@pytest.mark.parametrize("path", ["explicit", "fused"])
@pytest.mark.parametrize("changes", KINDS)
def test_every_kind_of_network_by_either_attention(tmp_path, changes, path):
    net = saved(tmp_path, **changes).use_attention(path)
    model = vit.load(tmp_path)
    model.net.use_attention(path)
    for kind in export.FORMATS:
        differences = export.export(model, tmp_path / f"net.{kind}", kind)
        assert list(differences) == [1, 5]
        assert max(differences.values()) <= 1e-4
    check_outputs(in_onnxruntime(tmp_path / "net.onnx"), net)
    program = torch.export.load(tmp_path / "net.pt2").module()
    check_outputs(lambda pixels: program(pixels).detach().numpy(), net)


@pytest.mark.full
def test_a_network_without_a_head_gives_features(tmp_path):
    net = saved(tmp_path, classes=[])
    model = vit.load(tmp_path)
    export.export(model, tmp_path / "net.pt2", "pt2")
    program = torch.export.load(tmp_path / "net.pt2").module()
    assert program(images(3)).shape == (3, 12)
    check_outputs(lambda pixels: program(pixels).detach().numpy(), net)


@pytest.mark.parametrize(
    ("added", "batch", "said"),
    [
        (1e-2, 1, r"\d\.\de-03"),
        (1e-2, 5, r"\d\.\de-03"),
        (math.nan, 1, "nan"),
        (math.nan, 5, "nan"),
    ],
)
def test_what_computes_something_else_is_not_kept(tmp_path, monkeypatch, added, batch, said):
    """An exporter that writes other weights than the network's, or goes wrong in larger batches."""
    saved(tmp_path)
    model = vit.load(tmp_path)

    def wrong(model, path, *_):
        path.write_bytes(b"")
        return lambda pixels: model.net(pixels) + (added if len(pixels) == batch else 0)

    monkeypatch.setattr(export, "write_pt2", wrong)
    with pytest.raises(export.ParityError, match=f"by {said}, more than 1e-04: .* is not written"):
        export.export(model, tmp_path / "net.pt2", "pt2")
    assert not list(tmp_path.glob("*net.pt2*"))


def test_messages(tmp_path, capsys, monkeypatch):
    saved(tmp_path)
    model = ["export", "--model", str(tmp_path)]
    for words, message in [
        (model, "--format onnx or --format pt2 is needed, or an --output that ends so"),
        ([*model, "--output", "net.zip"], "--format onnx or --format pt2 is needed"),
        ([*model, "--output", str(tmp_path / "no" / "a.pt2")], "there is no folder"),
        ([*model, "--format", "pt2", "--opset", "18"], "opset (18) is ONNX's: leave it out"),
        ([*model, "--format", "onnx", "--opset", "9"], "opset (9) must be in 18 to 23"),
    ]:
        assert main(words) == 2
        said = capsys.readouterr()
        assert message in said.err
        assert said.err.count("\n") == 1
    with pytest.raises(ValueError, match=r"format \(zip\) must be onnx or pt2"):
        export.check("zip", None)
    for name in ("onnxscript", "onnxruntime"):
        monkeypatch.setitem(sys.modules, name, None)  # as where they are not installed
    assert main([*model, "--format", "onnx"]) == 2
    said = capsys.readouterr().err
    assert "exporting to onnx needs onnxscript, onnxruntime: pip install" in said
