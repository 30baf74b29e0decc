"""Draws docs/gallery.png: the same network on three photos, at two depths.

    python benchmarks/gallery.py --weights FILE --about "whose weights these are"

The photos come with scikit-image (pip install scikit-image), whose documentation says of each that
it is in the public domain: chelsea (CC0, Stefan van der Walt), coffee (CC0, Rachel Michetti), rocket
(released by SpaceX). They are 2:3, and so are the network's pixels here: it sees all of each.
"""

import argparse
import io
from importlib.util import find_spec
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vit import captions, images, pretrained
from vit.canvas import PLAIN, canvas, heat_affine
from vit.explain import explain
from vit.fitting import fit
from vit.layouts import Map, common_top, painted
from vit.legend import Text
from vit.normalise import normalise
from vit.page import Panel, page

PHOTOS = {"a cat": "chelsea", "a cup of coffee": "coffee", "a rocket": "rocket"}
ROWS = {"": None, "last 2 of 12 layers": "last:2", "all 12, the paper's": "all"}
SIDE = 240  # long side of a panel, pixels
MOST_BYTES = 600_000


def main() -> None:
    """Reads the options, draws, writes."""
    parser = argparse.ArgumentParser(description=__doc__.partition("\n")[0])
    parser.add_argument("--weights", required=True, help="a state dict under timm's names")
    parser.add_argument("--architecture", default="vit_small_patch14_dinov2")
    parser.add_argument("--about", required=True, help="whose weights these are, for the caption")
    parser.add_argument("--output", type=Path, default=Path("docs/gallery.png"))
    options = parser.parse_args()
    net, preprocess = pretrained.network(options.architecture, options.weights, img_size=(392, 588))
    drawn, heats = [], {layers: [] for layers in ROWS.values() if layers}
    for name in PHOTOS.values():
        photo = images.read(stored(name))
        fitted = fit(photo, preprocess)
        drawn.append(canvas(photo, heat_affine(fitted, net.architecture.patch_size), SIDE))
        pixels = normalise(torch.from_numpy(fitted.pixels).permute(2, 0, 1)[None], preprocess)
        for layers, found in heats.items():
            seen = explain(net, pixels, layers=layers)
            found.append(Map(seen.heat[0].double().numpy(), outliers=seen.outliers[0].numpy()))
    write(options.output, pictured(drawn, heats, net, options))


def stored(name: str) -> Path:
    """A photo file that scikit-image carries."""
    found = find_spec("skimage")
    if found is None:
        raise SystemExit("the photos come with scikit-image: pip install scikit-image")
    return next(Path(found.origin).parent.glob(f"data/{name}.*g"))


def pictured(drawn: list, heats: dict, net, options) -> np.ndarray:
    """The page: a column for each photo, a row for each depth."""
    maps = [one for found in heats.values() for one in found]
    top = common_top(maps)
    panels = [Panel(one.pixels, name) for name, one in zip(PHOTOS, drawn, strict=True)]
    panels += [
        Panel(painted(one, heat, top, PLAIN))
        for found in heats.values()
        for one, heat in zip(drawn, found, strict=True)
    ]
    network, file = net.architecture, Path(options.weights).name
    caption = (
        captions.of_scale(top, "attention", aside=True),
        "Outlined in cyan: outlier patches, which collect attention on every photo, whatever they show.",
        f"{captions.of_network(options.architecture, file, network)} {options.about}",
        "Photos: public domain, from scikit-image (Stefan van der Walt, Rachel Michetti, SpaceX).",
    )
    text = Text("Where the network looks", "Attention rollout, by depth", (), caption)
    return page(panels, len(drawn), text, top, tuple(ROWS)).pixels


def write(path: Path, pixels: np.ndarray) -> None:
    """Writes the picture, which has to be small enough for a README."""
    picture, content = Image.fromarray(pixels), io.BytesIO()
    picture.save(content, "PNG", optimize=True)
    if content.tell() > MOST_BYTES:
        raise SystemExit(f"{path} would have {content.tell():,} bytes, over {MOST_BYTES:,}")
    path.write_bytes(content.getvalue())
    print(f"{path}: {picture.width} x {picture.height} pixels, {content.tell():,} bytes")


if __name__ == "__main__":
    main()
