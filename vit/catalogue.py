"""The pretrained networks that are known: models.csv, one row per name and tag, read without torch.

The rows are written by benchmarks/make_models.py from timm; a test rebuilds some of them.
"""

import csv
import json
from functools import cache
from pathlib import Path

from vit.nearest import nearest

FILE = Path(__file__).with_name("models.csv")
COLUMNS = (
    "name",  # timm's; the plain Vision Transformers of its modules vision_transformer and deit
    "tag",  # of the weights; a name's first row is its default
    "parameters",  # with the head of the weights
    "gmacs",  # 10^9 multiplications with addition, for one image
    "img_size",  # height x width, pixels
    "tokens",  # prefix tokens and patches
    "classes",  # 0: features, no head
    "licence",
    "crop_pct",
    "crop_mode",
    "interpolation",
    "mean",
    "std",
    "weights",  # Hugging Face repository or address they are fetched from; empty: none published
    "refused",  # why our network cannot hold it; empty: it can
    "architecture",  # JSON, the non-defaults of `Architecture`
)
# DINOv3 (rotary positions, timm's class Eva): the nearest that is supported, by the size's first word.
DINOV3 = {
    "small": "vit_small_patch14_reg4_dinov2",
    "base": "vit_base_patch14_reg4_dinov2",
    "large": "vit_large_patch14_reg4_dinov2",
    "huge": "vit_giant_patch14_reg4_dinov2",
    "7b": "vit_giant_patch14_reg4_dinov2",
}


@cache
def rows() -> list[dict[str, str]]:
    """All rows, as text, in the file's order."""
    with FILE.open(newline="", encoding="utf-8") as file:
        return list(csv.DictReader(file))


def full_name(row: dict[str, str]) -> str:
    """NAME.TAG, or NAME where there is no tag."""
    return f"{row['name']}.{row['tag']}" if row["tag"] else row["name"]


def find(name: str) -> dict[str, str]:
    """The row of NAME.TAG, or the default one of NAME.

    Raises:
        ValueError: not known, or not supported: then with the reason.
    """
    if "_dinov3" in name:
        instead = DINOV3.get(name.removeprefix("vit_").split("_")[0], DINOV3["base"])
        raise ValueError(
            f"{name} is not supported: its positions are rotations of q and k in every block, which "
            f"this network does not have; the nearest that is supported is {instead}"
        )
    for row in rows():
        if name in (row["name"], full_name(row)):
            if row["refused"]:
                raise ValueError(f"{name} is not supported: {row['refused']}")
            return row
    known = [full_name(row) for row in rows()] + [row["name"] for row in rows()]
    raise ValueError(
        f'no network "{name}" is known{nearest(name, known)}; `vit models` lists all that are'
    )


def fields_of(row: dict[str, str]) -> dict:
    """The row's architecture: the fields that differ from `Architecture`'s defaults."""
    return json.loads(row["architecture"])
