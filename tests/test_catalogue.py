"""Pretrained networks by name: the table, `vit models`, weights from a file, preprocessing."""

import contextlib
import importlib.util
import json
import os
import random
import socket
import subprocess
import sys
import threading
from pathlib import Path

import numpy as np
import pytest
import safetensors.torch
import timm
import torch
from PIL import Image
from timm.data import create_transform, resolve_data_config
from timm.models.vision_transformer import checkpoint_filter_fn

import vit
from vit import catalogue
from vit.architecture import Architecture
from vit.cli import main
from vit.fitting import fit
from vit.images import read
from vit.pretrained import describe, fetch, network

ROOT = Path(__file__).parents[1]
ROWS = random.Random(0).sample(
    [row for row in catalogue.rows() if int(row["parameters"] or 0) < 3e8], 6
)
# Every crop_pct, crop_mode and mean among the tags.
TAGS = [
    "vit_small_patch16_224.augreg_in1k",
    "vit_tiny_patch16_384.augreg_in21k_ft_in1k",
    "deit_tiny_patch16_224.fb_in1k",
    "vit_base_patch16_siglip_224.webli",
    "vit_base_patch32_clip_224.openai",
    "vit_base_patch32_clip_448.laion2b_ft_in12k_in1k",
    "vit_base_patch16_clip_224.laion2b_ft_in12k_in1k",
    "vit_base_patch32_clip_256.datacompxl",
    "vit_small_patch14_dinov2.lvd142m",
    "vit_betwixt_patch16_reg4_gap_256.sbb_in12k_ft_in1k",
    "eva_large_patch14_196.in22k_ft_in1k",
    "vit_large_patch14_clip_336.openai",
    "aimv2_large_patch14_224.apple_pt",
    "vit_so400m_patch14_siglip_378.webli_ft_in1k",
    "vit_base_patch16_224_miil.in21k_ft_in1k",
]


@pytest.fixture(scope="module")
def make_models():
    """The script that writes the table."""
    path = ROOT / "benchmarks" / "make_models.py"
    spec = importlib.util.spec_from_file_location("make_models", path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


def test_the_table_has_every_name_and_tag(make_models):
    known = {catalogue.full_name(row) for row in catalogue.rows()}
    tags = {
        tag for name in make_models.names() for tag in timm.models.get_arch_pretrained_cfgs(name)
    }
    assert known == tags
    assert {row["name"] for row in catalogue.rows()} == set(make_models.names())
    refused = {row["name"] for row in catalogue.rows() if row["refused"]}
    assert len(make_models.names()) - len(refused) == 173


@pytest.mark.parametrize("row", ROWS, ids=catalogue.full_name)
def test_random_rows_are_rebuilt(make_models, row):
    again = {catalogue.full_name(one): one for one in make_models.rows_of(row["name"])}
    rebuilt = {column: str(again[catalogue.full_name(row)].get(column, "")) for column in row}
    assert rebuilt == row
    assert tuple(row) == catalogue.COLUMNS


@pytest.mark.parametrize(
    "row", [row for row in ROWS if not row["refused"]], ids=catalogue.full_name
)
def test_a_row_describes_what_timm_builds_for_the_tag(row):
    with torch.device("meta"):
        module = timm.create_model(catalogue.full_name(row))
    architecture, preprocess = describe(catalogue.full_name(row))
    assert architecture == vit.pretrained.architecture_of(module)
    assert int(row["parameters"]) == sum(p.numel() for p in module.parameters())
    assert preprocess.size == module.patch_embed.img_size
    assert int(row["tokens"]) == module.patch_embed.num_patches + module.num_prefix_tokens


# --- vit models ----------------------------------------------------------------------------------


def test_models_lists_what_the_filter_asks_for(capsys):
    assert main(["models", "dinov2"]) == 0
    lines = capsys.readouterr().out.splitlines()
    assert lines[0].split()[:3] == ["name", "parameters", "gmacs"]
    assert len(lines) > 8 and all("dinov2" in line for line in lines[1:])
    [small] = [line for line in lines if "vit_small_patch14_dinov2.lvd142m" in line]
    assert small.split()[1:] == ["22.1", "M", "46.70", "518x518", "1370", "0", "apache-2.0"]
    assert main(["models", "vit_*_18x2_*", "--all"]) == 0
    assert "not supported: blocks of kind ParallelThingsBlock" in capsys.readouterr().out
    assert main(["models", "resnet50"]) == 1
    assert 'no network\'s name has "resnet50" in it' in capsys.readouterr().err


def test_models_as_csv_is_the_table(capsys):
    assert main(["models", "--csv", "--all"]) == 0
    assert capsys.readouterr().out == catalogue.FILE.read_text(encoding="utf-8")


def test_models_needs_neither_torch_nor_timm():
    """Which is why it answers at once; benchmarks/startup.py says how soon."""
    code = "import sys; from vit.cli import main; main(['models', 'clip']); print(*sys.modules)"
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    *table, loaded = done.stdout.splitlines()
    assert any("vit_base_patch16_clip_224.openai" in line for line in table)
    assert not {"torch", "timm", "lightning", "numpy", "PIL"} & set(loaded.split())


# --- Names ---------------------------------------------------------------------------------------


def test_a_name_without_tag_is_its_default():
    architecture, preprocess = describe("vit_base_patch16_224")
    assert architecture == Architecture(embed_dim=768, num_heads=12)
    config = timm.get_pretrained_cfg("vit_base_patch16_224")
    assert (preprocess.mean, preprocess.crop_pct) == (config.mean, config.crop_pct)
    changed, preprocess = describe("vit_base_patch16_224", img_size=(160, 320), num_classes=3)
    assert (changed.img_size, preprocess.size, changed.num_classes) == ((160, 320),) * 2 + (3,)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("vit_smal_patch16_224", 'no network "vit_smal.*did you mean "vit_small_patch16_224.*"'),
        ("vit_small_patch16_18x2_224", "is not supported: blocks of kind ParallelThingsBlock"),
        ("vit_large_patch16_dinov3.lvd1689m", "rotations.*vit_large_patch14_reg4_dinov2"),
        ("vit_huge_plus_patch16_dinov3", "the nearest that is supported is vit_giant_patch14_reg4"),
    ],
)
def test_other_names_are_refused(name, message):
    with pytest.raises(ValueError, match=message):
        describe(name)


