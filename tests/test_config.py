"""Settings: packaged files, overrides, and the message for each misuse."""

import pytest
import yaml

from vit import config, config_files


def refused(name="quickstart", **overrides) -> str:
    with pytest.raises(ValueError) as caught:
        config.load(name, {key.replace("__", "."): value for key, value in overrides.items()})
    message = str(caught.value)
    assert "\n" not in message
    return message


def test_values_come_from_the_file_and_then_the_command_line(tmp_path):
    path = tmp_path / "mine.yaml"
    path.write_text("optim: {lr: 0.5, epochs: 7}\nmodel: {img_size: [16, 24]}\n", encoding="utf-8")
    loaded = config.load(str(path), {"optim.epochs": "9", "trainer.devices": "2"})
    assert (loaded.optim.lr, loaded.optim.epochs) == (0.5, 9)
    assert (loaded.model.img_size, loaded.trainer) == ((16, 24), {"devices": 2})
    assert loaded.run.name == "mine"
    assert loaded.data == config.Data()


def test_what_is_saved_loads_as_the_same(tmp_path):
    first = config.load("quickstart", {"model.patch_size": "[2, 4]", "trainer.devices": 1})
    (tmp_path / "config.yaml").write_text(config.as_yaml(first), encoding="utf-8")
    assert config.load(str(tmp_path / "config.yaml")) == first


@pytest.mark.parametrize(
    "path", sorted(config_files.packaged()[0].glob("*.yaml")), ids=lambda path: path.stem
)
def test_every_packaged_configuration_loads(path):
    loaded = config.load(path.stem)
    assert loaded.run.name == path.stem
    assert set(yaml.safe_load(path.read_text())) <= {"data", "model", "optim", "run", "trainer"}


@pytest.mark.parametrize(
    ("setting", "value", "words"),
    [
        (
            "optim__lrr",
            1,
            'unknown setting "optim.lrr" in the command line; did you mean "optim.lr"?',
        ),
        ("epocs", 1, 'did you mean "optim.epochs"?'),
        ("lr", 1, 'did you mean "optim.lr"?'),
        ("optim__lr", "fast", "optim.lr: expected a number or null, got fast"),
        ("optim__lr", "", "optim.lr: expected a number or null, got nothing"),
        ("data__root", "photos", "photos need --data.source folder"),
        ("run__name", "../x", "must be the name of a folder, not a path"),
        ("optim__epochs", "1.5", "optim.epochs: expected a whole number, got 1.5"),
        (
            "data__source",
            "imagenet",
            "data.source: expected one of digits, cifar10, cifar100, mnist, fashion_mnist, folder, got",
        ),
        (
            "model__class_token",
            "maybe",
            "model.class_token: expected true or false or null, got maybe",
        ),
        ("model__img_size", "big", "expected a whole number or [height, width] or null, got big"),
        ("data__val_share", "1", "data.val_share (1.0) must be at least 0 and below 1"),
        ("data__batch_size", "0", "data.batch_size (0) must be at least 1"),
        ("optim__average_decay", "1", "optim.average_decay (1.0) must be at least 0 and below 1"),
        ("optim__epochs", "0", "optim.epochs (0) must be at least 1"),
        ("run__seed", "-1", "run.seed (-1) must be at least 0"),
        ("trainer__devces", 1, 'unknown setting "trainer.devces"; did you mean "trainer.devices"?'),
        ("trainer__max_steps", 1, "trainer.max_steps is not supported: training goes by whole"),
        ("trainer__max_epochs", 1, "trainer.max_epochs is decided by optim.epochs; set that"),
    ],
)
def test_misuse_is_named_with_its_cure(setting, value, words):
    assert words in refused(**{setting: value})


def test_unknown_configuration_and_broken_files(tmp_path):
    assert 'did you mean "quickstart"?' in refused("quikstart")
    path = tmp_path / "a.yaml"
    for text, words in [
        ("optim: {lrr: 1}", 'unknown setting "optim.lrr" in '),
        ("a: [", "is not YAML"),
        ("- 1", "must hold the sections"),
        ("? [a, b]\n: 1", "is not YAML: while constructing a mapping"),
        ("trainer: 2", "trainer must hold names and values"),
        ("optim: 3", "unknown setting"),
        ("optim: {lr: fast}", "optim.lr: expected a number or null, got fast"),
    ]:
        path.write_text(text)
        assert words in refused(str(path))


def test_every_setting_has_a_help_text():
    assert set(config.help_texts()) == set(config.keys()) - {"trainer"}
    assert all(config.help_texts().values())
