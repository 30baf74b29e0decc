"""A moving picture and a question -> a video of where the network looks, one scale over all frames.

Two passes, so that neither frames nor heat are ever all in memory: the first looks at every frame and
puts the heat on disk, the second decodes again and draws.
"""

import os
from collections.abc import Iterator
from contextlib import closing, contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from tempfile import TemporaryDirectory

import numpy as np
import torch

from vit.canvas import Style, canvas, drawn_size, heat_affine, patch_at
from vit.depict import Drawing, mapped, worded
from vit.explain import Explanation
from vit.fitting import Fitted, fit
from vit.images import Photo
from vit.layouts import ONE_EACH, Map, common_top, painted
from vit.legend import Text
from vit.looking import answers, asked, for_class, mass_of, named, notes_of
from vit.model_file import TrainedModel
from vit.normalise import normalise
from vit.page import Panel, page
from vit.photos import Loaded
from vit.question import FOR_A_CLASS, Question
from vit.video import Frame, av, frames, writer
from vit.views import Seen

BATCH = 8  # frames looked at at once
SCALED = 2000  # frames, evenly spread, from which the scale is taken


@dataclass(frozen=True)
class Film:
    """What the first pass leaves: per frame the heat (rows, cols), the outliers and the time.

    Args:
        heat, outliers: arrays on disk, (frames, rows, cols), float32 and bool.
        seconds: (frames,).
        shares: prefix and outlier share of each frame, (frames, 2).
        first: the explanation of the first frames, for its words.
        fitted: of the first frame; where the network sees is the same in all.
        affine: (2, 3), patches to a frame's pixels.
        question: with the patch that looks, and the class that is explained.
        answered: whether that class is what the network says of the first frame.
    """

    heat: np.ndarray
    outliers: np.ndarray
    seconds: np.ndarray
    shares: np.ndarray
    first: Explanation
    fitted: Fitted
    affine: np.ndarray
    question: Question
    answered: bool = False

    @property
    def marked(self) -> bool:
        """Whether outlier patches are."""
        return self.question.sinks != "show"

    def map(self, number: int) -> Map:
        """One frame's map."""
        outliers = np.asarray(self.outliers[number]) if self.marked else None
        heat = self.heat[number].astype(np.float64)
        return Map(heat, outliers=outliers, chosen=self.question.patch)


def film(
    model: TrainedModel,
    path: str,
    question: Question,
    drawing: Drawing,
    stem: Path,
    device: torch.device,
) -> dict:
    """Writes STEM.mp4 and STEM.npz; returns the row of attend.json without path and error.

    Args:
        path: an animation or a video.
        stem: where the files go, without suffix.

    Raises:
        ValueError: a layout of several panels, a broken file, or no PyAV.
    """
    if question.layout != "overlay" or len(question.targets) > 1:
        raise ValueError("a moving picture is drawn with --layout overlay and one --target alone")
    av()  # not there after an hour of looking is too late
    with TemporaryDirectory() as folder:
        made = first_pass(model, path, question, drawing, Path(folder), device)
        try:
            return files_of(model, path, drawing, made, stem)
        finally:
            for array in (made.heat, made.outliers):
                array._mmap.close()  # Windows deletes no file that is mapped


def files_of(model: TrainedModel, path: str, drawing: Drawing, made: Film, stem: Path) -> dict:
    """Writes video and heat; returns the row of attend.json."""
    stem.parent.mkdir(parents=True, exist_ok=True)
    box = second_pass(model, path, drawing, made, stem.with_name(stem.name + ".mp4"))
    with whole(stem.with_name(stem.name + ".npz")) as part, open(part, "wb") as file:
        seen = np.array(made.fitted.seen, dtype=np.float64)
        arrays = {"heat": made.heat, "affine": made.affine, "seen": seen}
        np.savez(file, **arrays, seconds=made.seconds)
    return recorded(made, box)


def recorded(made: Film, box: tuple[int, int, int, int]) -> dict:
    """A row of attend.json, the shares as means over the frames."""
    prefix, outliers = made.shares.mean(axis=0)
    about = mapped(made.first) | {
        "prefix_share": round(float(prefix), 6),
        "outlier_share": round(float(outliers), 6),
        "outliers": np.argwhere(made.outliers.any(axis=0)).tolist(),
    }
    return {"frames": len(made.seconds), "maps": [about], "panels": [list(box)]}


