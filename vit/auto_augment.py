"""What automatic augmentation draws: an operation and a strength for every image.

TrivialAugment (Müller and Hutter 2021, arXiv:2103.10158), RandAugment (Cubuk et al. 2020,
arXiv:1909.13719), 3-Augment (Touvron et al. 2022, DeiT III, arXiv:2204.07118) and colour jitter
differ only in this; `image_operations.apply_operations` does what was drawn. Strengths are in its
units. Draws are made on the CPU with torch's global generator: the same on every device.

Letters: B images; height and width are pixels.
"""

import functools

import torch

from vit.image_operations import INDEX, OPERATIONS

NUM_DRAWN = 14  # TrivialAugment and RandAugment draw from all OPERATIONS but the blur
NUM_BINS = 31  # strengths per operation
FACTORS = ("brightness", "contrast", "color", "sharpness")
_SIGNED = torch.tensor(
    [name in FACTORS or name.startswith(("shear", "trans", "rot")) for name in OPERATIONS]
)


@functools.lru_cache(maxsize=64)
def strength_table(policy: str, height: int, width: int) -> torch.Tensor:
    """(14, 31): the strength of each operation in each bin, before its sign.

    Args:
        policy: "trivial" (the wide space, TrivialAugment's) or "rand" (AutoAugment's).
        height: of the images; translations of "rand" are shares of the side.
        width: the same.
    """
    wide = policy == "trivial"
    side = 150 / 331  # AutoAugment shifts images of 331 pixels by up to 150
    largest = {
        **dict.fromkeys(("shear_x", "shear_y"), 0.99 if wide else 0.3),
        "translate_x": 32 if wide else side * width,
        "translate_y": 32 if wide else side * height,
        "rotate": 135 if wide else 30,
        **dict.fromkeys(FACTORS, 0.99 if wide else 0.9),
    }
    table = torch.zeros(NUM_DRAWN, NUM_BINS, device="cpu")
    for name, end in largest.items():
        table[INDEX[name]] = torch.linspace(0, end, NUM_BINS, device="cpu")
    dropped = torch.arange(NUM_BINS, device="cpu") / ((NUM_BINS - 1) / (6 if wide else 4))
    table[INDEX["posterize"]] = (8 - dropped).round()
    table[INDEX["solarize"]] = torch.linspace(1, 0, NUM_BINS, device="cpu")
    return table


def draw_trivial(batch: int, height: int, width: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> operation (B,), strength (B,); operation, bin and sign are uniform (algorithm 1)."""
    return _draw(batch, strength_table("trivial", height, width))


def draw_rand(
    batch: int, height: int, width: int, magnitude: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """-> operation (B,), strength (B,) of one step: bin `magnitude`, operation and sign uniform."""
    table = strength_table("rand", height, width)
    return _draw(batch, table[:, magnitude : magnitude + 1])


def _draw(batch, table):
    operation = torch.randint(len(table), (batch,), device="cpu")
    level = torch.randint(table.shape[1], (batch,), device="cpu")
    sign = torch.randint(2, (batch,), device="cpu") * 2 - 1
    strength = table[operation, level]
    return operation, torch.where(_SIGNED[operation], strength * sign, strength)


def draw_three(batch: int) -> tuple[torch.Tensor, torch.Tensor]:
    """-> operation (B,), strength (B,): greyscale, solarize from 128 or blur, a third each.

    Greyscale is color of factor 0. Sigma is uniform in 0.1 to 2 pixels, as in DeiT III's code.
    """
    operations = torch.tensor([INDEX[name] for name in ("color", "solarize", "gaussian_blur")])
    kind = torch.randint(3, (batch,), device="cpu")
    sigma = 0.1 + 1.9 * torch.rand(batch, device="cpu")
    fixed = torch.tensor([-1, 128 / 255, 0], device="cpu")[kind]
    return operations[kind], torch.where(kind == 2, sigma, fixed)


def draw_jitter(batch: int, jitter: float) -> tuple[torch.Tensor, torch.Tensor]:
    """-> operation (3, B), strength (3, B): brightness, contrast, color in a random order.

    Args:
        jitter: the three factors are uniform in max(0, 1 - jitter) to 1 + jitter.
    """
    operations = torch.tensor([INDEX[name] for name in ("brightness", "contrast", "color")])
    order = torch.rand(3, batch, device="cpu").argsort(0)
    low = -min(1.0, jitter)
    return operations[order], low + (jitter - low) * torch.rand(3, batch, device="cpu")
