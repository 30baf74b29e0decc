"""Random changes to a batch of images on the device it is on: one independent draw per image.

`Augment` takes and gives uint8, so it stands before the conversion to float. All chance comes from
torch's global generators: `torch.manual_seed` before a batch fixes everything. Draws are made on the
CPU (but for the noise that random erasing fills in), so one seed means the same changes on every
device, and an accelerator is never waited for.

Letters: B images; height and width are pixels. Boxes are (4, B): top, left, height, width.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Literal

import torch
import torch.nn.functional as F

from vit.auto_augment import NUM_BINS, draw_jitter, draw_rand, draw_three, draw_trivial
from vit.image_operations import (
    apply_operations,
    beside,
    check_images,
    source_coordinates,
    to_bytes,
)

CROP_RATIO = (3 / 4, 4 / 3)  # width over height, Szegedy et al. 2015
ERASE_RATIO = (0.3, 1 / 0.3)  # Zhong et al. 2020
ERASE_AREA = (0.02, 1 / 3)  # timm's; the paper goes up to 0.4


@dataclass(frozen=True, kw_only=True)
class Augment:
    """uint8 (B, 3, height, width) -> the same shape and type, every image changed by its own draws.

    What is switched on happens in the order of the arguments; with nothing on, the images
    themselves come back. What moves into a picture from outside is black.

    Args:
        random_resized_crop: smallest and largest share of the area of a random crop of aspect
            ratio 3/4 to 4/3, enlarged to the full size (arXiv:1409.4842); None for none.
        pad_crop: pixels of black margin, then a crop of the original size at a random place.
        flip: probability of a left-right flip.
        rotate: largest rotation, degrees either way; bilinear.
        translate: largest shift, fraction of the side either way; bilinear.
        policy: "trivial" (TrivialAugment, wide), "rand" (RandAugment) or "three" (3-Augment:
            greyscale, solarize or blur; its recipe adds colour_jitter 0.3).
        num_ops: operations in a row of "rand".
        magnitude: strength of "rand", 0 to 30.
        colour_jitter: brightness, contrast and saturation each by a factor of 1 minus to 1 plus
            this, in random order.
        erase: probability of random erasing: a box of 2 to 33 % of the area and of aspect ratio
            0.3 to 3.3 becomes noise (arXiv:1708.04896: uniform over 0 to 255, the values of
            pixels, which is why it happens here and not after the normalisation).

    Raises:
        ValueError: an argument outside its range; images other than uint8 (B, 3, height, width).
    """

    random_resized_crop: tuple[float, float] | None = None
    pad_crop: int = 0
    flip: float = 0.0
    rotate: float = 0.0
    translate: float = 0.0
    policy: Literal["none", "trivial", "rand", "three"] = "none"
    num_ops: int = 2
    magnitude: int = 9
    colour_jitter: float = 0.0
    erase: float = 0.0

    def __post_init__(self) -> None:
        for name in ("flip", "erase"):
            if not 0 <= getattr(self, name) <= 1:
                raise ValueError(f"{name} ({getattr(self, name)}) must be a probability, 0 to 1")
        for name in ("pad_crop", "rotate", "translate", "num_ops", "colour_jitter"):
            if not getattr(self, name) >= 0:
                raise ValueError(f"{name} ({getattr(self, name)}) must not be negative")
        if not 0 <= self.magnitude < NUM_BINS:
            raise ValueError(f"magnitude ({self.magnitude}) must be 0 to {NUM_BINS - 1}")
        if self.policy not in ("none", "trivial", "rand", "three"):
            raise ValueError(f"policy ({self.policy!r}) must be none, trivial, rand or three")
        area = self.random_resized_crop
        if area is not None and not (len(area) == 2 and 0 < area[0] <= area[1] <= 1):
            raise ValueError(
                f"random_resized_crop ({area}) must be two shares of the area, "
                "0 < smallest <= largest <= 1"
            )

    def __call__(self, images: torch.Tensor) -> torch.Tensor:
        check_images(images)
        if len(images) == 0:
            return images
        batch, _, height, width = images.shape
        images = self._crop(images)
        if self.flip:
            images = flip(images, torch.rand(batch, device="cpu") < self.flip)
        if self.rotate or self.translate:
            turn, right, down = torch.rand(3, batch, device="cpu") * 2 - 1
            right, down = right * self.translate * width, down * self.translate * height
            images = rotate(images, turn * self.rotate, right, down)
        for operation, strength in self._draw_operations(batch, height, width):
            images = apply_operations(images, operation, strength)
        if self.erase:
            erased = torch.rand(batch, device="cpu") < self.erase
            boxes = random_boxes(batch, height, width, area=ERASE_AREA, ratio=ERASE_RATIO)
            images = erase(images, boxes * erased)
        return images

    def _crop(self, images: torch.Tensor) -> torch.Tensor:
        batch, _, height, width = images.shape
        if self.random_resized_crop:
            area = self.random_resized_crop
            boxes = random_boxes(batch, height, width, area=area, ratio=CROP_RATIO)
            images = resized_crop(images, boxes)
        if self.pad_crop:
            top, left = torch.randint(2 * self.pad_crop + 1, (2, batch), device="cpu")
            images = pad_crop(images, self.pad_crop, top, left)
        return images

    def _draw_operations(
        self, batch: int, height: int, width: int
    ) -> Iterator[tuple[torch.Tensor, torch.Tensor]]:
        """Yields operation (B,) and strength (B,) of the steps to take one after the other."""
        if self.policy == "trivial":
            yield draw_trivial(batch, height, width)
        elif self.policy == "rand":
            for _ in range(self.num_ops):
                yield draw_rand(batch, height, width, self.magnitude)
        elif self.policy == "three":
            yield draw_three(batch)
        if self.colour_jitter:
            yield from zip(*draw_jitter(batch, self.colour_jitter), strict=True)


def random_boxes(
    batch: int,
    height: int,
    width: int,
    *,
    area: tuple[float, float],
    ratio: tuple[float, float],
) -> torch.Tensor:
    """-> (4, B) integers: boxes of uniform area and log-uniform ratio, at uniform places.

    torchvision tries up to ten times; here all ten are drawn at once and the first that fits is
    taken. Where none fits, the first is cut to the image.

    Args:
        area: smallest and largest share of height * width.
        ratio: smallest and largest width over height.
    """
    share, shape = torch.rand(2, 10, batch, device="cpu", dtype=torch.float64)
    surface = (area[0] + share * (area[1] - area[0])) * height * width
    low, high = math.log(ratio[0]), math.log(ratio[1])
    root = ((low + shape * (high - low)) / 2).exp()
    tall, wide = (surface.sqrt() / root).round(), (surface.sqrt() * root).round()
    fits = (tall > 0) & (tall <= height) & (wide > 0) & (wide <= width)
    first = fits.int().argmax(0, keepdim=True)
    tall = tall.gather(0, first)[0].clamp(1, height)
    wide = wide.gather(0, first)[0].clamp(1, width)
    y, x = torch.rand(2, batch, device="cpu", dtype=torch.float64)
    top, left = ((height - tall + 1) * y).floor(), ((width - wide + 1) * x).floor()
    return torch.stack([top, left, tall, wide]).long()


def resized_crop(images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """uint8 (B, 3, height, width), boxes (4, B) -> each box enlarged bilinearly to the full size.

    As if it had been cut out first: pixels beyond the box have no influence. Enlarging needs no
    antialiasing.
    """
    sampled = []
    for start, extent, side in zip(boxes[:2], boxes[2:], images.shape[2:], strict=True):
        centre = torch.arange(side, device="cpu") + 0.5
        pixel = centre * (extent / side)[:, None] - 0.5  # (B, side), counted from the box's first
        pixel = pixel.clamp(min=0).minimum(extent[:, None] - 1) + start[:, None]
        sampled.append(beside((2 * pixel + 1) / side - 1, images))
    y, x = torch.broadcast_tensors(sampled[0][:, :, None], sampled[1][:, None])
    return _sample_bilinear(images, x, y)


def pad_crop(images: torch.Tensor, pad: int, top: torch.Tensor, left: torch.Tensor) -> torch.Tensor:
    """uint8 (B, 3, height, width) -> windows of the same size of the images in black margins.

    A row of the result is a run of bytes of the padded batch, and one index_select on the view of
    all such runs copies them, two to four times faster than a gather or indexed windows.

    Args:
        pad: width of the margin, pixels.
        top: (B,) first row of the window in the padded image, 0 to 2 * pad.
        left: (B,) first column.
    """
    batch, channels, height, width = images.shape
    padded = F.pad(images, (pad, pad, pad, pad)).contiguous()
    tall, wide = padded.shape[2:]
    plane = torch.arange(batch * channels, device="cpu").view(batch, channels, 1) * (tall * wide)
    row = torch.arange(height, device="cpu") * wide
    start = plane + (top * wide + left)[:, None, None] + row  # (B, 3, height)
    runs = padded.flatten().unfold(0, width, 1)  # a view, (bytes - width + 1, width)
    return runs.index_select(0, beside(start.flatten(), images)).view(images.shape)


def flip(images: torch.Tensor, flipped: torch.Tensor) -> torch.Tensor:
    """(B, 3, height, width) -> the images of which `flipped` (B,) is true, mirrored left to right.

    They are brought to the end, flipped in one piece, and back: whole images copy fast.
    """
    order = flipped.int().argsort(stable=True)
    images = images.index_select(0, beside(order, images))
    last = images[len(flipped) - int(flipped.sum()) :]
    last.copy_(last.flip(3))
    return images.index_select(0, beside(order.argsort(), images))


def rotate(
    images: torch.Tensor, degrees: torch.Tensor, right: torch.Tensor, down: torch.Tensor
) -> torch.Tensor:
    """uint8 (B, 3, height, width) -> turned about the centre, then shifted; bilinear, black around.

    Args:
        degrees: (B,) clockwise, as torchvision's affine.
        right: (B,) shift, pixels.
        down: (B,) shift, pixels.
    """
    angle = degrees.double().deg2rad()
    cos, sin = angle.cos(), angle.sin()
    rows = ((cos, sin, -cos * right - sin * down), (-sin, cos, sin * right - cos * down))
    theta = torch.stack([torch.stack(row, 1) for row in rows], 1).float()  # output to input
    return _sample_bilinear(images, *source_coordinates(beside(theta, images), *images.shape[2:]))


def _sample_bilinear(images, x, y):
    """x, y (B, height, width) in grid_sample's units -> the images there, rounded to uint8."""
    grid = torch.stack([x, y], 3)
    sampled = F.grid_sample(images.float(), grid, mode="bilinear", align_corners=False)
    return to_bytes(sampled.round_())


def erase(images: torch.Tensor, boxes: torch.Tensor) -> torch.Tensor:
    """uint8 (B, 3, height, width), boxes (4, B) -> random bytes in the boxes; height 0 for none."""
    chosen = boxes[2].nonzero()[:, 0]
    top, left, tall, wide = beside(boxes[:, chosen, None], images)  # each (n, 1)
    y = torch.arange(images.shape[2], device=images.device)
    x = torch.arange(images.shape[3], device=images.device)
    rows, columns = (y >= top) & (y < top + tall), (x >= left) & (x < left + wide)
    box = (rows[:, :, None] & columns[:, None])[:, None]  # (n, 1, height, width)
    chosen = beside(chosen, images)
    old = images.index_select(0, chosen)
    return images.index_copy(0, chosen, torch.where(box, torch.randint_like(old, 256), old))
