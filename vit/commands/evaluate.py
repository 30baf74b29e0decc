"""`vit evaluate`: how good a trained network is on a folder of labelled photos, or a named source."""

import argparse
import json
from pathlib import Path

from vit.commands import options

NAMED = 10  # photos left out that are named one by one


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "source", help="a folder of class folders, or a named source: digits, cifar10, ..."
    )
    options.add_model(parser)
    parser.add_argument(
        "--split",
        choices=("auto", "train", "val", "test", "all"),
        default="auto",
        help="which part; auto: the test part where there is one, else all (default: auto)",
    )
    parser.add_argument(
        "--output",
        metavar="FILE.json|FOLDER",
        help="also write the result there; into a folder with pictures: confusion, mistakes, "
        "per_class, reliability",
    )
    options.add_computing(parser)


def run(arguments: argparse.Namespace) -> int:
    """Carries the command out; returns the exit code."""
    output = Path(arguments.output) if arguments.output else None
    if output and output.suffix.lower() == ".json" and not output.parent.is_dir():
        raise ValueError(f"--output ({output}): there is no folder {output.parent}")
    computing = options.computing(arguments)
    from vit.commands.progress import Progress
    from vit.evaluation import evaluate

    model = options.opened_model(arguments)
    with Progress() as progress:
        evaluation = evaluate(model, arguments.source, arguments.split, computing, progress.advance)
    tell(evaluation.left_out)
    text = as_text(evaluation.report())
    print(text, end="")
    if output:
        write(evaluation, text, output)
    return 1 if evaluation.left_out else 0


def tell(left_out: list[tuple[str, str]]) -> None:
    """Names the first photos that could not be read, and counts the others."""
    for name, reason in left_out[:NAMED]:
        options.log.warning("left out: %s: %s", name, reason)
    if len(left_out) > NAMED:
        options.log.warning("left out: %d more", len(left_out) - NAMED)


def as_text(report: dict) -> str:
    """JSON, an entry per line."""
    lines = (
        f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in report.items()
    )
    return "{\n" + ",\n".join(lines) + "\n}\n"


def write(evaluation, text: str, output: Path) -> None:
    """The result as one JSON file, or as a folder with it and the pictures."""
    if output.suffix.lower() == ".json":
        output.write_text(text, encoding="utf-8")
        return
    from vit.result_pictures import draw_results

    output.mkdir(parents=True, exist_ok=True)
    (output / "evaluation.json").write_text(text, encoding="utf-8")
    draw_results(
        evaluation.predictions,
        evaluation.model.classes,
        evaluation.model.temperature,
        evaluation.image_of,
        [item.id for item in evaluation.items],
        lambda name: output / f"{name}.png",
        f"{evaluation.source}: {evaluation.split} images",
    )
    options.log.info("pictures are in %s", output)