def test_every_dinov3_name_has_a_nearest_that_is_supported():
    names = timm.list_models("vit_*_dinov3*")
    assert names
    for name in names:
        with pytest.raises(ValueError, match="nearest that is supported") as caught:
            vit.from_timm(name)
        describe(str(caught.value).split()[-1])


# --- Weights -------------------------------------------------------------------------------------


def small(monkeypatch, **changes) -> tuple[dict, Architecture]:
    """A small network's tensors under a name of the table."""
    a = Architecture(img_size=32, patch_size=8, embed_dim=24, depth=1, num_classes=5, **changes)
    row = catalogue.find("vit_tiny_patch16_224.augreg_in21k_ft_in1k")
    row = row | {"name": "tiny", "tag": "test", "architecture": json.dumps(a.non_defaults())}
    monkeypatch.setattr(catalogue, "rows", lambda: [row])
    torch.manual_seed(0)
    return vit.VisionTransformer(a).state_dict(), a


@pytest.mark.parametrize("wrapped", [None, "model", "state_dict"])
def test_weights_from_a_file(monkeypatch, tmp_path, wrapped):
    tensors, architecture = small(monkeypatch)
    file = tmp_path / ("a.pth" if wrapped else "a.safetensors")
    if wrapped:
        torch.save({wrapped: {"module." + k: v for k, v in tensors.items()}, "epoch": 3}, file)
    else:
        safetensors.torch.save_file(tensors, file)
    net, preprocess = network("tiny", file)
    assert net.architecture == architecture and preprocess.size == (32, 32) and not net.training
    assert all(torch.equal(tensors[name], value) for name, value in net.state_dict().items())


def test_another_size_and_head_as_timm_does_it(monkeypatch, tmp_path):
    tensors, _ = small(monkeypatch, reg_tokens=2)
    safetensors.torch.save_file(tensors, tmp_path / "a.safetensors")
    changes = {"img_size": (48, 30), "patch_size": 6, "num_classes": 7}
    net, preprocess = network("tiny", tmp_path / "a.safetensors", **changes)
    arguments = {"embed_dim": 24, "depth": 1, "num_heads": 3, "reg_tokens": 2}
    module = timm.models.VisionTransformer(**arguments | changes)
    theirs = checkpoint_filter_fn(dict(tensors), module)
    ours = net.state_dict()
    for name in ("pos_embed", "patch_embed.proj.weight", "blocks.0.attn.qkv.weight"):
        torch.testing.assert_close(ours[name], theirs[name], rtol=1e-3, atol=1e-5)
    assert ours["head.weight"].shape == (7, 24) and preprocess.size == (48, 30)
    features, _ = network("tiny", tmp_path / "a.safetensors", num_classes=0)
    assert "head.weight" not in features.state_dict()


def test_weights_that_do_not_fit_are_named(monkeypatch, tmp_path):
    tensors, _ = small(monkeypatch)
    file = tmp_path / "a.safetensors"
    tensors["more"] = tensors.pop("norm.bias")
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(ValueError, match=r"norm.bias is missing, more is unknown"):
        network("tiny", file)
    tensors["pos_embed"] = tensors["pos_embed"][:, 1:].contiguous()
    safetensors.torch.save_file(tensors, file)
    with pytest.raises(ValueError, match="16 positions, but images of 32x32 pixels need 17"):
        network("tiny", file)
    with pytest.raises(ValueError, match="there is no such file"):
        network("tiny", tmp_path / "b.pth")
    torch.save({"epoch": 3}, tmp_path / "b.pth")
    with pytest.raises(ValueError, match="holds no weights"):
        network("tiny", tmp_path / "b.pth")


