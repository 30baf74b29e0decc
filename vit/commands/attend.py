"""`vit attend`: where a network looks on each photo: a picture, its heat, and one attend.json."""

import argparse
import sys

from vit.commands import options

LAYOUTS = ("overlay", "panels", "depth", "heads", "classes", "methods")
METHODS = ("rollout", "raw", "affinity", "generic", "legrad", "gradcam")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "photos",
        nargs="+",
        metavar="PHOTO",
        help='a photo, a folder, a pattern, an animation or a video; "-": a list on stdin',
    )
    options.add_model(parser)
    parser.add_argument(
        "--img-size",
        metavar="N|HxW",
        help="the network's pixels, where not its own: larger ones give a finer grid, 392x588 one "
        "that sees all of a 2:3 photo where the weights do not crop",
    )
    parser.add_argument(
        "--output", default="attend", metavar="DIR", help="where everything goes (default: attend)"
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "mps"),
        default="auto",
        help="auto: a GPU where there is one (default: auto)",
    )
    add_question(parser.add_argument_group("what is asked"))
    add_drawing(parser.add_argument_group("how it is drawn"))


def add_question(group) -> None:
    """Options on method, depth, class, patch."""
    group.add_argument(
        "--method",
        choices=METHODS,
        default="rollout",
        help="rollout, raw and affinity show attention, the others explain a class (default: rollout)",
    )
    group.add_argument(
        "--layers",
        metavar="all|last:K|A-B|A",
        help="which layers, from 1 at the image (default: last:2 for rollout, whose paper takes all)",
    )
    group.add_argument(
        "--heads",
        choices=("mean", "max", "min"),
        default="mean",
        help="how heads become one map (default: mean)",
    )
    group.add_argument(
        "--discard",
        type=float,
        default=0.0,
        metavar="SHARE",
        help="smallest entries of each row taken as 0 (default: 0)",
    )
    group.add_argument(
        "--target",
        nargs="+",
        action="extend",
        metavar="CLASS",
        help="the class to explain; several give a panel each (default: what the network says)",
    )
    patch = group.add_mutually_exclusive_group()
    patch.add_argument(
        "--patch", metavar="ROW,COL", help="the patch that looks, counted from 0 at the top left"
    )
    patch.add_argument("--at", metavar="X,Y", help="the same by a pixel of the photo")
    group.add_argument(
        "--sinks",
        choices=("mark", "exclude", "show"),
        default="mark",
        help="outlier patches, with over ten times an even share of attention in some layer: outline "
        "them, take them as 0, or neither (default: mark)",
    )


def add_drawing(group) -> None:
    """Options on the picture."""
    group.add_argument(
        "--layout", choices=LAYOUTS, default="overlay", help="which panels (default: overlay)"
    )
    group.add_argument(
        "--view",
        choices=("smooth", "nearest"),
        default="smooth",
        help="smooth between patches, or each patch a square (default: smooth)",
    )
    group.add_argument("--grid", action="store_true", help="lines between the patches")
    group.add_argument(
        "--alpha", type=float, default=0.5, help="opacity of the heat, 0 to 1 (default: 0.5)"
    )
    group.add_argument(
        "--size",
        metavar="N|original",
        help="long side of each drawn photo (default: its own, within 512 and 1600)",
    )


def run(arguments: argparse.Namespace) -> int:
    """Carries the command out; returns the exit code."""
    from pathlib import Path

    from vit import photos
    from vit.attending import attend
    from vit.canvas import Style
    from vit.commands.progress import Progress
    from vit.depict import Drawing
    from vit.model_source import open_model
    from vit.question import Question

    model = open_model(arguments.model, arguments.architecture, img_size(arguments.img_size))
    question = Question(
        arguments.method,
        arguments.layers,
        arguments.heads,
        arguments.discard,
        targets(arguments.target or [], model.classes),
        pair(arguments.patch, "--patch", int, "ROW,COL"),
        arguments.sinks,
        arguments.layout,
    )
    style = Style(arguments.alpha, arguments.view == "smooth", arguments.grid)
    at = pair(arguments.at, "--at", float, "X,Y")
    drawing = Drawing(style, size(arguments.size), at, *name_of(arguments))
    paths = list(dict.fromkeys(photos.listed(arguments.photos)))
    failed, output = 0, Path(arguments.output)
    with Progress(len(paths)) as progress:
        for row in attend(model, paths, question, drawing, output, arguments.device):
            progress.advance()
            failed += bool(row["error"])
            if row["error"]:
                print(f"{row['path']}: {row['error']}", file=sys.stderr)
    return summary(paths, failed, output)


def summary(paths: list[str], failed: int, output) -> int:
    """Says on stderr what there is now; returns the exit code."""
    done = len(paths) - failed
    print(f"{done} picture{'s' * (done != 1)} in {output}", file=sys.stderr)
    if failed:
        print(f"{failed} of {len(paths)} failed; attend.json says why", file=sys.stderr)
    return 1 if failed or not paths else 0


def targets(names: list[str], classes: list[str]) -> tuple[int, ...]:
    """Classes by name -> by number.

    Raises:
        ValueError: the network does not know one.
    """
    for name in names:
        if name not in classes:
            from vit.nearest import nearest

            hint = nearest(name, classes) or (
                f": it knows {some(classes)}" if classes else ": it knows none"
            )
            raise ValueError(f'--target "{name}" is no class of this network{hint}')
    return tuple(classes.index(name) for name in names)


def some(names: list[str]) -> str:
    """The first few names."""
    return ", ".join(names[:8]) + (", ..." if len(names) > 8 else "")


def pair(text: str | None, option: str, kind: type, form: str) -> tuple | None:
    """ "3,4" -> (3, 4).

    Raises:
        ValueError: not two numbers.
    """
    if text is None:
        return None
    try:
        first, second = (kind(word) for word in text.split(","))
    except ValueError:
        raise ValueError(f"{option} ({text}) must be two numbers, {form}, such as 3,4") from None
    return first, second


def img_size(text: str | None) -> int | tuple[int, int] | None:
    """ "448" -> 448, "392x588" -> (392, 588): (height, width).

    Raises:
        ValueError: anything else.
    """
    if text is None:
        return None
    sides = text.lower().split("x")
    if len(sides) > 2 or not all(side.isdecimal() and int(side) for side in sides):
        raise ValueError(f"--img-size ({text}) must be a number of pixels, or HEIGHTxWIDTH")
    return int(text) if len(sides) == 1 else (int(sides[0]), int(sides[1]))


def size(text: str | None) -> int | str | None:
    """ "800" -> 800, "original" as it is.

    Raises:
        ValueError: anything else.
    """
    if text is None or text == "original":
        return text
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f'--size ({text}) must be a number of pixels, at least 1, or "original"')
    return int(text)


def name_of(arguments: argparse.Namespace) -> tuple[str, str]:
    """What the network and its weights are called on pictures: never a whole path of this machine."""
    from pathlib import Path

    if arguments.model.startswith("timm:"):
        return arguments.model.removeprefix("timm:"), ""
    path = Path(arguments.model).absolute()
    if arguments.architecture:
        return arguments.architecture, path.name
    if path.is_file():
        if not (path.parent / "config.json").is_file():  # a file alone, not a run's
            return path.stem, ""
        path = path.parent
    return f"{path.parent.name}/{path.name}", ""
