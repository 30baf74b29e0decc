"""Augmentation against torchvision (operation by operation, and in distribution), and properties.

Equality is exact but where the last bit of float32 decides: geometric operations where a source
coordinate lies half-way between two pixels; blends that are whole numbers, which are then cut to
that number or to the one below; rounded means half-way between two levels.
"""

import math
from collections import Counter

import pytest
import torch
from torchvision.transforms import v2
from torchvision.transforms.v2 import functional as TF

from vit.augment import (
    CROP_RATIO,
    Augment,
    erase,
    flip,
    pad_crop,
    random_boxes,
    resized_crop,
    rotate,
)
from vit.auto_augment import draw_jitter, draw_rand, draw_three, draw_trivial, strength_table
from vit.image_operations import GEOMETRY, INDEX, OPERATIONS, apply_operations
from vit.mixing import mixup_cutmix

POLICIES = {"trivial": v2.TrivialAugmentWide, "rand": v2.RandAugment}
THEIR_NAMES = {
    "identity": "Identity",
    "shear_x": "ShearX",
    "shear_y": "ShearY",
    "translate_x": "TranslateX",
    "translate_y": "TranslateY",
    "rotate": "Rotate",
    "brightness": "Brightness",
    "contrast": "Contrast",
    "posterize": "Posterize",
    "solarize": "Solarize",
    "autocontrast": "AutoContrast",
    "equalize": "Equalize",
    "color": "Color",
    "sharpness": "Sharpness",
}
BLENDS = ("contrast", "color", "sharpness")
SIZES = [(32, 32), (37, 22)]


@pytest.fixture(autouse=True)
def _seed():
    torch.manual_seed(0)


@pytest.fixture(autouse=True, scope="module")
def _one_thread():
    """Thousands of tiny calls: on a busy machine threads would wait for each other in each."""
    threads = torch.get_num_threads()
    torch.set_num_threads(1)
    yield
    torch.set_num_threads(threads)


def noise(*shape: int) -> torch.Tensor:
    return torch.randint(0, 256, shape, dtype=torch.uint8)


