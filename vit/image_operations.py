"""Image operations on a batch: every image its own operation and its own strength.

The fourteen of TrivialAugment (Müller and Hutter 2021, arXiv:2103.10158) and RandAugment (Cubuk et
al. 2020, arXiv:1909.13719), and the blur of 3-Augment; what is drawn is in auto_augment.py. Each
equals torchvision's kernel for uint8 tensors (tests/test_augment.py says how closely).

A batch is handled in six groups instead of fifteen operations: the geometric ones are one matrix
and one gather; those whose result depends on a pixel's own value alone are one table of 256 levels
per channel and one gather. Operation and strength live on the CPU, so the groups are known without
waiting for an accelerator. There is no convolution and no matrix product here: under autocast, in
which a training step runs, those would be rounded to bfloat16.

Letters: B images of a batch, n images of a group; height and width are pixels.
"""

import torch
import torch.nn.functional as F

# Groups are neighbours, so that sorting a batch by operation makes each group one slice.
GEOMETRY = ("shear_x", "shear_y", "translate_x", "translate_y", "rotate")
TABLES = ("brightness", "contrast", "posterize", "solarize", "autocontrast", "equalize")
OPERATIONS = ("identity", *GEOMETRY, *TABLES, "color", "sharpness", "gaussian_blur")
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
    spans = _spans(operation)
    for names, kernel in _KERNELS:
        group = slice(spans[names[0]].start, spans[names[-1]].stop)
        if group.start < group.stop:
            changed[group] = kernel(changed[group], operation[group], strength[group])
    return changed.index_select(0, beside(order.argsort(), images))


def beside(values: torch.Tensor, images: torch.Tensor) -> torch.Tensor:
    """`values` of the CPU on the images' device; on CUDA without waiting for what it is doing."""
    return values.to(images.device, non_blocking=images.is_cuda)


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


def _spans(operation) -> dict[str, slice]:
    """Sorted operations (n,) -> where each one is."""
    stops = torch.bincount(operation, minlength=len(OPERATIONS)).cumsum(0).tolist()
    return {
        name: slice(start, stop)
        for name, start, stop in zip(OPERATIONS, [0, *stops], stops, strict=False)
    }


# --- geometry ------------------------------------------------------------------------------------


def _geometry(images, operation, strength):
    """Nearest neighbour, black outside; as torchvision's affine and rotate on tensors.

    A gather on bytes: grid_sample would need floats. The images get a black frame of one pixel, in
    which all that comes from outside ends. Positions take the way through grid_sample's units, so
    that those half-way between two pixels round as torchvision's do.
    """
    height, width = images.shape[-2:]
    theta = _inverse_matrices(operation, strength.double(), height, width)
    x, y = source_coordinates(beside(theta.float(), images), height, width)
    x, y = (
        source.add_(1).mul_(side / 2).sub_(0.5).round_().clamp_(-1, side).add_(1).long()
        for source, side in ((x, width), (y, height))
    )
    index = y.mul_(width + 2).add_(x).flatten(1)[:, None]  # (n, 1, height * width)
    framed = F.pad(images, (1, 1, 1, 1)).flatten(2)
    return framed.gather(2, index.expand(-1, 3, -1)).view(images.shape)


def _inverse_matrices(operation, strength, height: int, width: int) -> torch.Tensor:
    """(n,), (n,) -> (n, 2, 3): output pixel to input pixel, both (x, y) from the image's centre.

    Rotations keep the centre in place, shears the top left corner (the papers' convention, which
    torchvision reaches with center=[0, 0]).
    """
    zero = torch.zeros_like(strength)

    def only(name, value):
        return torch.where(operation == INDEX[name], value, zero)

    shear_x, shear_y = only("shear_x", strength), only("shear_y", strength)
    angle = only("rotate", strength).deg2rad()
    shift_x = only("translate_x", strength.trunc())
    shift_y = only("translate_y", strength.trunc())
    cos, sin = angle.cos(), angle.sin()
    rows = (
        (cos, shear_x - sin, shear_x * height / 2 - shift_x),
        (shear_y + sin, cos, shear_y * width / 2 - shift_y),
    )
    return torch.stack([torch.stack(row, 1) for row in rows], 1)


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


# --- operations on a pixel's own value: one table per image and channel ---------------------------


def _lookup(images, operation, strength):
    """Each image's operation as a table (3, 256), then one gather for the whole group."""
    index = images.flatten(2).long()  # (n, 3, height * width)
    spans, tables = _spans(operation), []
    for name, table in zip(TABLES, _TABLE_MAKERS, strict=True):
        group = spans[name]
        if group.start < group.stop:
            factor = beside(strength[group, None, None], images)  # (n, 1, 1)
            tables.append(table(images[group], index[group], factor).expand(-1, 3, 256))
    return torch.cat(tables).gather(2, index).view_as(images)


def _levels(images) -> torch.Tensor:
    return torch.arange(256, dtype=torch.float32, device=images.device)


