"""One photo and a question -> the picture of where the network looks, its heat, and a record of both."""

from dataclasses import dataclass, replace

import numpy as np
import torch

from vit import captions
from vit.canvas import PLAIN, Style, heat_affine, patch_at
from vit.layouts import common_top, compose
from vit.legend import Answer, Text
from vit.looking import answers
from vit.model_file import TrainedModel
from vit.normalise import normalise
from vit.page import Page
from vit.photos import Loaded
from vit.question import Question
from vit.views import Seen, look

SHOWN_CLASSES = 5


@dataclass(frozen=True)
class Drawing:
    """How pictures are drawn.

    Args:
        style: of the heat.
        size: long side of each drawn photo, as for `canvas.drawn_size`.
        at: pixel (x, y) of each photo whose patch looks; None: as the question says.
        name: the network's, as it stands in titles.
        source: where its weights come from, in a few words; empty: as the name says.
    """

    style: Style = PLAIN
    size: int | str | None = None
    at: tuple[float, float] | None = None
    name: str = "the network"
    source: str = ""


@dataclass(frozen=True)
class Depicted:
    """A photo's picture and what is in it.

    Args:
        page: the picture.
        heat: (rows, cols) float32; of several maps (maps, rows, cols).
        affine: (2, 3) float64, patches to the photo's pixels.
        seen: (x0, y0, x1, y1) of the photo that the network saw.
        record: the same in plain values, for attend.json.
    """

    page: Page
    heat: np.ndarray
    affine: np.ndarray
    seen: np.ndarray
    record: dict


def depict(
    model: TrainedModel,
    loaded: Loaded,
    question: Question,
    drawing: Drawing,
    device: torch.device | None = None,
) -> Depicted:
    """The picture of a photo.

    Args:
        loaded: the photo, kept, and its network pixels.
        device: where the network is; None: the CPU.

    Raises:
        ValueError: the question cannot be asked of this network or photo.
    """
    device = device or torch.device("cpu")
    affine = heat_affine(loaded.fitted, model.net.architecture.patch_size)
    grid = model.net.architecture.grid_size
    if drawing.at is not None:
        question = replace(question, patch=patch_at(affine, grid, drawing.at))
    pixels = torch.from_numpy(loaded.fitted.pixels[None]).to(device).permute(0, 3, 1, 2)
    images = normalise(pixels, model.preprocess)
    said = answers(model, images)
    seen = look(model, images, question, said)
    top = common_top(seen.maps)
    text = worded(model, loaded, question, drawing, said, seen, top)
    page = compose(
        loaded.photo, affine, seen.maps, text, seen.arrangement, drawing.style, drawing.size, top
    )
    heat = np.stack([one.heat for one in seen.maps]).astype(np.float32)
    return Depicted(
        page,
        heat[0] if len(heat) == 1 else heat,
        affine,
        np.array(loaded.fitted.seen, dtype=np.float64),
        recorded(seen, said, page),
    )


def worded(
    model: TrainedModel,
    loaded: Loaded,
    question: Question,
    drawing: Drawing,
    said: list[tuple[int, Answer]],
    seen: Seen,
    top: float,
) -> Text:
    """All that is written on the picture, whose colours end at `top`."""
    network = model.net.architecture
    aside = any(one.aside().any() for one in seen.maps)
    whole = "the map" if len(seen.maps) == 1 else "all maps together"
    caption = [
        captions.of_scale(
            top, seen.mass, aside, whole if seen.frames == 1 else "all frames together"
        ),
        *seen.notes,
        captions.of_chosen(question.patch, own_shares(seen)),
        captions.of_drawing(drawing.style.grid, drawing.style.smooth),
        captions.of_seen(loaded.photo, loaded.fitted.seen),
        captions.of_network(drawing.name, drawing.source, network, len(model.classes)),
    ]
    title = captions.of_photo(loaded.path, said[0][1] if said else None)
    return Text(
        title,
        f"Where {drawing.name} looks: {seen.label}",
        shown(said, seen) if question.layout in ("panels", "classes") else (),
        tuple(sentence for sentence in caption if sentence),
        f"{seen.mass} on a patch, times the mean of all patches",
        len(model.classes),
    )


def own_shares(seen: Seen) -> list[float]:
    """Of each map the share on the patch that looks; nothing where there is none, or a film."""
    if seen.frames > 1:
        return []
    return [one.share(one.chosen) for one in seen.maps if one.chosen is not None]


def shown(said: list[tuple[int, Answer]], seen: Seen) -> tuple[Answer, ...]:
    """The most probable classes; those whose map is shown are marked."""
    targets = {int(one.targets[0]) for one in seen.explanations if one.targets is not None}
    marked = [replace(answer, marked=number in targets) for number, answer in said]
    return tuple(
        answer for place, answer in enumerate(marked) if place < SHOWN_CLASSES or answer.marked
    )


def recorded(seen: Seen, said: list[tuple[int, Answer]], page: Page) -> dict:
    """A row of attend.json without its files."""
    top = [
        {"label": one.label, "probability": round(one.probability, 6)}
        for _, one in said[:SHOWN_CLASSES]
    ]
    return {
        "label": top[0]["label"] if top else None,
        "probability": top[0]["probability"] if top else None,
        "top": top,
        "maps": [mapped(one) for one in seen.explanations],
        "panels": [list(box) for box in page.boxes],
    }


def mapped(one) -> dict:
    """What a map is: method, layers from 1 at the image, class, shares, outlier patches."""
    return {
        "method": one.method,
        "label": one.label,
        "layers": [one.layers.start + 1, one.layers.stop],
        "target": None if one.targets is None else int(one.targets[0]),
        "prefix_share": round(float(one.prefix_share[0]), 6),
        "outlier_share": round(float(one.outlier_share[0]), 6),
        "outliers": one.outliers[0].nonzero().tolist(),
    }
