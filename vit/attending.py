"""Many photos: for each a picture and its heat in a folder, and one record of all, attend.json."""

import io
import json
import logging
import os
from collections import Counter
from collections.abc import Iterator
from contextlib import closing
from dataclasses import asdict
from pathlib import Path

import numpy as np
import torch
from PIL import Image

from vit import photos
from vit.depict import Depicted, Drawing, depict
from vit.inference import on_device
from vit.looking import Question, check
from vit.model_file import TrainedModel
from vit.photos import Loaded
from vit.runs import write_whole

log = logging.getLogger("vit")
RECORD = "attend.json"
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
        ValueError: the question cannot be asked of this network, or a picture would replace that of
            another photo.
    """
    check(model, question)
    stems = stems_of(paths)
    keep_others(output, stems)
    output.mkdir(parents=True, exist_ok=True)
    rows: list[dict] = []
    loading = photos.load(paths, model.preprocess, ahead=AHEAD, keep_photo=True)
    try:
        with closing(loading), on_device(model.net, device) as place:
            for loaded in loading:
                rows.append(one_row(model, loaded, question, drawing, output, stems, place))
                yield rows[-1]
    finally:  # also what Ctrl-C leaves
        write_record(output, question, drawing, rows)


def one_row(
    model: TrainedModel,
    loaded: Loaded,
    question: Question,
    drawing: Drawing,
    output: Path,
    stems: dict[str, str],
    place: torch.device,
) -> dict:
    """Draws one photo and writes its files; returns its row, which may be an error's."""
    row = {"path": str(loaded.path), "error": loaded.error}
    if loaded.error:
        return row
    try:
        made = depict(model, loaded, question, drawing, place)
    except ValueError as error:
        return row | {"error": " ".join(str(error).split())}
    return row | written(made, output, stems[loaded.path]) | made.record


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


def stems_of(paths: list[str]) -> dict[str, str]:
    """Each photo's name in the output folder, without suffix: its place below their common folder.

    Where two would be the same (a.jpg, a.png) they keep their suffix.
    """
    whole = {path: os.path.abspath(path) for path in paths}
    if not whole:
        return {}
    common = os.path.commonpath([os.path.dirname(one) for one in whole.values()])
    places = {path: os.path.relpath(one, common) for path, one in whole.items()}
    short = {path: os.path.splitext(place)[0] for path, place in places.items()}
    uses = Counter(stem.casefold() for stem in short.values())
    return {
        path: (stem if uses[stem.casefold()] == 1 else places[path]).replace(os.sep, "/")
        for path, stem in short.items()
    }


def keep_others(output: Path, stems: dict[str, str]) -> None:
    """No picture of an earlier call that shows another photo is replaced.

    Raises:
        ValueError: one would be.
    """
    try:
        before = json.loads((output / RECORD).read_text(encoding="utf-8"))["photos"]
    except (OSError, ValueError, KeyError, TypeError):
        return
    mine = {stem: path for path, stem in stems.items()}
    for row in before:
        name = row.get("heat", "").removesuffix(".npz")
        if name in mine and os.path.abspath(mine[name]) != os.path.abspath(row["path"]):
            raise ValueError(
                f"{output / row['picture']} shows {row['path']} and would be replaced by the picture "
                f"of {mine[name]}: choose another --output"
            )


def write_record(output: Path, question: Question, drawing: Drawing, rows: list[dict]) -> None:
    """attend.json: what was asked, how it was drawn, and a row per photo."""
    settings = {"model": drawing.name} | asdict(question) | asdict(drawing.style)
    settings |= {"size": drawing.size, "at": drawing.at}
    lines = ",\n".join("  " + json.dumps(row, ensure_ascii=False) for row in rows)
    head = json.dumps(settings, ensure_ascii=False)
    text = f'{{\n "settings": {head},\n "photos": [\n{lines}\n ]\n}}\n'
    write_whole(output / RECORD, text.encode())
