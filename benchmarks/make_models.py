"""Writes vit/models.csv: one row for each name and tag of timm's plain Vision Transformers.

    python benchmarks/make_models.py [--output vit/models.csv]

Takes about three minutes: each name is built once, without memory (PyTorch's meta device). What
differs between the tags of a name (size, classes, preprocessing, licence) is in timm's own table.
"""

import argparse
import csv
import json
import sys
from dataclasses import replace
from pathlib import Path

import timm
import torch
from timm.models import get_arch_pretrained_cfgs
from torch.utils.flop_counter import FlopCounterMode

sys.path.insert(0, str(Path(__file__).parents[1]))
from vit.architecture import Architecture
from vit.catalogue import COLUMNS
from vit.model import VisionTransformer
from vit.recognise import architecture_of

ROOT = Path(__file__).parents[1]
MODULES = ("vision_transformer", "deit")


def names() -> list[str]:
    """timm's names whose classes are VisionTransformer and its distilled form."""
    return [name for module in MODULES for name in timm.list_models(module=module)]


def recognised(name: str) -> tuple[Architecture | None, str]:
    """What timm builds under a name, or None and why it is not supported."""
    with torch.device("meta"):
        module = timm.create_model(name)
    try:
        return architecture_of(module), ""
    except ValueError as error:
        return None, str(error).rpartition(": ")[2]


def counted(architecture: Architecture) -> dict:
    """The columns that the network itself tells."""
    with torch.device("meta"):
        net = VisionTransformer(architecture).eval().requires_grad_(False)
        image = torch.zeros(1, architecture.in_chans, *architecture.img_size)
    with FlopCounterMode(display=False) as counter, torch.no_grad():
        net(image)
    rows, cols = architecture.grid_size
    return {
        "parameters": sum(p.numel() for p in net.parameters()),
        "gmacs": f"{counter.get_total_flops() / 2e9:.2f}",
        "img_size": "x".join(map(str, architecture.img_size)),
        "tokens": architecture.num_prefix_tokens + rows * cols,
        "classes": architecture.num_classes,
        "architecture": json.dumps(architecture.non_defaults()),
    }


def row_of(name: str, config, architecture: Architecture | None, refused: str) -> dict:
    """One row; `config` is timm's description of a tag's weights."""
    row = {
        "name": name,
        "tag": config.tag or "",
        "licence": config.license or "",
        "crop_pct": config.crop_pct,
        "crop_mode": config.crop_mode,
        "interpolation": config.interpolation,
        "mean": " ".join(map(str, config.mean)),
        "std": " ".join(map(str, config.std)),
        "weights": config.hf_hub_id or config.url or "",
        "refused": refused,
    }
    if architecture is None:
        size = "x".join(map(str, config.input_size[1:]))
        return row | {"img_size": size, "classes": config.num_classes}
    size = tuple(config.input_size[1:])
    changed = replace(architecture, img_size=size, num_classes=config.num_classes)
    return row | counted(changed)


def rows_of(name: str) -> list[dict]:
    """A name's rows, its default first."""
    architecture, refused = recognised(name)
    configs = get_arch_pretrained_cfgs(name).values()
    return [row_of(name, config, architecture, refused) for config in configs]


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n", maxsplit=1)[0])
    parser.add_argument("--output", type=Path, default=ROOT / "vit" / "models.csv")
    output = parser.parse_args().output
    rows = [row for name in names() for row in rows_of(name)]
    with output.open("w", newline="", encoding="utf-8") as file:
        writer = csv.DictWriter(file, COLUMNS, restval="", lineterminator="\n")
        writer.writeheader()
        writer.writerows(rows)
    print(f"{len(rows)} rows of {len({row['name'] for row in rows})} names in {output}")


if __name__ == "__main__":
    main()