def first_pass(
    model: TrainedModel,
    path: str,
    question: Question,
    drawing: Drawing,
    folder: Path,
    device: torch.device,
) -> Film:
    """Looks at every frame; all for one class, that of the first where none is asked for."""
    answered = question.method in FOR_A_CLASS and not question.targets
    grid, first, fitted, seconds, shares = model.net.architecture.grid_size, None, None, [], []
    affine = None
    with open(folder / "heat", "wb") as heat, open(folder / "outliers", "wb") as outliers:
        for some in batches(frames(path), BATCH):
            fits = [fit(frame.photo, model.preprocess) for frame in some]
            if fitted is None:
                fitted = fits[0]
                affine = heat_affine(fitted, model.net.architecture.patch_size)
                if drawing.at is not None:
                    question = replace(question, patch=patch_at(affine, grid, drawing.at))
            pixels = np.stack([one.pixels for one in fits])
            images = torch.from_numpy(pixels).to(device).permute(0, 3, 1, 2)
            images = normalise(images, model.preprocess)
            if answered and not question.targets:
                question = replace(question, targets=(answers(model, images[:1])[0][0],))
            one = asked(model, images, question)
            first = one if first is None else first
            heat.write(one.heat.detach().cpu().float().numpy().tobytes())
            outliers.write(one.outliers.cpu().numpy().tobytes())
            seconds += [frame.seconds for frame in some]
            shares.append(torch.stack([one.prefix_share, one.outlier_share], 1).cpu().numpy())
    shape = (len(seconds), *grid)
    return Film(
        np.memmap(folder / "heat", np.float32, "r", shape=shape),
        np.memmap(folder / "outliers", np.bool_, "r", shape=shape),
        np.array(seconds),
        np.concatenate(shares),
        first,
        fitted,
        affine,
        question,
        answered,
    )


def second_pass(
    model: TrainedModel, path: str, drawing: Drawing, made: Film, target: Path
) -> tuple[int, int, int, int]:
    """Draws every frame into the same page; returns where on it."""
    count = len(made.seconds)
    top = common_top([made.map(number) for number in range(0, count, -(-count // SCALED))])
    with closing(frames(path)) as again:
        photo = next(again).photo
    size = max(drawn_size(photo.height, photo.width, drawing.size))
    first = drawn(photo, made, 0, top, drawing.style, size)
    still = page([Panel(first)], 1, words(model, path, photo, made, top, drawing), top)
    pixels, (x0, y0, x1, y1) = even(still.pixels), still.boxes[0]
    with (
        whole(target) as part,
        writer(part, *pixels.shape[:2]) as write,
        closing(frames(path)) as again,
    ):
        for number, frame in enumerate(islice(again, count)):
            pixels[y0:y1, x0:x1] = drawn(frame.photo, made, number, top, drawing.style, size)
            write(pixels, frame.seconds, frame.duration)
    return still.boxes[0]


def drawn(photo: Photo, made: Film, number: int, top: float, style: Style, size: int) -> np.ndarray:
    """One frame under its heat: (height, width, 3)."""
    return painted(canvas(photo, made.affine, size), made.map(number), top, style)


def words(
    model: TrainedModel, path: str, photo: Photo, made: Film, top: float, drawing: Drawing
) -> Text:
    """All that is written around the frames."""
    one, question = made.first, made.question
    label = named(one, question, len(model.net.blocks)) + for_class(model, one, question, [])
    label += ", its answer to the first frame" if made.answered else ""
    label += f", one scale over {len(made.seconds)} frames"
    prefix, outliers = made.shares.T.tolist()
    found = list(zip(outliers, made.outliers.sum(axis=(1, 2)).tolist(), strict=True))
    notes = notes_of(model, question, [one.method], prefix, found, False)
    count = len(made.seconds)
    seen = Seen([made.map(0)], [one], ONE_EACH, label, mass_of(one.method), notes, count)
    return worded(model, Loaded(path, made.fitted, photo), question, drawing, [], seen, top)


def even(pixels: np.ndarray) -> np.ndarray:
    """A picture with white added so that its sides are even, as videos need: a new array."""
    down, right = (side % 2 for side in pixels.shape[:2])
    return np.pad(pixels, ((0, down), (0, right), (0, 0)), constant_values=255)


def batches(items: Iterator[Frame], size: int) -> Iterator[list[Frame]]:
    """Lists of `size` frames, the last one shorter."""
    while some := list(islice(items, size)):
        yield some


@contextmanager
def whole(target: Path) -> Iterator[Path]:
    """A file that is there when it is complete, and not before."""
    part = target.with_name(target.name + ".part")
    try:
        yield part
        os.replace(part, target)
    finally:
        part.unlink(missing_ok=True)
