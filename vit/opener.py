"""What a worker does to a photo: opens it, and fits it or takes a random crop.

The geometry that needs the photo happens here, with Pillow: the same `fit` as everywhere or, in
training, a random crop brought to the network's size. A crop's chance follows from (seed, epoch,
image) alone, so neither the number of workers nor the order changes a bit.
"""

import math
from dataclasses import dataclass
from functools import cache

import numpy as np
import torch
from PIL import Image
from torch import Tensor
from torch.utils.data import get_worker_info

from vit.augment import CROP_RATIO, random_boxes
from vit.datasets import Item, Source
from vit.fitting import Preprocess, fit
from vit.loaders import mix, since

ENLARGED = 2.0  # a photo is decoded at least this much larger than needed, as images.read does

Task = tuple[Item, tuple[int, ...] | None]  # an image, and what its chance follows from


@dataclass(frozen=True)
class Problem:
    """What a worker hands over instead of a batch: why, in one line."""

    text: str


class Opener:
    """The data set that workers hold: opens the photos of whole batches.

    Args:
        source: of the images.
        preprocess: size and interpolation of the result.
        crop: smallest and largest share of the area of a random crop, where a task has a chance;
            None: the photo is fitted always.
        doing: (workers, 3) shared: process id, number of the batch, place in it that a worker is at.
    """

    def __init__(
        self,
        source: Source,
        preprocess: Preprocess,
        crop: tuple[float, float] | None,
        doing: Tensor,
    ):
        self.source, self.preprocess, self.crop, self.doing = source, preprocess, crop, doing

    def __getitems__(self, package: tuple[int, list[Task]]) -> Tensor | Problem:
        """(number, tasks) -> uint8 (B, 3, height, width)."""
        number, tasks = package
        images = torch.empty(len(tasks), 3, *self.preprocess.size, dtype=torch.uint8)
        for place, (item, chance) in enumerate(tasks):
            self.note(number, place)
            try:
                images[place] = torch.from_numpy(self.pixels(item, chance)).permute(2, 0, 1)
            except Exception as error:  # whatever it is, it is told with the photo's name
                text = f"{name(self.source, item)}: {reason(self.source, item, error)}"
                return Problem(text + since(error))
        return images

    def note(self, number: int, place: int) -> None:
        """Leaves word of where this worker is, for the case that it dies."""
        if worker := get_worker_info():
            self.doing[worker.id, 1:] = torch.tensor([number, place])

    def pixels(self, item: Item, chance: tuple[int, ...] | None) -> np.ndarray:
        """One image, uint8 (height, width, 3)."""
        if self.crop is None or chance is None:
            return fit(self.source.open(item, self.preprocess.resized), self.preprocess).pixels
        return random_crop(self.source, item, self.preprocess, self.crop, mix(*chance))


def random_crop(
    source: Source, item: Item, preprocess: Preprocess, area: tuple[float, float], seed: int
) -> np.ndarray:
    """A random part of a photo, enlarged or reduced to uint8 (height, width, 3).

    Args:
        area: smallest and largest share of the photo's area; see `augment.Augment`.
        seed: of the part's place and shape.
    """
    height, width = preprocess.size
    part_of = cache(lambda tall, wide: random_box(tall, wide, area, seed))

    def at_least(tall: int, wide: int) -> tuple[int, int]:
        """The size of the whole photo in which its part has the network's."""
        part = part_of(tall, wide)
        return math.ceil(height * tall / part[2]), math.ceil(width * wide / part[3])

    photo = source.open(item, at_least)
    top, left, tall, wide = part_of(photo.height, photo.width)
    x0, y0, x1, y1 = photo.box or (0, 0, *photo.image.size)
    x, y = (x1 - x0) / photo.width, (y1 - y0) / photo.height  # decoded pixels per photo pixel
    box = (x0 + left * x, y0 + top * y, x0 + (left + wide) * x, y0 + (top + tall) * y)
    box = (*box[:2], min(box[2], x1), min(box[3], y1))
    method = Image.Resampling[preprocess.interpolation.upper()]
    return np.array(photo.image.resize((width, height), method, box=box, reducing_gap=ENLARGED))


def random_box(
    height: int, width: int, area: tuple[float, float], seed: int
) -> tuple[int, int, int, int]:
    """Top, left, height and width of a part of a photo, in its pixels."""
    with torch.random.fork_rng(devices=[]):  # the generator of who calls is left alone
        torch.manual_seed(seed)
        boxes = random_boxes(1, height, width, area=area, ratio=CROP_RATIO)
    return tuple(boxes[:, 0].tolist())


def name(source: Source, item: Item) -> str:
    """An image as it is named in messages: its file, or its number."""
    return str(source.path(item)) if hasattr(source, "path") else f"image {item.id}"


def reason(source: Source, item: Item, error: Exception) -> str:
    """An error's own words, without the file's name."""
    text = " ".join(str(error).split()) or type(error).__name__
    return text.removeprefix(f"{name(source, item)}: ")
