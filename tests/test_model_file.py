"""The model file: what goes in comes out, here and in timm; what is not ours is refused."""

import json

import pytest
import safetensors.torch
import timm
import torch

import vit
from vit import model_file
from vit.fitting import Preprocess
from vit.model_file import TrainedModel

CLASSES = ["10", "2", "a b", "猫", "O'Brien", "<b>x</b>"]
KINDS = [
    {},
    {"reg_tokens": 2, "no_embed_class": True, "init_values": 0.1},
    {"class_token": False, "global_pool": "avg", "qkv_bias": False},
    {"img_size": (16, 24), "patch_size": (4, 8), "mlp_ratio": 2.0, "fc_norm": True},
    {"global_pool": "distilled"},
    {"global_pool": "map", "class_token": False, "mlp": "gelu_tanh"},
    {"embed_norm": "tokens", "norm_layer": "layernorm_1e-5", "mlp": "quick_gelu"},
    {"embed_norm": "patches", "norm_layer": "rmsnorm_1e-5", "mlp": "swiglu", "proj_bias": False},
    {"embed_norm": "patches", "norm_layer": "rmsnorm", "image_sizes": "multiples"},
    {"mlp": "swiglu_packed", "fc_norm": "none"},
    {"block": "sub_norm", "norm_layer": "layernorm_1e-5", "global_pool": "avg"},
    {"img_size": (18, 23), "image_sizes": "cut"},
    {"block": "res_post", "init_values": 0.1},
    {"block": "parallel", "qk_norm": True, "qkv_bias": False, "init_values": 0.1},
    {"block": "parallel", "norm_layer": "rmsnorm"},
]


def network(**changes) -> vit.VisionTransformer:
    usual = {"img_size": 16, "patch_size": 4, "embed_dim": 48, "depth": 2, "num_heads": 3}
    net = vit.VisionTransformer(**usual | {"num_classes": len(CLASSES)} | changes)
    generator = torch.Generator().manual_seed(0)
    with torch.no_grad():
        for parameter in net.parameters():
            parameter.normal_(0, 0.05, generator=generator)
    return net.eval()


def saved(folder, **changes) -> vit.VisionTransformer:
    net = network(**changes)
    preprocess = Preprocess(net.architecture.img_size, std=(0.2, 0.3, 0.4), fit="squash")
    vit.save(folder / "model.safetensors", net, CLASSES, preprocess, 1.5, {"test": {"top1": 0.5}})
    return net


@pytest.mark.parametrize("changes", KINDS)
def test_saved_and_loaded_and_in_timm(tmp_path, changes):
    net = saved(tmp_path, **changes)
    images = torch.randn(3, 3, *net.architecture.img_size)
    model = vit.load(tmp_path)
    assert isinstance(model, TrainedModel)
    assert (model.classes, model.net.architecture) == (CLASSES, net.architecture)
    assert model.preprocess == Preprocess((images.shape[2:]), std=(0.2, 0.3, 0.4), fit="squash")
    assert model.temperature == 1.5
    assert model.metrics == {"test": {"top1": 0.5}}
    with torch.inference_mode():
        expected = net(images)
        assert torch.equal(model.net(images), expected)
        theirs = timm.create_model(f"local-dir:{tmp_path}", pretrained=True).eval()
        torch.testing.assert_close(theirs(images), expected, atol=1e-5, rtol=1e-5)
    assert theirs.pretrained_cfg["std"] == [0.2, 0.3, 0.4]
    assert theirs.pretrained_cfg["crop_mode"] == "squash"


def test_what_timm_has_no_name_for_is_saved_without_its_config(tmp_path):
    net = saved(tmp_path, mlp="swiglu", norm_layer="layernorm_1e-5")
    images = torch.randn(2, 3, *net.architecture.img_size)
    assert torch.equal(vit.load(tmp_path).net(images), net(images))
    assert not (tmp_path / "config.json").exists()


def test_equal_models_are_equal_files(tmp_path):
    files = set()
    for number in range(8):
        (tmp_path / str(number)).mkdir()
        saved(tmp_path / str(number))
        files.add((tmp_path / str(number) / "model.safetensors").read_bytes())
    assert len(files) == 1


def test_others_may_read_it(tmp_path):
    saved(tmp_path)
    (tmp_path / "plain").write_text("")
    modes = {(tmp_path / name).stat().st_mode for name in ("model.safetensors", "plain")}
    assert len(modes) == 1


def rewritten(folder, **changes):
    path = folder / "model.safetensors"
    with safetensors.safe_open(path, "pt") as file:
        about = json.loads(file.metadata()["vit"]) | changes
    tensors = safetensors.torch.load_file(path)
    safetensors.torch.save_file(tensors, path, metadata={"vit": json.dumps(about)})


def test_versions(tmp_path):
    saved(tmp_path)
    rewritten(tmp_path, a_later_field=[1, 2])
    vit.load(tmp_path / "model.safetensors")
    rewritten(tmp_path, version=2)
    with pytest.raises(ValueError, match=r"is of version 2, this program reads up to 1: update"):
        vit.load(tmp_path)


def test_what_is_no_model_is_refused(tmp_path):
    with pytest.raises(ValueError, match="no model at"):
        vit.load(tmp_path)
    path = tmp_path / "model.safetensors"
    path.write_bytes(b"not at all")
    with pytest.raises(ValueError, match="is not a safetensors file"):
        model_file.load(path)
    safetensors.torch.save_file({"a": torch.zeros(1)}, path)
    with pytest.raises(ValueError, match="does not say what it is"):
        model_file.load(path)
    for text in ("base", "3", "{}", '{"version": 9}'):  # another program's entry of this name
        safetensors.torch.save_file({"a": torch.zeros(1)}, path, metadata={"vit": text})
        assert model_file.about(path) is None
        with pytest.raises(ValueError, match="does not say what it is"):
            model_file.load(path)
    with pytest.raises(ValueError, match="5 classes for 6 logits"):
        vit.save(path, network(), CLASSES[:5], Preprocess((16, 16)))