def test_without_a_network_the_message_says_which_file_to_put_where(monkeypatch, tmp_path):
    monkeypatch.setenv("VIT_WEIGHTS", str(tmp_path))

    def offline(*words, **options):
        raise FileNotFoundError("no connection")

    monkeypatch.setattr(timm, "create_model", offline)
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    put = rf"get model.safetensors of timm/{name} and put it here as {tmp_path}/{name}.safetensors"
    with pytest.raises(ValueError, match=put):
        fetch(name)
    tensors = vit.VisionTransformer().state_dict()
    safetensors.torch.save_file(tensors, tmp_path / f"{name}.safetensors")
    assert torch.equal(fetch("vit_tiny_patch16_224")["pos_embed"], tensors["pos_embed"])
    with pytest.raises(ValueError, match="no weights are published"):
        fetch("vit_small_patch16_36x1_224")


@pytest.mark.full
def test_a_hub_that_cannot_be_found_is_said_once(command, tmp_path):
    """A host name that no resolver knows (RFC 2606): one line, and no minute of retries before it."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    away = {"HF_ENDPOINT": "https://hub.invalid", "HF_HOME": str(tmp_path / "hub")}
    rest = {name: value for name, value in os.environ.items() if "proxy" not in name.lower()}
    words = ("predict", tmp_path / "a.png", "--model", "timm:vit_tiny_patch16_224")
    environment = rest | away | {"VIT_WEIGHTS": str(tmp_path)}
    done = command(*words, script="vit", check=False, env=environment)
    assert done.returncode == 2
    [line] = done.stderr.splitlines()
    assert "get model.safetensors of timm/vit_tiny_patch16_224" in line
    assert f"put it here as {tmp_path}" in line


@pytest.mark.full
def test_a_proxy_that_refuses_is_no_traceback(command, tmp_path):
    """httpx, with which the hub's client asks, has errors of its own kind."""
    Image.new("RGB", (8, 8)).save(tmp_path / "a.png")
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse():
            with contextlib.suppress(OSError):  # the server is closed
                while True:
                    with server.accept()[0] as client:
                        client.recv(4096)
                        client.sendall(b"HTTP/1.1 403 Forbidden\r\nContent-Length: 0\r\n\r\n")

        threading.Thread(target=refuse, daemon=True).start()
        proxy = {"HTTPS_PROXY": f"http://127.0.0.1:{server.getsockname()[1]}"}
        here = {"HF_HOME": str(tmp_path / "hub"), "VIT_WEIGHTS": str(tmp_path)}
        words = ("predict", tmp_path / "a.png", "--model", "timm:vit_tiny_patch16_224")
        done = command(*words, script="vit", check=False, env=os.environ | proxy | here)
    assert done.returncode == 2
    assert "Traceback" not in done.stderr
    assert f"put it here as {tmp_path}" in done.stderr.splitlines()[-1]


# --- Preprocessing -------------------------------------------------------------------------------


def photo(height: int, width: int) -> Image.Image:
    """Smooth colours with some noise: as photos, and not flat."""
    generator = np.random.default_rng(height)
    coarse = generator.integers(0, 256, (9, 11, 3), np.uint8)
    image = np.asarray(Image.fromarray(coarse).resize((width, height), Image.Resampling.BICUBIC))
    noisy = image + generator.normal(0, 8, image.shape)
    return Image.fromarray(noisy.clip(0, 255).astype(np.uint8))


@pytest.mark.parametrize("name", TAGS)
def test_preprocessing_is_timms(name, tmp_path):
    config = resolve_data_config({}, pretrained_cfg=timm.get_pretrained_cfg(name).to_dict())
    theirs = create_transform(**config)
    preprocess = describe(name)[1]
    mean, std = (np.array(values).reshape(-1, 1, 1) for values in (preprocess.mean, preprocess.std))
    for size in [(300, 400), (613, 481), (97, 130)]:
        photo(*size).save(tmp_path / "a.png")
        pixels = fit(read(tmp_path / "a.png"), preprocess).pixels.transpose(2, 0, 1) / 255
        expected = theirs(Image.open(tmp_path / "a.png")).numpy() * std + mean
        assert abs(pixels - expected).max() <= 1 / 255 + 1e-6, (size, config)


def test_the_tags_differ():
    rows = [catalogue.find(name) for name in TAGS]
    assert {row["crop_mode"] for row in rows} == {row["crop_mode"] for row in catalogue.rows()}
    assert {row["crop_pct"] for row in rows} >= {row["crop_pct"] for row in catalogue.rows()}
    assert {row["mean"] for row in rows} == {row["mean"] for row in catalogue.rows()}
