"""From stored pixels to what the network takes."""

import torch
from torch import Tensor

from vit.fitting import Preprocess


def normalise(images: Tensor, preprocess: Preprocess) -> Tensor:
    """uint8 (B, 3, height, width), 0 to 255 -> float32, (value / 255 - mean) / std per channel."""
    mean = torch.tensor(preprocess.mean, device=images.device).view(-1, 1, 1)
    std = torch.tensor(preprocess.std, device=images.device).view(-1, 1, 1)
    return (images.float() / 255 - mean) / std
