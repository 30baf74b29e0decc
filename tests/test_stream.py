"""Photos streamed by workers: the same bits with any number of them, and after any interruption."""

import os
import pickle
import signal
import subprocess
import sys
import time
from pathlib import Path

import numpy as np
import pytest
import torch
from PIL import Image

from vit import config as settings
from vit import datasets, runs
from vit.commands import train
from vit.data import ImageData
from vit.datasets import Folder
from vit.fitting import Preprocess, fit
from vit.images import read
from vit.loaders import EvalLoader, Part, TrainLoader, mix
from vit.opener import random_box
from vit.settings import Data
from vit.stream import Stream, StreamedPart

SIZE = Preprocess(size=(12, 16))  # height and width differ
CROP = (0.2, 1.0)


def ramp(height: int, width: int) -> Image.Image:
    """Red rises from left to right, green from top to bottom, both from 0 to 255."""
    y, x = np.mgrid[:height, :width]
    pixels = np.stack([(x + 0.5) / width, (y + 0.5) / height, 0 * x], 2) * 255
    return Image.fromarray(pixels.round().astype(np.uint8))


@pytest.fixture(scope="module")
def photos(tmp_path_factory) -> Path:
    """Two classes of photos of many sizes and formats, one of them lying on its side."""
    root = tmp_path_factory.mktemp("photos")
    for k, label in enumerate("ab"):
        (root / label).mkdir()
        for i in range(9):
            height, width = 20 + 17 * i, 130 - 11 * i
            noise = np.random.default_rng(100 * k + i).integers(0, 50, (height, width, 3))
            pixels = np.asarray(ramp(height, width)) // 2 + noise.astype(np.uint8)
            kind = ("jpg", "png", "webp")[i % 3]
            image, exif = Image.fromarray(pixels), Image.Exif()
            exif[274] = 6 if i == 3 else 1
            image.convert("L" if i == 4 else "RGB").save(root / label / f"{i}.{kind}", exif=exif)
    return root


def streamed(root, crop=None, workers=0, **options) -> StreamedPart:
    folder = Folder(root)
    stream = Stream(folder, SIZE, crop, workers, **options)
    return StreamedPart(stream, folder.items(), ["a", "b"])


def batches(part, first=0, epoch=3, batch_size=5, rank=0, world_size=1, weights=None):
    """The training batches of an epoch from the first one on, and the loader."""
    position = (epoch, first)
    loader = TrainLoader(part, batch_size, 7, lambda: position, rank, world_size, weights)
    return [(images.clone(), labels) for images, labels in loader]


def same(one, two) -> bool:
    return len(one) == len(two) and all(
        torch.equal(a, b) for x, y in zip(one, two, strict=True) for a, b in zip(x, y, strict=True)
    )


@pytest.mark.parametrize("how", ["crop", "pad", "squash"])
def test_without_a_crop_pixels_are_those_of_fit(photos, how):
    preprocess = Preprocess(size=(12, 16), fit=how)
    folder = Folder(photos)
    items = folder.items()
    part = StreamedPart(Stream(folder, preprocess), items, ["a", "b"])
    numbers, labels = [], []
    for images, batch_labels, rows in EvalLoader(part, 4):
        for image, row in zip(images, rows.tolist(), strict=True):
            photo = read(photos / items[row].id, at_least=preprocess.resized)
            expected = torch.from_numpy(fit(photo, preprocess).pixels).permute(2, 0, 1)
            assert torch.equal(image, expected)
        numbers += rows.tolist()
        labels += batch_labels.tolist()
    assert numbers == list(range(18))
    assert labels == [0] * 9 + [1] * 9


@pytest.mark.parametrize("crop", [None, CROP])
def test_any_number_of_workers_gives_the_same_bits(photos, crop):
    alone = batches(streamed(photos, crop))
    assert len(alone) == 3
    for workers in (1, 2):
        part = streamed(photos, crop, workers)
        assert same(batches(part), alone)
        assert same(batches(part, first=1), alone[1:])  # by the same workers, begun anew
        part.stream.close()


@pytest.mark.full  # a fresh Python imports torch first
def test_spawned_workers_give_the_same_bits(photos):
    part = streamed(photos, CROP, 1, context="spawn")
    assert same(batches(part), batches(streamed(photos, CROP)))
    part.stream.close()


