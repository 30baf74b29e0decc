"""Images per second of augmentation: ours in batches beside torchvision's per image, in one run.

    [VIT_TEST_DATA=/path/to/shared] python benchmarks/augment.py [--rounds 5]

Both get the same uint8 images of 32x32 in memory, shuffled, in batches of 128 on the CPU, and give
uint8 batches: pad-crop 4, flip, then TrivialAugment wide or RandAugment (2 operations, magnitude
9). Ours runs in this process, on two threads and on one. torchvision's v2 transforms run in a
DataLoader with two workers that stay alive, once on uint8 tensors and once on PIL images, the two
inputs that its documentation recommends; the faster is what the ratios compare with. All alternate,
so that another load on the machine meets each of them, though not alike: two threads wait for each
other at every step, so a busy core costs them more than it costs workers. Real images are
CIFAR-10's, as JPEG copy.
"""

import argparse
import io
import os
import platform
import statistics
import sys
import tarfile
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path

os.environ.setdefault("GOMP_SPINCOUNT", "1000")  # as vit/cli.py does; read when torch is imported

import torch
import torchvision
from PIL import Image
from torch.utils.data import DataLoader, Dataset, RandomSampler
from torchvision.transforms import v2

sys.path.insert(0, str(Path(__file__).parents[1]))
from vit.augment import Augment

BATCH, IMAGES, WORKERS = 128, 2000, 2
THEIR_PASS, OUR_PASS = 8_000, 40_000  # images timed per round: about a second each
THREADS = {"ours, 2 threads": 2, "ours, 1 thread": 1}
POLICIES = {
    "TrivialAugment": (Augment(pad_crop=4, flip=0.5, policy="trivial"), v2.TrivialAugmentWide()),
    "RandAugment": (Augment(pad_crop=4, flip=0.5, policy="rand"), v2.RandAugment(2, 9)),
}


class PerImage(Dataset):
    """One augmented image at a time, as torchvision's reference scripts do it."""

    def __init__(self, images: list, transform: Callable):
        self.images, self.transform = images, transform

    def __len__(self) -> int:
        return len(self.images)

    def __getitem__(self, index: int) -> torch.Tensor:
        return self.transform(self.images[index])


def read_images() -> tuple[torch.Tensor, str]:
    """-> uint8 (IMAGES, 3, 32, 32) and where they are from."""
    folder = os.environ.get("VIT_TEST_DATA")
    if folder is None:
        images = torch.randint(0, 256, (IMAGES, 3, 32, 32), dtype=torch.uint8)
        return images, "random bytes (VIT_TEST_DATA is not set)"
    images = []
    with tarfile.open(Path(folder) / "data" / "cifar10_jpeg.tar.xz", "r|xz") as archive:
        for member in archive:
            if member.isfile():
                photo = Image.open(io.BytesIO(archive.extractfile(member).read())).convert("RGB")
                images.append(v2.functional.pil_to_tensor(photo))
            if len(images) == IMAGES:
                break
    return torch.stack(images), "CIFAR-10, JPEG copy"


def our_batches(images: torch.Tensor, augment: Augment, threads: int) -> Iterator[torch.Tensor]:
    torch.set_num_threads(threads)
    for index in torch.randint(len(images), (OUR_PASS // BATCH, BATCH)):
        yield augment(images[index])


def their_loader(images: list, policy: Callable) -> DataLoader:
    steps = [v2.RandomCrop(32, padding=4), v2.RandomHorizontalFlip(), policy]
    if isinstance(images[0], Image.Image):
        steps.append(v2.PILToTensor())
    dataset = PerImage(images, v2.Compose(steps))
    return DataLoader(
        dataset,
        batch_size=BATCH,
        sampler=RandomSampler(dataset, replacement=True, num_samples=THEIR_PASS),
        num_workers=WORKERS,
        persistent_workers=True,
    )


def rate(batches: Iterable[torch.Tensor]) -> float:
    """Images per second, the start of an epoch included, that of the workers not."""
    start, count = time.perf_counter(), 0
    for batch in batches:
        count += len(batch)
    return count / (time.perf_counter() - start)


def compare(name: str, images: torch.Tensor, rounds: int) -> None:
    """Prints the rates of each round, then medians and ratios."""
    augment, policy = POLICIES[name]
    loaders = {
        "torchvision, tensors": their_loader(list(images), policy),
        "torchvision, PIL": their_loader([v2.functional.to_pil_image(i) for i in images], policy),
    }
    rates: dict[str, list[float]] = {key: [] for key in (*THREADS, *loaders)}
    for number in range(rounds + 1):
        for key, threads in THREADS.items():
            rates[key].append(rate(our_batches(images, augment, threads)))
        for key, loader in loaders.items():
            rates[key].append(rate(loader))
        row = "; ".join(f"{key} {values[-1]:,.0f}" for key, values in rates.items())
        print(f"{name} {f'round {number}' if number else 'warm-up'}: {row} images/s", flush=True)
    rates = {key: values[1:] for key, values in rates.items()}
    best = max(loaders, key=lambda key: statistics.median(rates[key]))
    for key in THREADS:
        ratios = [ours / other for ours, other in zip(rates[key], rates[best], strict=True)]
        print(
            f"{name}: {key} {statistics.median(rates[key]):,.0f}, {best} "
            f"{statistics.median(rates[best]):,.0f} images/s (medians); ratio "
            f"{statistics.median(ratios):.1f} (median; {min(ratios):.1f} to {max(ratios):.1f})"
        )


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    torch.manual_seed(0)
    images, source = read_images()
    print(
        f"{len(images)} images 32x32: {source}; batch {BATCH}; torchvision with {WORKERS} "
        f"workers; {os.cpu_count()} cores ({platform.machine()}); torch "
        f"{torch.__version__}, torchvision {torchvision.__version__}, Python "
        f"{platform.python_version()}\n"
    )
    for name in POLICIES:
        compare(name, images, rounds)


if __name__ == "__main__":
    main()
