"""Images of a batch mixed with each other, and their labels likewise: mixup and cutmix.

It stands after the normalisation. All chance comes from torch's global generator on the CPU:
`torch.manual_seed` before a batch fixes everything, on every device.

Letters: B images; height and width are pixels.
"""

import torch
import torch.nn.functional as F

from vit.image_operations import beside


def mixup_cutmix(
    images: torch.Tensor,
    targets: torch.Tensor,
    *,
    mixup: float = 0.0,
    cutmix: float = 0.0,
    num_classes: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """float (B, 3, height, width), labels (B,) or (B, classes) -> mixed images, (B, classes).

    Each image is mixed with the one before it in the batch, the first with the last: any batch
    size will do, and from two on none is mixed with itself. With both on, a coin decides per image.

    Args:
        targets: labels, or probabilities that sum to 1; so do the results.
        mixup: alpha of the Beta distribution of an image's own share (Zhang et al. 2018,
            arXiv:1710.09412); 0 is off.
        cutmix: the same where a box of the other image is pasted (Yun et al. 2019,
            arXiv:1905.04899). The share is that of the pixels really kept: boxes are clipped.
        num_classes: for labels only.

    Raises:
        ValueError: negative alpha; images not float; not one target per image; labels without
            num_classes.
    """
    _check_mix(images, targets, mixup, cutmix, num_classes)
    if targets.ndim == 1:
        targets = F.one_hot(targets, num_classes)
    targets = targets if targets.is_floating_point() else targets.float()
    if not (mixup or cutmix) or len(images) == 0:
        return images, targets
    cuts, share, rows, columns = _draw_mix(len(images), *images.shape[2:], mixup, cutmix)
    of_targets = beside(share, targets).to(targets.dtype)[:, None]
    cuts, share, rows, columns = (beside(v, images) for v in (cuts, share, rows, columns))
    kept = ~(rows[:, :, None] & columns[:, None])  # (B, height, width), outside the box
    own = torch.where(cuts[:, None, None], kept, share[:, None, None])[:, None].to(images.dtype)
    images = torch.lerp(images.roll(1, 0), images, own)
    return images, torch.lerp(targets.roll(1, 0), targets, of_targets)


def _draw_mix(batch, height, width, mixup, cutmix):
    """-> whether it is cutmix (B,), own share (B,), box as rows (B, height), columns (B, width)."""
    cuts = torch.rand(batch, device="cpu") < bool(cutmix) / (bool(mixup) + bool(cutmix))
    alpha = torch.where(cuts, float(cutmix), float(mixup))
    share = torch.distributions.Beta(alpha, alpha).sample()
    side = (1 - share).sqrt()
    box = []
    for extent in (height, width):
        centre = torch.randint(extent, (batch,), device="cpu")
        half = (side * extent / 2).int()
        pixel = torch.arange(extent, device="cpu")
        box.append((pixel >= (centre - half)[:, None]) & (pixel < (centre + half)[:, None]))
    rows, columns = box
    kept = 1 - rows.sum(1) * columns.sum(1) / (height * width)
    return cuts, torch.where(cuts, kept, share), rows, columns


def _check_mix(images, targets, mixup, cutmix, num_classes) -> None:
    for name, alpha in (("mixup", mixup), ("cutmix", cutmix)):
        if not alpha >= 0:
            raise ValueError(f"{name} ({alpha}) must not be negative; 0 switches it off")
    if not images.is_floating_point():
        raise ValueError(f"images ({images.dtype}) must be float: mix after normalising")
    if targets.ndim not in (1, 2) or len(targets) != len(images):
        raise ValueError(
            f"targets {tuple(targets.shape)} must be labels ({len(images)},) or probabilities "
            f"({len(images)}, classes)"
        )
    if targets.ndim == 1 and num_classes is None:
        raise ValueError("num_classes (None) must be given when targets are labels")