def test_held_and_streamed_parts_are_the_same(photos):
    folder = Folder(photos)
    held = Part.read(folder, folder.items(), ["a", "b"], SIZE)
    part = streamed(photos)
    assert same(batches(part), batches(held))
    assert same(list(EvalLoader(part, 5)), list(EvalLoader(held, 5)))
    rows = torch.tensor([17, 0, 4])
    assert torch.equal(part.pixels(rows), held.pixels(rows))
    assert torch.equal(part.labels, held.labels)


def crops(part, **options) -> dict[int, list[torch.Tensor]]:
    """The crops of each image in an epoch, by its number."""
    weights = options.get("weights")
    loader = TrainLoader(part, 18, 7, None, weights=weights)
    found = {}
    numbers = [row % 18 for row in loader.draws(options.get("epoch", 3)).tolist()]
    images = torch.cat([images for images, _ in batches(part, **options)])
    for row, image in zip(numbers, images, strict=False):
        found.setdefault(row, []).append(image)
    return found


def test_a_crop_follows_from_seed_epoch_and_image_alone(photos):
    part = streamed(photos, CROP)
    one = crops(part, batch_size=18)
    small = crops(part, batch_size=3)
    assert all(torch.equal(one[row][0], small[row][0]) for row in range(18))
    other = crops(part, batch_size=18, epoch=4)
    assert not any(torch.equal(one[row][0], other[row][0]) for row in range(18))


def test_an_image_drawn_twice_in_an_epoch_is_cropped_twice(photos):
    weights = torch.zeros(18)
    weights[[3, 11]] = 1.0
    part = streamed(photos, CROP)
    found = crops(part, batch_size=18, weights=weights)
    assert set(found) == {3, 11}
    for images in found.values():
        different = {image.numpy().tobytes() for image in images}
        assert len(different) == len(images) > 3
    assert same(batches(part, 2, weights=weights), batches(part, weights=weights)[2:])


def test_processes_share_the_batches_of_a_stream(photos):
    together = batches(streamed(photos, CROP), batch_size=6)
    apart = [batches(streamed(photos, CROP), batch_size=3, rank=r, world_size=2) for r in (0, 1)]
    for (images, _), (even, _), (odd, _) in zip(together, *apart, strict=True):
        assert torch.equal(images[0::2], even)
        assert torch.equal(images[1::2], odd)


@pytest.mark.parametrize("orientation", [1, 6, 3, 8])
def test_a_crop_shows_the_part_of_the_photo_that_was_drawn(tmp_path, orientation):
    """A photo whose colours are its coordinates, larger than needed, upright and turned."""
    stored = ramp(900, 1500).rotate({1: 0, 6: 90, 3: 180, 8: 270}[orientation], expand=True)
    exif = Image.Exif()
    exif[274] = orientation
    (tmp_path / "a").mkdir()
    stored.save(tmp_path / "a" / "x.jpg", quality=95, subsampling=0, exif=exif)
    part = streamed(tmp_path, (0.05, 0.6))
    decoded = set()
    for draw in range(12):
        image = part.pixels(torch.tensor([draw]), (0, 0))[0].double()
        # The formula on its own: the colours of a linear ramp at the crop's pixel centres.
        top, left, tall, wide = random_box(900, 1500, (0.05, 0.6), mix(0, 0, draw))
        x = (left + (torch.arange(16) + 0.5) / 16 * wide) / 1500 * 255
        y = (top + (torch.arange(12) + 0.5) / 12 * tall) / 900 * 255
        assert (image[0, 1:-1, 1:-1] - x[None, 1:-1]).abs().max() < 4
        assert (image[1, 1:-1, 1:-1] - y[1:-1, None]).abs().max() < 4
        assert 0.04 < tall * wide / (900 * 1500) < 0.61
        decoded.add((top, left))
    assert len(decoded) == 12


def test_a_small_crop_is_decoded_large_enough(tmp_path):
    """Fine stripes inside a hundredth of the area stay visible; the whole photo is reduced."""
    sizes = []

    class Watching(Folder):
        def open(self, item, at_least):
            photo = super().open(item, at_least)
            sizes.append((photo.image.size, photo.width))
            return photo

    (tmp_path / "a").mkdir()
    ramp(1600, 1600).save(tmp_path / "a" / "x.jpg")
    folder = Watching(tmp_path)
    for area in ((0.01, 0.01), (1.0, 1.0)):
        part = StreamedPart(
            Stream(folder, Preprocess(size=(100, 100)), area), folder.items(), ["a"]
        )
        part.pixels(torch.tensor([0]), (0, 0))
    (small, full), (whole, _) = sizes
    assert full == 1600
    assert small == (1600, 1600)
    assert whole == (400, 400)


