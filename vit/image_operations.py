"""Image operations on a batch: every image its own operation and its own strength.

The fourteen of TrivialAugment (Müller and Hutter 2021, arXiv:2103.10158) and RandAugment (Cubuk et
al. 2020, arXiv:1909.13719), and the blur of 3-Augment; what is drawn is in auto_augment.py. Each
equals torchvision's kernel for uint8 tensors (tests/test_augment.py says how closely).

The batch is sorted by operation, so that each one works on a slice; the five geometric ones are one
matrix per image and one gather. Operation and strength live on the CPU: so the slices are known
without waiting for an accelerator. There is no convolution and no matrix product here: under
autocast, in which a training step runs, those would be rounded to bfloat16.

Letters: B images of a batch, n images of a slice; height and width are pixels.
"""

import torch
import torch.nn.functional as F

GEOMETRY = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
OPERATIONS = (
    "identity",
    *GEOMETRY,
    *("brightness", "contrast", "posterize", "solarize", "autocontrast", "equalize"),
    *("color", "sharpness", "gaussian_blur"),
)
INDEX = {name: number for number, name in enumerate(OPERATIONS)}
BLUR_RADIUS = 6  # pixels: three times the largest sigma of 3-Augment


def apply_operations(
    images: torch.Tensor, operation: torch.Tensor, strength: torch.Tensor
) -> torch.Tensor:
    """uint8 (B, 3, height, width) -> the same, each image changed by its own operation.

    Args:
        operation: (B,) integers, indices into `OPERATIONS`. On the CPU; from elsewhere they are
            fetched, which waits.
        strength: (B,) numbers. Shear: pixels per pixel. Translation: pixels, cut to an integer.
            Rotation: degrees counter-clockwise. Brightness, contrast, color, sharpness: the
            factor minus one. Posterize: bits kept. Solarize: share of 255 from which it inverts.
            Blur: sigma in pixels. The others ignore it.

    Raises:
        ValueError: images of another shape or type; not one operation and strength per image; an
            index outside `OPERATIONS`.
    """
    check_images(images)
    operation, strength = operation.cpu(), strength.cpu().float()
    _check_choice(len(images), operation, strength)
    order = operation.argsort(stable=True)
    operation, strength = operation[order], strength[order]
    changed = images.index_select(0, beside(order, images))
    stops = torch.bincount(operation, minlength=len(OPERATIONS)).cumsum(0).tolist()
    group = slice(stops[INDEX["identity"]], stops[INDEX["rotate"]])
    if group.start < group.stop:
        changed[group] = _geometry(changed[group], operation[group], strength[group])
    strength = beside(strength, images)[:, None, None, None]
    for name, kernel in _KERNELS.items():
        group = slice(stops[INDEX[name] - 1], stops[INDEX[name]])
        if group.start < group.stop:
            changed[group] = kernel(changed[group], strength[group])
    return changed.index_select(0, beside(order.argsort(), images))


