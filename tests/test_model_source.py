"""A model by its name, its file or its weights: the network meant, with its classes."""

import copy

import pytest
import timm
import torch
from safetensors.torch import save_file
from timm.data import ImageNetInfo

import vit
from vit import class_names
from vit.fitting import Preprocess
from vit.model_source import open_model

NAME = "vit_tiny_patch16_224"
TAG = "augreg_in21k_ft_in1k"


@pytest.fixture(scope="module")
def thousand() -> torch.nn.Module:
    torch.manual_seed(0)
    return timm.create_model(NAME).eval()


def with_classes(module: torch.nn.Module, number: int) -> torch.nn.Module:
    module = copy.deepcopy(module)
    module.reset_classifier(number)
    return module


def same(ours, theirs, side=224) -> None:
    images = torch.randn(1, 3, side, side)
    with torch.inference_mode():
        torch.testing.assert_close(ours.net(images), theirs(images), atol=1e-5, rtol=1e-5)


def test_a_published_name_whose_file_is_here(thousand, tmp_path, monkeypatch):
    save_file(thousand.state_dict(), tmp_path / f"{NAME}.{TAG}.safetensors")
    monkeypatch.setenv("VIT_WEIGHTS", str(tmp_path))
    for name in (f"timm:{NAME}", f"timm:{NAME}.{TAG}"):
        model = open_model(name)
        same(model, thousand)
        assert (len(model.classes), model.classes[207]) == (1000, "golden retriever")
        assert model.preprocess.size == (224, 224)
        assert (model.preprocess.mean, model.preprocess.crop_pct) == ((0.5, 0.5, 0.5), 0.9)
    smaller = vit.load(f"timm:{NAME}", img_size=96)
    assert (smaller.preprocess.size, smaller.net.grid_size) == ((96, 96), (6, 6))
    with pytest.raises(ValueError, match=r"--architecture \(x\) goes with a file"):
        open_model(f"timm:{NAME}", "x")


@pytest.mark.parametrize("ending", ["safetensors", "pth"])
def test_bare_weights_with_the_name_of_their_architecture(thousand, tmp_path, ending):
    theirs = with_classes(thousand, 3)
    path = tmp_path / f"weights.{ending}"
    save = save_file if ending == "safetensors" else torch.save
    save(theirs.state_dict(), path)
    model = open_model(path, NAME)
    same(model, theirs)
    assert model.classes == ["0", "1", "2"]
    with pytest.raises(ValueError, match="does not say of which network: add --architecture NAME"):
        open_model(path)
    with pytest.raises(ValueError, match='no network "vit_tiny_patch16_225" is known'):
        open_model(path, "vit_tiny_patch16_225")
    with pytest.raises(ValueError, match="do not fit this network"):
        open_model(path, "vit_small_patch16_224")


def test_a_thousand_classes_are_taken_for_imagenets_and_it_is_said(thousand, tmp_path, caplog):
    path = tmp_path / "weights.safetensors"
    save_file(thousand.state_dict(), path)
    with caplog.at_level("INFO"):
        assert open_model(path, NAME).classes[207] == "golden retriever"
    assert "names no classes: its 1,000 are taken for ImageNet's" in caplog.text


def test_bare_weights_keep_their_own_size(tmp_path):
    theirs = timm.create_model(NAME, img_size=64, num_classes=3).eval()
    save_file(theirs.state_dict(), tmp_path / "weights.safetensors")
    model = open_model(tmp_path / "weights.safetensors", NAME)
    assert (model.preprocess.size, model.net.grid_size) == ((64, 64), (4, 4))
    same(model, theirs, 64)


def test_weights_without_a_head_have_no_classes(thousand, tmp_path):
    theirs = with_classes(thousand, 0)
    path = tmp_path / "weights.safetensors"
    save_file(theirs.state_dict(), path, metadata={"architecture": NAME})
    model = open_model(path, NAME)
    same(model, theirs)
    assert model.classes == []
    same(open_model(path), theirs)  # the file itself names it
    with pytest.raises(ValueError, match="no classes, only features: `vit attend`"):
        model.predict([])


def test_a_model_of_ours_at_another_size(tmp_path):
    net = vit.VisionTransformer(
        img_size=32, patch_size=8, embed_dim=24, depth=1, num_heads=3, num_classes=2
    )
    vit.save(tmp_path / "model.safetensors", net, ["a", "b"], Preprocess((32, 32)), 2.0)
    model = open_model(tmp_path, img_size=(32, 64))
    assert (model.preprocess.size, model.net.grid_size) == ((32, 64), (4, 8))
    assert (model.classes, model.temperature) == (["a", "b"], 2.0)
    assert torch.equal(model.net.head.weight, net.head.weight)
    with pytest.raises(ValueError, match=r"--architecture \(x\) is not needed: .* says what it is"):
        open_model(tmp_path, "x")
    with pytest.raises(ValueError, match="no model at"):
        open_model(tmp_path / "none")


def test_imagenet_names_stand_in_the_order_of_the_head():
    """Each is among the lemmas of the synset that timm has at its place; two are told apart by more."""
    names = class_names.published_classes(1000)
    lemmas = ImageNetInfo("imagenet-1k").label_descriptions()
    differing = [name for name, words in zip(names, lemmas, strict=True) if name not in words]
    assert differing == ["crane bird", "maillot tank suit"]
    assert len(set(names)) == 1000


@pytest.mark.parametrize(
    ("number", "place", "name"), [(21843, 2, "heterotroph"), (11821, 1, "cell")]
)
def test_larger_imagenets(number, place, name):
    names = class_names.published_classes(number, "augreg_in21k")
    assert (len(names), len(set(names)), names[place]) == (number, number, name)


def test_what_has_no_names():
    assert class_names.published_classes(3) == ["0", "1", "2"]
    assert class_names.published_classes(115217, "bamboo")[-1] == "115216"
    assert class_names.published_classes(512, "openai") == []  # coordinates
    assert class_names.published_classes(0) == []