def test_a_photo_that_has_gone_stops_with_its_name(photos, tmp_path):
    for workers in (0, 1):
        root = tmp_path / str(workers)
        (root / "a").mkdir(parents=True)
        for i in range(6):
            ramp(20, 20).save(root / "a" / f"{i}.png")
        part = streamed(root, None, workers)
        (root / "a" / "3.png").unlink()
        with pytest.raises(OSError, match=r"a/3\.png: No such file.*changed since"):
            list(EvalLoader(part, 2))
        part.stream.close()


def test_a_photo_that_has_changed_stops_with_its_name(tmp_path):
    (tmp_path / "a").mkdir()
    path = tmp_path / "a" / "x.jpg"
    ramp(200, 200).save(path)
    part = streamed(tmp_path, None)
    folder = Folder(tmp_path)
    path.write_bytes(path.read_bytes()[:700])
    with pytest.raises(OSError, match=r"x\.jpg: image file is truncated.*changed since"):
        list(EvalLoader(part, 1))
    with pytest.raises(OSError, match=r"x\.jpg: image file is truncated.*changed since"):
        Part.read(folder, folder.items(), ["a"], SIZE)


def test_one_iteration_at_a_time_and_any_may_be_left(photos):
    part = streamed(photos, CROP, 2)
    whole = batches(streamed(photos, CROP))
    left = part.batches(torch.arange(18).split(2), (7, 3))
    next(left)
    assert same(batches(part), whole)  # what the workers had begun is not taken for it
    with pytest.raises(RuntimeError, match="one iteration at a time"):
        next(left)
    part.stream.close()
    assert same(batches(part), whole)  # new workers
    part.stream.close()


def test_workers_leave_signals_to_the_training(photos):
    """Ctrl-C goes to all processes of a terminal; what follows still needs its photos."""
    part = streamed(photos, None, 2)
    expected = batches(streamed(photos))
    loading = iter(TrainLoader(part, 2, 7, lambda: (3, 0)))
    next(loading)
    workers = part.stream.opener.doing[:, 0]
    while not workers.all():  # one may not have begun yet; process 0 would be our whole group
        time.sleep(0.01)
    for pid in workers.tolist():
        os.kill(pid, signal.SIGINT)
        os.kill(pid, signal.SIGTERM)
    assert len(list(loading)) == 8
    assert same(batches(part), expected)
    part.stream.close()


def test_everyones_generator_is_left_alone(photos):
    torch.manual_seed(5)
    expected = torch.rand(3)
    torch.manual_seed(5)
    batches(streamed(photos, CROP))
    assert torch.equal(torch.rand(3), expected)


def test_what_workers_get_can_be_pickled(photos):
    opener = streamed(photos, CROP).stream.opener
    again = pickle.loads(pickle.dumps(opener))
    item = opener.source.items()[0]
    assert np.array_equal(again.pixels(item, (1, 2, 3)), opener.pixels(item, (1, 2, 3)))


class Deadly(Folder):
    """Kills the process that opens the fifth photo, as a decoder's fault would."""

    def open(self, item, at_least):
        if item.id == "a/4.png":
            os.kill(os.getpid(), signal.SIGKILL)
        return super().open(item, at_least)


@pytest.mark.full  # PyTorch looks after its workers every five seconds
def test_a_worker_that_dies_names_its_photo(photos):
    folder = Deadly(photos)
    part = StreamedPart(Stream(folder, SIZE, None, 2), folder.items(), ["a", "b"])
    with pytest.raises(OSError, match=r"process that opens photos died at .*a/4\.png: .*--data\.w"):
        list(EvalLoader(part, 3))
    part.stream.close()


@pytest.mark.full
def test_a_worker_that_is_killed_while_it_waits_is_told_of(photos):
    part = streamed(photos, None, 1)
    loading = iter(EvalLoader(part, 9))
    next(loading)
    next(loading)
    os.kill(int(part.stream.opener.doing[0, 0]), signal.SIGKILL)
    with pytest.raises(OSError, match=r"a process that opens photos died: .*/dev/shm"):
        list(EvalLoader(part, 9))
    part.stream.close()


def data_of(root, size=224, **changes) -> ImageData:
    made = ImageData(
        Data(source="folder", root=str(root), **changes), Preprocess(size=(size, size)), 0
    )
    made.scan()
    return made