def photo(height: int, width: int) -> torch.Tensor:
    """(3, height, width): smooth shapes, a little noise, part of it grey and part of it flat."""
    coarse = torch.rand(1, 3, 4, 4) * 300 - 20
    image = torch.nn.functional.interpolate(coarse, (height, width), mode="bicubic")[0]
    image = image + torch.randn(3, height, width) * 6
    image[:, : height // 3] = image[:1, : height // 3]
    image[:, -3:, :5] = 90
    return image.clamp(0, 255).to(torch.uint8)


def theirs(image: torch.Tensor, name: str, strength: float) -> torch.Tensor:
    """torchvision's operation, called as TrivialAugmentWide and RandAugment call it."""
    affine = {"angle": 0.0, "translate": [0, 0], "scale": 1.0, "shear": [0.0, 0.0]}
    shear = math.degrees(math.atan(strength))
    calls = {
        "identity": lambda: image,
        "shear_x": lambda: TF.affine(image, **affine | {"shear": [shear, 0.0]}, center=[0, 0]),
        "shear_y": lambda: TF.affine(image, **affine | {"shear": [0.0, shear]}, center=[0, 0]),
        "translate_x": lambda: TF.affine(image, **affine | {"translate": [int(strength), 0]}),
        "translate_y": lambda: TF.affine(image, **affine | {"translate": [0, int(strength)]}),
        "rotate": lambda: TF.rotate(image, strength),
        "brightness": lambda: TF.adjust_brightness(image, 1 + strength),
        "contrast": lambda: TF.adjust_contrast(image, 1 + strength),
        "posterize": lambda: TF.posterize(image, int(strength)),
        "solarize": lambda: TF.solarize(image, 255.0 * strength),
        "autocontrast": lambda: TF.autocontrast(image),
        "equalize": lambda: TF.equalize(image),
        "color": lambda: TF.adjust_saturation(image, 1 + strength),
        "sharpness": lambda: TF.adjust_sharpness(image, 1 + strength),
    }
    return calls[name]()


def their_strengths(policy: str, name: str, height: int, width: int) -> list[float]:
    """Every strength the policy may use, both signs, read from torchvision's own table."""
    bins, signed = POLICIES[policy]._AUGMENTATION_SPACE[THEIR_NAMES[name]]
    values = bins(31, height, width)
    values = [0.0] if values is None else [float(value) for value in values]
    return values + [-value for value in values] if signed else values


def same(name: str, count: int) -> torch.Tensor:
    return torch.full((count,), INDEX[name])


def blends_round_alike() -> bool:
    """Whether torchvision's blend, `add_(other, alpha=factor)`, rounds here as addcmul does.

    Where the CPU has a fused multiply-add both use it, but for the last few values of an array,
    which torch handles apart.
    """
    base, other, factor = torch.rand(1024), torch.rand(1024), torch.rand(1)
    return torch.equal(base.add(other, alpha=factor.item()), base.addcmul(other, factor))


def half_way(name: str, strength: float, height: int, width: int) -> torch.Tensor:
    """(height, width): whether a source coordinate is within 1e-4 of the edge between two pixels.

    There the nearest pixel hangs on the last bit of float32 arithmetic, in torchvision as here.
    """
    y, x = torch.meshgrid(
        torch.arange(height, dtype=torch.float64) + 0.5,
        torch.arange(width, dtype=torch.float64) + 0.5,
        indexing="ij",
    )
    if name == "shear_x":
        x = x + strength * y
    elif name == "shear_y":
        y = y + strength * x
    elif name == "rotate":
        angle = math.radians(strength)
        right, down = x - width / 2, y - height / 2
        x = width / 2 + math.cos(angle) * right - math.sin(angle) * down
        y = height / 2 + math.sin(angle) * right + math.cos(angle) * down
    return torch.minimum((x - x.round()).abs(), (y - y.round()).abs()) < 1e-4


# --- operation by operation -----------------------------------------------------------------------


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("policy", POLICIES)
def test_strengths_are_those_of_torchvision(policy, size):
    table = strength_table(policy, *size)
    assert len(table) == len(THEIR_NAMES)
    for name in THEIR_NAMES:
        expected = torch.tensor(their_strengths(policy, name, *size)[:31])
        assert torch.equal(table[INDEX[name]], expected.expand(31)), name


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("name", [name for name in THEIR_NAMES if name not in GEOMETRY])
def test_colour_operation_equals_torchvision_at_every_strength(name, size):
    strengths = [s for policy in POLICIES for s in their_strengths(policy, name, *size)]
    flat = photo(*size)
    flat[1] = 200
    for image in (photo(*size), noise(3, *size), noise(1, *size).expand(3, -1, -1), flat):
        batch = image.expand(len(strengths), -1, -1, -1)
        ours = apply_operations(batch, same(name, len(strengths)), torch.tensor(strengths))
        expected = torch.stack([theirs(image, name, s) for s in strengths])
        if name in BLENDS:
            off = (ours.int() - expected.int()).abs()
            assert off.max() <= 1
            assert (off > 0).float().mean() < 1e-4 or not blends_round_alike()
        else:
            assert torch.equal(ours, expected)
        if name not in ("identity", "autocontrast"):  # noise has full contrast already
            assert not torch.equal(ours, batch)


@pytest.mark.parametrize("size", [*SIZES, (80, 67)])
@pytest.mark.parametrize("name", GEOMETRY)
def test_geometric_operation_equals_torchvision_at_every_strength(name, size):
    strengths = [s for policy in POLICIES for s in their_strengths(policy, name, *size)]
    image = noise(3, *size)
    batch = image.expand(len(strengths), -1, -1, -1)
    ours = apply_operations(batch, same(name, len(strengths)), torch.tensor(strengths))
    undecided = 0
    for strength, changed in zip(strengths, ours, strict=True):
        differs = (changed != theirs(image, name, strength)).any(0)
        if differs.any():  # never for translations, whose coordinates are whole
            assert name.startswith(("shear", "rotate"))
            assert not (differs & ~half_way(name, strength, *size)).any(), strength
            undecided += int(differs.sum())
    assert undecided < 1e-3 * ours[:, 0].numel()


@pytest.mark.parametrize("side", [1, 2, 3])
def test_images_of_a_few_pixels_are_handled_as_by_torchvision(side):
    image = noise(3, side, 4)
    for name in THEIR_NAMES:
        strength = {"posterize": 0.0, "solarize": 0.5}.get(name, 0.57)
        changed = apply_operations(image[None], same(name, 1), torch.tensor([strength]))[0]
        off = (changed.int() - theirs(image, name, strength).int()).abs().max()
        assert off <= (1 if name in BLENDS else 0), name


def rounds(ours: torch.Tensor, exact: torch.Tensor) -> bool:
    """Whether uint8 `ours` is float `exact` rounded, float32's own errors granted."""
    return bool((ours - exact).abs().max() < 0.5 + 0.005)


@pytest.mark.parametrize("size", [(32, 32), (9, 14)])
def test_blur_equals_torchvision_rounded(size):
    image, sigmas = photo(*size), [0.1, 0.5, 1.0, 1.7, 2.0]
    batch = image.expand(len(sigmas), -1, -1, -1)
    ours = apply_operations(batch, same("gaussian_blur", len(sigmas)), torch.tensor(sigmas))
    expected = [TF.gaussian_blur(image.float(), [13, 13], [sigma, sigma]) for sigma in sigmas]
    assert rounds(ours, torch.stack(expected))


def test_an_image_does_not_depend_on_the_others():
    count = 4 * len(OPERATIONS)
    operation = torch.randperm(count) % len(OPERATIONS)
    strength = torch.rand(count) + 0.1
    images = noise(count, 3, 20, 26)
    together = apply_operations(images, operation, strength)
    for i in range(count):
        alone = apply_operations(images[i : i + 1], operation[i : i + 1], strength[i : i + 1])
        assert torch.equal(together[i], alone[0]), OPERATIONS[operation[i]]


# --- what is drawn --------------------------------------------------------------------------------


def chi_square(counts: torch.Tensor, shares: torch.Tensor) -> float:
    expected = counts.sum() * shares / shares.sum()
    return float(((counts - expected) ** 2 / expected).sum())


def bound(cells: int) -> float:
    """Exceeded by chance once in more than 10,000 times (Wilson and Hilferty's approximation)."""
    free = cells - 1
    return free * (1 - 2 / (9 * free) + 3.8 * math.sqrt(2 / (9 * free))) ** 3


def counts_fit(values: torch.Tensor, cells: int) -> bool:
    counts = torch.bincount(values, minlength=cells).double()
    return len(counts) == cells and chi_square(counts, torch.ones(cells)) < bound(cells)


def test_trivial_draws_operation_strength_and_sign_uniformly():
    operation, strength = draw_trivial(10_000, 32, 32)
    assert counts_fit(operation, 14)
    table = strength_table("trivial", 32, 32)
    graded = [name for name in THEIR_NAMES if len(table[INDEX[name]].unique()) == 31]
    bins = []
    for name in graded:
        chosen = strength[operation == INDEX[name]]
        bins.append((chosen.abs()[:, None] - table[INDEX[name]]).abs().argmin(1))
    assert len(graded) == 10
    assert counts_fit(torch.cat(bins), 31)
    signed = [n for n in THEIR_NAMES if min(their_strengths("trivial", n, 32, 32)) < 0]
    chosen = torch.isin(operation, torch.tensor([INDEX[name] for name in signed]))
    assert (strength[~chosen] >= 0).all()
    signs = strength[chosen & (strength != 0)]
    assert counts_fit((signs > 0).long(), 2)


def test_rand_draws_one_strength_with_both_signs():
    operation, strength = draw_rand(10_000, 30, 40, 9)
    assert counts_fit(operation, 14)
    for name in THEIR_NAMES:
        possible = their_strengths("rand", name, 30, 40)
        expected = {possible[9 if len(possible) > 1 else 0]}
        if min(possible) < 0:
            expected |= {-value for value in expected}
        assert set(strength[operation == INDEX[name]].tolist()) == expected, name
    assert counts_fit((strength[operation == INDEX["rotate"]] > 0).long(), 2)


@pytest.mark.parametrize("policy", POLICIES)
def test_results_are_distributed_as_torchvisions(policy):
    """10,000 copies of an image; the shares of all results that torchvision's policy can have."""
    image, count = noise(3, 16, 16), 10_000
    results, shares = [], []
    for name in THEIR_NAMES:
        strengths = their_strengths(policy, name, 16, 16)
        if policy == "rand":
            strengths = strengths[9::31] or strengths
        results += [theirs(image, name, strength).flatten() for strength in strengths]
        shares += [1 / 14 / len(strengths)] * len(strengths)
    possible, cell = torch.stack(results).unique(dim=0, return_inverse=True)
    shares = torch.zeros(len(possible)).index_add(0, cell, torch.tensor(shares))
    assert (shares * count > 5).all()
    ours = Augment(policy=policy, num_ops=1)(image.expand(count, -1, -1, -1)).flatten(1)
    ours, times = ours.unique(dim=0, return_counts=True)
    off, cell = torch.cdist(ours.float(), possible.float(), p=1).min(1)
    assert (off <= 768).all()  # one level per value; 0 but for the last bits named at the top
    counts = torch.zeros(len(possible)).index_add(0, cell, times.float())
    assert chi_square(counts, shares) < bound(len(possible))


def test_three_is_greyscale_solarize_or_blur():
    operation, strength = draw_three(3_000)
    names = ("color", "solarize", "gaussian_blur")
    kinds = torch.tensor([INDEX[name] for name in names])
    assert counts_fit((operation[:, None] == kinds).int().argmax(1), 3)
    sigma = strength[operation == INDEX["gaussian_blur"]]
    assert 0.1 <= sigma.min() < 0.12
    assert 1.98 < sigma.max() <= 2
    images = noise(3_000, 3, 8, 8)
    changed = apply_operations(images, operation, strength)
    grey, solarized = (operation == INDEX[name] for name in names[:2])
    assert torch.equal(changed[grey], TF.rgb_to_grayscale(images[grey], 3))
    assert torch.equal(changed[solarized], TF.solarize(images[solarized], 128))


def test_jitter_draws_every_order_and_the_full_range():
    operation, strength = draw_jitter(6_000, 0.3)
    assert (operation.sort(0).values == operation.unique()[:, None]).all()
    orders = Counter(tuple(column) for column in operation.T.tolist())
    assert len(orders) == 6
    assert chi_square(torch.tensor([float(n) for n in orders.values()]), torch.ones(6)) < bound(6)
    assert -0.3 <= strength.min() < -0.29
    assert 0.29 < strength.max() <= 0.3
    assert draw_jitter(1_000, 1.5)[1].min() >= -1  # factors never fall below 0


@pytest.mark.parametrize(
    ("augment", "draw"),
    [
        (Augment(policy="trivial"), lambda: [draw_trivial(40, 18, 25)]),
        (
            Augment(policy="rand", num_ops=3, magnitude=14),
            lambda: [draw_rand(40, 18, 25, 14) for _ in range(3)],
        ),
        (Augment(policy="three"), lambda: [draw_three(40)]),
        (Augment(colour_jitter=0.4), lambda: list(zip(*draw_jitter(40, 0.4), strict=True))),
    ],
)
def test_policy_applies_what_is_drawn_step_by_step(augment, draw):
    images = noise(40, 3, 18, 25)
    torch.manual_seed(7)
    expected = images
    for operation, strength in draw():
        expected = apply_operations(expected, operation, strength)
    torch.manual_seed(7)
    assert torch.equal(augment(images), expected)


# --- crops, flips, turns, erasing -----------------------------------------------------------------


def test_pad_crop_equals_torchvision():
    images, pad = noise(30, 3, 12, 17), 5
    top, left = torch.randint(2 * pad + 1, (2, 30))
    ours = pad_crop(images, pad, top, left)
    for i in range(30):
        padded = TF.pad(images[i], [pad])
        assert torch.equal(ours[i], TF.crop(padded, int(top[i]), int(left[i]), 12, 17))


def test_pad_crop_draws_every_place_evenly():
    """A lone bright pixel in the middle tells where the window was."""
    images = torch.zeros(10_000, 3, 7, 9, dtype=torch.uint8)
    images[:, :, 3, 4] = 255
    _, _, y, x = Augment(pad_crop=2)(images)[:, :1].nonzero().unbind(1)
    assert counts_fit((y - 1) * 5 + (x - 2), 25)


def test_flip_equals_torchvision_for_the_chosen_only():
    images, flipped = noise(31, 3, 6, 9), torch.rand(31) < 0.5
    expected = [TF.horizontal_flip(i) if f else i for i, f in zip(images, flipped, strict=True)]
    assert torch.equal(flip(images, flipped), torch.stack(expected))


def test_flip_happens_as_often_as_asked():
    images = noise(1, 3, 4, 4).expand(10_000, -1, -1, -1)
    changed = (Augment(flip=0.3)(images) != images).flatten(1).any(1)
    counts = torch.tensor([float(changed.sum()), float((~changed).sum())])
    assert chi_square(counts, torch.tensor([0.3, 0.7])) < bound(2)


@pytest.mark.parametrize("size", SIZES)
def test_rotate_equals_torchvision_rounded(size):
    image = photo(*size)
    degrees = torch.rand(20) * 90 - 45
    right, down = torch.rand(2, 20) * 10 - 5
    ours = rotate(image.expand(20, -1, -1, -1), degrees, right, down)
    for i in range(20):
        expected = TF.affine(
            image.float(),
            angle=float(degrees[i]),
            translate=[float(right[i]), float(down[i])],
            scale=1.0,
            shear=[0.0, 0.0],
            interpolation=v2.InterpolationMode.BILINEAR,
        )
        assert rounds(ours[i], expected)


def centroid(images: torch.Tensor) -> tuple[torch.Tensor, torch.Tensor]:
    """(B, 3, height, width) -> y, x (B,) of the brightness, pixels from the image's centre."""
    light = images[:, 0].double()
    height, width = light.shape[1:]
    y = torch.arange(height) - (height - 1) / 2
    x = torch.arange(width) - (width - 1) / 2
    total = light.sum((1, 2))
    return (light.sum(2) * y).sum(1) / total, (light.sum(1) * x).sum(1) / total


def test_translate_moves_by_a_share_of_its_own_side_in_both_directions():
    images = torch.zeros(2_000, 3, 20, 40, dtype=torch.uint8)
    images[:, :, 9:11, 19:21] = 200
    for moved, side in zip(centroid(Augment(translate=0.2)(images)), (20, 40), strict=True):
        assert -0.2 <= moved.min() / side < -0.19
        assert 0.19 < moved.max() / side <= 0.2


def test_rotate_turns_about_the_centre_up_to_the_angle_in_both_directions():
    images = torch.zeros(2_000, 3, 41, 61, dtype=torch.uint8)
    images[:, :, 19:22, 44:47] = 200
    y, x = centroid(Augment(rotate=15)(images))
    angle = torch.atan2(y, x).rad2deg()
    assert -15.3 < angle.min() < -14.5
    assert 14.5 < angle.max() < 15.3
    assert (torch.hypot(y, x) - 15).abs().max() < 0.1


@pytest.mark.parametrize("size", SIZES)
def test_resized_crop_equals_torchvision_rounded(size):
    image = photo(*size)
    boxes = random_boxes(25, *size, area=(0.05, 1), ratio=CROP_RATIO)
    boxes[:, 0] = torch.tensor([0, 0, *size])
    boxes[:, 1] = torch.tensor([5, 3, 1, 1])
    ours = resized_crop(image.expand(25, -1, -1, -1), boxes)
    assert torch.equal(ours[0], image)
    for i in range(25):
        box = boxes[:, i].tolist()
        assert rounds(ours[i], TF.resized_crop(image.float(), *box, size=list(size)))


def test_boxes_are_distributed_as_torchvisions():
    ours = random_boxes(5_000, 30, 50, area=(0.08, 1), ratio=CROP_RATIO).double()
    their = (
        torch.tensor(
            [
                v2.RandomResizedCrop(30, scale=(0.08, 1)).make_params([torch.empty(3, 30, 50)])[key]
                for _ in range(1_500)
                for key in ("top", "left", "height", "width")
            ],
            dtype=torch.float64,
        )
        .view(-1, 4)
        .T
    )
    for mine, other in zip(ours, their, strict=True):
        error = other.std() * math.sqrt(1 / len(mine) + 1 / len(other))
        assert abs(mine.mean() - other.mean()) < 4 * error
        assert mine.std() == pytest.approx(float(other.std()), rel=0.1)


def test_boxes_are_everywhere_equally_often():
    top, left, tall, wide = random_boxes(5_000, 10, 14, area=(16 / 140, 16 / 140), ratio=(1, 1))
    assert (tall == 4).all() and (wide == 4).all()
    assert counts_fit(top, 7)
    assert counts_fit(left, 11)


@pytest.mark.parametrize("size", [(30, 50), (8, 100), (3, 3), (1, 1)])
def test_boxes_stay_inside_and_keep_their_area_and_ratio(size):
    height, width = size
    area, ratio = (0.1, 0.4), (0.5, 2.0)
    top, left, tall, wide = random_boxes(3_000, *size, area=area, ratio=ratio)
    assert (top >= 0).all() and (left >= 0).all() and (tall >= 1).all() and (wide >= 1).all()
    assert (top + tall <= height).all() and (left + wide <= width).all()
    rounding = (tall + wide + 1) / 2
    assert (tall * wide <= area[1] * height * width + rounding).all()
    if size == (30, 50):
        assert (tall * wide >= area[0] * height * width - rounding).all()
        assert (wide + 0.5 >= 0.5 * (tall - 0.5)).all() and (wide - 0.5 <= 2 * (tall + 0.5)).all()
        assert tall.unique().numel() > 15 and wide.unique().numel() > 15


def test_erase_fills_the_box_with_noise_and_nothing_else():
    images = noise(1, 3, 40, 60).expand(50, -1, -1, -1)
    boxes = torch.tensor([[4], [10], [20], [30]]).repeat(1, 50)
    boxes[:, 1::2] = 0
    erased = erase(images, boxes)
    assert torch.equal(erased[1::2], images[1::2])
    inside = erased[::2, :, 4:24, 10:40]
    assert counts_fit(inside.flatten().long(), 256)
    assert not torch.equal(inside[0], inside[1])
    erased[::2, :, 4:24, 10:40] = images[::2, :, 4:24, 10:40]
    assert torch.equal(erased, images)


def test_erasing_happens_as_often_and_as_large_as_documented():
    images = noise(1, 3, 32, 48).expand(3_000, -1, -1, -1)
    changed = (Augment(erase=0.25)(images) != images).any(1)  # (B, height, width)
    hit = changed.flatten(1).any(1)
    counts = torch.tensor([float(hit.sum()), float((~hit).sum())])
    assert chi_square(counts, torch.tensor([0.25, 0.75])) < bound(2)
    area = changed.flatten(1).double().mean(1)[hit]
    assert 0.015 < area.min() < 0.03
    assert 0.31 < area.max() < 0.35


# --- the whole ------------------------------------------------------------------------------------

EVERYTHING = {
    "random_resized_crop": (0.3, 1.0),
    "pad_crop": 3,
    "flip": 0.5,
    "rotate": 10.0,
    "translate": 0.1,
    "policy": "trivial",
    "colour_jitter": 0.2,
    "erase": 0.5,
}


def test_everything_off_returns_the_images_themselves():
    images = noise(4, 3, 8, 8)
    assert Augment()(images) is images


@pytest.mark.parametrize("key", EVERYTHING)
def test_a_single_setting_is_not_off(key):
    images = noise(16, 3, 16, 12)
    assert not torch.equal(Augment(**{key: EVERYTHING[key]})(images), images)


@pytest.mark.parametrize("batch", [0, 1, 2, 9])
@pytest.mark.parametrize("policy", ["trivial", "rand", "three"])
def test_any_batch_keeps_shape_type_and_layout_and_its_input(policy, batch):
    images = noise(batch, 3, 14, 23)
    before = images.clone()
    changed = Augment(**EVERYTHING | {"policy": policy})(images)
    assert changed.shape == images.shape
    assert changed.dtype == torch.uint8
    assert changed.is_contiguous()
    assert torch.equal(images, before)


def test_memory_layout_does_not_matter():
    images = noise(12, 3, 14, 23)
    augment = Augment(**EVERYTHING)
    torch.manual_seed(3)
    expected = augment(images)
    torch.manual_seed(3)
    assert torch.equal(augment(images.to(memory_format=torch.channels_last)), expected)


def test_seed_decides_and_images_draw_apart():
    images, augment = noise(1, 3, 16, 16).expand(24, -1, -1, -1), Augment(**EVERYTHING)
    results = []
    for seed in (5, 5, 6):
        torch.manual_seed(seed)
        results.append(augment(images))
    assert torch.equal(results[0], results[1])
    assert not torch.equal(results[0], results[2])
    assert len({one.numpy().tobytes() for one in results[0]}) == 24


@pytest.mark.parametrize("policy", ["trivial", "rand", "three"])
def test_autocast_changes_nothing(policy):
    """A training step augments within autocast, which would round coordinates to bfloat16."""
    images, augment = noise(40, 3, 48, 48), Augment(**EVERYTHING | {"policy": policy})
    torch.manual_seed(2)
    expected = augment(images)
    torch.manual_seed(2)
    with torch.autocast("cpu", torch.bfloat16):
        assert torch.equal(augment(images), expected)


# --- mixup and cutmix -----------------------------------------------------------------------------


@pytest.mark.parametrize("batch", [1, 2, 7, 8])
@pytest.mark.parametrize("alphas", [(0.8, 0.0), (0.0, 1.0), (0.8, 1.0)])
def test_mixed_targets_sum_to_one_for_any_batch(batch, alphas):
    images, labels = torch.randn(batch, 3, 10, 15), torch.arange(batch) % 5
    mixed, targets = mixup_cutmix(images, labels, mixup=alphas[0], cutmix=alphas[1], num_classes=5)
    assert mixed.shape == images.shape and mixed.dtype == images.dtype
    assert targets.shape == (batch, 5)
    assert (targets >= 0).all()
    assert torch.allclose(targets.sum(1), torch.ones(batch))
    if batch == 1:
        assert torch.equal(mixed, images)
        assert torch.equal(targets, torch.nn.functional.one_hot(labels, 5).float())


def own_and_other(batch: int, **alphas: float):
    """-> images, mixed, the image before each, and the share of its own that the target says."""
    images = torch.randn(batch, 3, 12, 18)
    mixed, targets = mixup_cutmix(images, torch.eye(batch), **alphas)
    before = (torch.arange(batch) - 1) % batch
    share = targets.diagonal()
    assert torch.allclose(targets[torch.arange(batch), before], 1 - share)
    return images, mixed, images[before], share


def test_mixup_is_the_weighted_mean_that_the_targets_say():
    images, mixed, other, share = own_and_other(9, mixup=0.8)
    share = share[:, None, None, None]
    assert torch.allclose(mixed, share * images + (1 - share) * other, atol=1e-6)
    assert share.unique().numel() == 9


def test_cutmix_targets_say_the_share_of_pixels_really_kept():
    images, mixed, other, share = own_and_other(60, cutmix=1.0)
    kept = (mixed == images).all(1)  # (B, height, width)
    assert (kept | (mixed == other).all(1)).all()
    assert torch.allclose(kept.flatten(1).float().mean(1), share)
    assert share.min() < 0.5 and share.max() > 0.9
    for pasted in ~kept:  # one box
        rows, columns = pasted.any(1), pasted.any(0)
        assert torch.equal(pasted, rows[:, None] & columns)
        for line in (rows, columns):
            assert (line.int().diff() == 1).sum() + line[0].int() <= 1


def test_cutmix_shares_are_distributed_as_torchvisions():
    images, labels = torch.zeros(2, 3, 12, 18), torch.tensor([0, 1])
    cutmix = v2.CutMix(alpha=0.7, num_classes=2)
    their = torch.stack([cutmix(images, labels)[1][0, 0] for _ in range(1_500)])
    _, targets = mixup_cutmix(
        torch.zeros(4_000, 1, 12, 18), torch.arange(4_000) % 2, cutmix=0.7, num_classes=2
    )
    ours = targets.gather(1, (torch.arange(4_000) % 2)[:, None])[:, 0]
    error = their.std() * math.sqrt(1 / 1_500 + 1 / 4_000)
    assert abs(ours.mean() - their.mean()) < 4 * error
    assert ours.std() == pytest.approx(float(their.std()), rel=0.1)


def test_mixup_shares_follow_the_beta_distribution():
    alpha, batch = 0.4, 4_000
    _, targets = mixup_cutmix(
        torch.zeros(batch, 1, 1, 1), torch.arange(batch) % 2, mixup=alpha, num_classes=2
    )
    share = targets[::2, 0]
    variance = 1 / (4 * (2 * alpha + 1))
    assert share.mean() == pytest.approx(0.5, abs=4 * math.sqrt(variance / len(share)))
    assert share.var() == pytest.approx(variance, rel=0.1)


def test_with_both_on_half_of_the_images_are_cut_and_each_kind_has_its_own_alpha():
    images = torch.rand(6_000, 1, 20, 20)
    mixed, targets = mixup_cutmix(
        images, torch.arange(6_000) % 2, mixup=0.5, cutmix=9.0, num_classes=2
    )
    cut = ((mixed == images) | (mixed == images.roll(1, 0))).flatten(1).all(1)
    share = targets.gather(1, (torch.arange(6_000) % 2)[:, None])[:, 0]
    assert counts_fit(cut.long(), 2)
    assert share[~cut].std() > 0.32  # Beta(0.5): 0.35
    assert share[cut].std() < 0.2  # Beta(9): 0.11, before clipping


def test_mixing_off_returns_images_and_one_hot_targets():
    images, labels = torch.randn(3, 3, 4, 4), torch.tensor([2, 0, 1])
    same_images, targets = mixup_cutmix(images, labels, num_classes=4)
    assert same_images is images
    assert torch.equal(targets, torch.nn.functional.one_hot(labels, 4).float())
    assert mixup_cutmix(images, targets)[1] is targets


def test_mixing_is_reproducible():
    images, labels = torch.randn(6, 3, 8, 8), torch.arange(6)
    runs = []
    for _ in range(2):
        torch.manual_seed(11)
        runs.append(mixup_cutmix(images, labels, mixup=0.8, cutmix=1.0, num_classes=6))
    assert torch.equal(runs[0][0], runs[1][0])
    assert torch.equal(runs[0][1], runs[1][1])


# --- errors ---------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ({"flip": 1.5}, r"flip \(1.5\) must be a probability"),
        ({"erase": -0.1}, r"erase \(-0.1\) must be a probability"),
        ({"pad_crop": -1}, r"pad_crop \(-1\) must not be negative"),
        ({"rotate": float("nan")}, r"rotate \(nan\) must not be negative"),
        ({"num_ops": -2}, r"num_ops \(-2\) must not be negative"),
        ({"magnitude": 31}, r"magnitude \(31\) must be 0 to 30"),
        ({"policy": "auto"}, r"policy \('auto'\) must be none, trivial, rand or three"),
        ({"random_resized_crop": (0.5, 0.2)}, r"random_resized_crop \(\(0.5, 0.2\)\) must be two"),
    ],
)
def test_augment_refuses(arguments, message):
    with pytest.raises(ValueError, match=message):
        Augment(**arguments)


