"""Image to tokens, and the two weights that depend on the grid, resized to another one.

B batch, D embed_dim, N = rows * cols patches, P tokens before the patches. Sizes are (height, width)
in pixels, grids (rows, cols) in patches.

Source: Dosovitskiy et al. 2021 (arXiv 2010.11929), eq. 1 and section 3.2 (positions at another
resolution); Beyer et al. 2023, FlexiViT (arXiv 2212.08013), eq. 5 (patch weights at another size).
"""

from collections.abc import Callable

import torch
import torch.nn.functional as F
from torch import Tensor, nn

Size = tuple[int, int]


class PatchEmbed(nn.Module):
    """Cuts an image into patches and projects each to a token: (B, C, height, width) -> (B, N, D).

    Args:
        img_size: (height, width) in pixels, each a multiple of the patch's.
        patch_size: (height, width) of a patch in pixels.
        in_chans: colour channels C.
        embed_dim: token width D.
        bias: whether the projection has a bias.
        norm: makes the norm on the tokens, called with D; nn.Identity for none.
        sizes: "exact": images of img_size; "multiples": of any size that is a multiple of the
            patch's; "cut": of img_size, seen as far as whole patches go from the top left.

    Raises:
        ValueError: the image's height or width is not a multiple of the patch's, unless cut.
    """

    def __init__(
        self,
        img_size: Size,
        patch_size: Size,
        in_chans: int,
        embed_dim: int,
        bias: bool = True,
        norm: Callable[[int], nn.Module] = nn.Identity,
        sizes: str = "exact",
    ):
        super().__init__()
        if sizes != "cut" and (img_size[0] % patch_size[0] or img_size[1] % patch_size[1]):
            raise ValueError(
                f"img_size ({by(img_size)} pixels) must be a multiple of patch_size "
                f"({by(patch_size)} pixels) in height and in width"
            )
        self.img_size = img_size
        self.patch_size = patch_size
        self.sizes = sizes
        self.grid_size = (img_size[0] // patch_size[0], img_size[1] // patch_size[1])
        self.num_patches = self.grid_size[0] * self.grid_size[1]
        self.proj = nn.Conv2d(
            in_chans, embed_dim, kernel_size=patch_size, stride=patch_size, bias=bias
        )
        self.norm = norm(embed_dim)

    def forward(self, images: Tensor) -> Tensor:
        """(B, C, height, width) -> (B, N, D), patches row by row from the top left."""
        self.grid_of(images)
        x = self.proj(images).flatten(2).transpose(1, 2)  # (B, D, rows, cols) -> (B, N, D)
        return self.norm(x)

    def grid_of(self, images: Tensor) -> Size:
        """(rows, cols) of patches in images (B, C, height, width).

        Raises:
            ValueError: images of a size that is not taken.
        """
        size = tuple(images.shape[-2:])
        if size == self.img_size:
            return self.grid_size
        if self.sizes != "multiples":
            raise ValueError(
                f"expected images of {by(self.img_size)} pixels (height x width), got {by(size)}"
            )
        if size[0] % self.patch_size[0] or size[1] % self.patch_size[1]:
            raise ValueError(
                f"images of {by(size)} pixels (height x width) must be a multiple of patch_size "
                f"({by(self.patch_size)} pixels) in height and in width"
            )
        return size[0] // self.patch_size[0], size[1] // self.patch_size[1]


def resize_pos_embed(pos_embed: Tensor, old: Size, new: Size) -> Tensor:
    """Positions for another grid: (1, P + old N, D) -> (1, P + new N, D), the P first untouched.

    Bicubic with antialiasing, in float32, as timm does; the identity where `old` equals `new`.

    Raises:
        ValueError: pos_embed has fewer entries than the old grid.
    """
    prefix = pos_embed.shape[1] - old[0] * old[1]  # P
    if prefix < 0:
        raise ValueError(
            f"pos_embed has {pos_embed.shape[1]} entries, fewer than the grid {by(old)} needs"
        )
    if old == new:
        return pos_embed
    first, patches = pos_embed[:, :prefix], pos_embed[:, prefix:]
    image = patches.float().unflatten(1, old).permute(0, 3, 1, 2)  # (1, D, rows, cols)
    image = F.interpolate(image, size=new, mode="bicubic", antialias=True, align_corners=False)
    return torch.cat([first, image.flatten(2).transpose(1, 2).to(pos_embed.dtype)], dim=1)


def resize_patch_embed(weight: Tensor, new: Size) -> Tensor:
    """Projection for another patch size: (D, C, *old) -> (D, C, *new).

    The weights whose tokens for a resized patch are nearest, in the least-squares sense, to those
    of the old weights for the original patch: the pseudo-inverse of the (bicubic) resizing.
    """
    old = tuple(weight.shape[-2:])
    if old == tuple(new):
        return weight
    pixels = torch.eye(old[0] * old[1], device=weight.device).unflatten(1, old)[:, None]
    resize = F.interpolate(pixels, size=new, mode="bicubic", antialias=True, align_corners=False)
    resize = resize.flatten(1).T  # (new pixels, old pixels)
    solve = torch.linalg.pinv(resize.T)  # (new pixels, old pixels)
    return (weight.float().flatten(2) @ solve.T).unflatten(2, new).to(weight.dtype)


def by(size) -> str:
    """(224, 160) -> "224x160"."""
    return "x".join(str(side) for side in size)