def _brightness_table(images, index, strength):
    return (_levels(images) * (1 + strength)).clamp_(0, 255).to(torch.uint8)


def _contrast_table(images, index, strength):
    mean = _grey(images).mean((1, 2))[:, None, None]
    mixed = torch.addcmul(_levels(images) * (1 + strength), mean, -strength)
    return mixed.clamp_(0, 255).to(torch.uint8)


def _posterize_table(images, index, strength):
    dropped = (8 - strength).int()
    return (_levels(images).int() >> dropped << dropped).to(torch.uint8)


def _solarize_table(images, index, strength):
    levels = _levels(images)
    return torch.where(levels >= 255 * strength, 255 - levels, levels).to(torch.uint8)


def _autocontrast_table(images, index, strength):
    low, high = (end[:, :, None].float() for end in images.flatten(2).aminmax(dim=2))
    flat = low == high  # a channel of one level stays as it is
    scale = torch.where(flat, 1.0, (high - low) * (1 / 255))
    low = torch.where(flat, 0.0, low)
    return ((_levels(images) - low) / scale).clamp_(0, 255).to(torch.uint8)


def _equalize_table(images, index, strength):
    """Pillow's scheme (ImageOps.equalize): integers; the brightest level stays out of the step."""
    ones = torch.ones((), dtype=torch.int32, device=images.device)
    histogram = ones.new_zeros(*index.shape[:2], 256).scatter_add_(2, index, ones.expand_as(index))
    brightest = histogram.gather(2, index.amax(2, keepdim=True))
    step = (index.shape[2] - brightest) // 255  # (n, 3, 1)
    below = histogram.cumsum(2) - histogram
    table = ((below + step // 2) // step.clamp(min=1)).clamp_(max=255)
    return torch.where(step > 0, table, _levels(images).long()).to(torch.uint8)


# --- operations on a pixel and its surroundings ---------------------------------------------------
#
# torchvision blends with add_(other, alpha=factor). Alpha cannot differ per image; addcmul can, and
# rounds once as well (a fused multiply-add): rounded twice, a blend that is a whole number, that of
# every grey pixel, would often end one level lower.


def _grey(images) -> torch.Tensor:
    """uint8 (n, 3, height, width) -> whole luma levels (n, height, width), float32."""
    red, green, blue = images.unbind(1)
    return red.mul(0.2989).add_(green, alpha=0.587).add_(blue, alpha=0.114).floor_()


def _color(images, operation, strength):
    """Towards grey (all grey at strength -1) or away from it."""
    strength = beside(strength[:, None, None, None], images)
    mixed = torch.addcmul(images * (1 + strength), _grey(images)[:, None], -strength)
    return mixed.clamp_(0, 255).to(torch.uint8)


def _sharpness(images, operation, strength):
    """Towards or away from a 3x3 blur whose centre weighs 5 of 13; the outermost pixels stay."""
    strength = beside(strength[:, None, None, None], images)
    exact = images.float()
    rows = exact[:, :, :-2] + exact[:, :, 1:-1] + exact[:, :, 2:]
    inner = exact[:, :, 1:-1, 1:-1]
    total = rows[..., :-2] + rows[..., 1:-1] + rows[..., 2:] + 4 * inner
    blurred = total.div_(13).round_()  # thirteenths are never half-way: safe to round
    sharp = torch.addcmul(inner, blurred - inner, -strength).clamp_(0, 255)
    changed = images.clone()
    changed[:, :, 1:-1, 1:-1] = sharp.to(torch.uint8)
    return changed


def _gaussian_blur(images, operation, strength):
    """A separable Gaussian of sigma = strength pixels, mirrored at the edges, cut at BLUR_RADIUS.

    A loop over taps: in a grouped convolution with a kernel per image it is not faster.
    """
    sigma = beside(strength, images)[:, None]
    blurred = images.float()
    for dim in (2, 3):
        side = images.shape[dim]
        radius = min(BLUR_RADIUS, side - 1)
        offsets = torch.arange(-radius, radius + 1, device=images.device)
        weights = torch.softmax(-((offsets / sigma) ** 2) / 2, 1)  # (n, 2 * radius + 1)
        margins = (radius, radius, 0, 0) if dim == 3 else (0, 0, radius, radius)
        padded = F.pad(blurred, margins, mode="reflect")
        blurred = torch.zeros_like(blurred)
        for tap, weight in enumerate(weights[:, :, None, None, None].unbind(1)):
            blurred.addcmul_(padded.narrow(dim, tap, side), weight)
    return blurred.round_().to(torch.uint8)


_TABLE_MAKERS = (
    _brightness_table,
    _contrast_table,
    _posterize_table,
    _solarize_table,
    _autocontrast_table,
    _equalize_table,
)
_KERNELS = (
    (GEOMETRY, _geometry),
    (TABLES, _lookup),
    (("color",), _color),
    (("sharpness",), _sharpness),
    (("gaussian_blur",), _gaussian_blur),
)