def test_what_is_held_and_what_is_streamed(photos, monkeypatch):
    assert data_of(photos).config.resident is True
    assert data_of(photos, resident=False).config.resident is False
    assert data_of(photos, random_resized_crop=(0.3, 1)).config.resident is False
    assert data_of(photos, random_resized_crop=(0.3, 1), resident=True).config.resident is True
    monkeypatch.setattr("vit.data.BUDGET", 18 * 3 * 224 * 224)
    assert data_of(photos).config.resident is True
    assert data_of(photos, 225).config.resident is False
    digits = ImageData(Data(random_resized_crop=(0.3, 1)), Preprocess(size=(8, 8)), 0)
    digits.scan()
    assert digits.config.resident is True


def test_only_held_images_are_cropped_in_batches(photos):
    from vit.augment import Augment

    augment = Augment(random_resized_crop=(0.3, 1), flip=0.5)
    held = data_of(photos, random_resized_crop=(0.3, 1), resident=True)
    assert held.on_device(augment) == augment
    streamed = data_of(photos, random_resized_crop=(0.3, 1))
    assert streamed.on_device(augment) == Augment(flip=0.5)


@pytest.mark.parametrize(
    ("cores", "processes", "workers"), [(1, 1, 1), (2, 1, 1), (8, 1, 7), (8, 2, 3), (64, 1, 16)]
)
def test_the_rule_for_workers(photos, monkeypatch, cores, processes, workers):
    monkeypatch.setattr("vit.data.default_workers", lambda: cores)
    assert data_of(photos).workers(processes) == workers
    assert data_of(photos, workers=5).workers(processes) == 5


def test_the_start_says_where_pixels_come_from(photos):
    assert data_of(photos).storage(1) == "images held in memory"
    for workers, words in ((0, "this process"), (1, "1 worker"), (2, "2 workers")):
        made = data_of(photos, resident=False, workers=workers)
        assert made.storage(1) == f"images opened by {words}"


def test_settings_that_cannot_be_are_refused():
    with pytest.raises(ValueError, match=r"data\.workers \(-1\) must be at least 0"):
        settings.load("quickstart", {"data.workers": "-1"})
    with pytest.raises(ValueError, match=r"data\.resident: expected one of auto or true or false"):
        settings.load("quickstart", {"data.resident": "sometimes"})
    assert settings.load("quickstart", {"data.resident": "yes"}).data.resident is True
    assert settings.load("quickstart", {"data.resident": "no"}).data.resident is False


TINY = {
    "data.source": "folder",
    "data.batch_size": 4,
    "data.val_share": 0.25,
    "data.flip": 0.5,
    "data.rotate": 0,
    "data.translate": 0,
    "model.img_size": [12, 16],
    "model.patch_size": 4,
    "model.embed_dim": 16,
    "model.depth": 1,
    "model.num_heads": 2,
    "optim.epochs": 2,
    "optim.average_decay": 0.9,
    "run.name": "tiny",
    "run.pictures": False,
}


def tiny(root, photos, **changes) -> settings.Config:
    changes = {key.replace("__", "."): value for key, value in changes.items()}
    own = {"data.root": str(photos), "run.root": str(root)}
    return settings.load("quickstart", TINY | own | changes)


def state(run: train.Run) -> dict[str, torch.Tensor]:
    path = run.path / "checkpoints" / "last.ckpt"
    return torch.load(path, weights_only=True)["state_dict"]


def equal(one: train.Run, two: train.Run) -> bool:
    tables = [(run.path / "metrics.csv").read_bytes() for run in (one, two)]
    a, b = state(one), state(two)
    return tables[0] == tables[1] and all(torch.equal(a[name], b[name]) for name in a)


def test_training_streamed_equals_training_held(photos, tmp_path):
    held, streamed = (
        train.start(tiny(tmp_path, photos, data__resident=resident, data__workers=1))
        for resident in (True, False)
    )
    assert equal(held, streamed)
    assert held.summary["val"] == streamed.summary["val"]
    for run, resident in ((held, True), (streamed, False)):
        assert settings.load(str(run.path / "config.yaml")).data.resident is resident
        shares = [float(row["waiting"]) for row in runs.read(run.path / "timing.csv")]
        assert len(shares) == 2
        assert all(0 <= share < 1 for share in shares)


