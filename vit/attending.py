"""Many photos: for each a picture and its heat in a folder, and one record of all, attend.json."""

import io
import json
import logging
import os
from collections.abc import Callable, Iterable, Iterator
from contextlib import closing
from dataclasses import asdict, dataclass
from itertools import groupby
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vit import photos
from vit.depict import Depicted, Drawing, depict
from vit.filming import film
from vit.inference import device_of, on_device
from vit.model_file import TrainedModel
from vit.output_names import RECORD, keep_others, keep_photos, pictured, stems_of
from vit.photos import Loaded
from vit.question import Question, check
from vit.runs import write_whole
from vit.video import is_moving

log = logging.getLogger("vit")
MOST_PNG = 2_000_000  # pixels; a larger picture is a JPEG
AHEAD = 2  # photos decoded before they are asked for, at full size


def attend(
    model: TrainedModel,
    paths: list[str],
    question: Question,
    drawing: Drawing,
    output: Path,
    device: str = "auto",
) -> Iterator[dict]:
    """Pictures of photos, one after another; yields the row of each and writes attend.json at the end.

    Args:
        paths: files, as they are reported.
        output: the folder for everything; made where it is not there.
        device: "auto", "cpu", "cuda" or "mps".

    Raises:
        ValueError: the question cannot be asked of this network, there is no such device, or a
            picture would replace a photo or the picture of another one.
    """
    check(model, question)
    device_of(device)  # before anything is written
    stems = stems_of(paths)
    keep_photos(output, stems)
    keep_others(output, stems)
    before = pictured(output)
    output.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    try:
        with on_device(model.net, device) as place:
            desk = Desk(model, question, drawing, output, stems, place)
            for moving, some in groupby(paths, is_moving):
                for row in (desk.moving if moving else desk.still)(some):
                    rows.append(row)
                    yield row
    finally:  # also what Ctrl-C leaves
        if rows or not (output / RECORD).exists():
            made = {stems[row["path"]]: row["path"] for row in rows if not row["error"]}
            write_record(output, question, drawing, rows, before | made)


@dataclass(frozen=True)
class Desk:
    """Where photos become rows: the network, what is asked, how it is drawn, where it goes."""

    model: TrainedModel
    question: Question
    drawing: Drawing
    output: Path
    stems: dict[str, str]
    device: torch.device

    def still(self, paths: Iterable[str]) -> Iterator[dict]:
        """Rows of photos, the next ones decoded while one is drawn."""
        loading = photos.load(paths, self.model.preprocess, ahead=AHEAD, keep_photo=True)
        with closing(loading):
            for loaded in loading:
                yield self.row(loaded.path, loaded.error, lambda one=loaded: self.photo(one))

    def moving(self, paths: Iterable[str]) -> Iterator[dict]:
        """Rows of animations and videos."""
        for path in paths:
            yield self.row(path, "", lambda one=path: self.film(one))

    def row(self, path: str, error: str, make: Callable[[], dict]) -> dict:
        """What `make` gives, or its error."""
        row = {"path": path, "error": error}
        if error:
            return row
        try:
            return row | make()
        except ValueError as failure:
            return row | {"error": " ".join(str(failure).split())}

    def photo(self, loaded: Loaded) -> dict:
        """Draws a photo and writes its files."""
        made = depict(self.model, loaded, self.question, self.drawing, self.device)
        return written(made, self.output, self.stems[loaded.path]) | made.record

    def film(self, path: str) -> dict:
        """Draws an animation or a video and writes its files."""
        stem = self.stems[path]
        row = film(self.model, path, self.question, self.drawing, self.output / stem, self.device)
        return {"picture": f"{stem}.mp4", "heat": f"{stem}.npz"} | row


def written(made: Depicted, output: Path, stem: str) -> dict[str, str]:
    """Writes picture and heat; returns their names within the folder."""
    content, suffix = encoded(made.page.pixels)
    arrays = io.BytesIO()
    np.savez(arrays, heat=made.heat, affine=made.affine, seen=made.seen)
    files = {"picture": f"{stem}{suffix}", "heat": f"{stem}.npz"}
    (output / files["picture"]).parent.mkdir(parents=True, exist_ok=True)
    write_whole(output / files["picture"], content)
    write_whole(output / files["heat"], arrays.getvalue())
    return files


def encoded(pixels: np.ndarray) -> tuple[bytes, str]:
    """A picture as PNG, or above MOST_PNG pixels as JPEG, and the suffix; no metadata."""
    content, image = io.BytesIO(), Image.fromarray(pixels)
    if image.width * image.height <= MOST_PNG:
        image.save(content, "PNG")
        return content.getvalue(), ".png"
    image.save(content, "JPEG", quality=92, subsampling=0)
    return content.getvalue(), ".jpg"


def write_record(
    output: Path, question: Question, drawing: Drawing, rows: list[dict], pictures: dict[str, str]
) -> None:
    """attend.json: what was asked, how it was drawn, and a row per photo.

    Args:
        pictures: stem -> photo of all pictures in the folder, also those of earlier calls.
    """
    settings = {"model": drawing.name} | asdict(question) | asdict(drawing.style)
    settings |= {"size": drawing.size, "at": drawing.at}
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(settings, ensure_ascii=False)
    whole = {stem: os.path.abspath(path) for stem, path in sorted(pictures.items())}
    known = json.dumps(whole, ensure_ascii=False)
    text = f'{{\n "settings": {head},\n "photos": [\n{lines}\n ],\n "pictures": {known}\n}}\n'
    # A name that is not UTF-8 has lone surrogates, which JSON writes as \udcXX.
    write_whole(output / RECORD, text.encode("utf-8", "backslashreplace"))