def beside(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """`values` of the CPU on the images' device; on CUDA without waiting for what it is doing."""
    return values.to(images.device, non_blocking=images.is_cuda)


def to_bytes(levels: torch.Tensor) -> torch.Tensor:
    """Floats (overwritten) -> uint8, cut to 0..255 and to whole levels.

    By way of int16: on a CPU torch converts floats straight to uint8 four times slower.
    """
    return levels.clamp_(0, 255).to(torch.int16).to(torch.uint8)


def check_images(images: torch.Tensor) -> None:
    """Refuses what is not uint8 (B, 3, height, width).

    Raises:
        ValueError: images of another shape or type.
    """
    if images.dtype != torch.uint8 or images.ndim != 4 or images.shape[1] != 3:
        raise ValueError(
            f"images ({images.dtype}, {tuple(images.shape)}) must be uint8 (B, 3, height, width): "
            "augment before converting to float and normalising"
        )


def _check_choice(batch: int, operation, strength) -> None:
    if operation.shape != (batch,) or strength.shape != (batch,):
        raise ValueError(
            f"operation {tuple(operation.shape)} and strength {tuple(strength.shape)} must both be "
            f"({batch},), one per image"
        )
    if batch and not 0 <= int(operation.min()) <= int(operation.max()) < len(OPERATIONS):
        raise ValueError(
            f"operation ({operation.tolist()}) must be indices into OPERATIONS, 0 to "
            f"{len(OPERATIONS) - 1}"
        )


# --- geometry ------------------------------------------------------------------------------------


def _geometry(images, operation, strength):
    theta = _inverse_matrices(operation, strength, *images.shape[-2:])
    return _sample_nearest(images, beside(theta, images))


def _inverse_matrices(operation, strength, height: int, width: int) -> torch.Tensor:
    """(n,), (n,) -> (n, 2, 3): output pixel to input pixel, both (x, y) from the image's centre.

    Rotations keep the centre in place, shears the top left corner (the papers' convention, which
    torchvision reaches with center=[0, 0]).
    """
    columns = torch.tensor([INDEX[name] for name in GEOMETRY], device="cpu")
    only = torch.where(operation[:, None] == columns, strength[:, None].double(), 0)  # (n, 5)
    shear_x, shear_y, shift_x, shift_y, angle = only.unbind(1)
    angle = angle.deg2rad()
    cos, sin = angle.cos(), angle.sin()
    to_x = (cos, shear_x - sin, shear_x * height / 2 - shift_x.trunc())
    to_y = (shear_y + sin, cos, shear_y * width / 2 - shift_y.trunc())
    return torch.stack(to_x + to_y, 1).view(-1, 2, 3).float()


def source_coordinates(theta: torch.Tensor, height: int, width: int) -> list[torch.Tensor]:
    """Matrices (n, 2, 3) -> x and y, each (n, height, width): where each output pixel comes from.

    The matrices are in pixels from the centre, the result in grid_sample's units: -1 and 1 are the
    outer edges of the first and last pixel.
    """
    x = torch.arange(width, device=theta.device) - (width - 1) / 2
    y = (torch.arange(height, device=theta.device) - (height - 1) / 2)[:, None]
    coordinates = []
    for row, side in ((theta[:, 0], width), (theta[:, 1], height)):
        a, b, c = (row / (side / 2))[:, :, None, None].unbind(1)  # each (n, 1, 1)
        coordinates.append(a * x + (b * y + c))
    return coordinates


def _sample_nearest(images, theta):
    """(n, 3, height, width), (n, 2, 3) -> each output pixel takes the nearest input pixel or black.

    As torchvision's affine and rotate on tensors, but a gather on bytes, for grid_sample would need
    floats. The images get a black frame of one pixel, in which all that comes from outside ends.
    Positions take the way through grid_sample's units, so that those half-way between two pixels
    round as torchvision's do.
    """
    height, width = images.shape[-2:]
    x, y = source_coordinates(theta, height, width)
    x, y = (
        source.add_(1).mul_(side / 2).sub_(0.5).round_().clamp_(-1, side).int()
        for source, side in ((x, width), (y, height))
    )
    index = y.add_(1).mul_(width + 2).add_(x).add_(1)
    index = index.long().flatten(1)[:, None].expand(-1, 3, -1)  # (n, 3, height * width)
    framed = F.pad(images, (1, 1, 1, 1)).flatten(2)
    return framed.gather(2, index).view(images.shape)


# --- colour: uint8 (n, 3, height, width), strength (n, 1, 1, 1) -> uint8 --------------------------
#
# torchvision blends with add_(other, alpha=factor). Alpha cannot differ per image; addcmul can, and
# rounds once as well (a fused multiply-add): rounded twice, a blend that is a whole number, that of
# every grey pixel, would often end one level lower.


def _grey(images) -> torch.Tensor:
    """uint8 (n, 3, height, width) -> whole luma levels (n, 1, height, width), float32."""
    red, green, blue = images.split(1, dim=1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()


def _brightness(images, strength):
    return to_bytes(images * (1 + strength))


def _contrast(images, strength):
    mean = _grey(images).mean((1, 2, 3), keepdim=True)
    return to_bytes((images * (1 + strength)).addcmul_(mean, -strength))


def _color(images, strength):
    """Towards grey (all grey at strength -1) or away from it."""
    return to_bytes((images * (1 + strength)).addcmul_(_grey(images), -strength))


def _posterize(images, strength):
    dropped = (8 - strength).to(torch.uint8)
    return images >> dropped << dropped


def _solarize(images, strength):
    inverted = images >= (255 * strength).ceil().to(torch.uint8)
    return images ^ inverted.to(torch.uint8).neg_()  # minus one is 255: x ^ 255 = 255 - x


def _autocontrast(images, strength):
    low = images.amin((2, 3), keepdim=True).float()
    high = images.amax((2, 3), keepdim=True).float()
    flat = low == high  # a channel of one level stays as it is
    scale = torch.where(flat, 1.0, (high - low) * (1 / 255))
    return to_bytes((images - torch.where(flat, 0.0, low)).div_(scale))


def _equalize(images, strength):
    """Pillow's scheme (ImageOps.equalize): integers; the brightest level stays out of the step."""
    index = images.flatten(2).long()  # (n, 3, height * width)
    ones = torch.ones((), dtype=torch.int32, device=images.device)
    histogram = ones.new_zeros(*index.shape[:2], 256).scatter_add_(2, index, ones.expand_as(index))
    brightest = histogram.gather(2, index.amax(2, keepdim=True))
    step = (index.shape[2] - brightest) // 255  # (n, 3, 1)
    below = histogram.cumsum(2, dtype=torch.int32).sub_(histogram)
    table = below.add_(step // 2).floor_divide_(step.clamp(min=1)).clamp_(max=255)
    levels = torch.arange(256, dtype=torch.int32, device=images.device)
    table = torch.where(step > 0, table, levels).to(torch.uint8)
    return table.gather(2, index).view(images.shape)


def _sharpness(images, strength):
    """Towards or away from a 3x3 blur whose centre weighs 5 of 13; the outermost pixels stay."""
    sharp = images.float()
    inner = sharp[:, :, 1:-1, 1:-1]
    rows = (sharp[:, :, :-2] + sharp[:, :, 1:-1]).add_(sharp[:, :, 2:])
    total = (rows[..., :-2] + rows[..., 1:-1]).add_(rows[..., 2:]).add_(inner, alpha=4)
    blurred = total.div_(13).round_()  # thirteenths are never half-way: safe to round
    inner.addcmul_(blurred.sub_(inner), -strength)
    return to_bytes(sharp)


def _gaussian_blur(images, strength):
    """A separable Gaussian of sigma = strength pixels, mirrored at the edges, cut at BLUR_RADIUS.

    A loop over taps: in a grouped convolution with a kernel per image it is not faster.
    """
    blurred = images.float()
    for dim in (2, 3):
        side = images.shape[dim]
        radius = min(BLUR_RADIUS, side - 1)
        offsets = torch.arange(-radius, radius + 1, device=images.device)
        weights = torch.softmax(-((offsets / strength) ** 2) / 2, 3)  # (n, 1, 1, taps)
        margins = (radius, radius, 0, 0) if dim == 3 else (0, 0, radius, radius)
        padded = F.pad(blurred, margins, mode="reflect")
        blurred = torch.zeros_like(blurred)
        for tap, weight in enumerate(weights.split(1, dim=3)):
            blurred.addcmul_(padded.narrow(dim, tap, side), weight)
    return to_bytes(blurred.round_())


_KERNELS = {
    "brightness": _brightness,
    "contrast": _contrast,
    "posterize": _posterize,
    "solarize": _solarize,
    "autocontrast": _autocontrast,
    "equalize": _equalize,
    "color": _color,
    "sharpness": _sharpness,
    "gaussian_blur": _gaussian_blur,
}