@pytest.mark.parametrize(
    "images",
    [torch.rand(2, 3, 4, 4), noise(3, 4, 4), noise(2, 1, 4, 4)],
    ids=["floats", "a single image", "one channel"],
)
def test_augment_refuses_other_images(images):
    with pytest.raises(ValueError, match=r"must be uint8 \(B, 3, height, width\)"):
        Augment(flip=0.5)(images)


def test_operations_refuse_wrong_choices():
    images = noise(2, 3, 4, 4)
    with pytest.raises(ValueError, match=r"operation \(1,\) and strength \(2,\) must both be \(2,"):
        apply_operations(images, torch.tensor([0]), torch.zeros(2))
    with pytest.raises(ValueError, match=r"operation \(\[0, 15\]\) must be indices"):
        apply_operations(images, torch.tensor([0, 15]), torch.zeros(2))


@pytest.mark.parametrize(
    ("images", "targets", "arguments", "message"),
    [
        (torch.rand(2, 3, 4, 4), torch.eye(2), {"mixup": -1.0}, r"mixup \(-1.0\) must not be neg"),
        (noise(2, 3, 4, 4), torch.eye(2), {"cutmix": 1.0}, r"images \(torch.uint8\) must be float"),
        (torch.rand(2, 3, 4, 4), torch.eye(3), {"mixup": 1.0}, r"targets \(3, 3\) must be labels"),
        (torch.rand(2, 3, 4, 4), torch.tensor([0, 1]), {"mixup": 1.0}, r"num_classes \(None\)"),
    ],
)
def test_mixing_refuses(images, targets, arguments, message):
    with pytest.raises(ValueError, match=message):
        mixup_cutmix(images, targets, **arguments)