def test_stopped_and_resumed_streaming_equals_uninterrupted(photos, tmp_path):
    from lightning.pytorch import Callback

    from vit.callbacks import Stopped

    class Strike(Callback):
        def on_train_batch_end(self, trainer, module, out, batch, batch_idx):
            if (trainer.current_epoch, batch_idx) == (1, 1):
                os.kill(os.getpid(), signal.SIGTERM)

    crop = {"data__random_resized_crop": "[0.3, 1]", "data__batch_size": 2}
    whole = train.start(tiny(tmp_path, photos, data__workers=0, **crop))
    config = tiny(tmp_path, photos, data__workers=2, **crop)
    parts = train.assemble(config, runs.create(tmp_path, "tiny"))
    parts.trainer.callbacks.insert(0, Strike())
    with pytest.raises(Stopped):
        parts.trainer.fit(parts.classifier, parts.data)
    resumed = train.resume(str(parts.folder.path))
    assert equal(whole, resumed)


def test_pictures_open_a_few_photos_alone(tmp_path, monkeypatch):
    for label, shade in (("a", 60), ("b", 160)):
        (tmp_path / "photos" / label).mkdir(parents=True)
        for i in range(120):
            image = Image.new("RGB", (16, 12), (shade, i, 0))
            image.save(tmp_path / "photos" / label / f"{i}.png")
    opened, original = [], datasets.Folder.open

    def spy(self, item, at_least):
        opened.append(item.id)
        return original(self, item, at_least)

    monkeypatch.setattr(datasets.Folder, "open", spy)  # of this process, not of the worker
    changes = {"data__val_share": 0.5, "data__workers": 1, "data__resident": False}
    changes |= {"run__pictures": True, "optim__epochs": 1}
    run = train.start(tiny(tmp_path, tmp_path / "photos", **changes))
    assert {"batch.png", "mistakes.png", "attention.png"} <= {p.name for p in run.path.iterdir()}
    assert 32 < len(opened) <= 32 + 24 + 12


KILL = [
    "--data.source",
    "folder",
    "--data.random_resized_crop",
    "[0.3, 1]",
    "--data.batch_size",
    "2",
]
KILL += ["--model.img_size", "16", "--model.patch_size", "4", "--optim.epochs", "3"]
KILL += ["--run.checkpoint_steps", "2", "--data.val_share", "0.25", "--run.pictures", "false"]


@pytest.mark.full
@pytest.mark.parametrize("saves", [2, 6])
def test_killed_streaming_resumes_to_the_same_bits(photos, tmp_path, command, saves):
    words = [*KILL, "--data.root", str(photos)]
    command(*words, "--data.workers", 0, "--run.root", tmp_path / "whole")
    start = [sys.executable, "train.py", *words, "--data.workers", "2", "--run.root", str(tmp_path)]
    process = subprocess.Popen(start, cwd=Path(__file__).parents[1], stdout=subprocess.DEVNULL)
    folder, seen = tmp_path / "quickstart" / "1", set()
    while len(seen) < saves:
        assert process.poll() is None, "the run ended before it could be killed"
        if (folder / "checkpoints" / "last.ckpt").exists():
            seen.add((folder / "checkpoints" / "last.ckpt").stat().st_mtime_ns)
    process.send_signal(signal.SIGKILL)
    process.wait()
    assert not (folder / "summary.json").exists()
    command("--resume", folder)
    whole = train.Run(tmp_path / "whole" / "quickstart" / "1", {})
    assert equal(whole, train.Run(folder, {}))


PEAK = """
import resource, sys
from vit.cli import train
assert train(sys.argv[1:]) == 0
print(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.full
def test_memory_does_not_grow_with_the_set(tmp_path, command):
    """Peaks of whole trainings on 300 and on 3,000 photos, as pixels 15 and 150 MB."""
    peaks = []
    for count in (300, 3000):
        root = tmp_path / str(count)
        for label, shade in (("a", 60), ("b", 160)):
            (root / label).mkdir(parents=True)
            for i in range(count // 2):
                image = Image.new("RGB", (140, 120), (shade, i % 256, i // 256))
                image.save(root / label / f"{i}.jpg")
        words = ["--data.source", "folder", "--data.root", root, "--data.resident", "no"]
        words += ["--data.batch_size", 50, "--data.workers", 1, "--data.val_share", 0.3]
        words += ["--model.img_size", 128, "--model.patch_size", 64, "--model.embed_dim", 16]
        words += ["--model.depth", 1, "--model.num_heads", 1, "--optim.epochs", 1]
        words += ["--run.root", tmp_path / "runs"]
        done = subprocess.run(
            [sys.executable, "-c", PEAK, *map(str, words)],
            cwd=Path(__file__).parents[1],
            capture_output=True,
            text=True,
            check=True,
        )
        peaks.append(int(done.stdout.split()[-1]))
    assert peaks[1] < 1.1 * peaks[0], peaks
