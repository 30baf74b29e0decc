"""Benchmark sets: found, downloaded once, or refused with what to do, each with real files."""

import gzip
import hashlib
import shutil
import struct
import threading
from functools import partial
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path

import numpy as np
import pytest
import torch
import torchvision
from safetensors.torch import save_file

from vit.archives import SETS, Archive
from vit.pretrained import fetch
from vit.user_cache import user_cache

DEBIAN = Path("/usr/share/datasets/fashion-mnist")
FIRST_FILE = {
    "cifar10": "cifar-10-python.tar.gz (md5 c58f30108f718f92721af3b95e74349a, from https://",
    "cifar100": "cifar-100-python.tar.gz (md5 eb9058c3a382ffc7106e4002c42a8d85, from https://",
    "mnist": "train-images-idx3-ubyte.gz (md5 f68b3c2dcbeaaa9fbdd348bbdeb94873, from https://",
    "fashion_mnist": "train-images-idx3-ubyte.gz (md5 8d4fb7e6c68d591d4c3dfef9ec88bf0d, from http://",
}


@pytest.fixture
def offline(monkeypatch):
    """No connection leads anywhere, and no set is installed by the system."""
    for name in ("http_proxy", "https_proxy"):
        monkeypatch.setenv(name, "http://127.0.0.1:9")
    for name, (kind, _) in SETS.items():
        monkeypatch.setitem(SETS, name, (kind, ()))


@pytest.mark.parametrize("name", FIRST_FILE)
def test_without_a_network_the_message_says_which_file_belongs_where(name, tmp_path, offline):
    with pytest.raises(ValueError) as caught:
        Archive(name, str(tmp_path))
    message = str(caught.value)
    title, folder = {
        "cifar10": ("CIFAR10", tmp_path),
        "cifar100": ("CIFAR100", tmp_path),
        "mnist": ("MNIST", tmp_path / "MNIST" / "raw"),
        "fashion_mnist": ("FashionMNIST", tmp_path / "FashionMNIST" / "raw"),
    }[name]
    assert message.startswith(f"cannot download {title} (")
    files, number = ("this file", 1) if name.startswith("cifar") else ("these files", 4)
    assert f"put {files} into {folder} and start again: {FIRST_FILE[name]}" in message
    assert message.count("(md5 ") == number
    assert not [path for path in tmp_path.rglob("*") if path.is_file()]


@pytest.mark.parametrize("name", FIRST_FILE)
def test_a_truncated_archive_is_refused_by_its_checksum(name, tmp_path, offline):
    path = tmp_path / FIRST_FILE[name].split()[0]
    path.write_bytes(gzip.compress(b"half of it")[:-9])
    md5 = hashlib.md5(path.read_bytes()).hexdigest()
    expected = FIRST_FILE[name].split("md5 ")[1][:32]
    with pytest.raises(ValueError) as caught:
        Archive(name, str(tmp_path))
    assert str(caught.value) == (
        f"{path} is damaged: its md5 is {md5}, it should be {expected}; replace it"
    )


def test_debians_fashion_mnist_is_found(tmp_path):
    if not DEBIAN.is_dir():
        pytest.skip("Debian's package dataset-fashion-mnist is not installed")
    archive = Archive("fashion_mnist", str(tmp_path))
    with gzip.open(DEBIAN / "t10k-images-idx3-ubyte.gz") as file:
        pixels = np.frombuffer(file.read()[16:], np.uint8).reshape(-1, 28, 28)
    assert archive.count == 60_000 and np.array_equal(archive.pixels[60_000:], pixels)
    label = archive.labelled()[60_000]
    assert label == ("60000", "Ankle boot", "test")
    assert np.array_equal(np.asarray(archive.open("60000").image)[..., 2], pixels[0])


def idx(values: np.ndarray) -> bytes:
    """Unsigned bytes in the format of the MNIST files, compressed."""
    head = struct.pack(f">HBB{values.ndim}I", 0, 8, values.ndim, *values.shape)
    return gzip.compress(head + values.astype(np.uint8).tobytes())


@pytest.fixture
def served(tmp_path, monkeypatch):
    """A small set of MNIST's kind on a web server of its own: (its files, their md5)."""
    random, folder = np.random.default_rng(0), tmp_path / "served"
    folder.mkdir()
    content = {}
    for part, count in (("train", 5), ("t10k", 3)):
        content[f"{part}-images-idx3-ubyte.gz"] = idx(random.integers(0, 256, (count, 28, 28)))
        content[f"{part}-labels-idx1-ubyte.gz"] = idx(np.arange(count))
    for name, data in content.items():
        (folder / name).write_bytes(data)
    server = ThreadingHTTPServer(
        ("127.0.0.1", 0), partial(SimpleHTTPRequestHandler, directory=str(folder))
    )
    threading.Thread(target=server.serve_forever, daemon=True).start()

    class Small(torchvision.datasets.MNIST):
        mirrors = (f"http://127.0.0.1:{server.server_port}/",)
        resources = tuple((n, hashlib.md5(d).hexdigest()) for n, d in content.items())

    monkeypatch.setenv("no_proxy", "127.0.0.1")
    monkeypatch.setattr(torchvision.datasets, "Small", Small, raising=False)
    monkeypatch.setitem(SETS, "mnist", ("Small", ()))
    yield folder
    server.shutdown()
    server.server_close()


def test_downloaded_once(tmp_path, served, caplog):
    caplog.set_level("INFO", "vit")
    first = Archive("mnist", str(tmp_path / "data"))
    assert "downloading Small to" in caplog.text
    shutil.rmtree(served)  # the second time nothing is asked of the server
    second = Archive("mnist", str(tmp_path / "data"))
    assert first.pixels.shape == (8, 28, 28) and first.count == 5
    assert np.array_equal(first.pixels, second.pixels)
    assert not list(tmp_path.rglob("*.part"))


def test_archives_put_there_by_hand_are_used(tmp_path, served, caplog):
    caplog.set_level("INFO", "vit")
    shutil.copytree(served, tmp_path / "data")
    assert Archive("mnist", str(tmp_path / "data")).pixels.shape == (8, 28, 28)
    assert "downloading" not in caplog.text


def test_a_download_that_is_cut_off_leaves_nothing(tmp_path, served):
    path = served / "t10k-labels-idx1-ubyte.gz"
    path.write_bytes(path.read_bytes()[:-4])
    with pytest.raises(ValueError, match=r"gave a file with md5 .* it should be .*; try again"):
        Archive("mnist", str(tmp_path / "data"))
    assert not [p for p in (tmp_path / "data").rglob("*") if p.name.startswith("t10k-labels")]


def test_the_cache_is_the_users(monkeypatch, tmp_path):
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert user_cache() == tmp_path / "vit"


def test_weights_belong_into_the_users_cache_too(monkeypatch, tmp_path):
    name = "vit_tiny_patch16_224.augreg_in21k_ft_in1k"
    (tmp_path / "vit").mkdir()
    kept = {"head.bias": torch.arange(3.0)}
    save_file(kept, tmp_path / "vit" / f"{name}.safetensors")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.delenv("VIT_WEIGHTS", raising=False)
    assert torch.equal(fetch(name)["head.bias"], kept["head.bias"])
