"""`vit evaluate`: how good a trained network is on a folder of labelled photos, or a named source."""

import argparse
import json


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    parser.add_argument(
        "source", help="a folder of class folders, or a named source: digits, cifar10, ..."
    )
    parser.add_argument("--model", required=True, help="a run's folder or a model.safetensors")
    parser.add_argument(
        "--split",
        choices=("auto", "train", "val", "test", "all"),
        default="auto",
        help="which part; auto: the test part where there is one, else all (default: auto)",
    )
    parser.add_argument("--batch-size", type=int, default=64, help="images at once (default: 64)")
    parser.add_argument("--output", metavar="FILE", help="also write the result as JSON")


def run(arguments: argparse.Namespace) -> int:
    """Carries the command out; returns the exit code."""
    from vit.inference import evaluate
    from vit.model_file import load

    if arguments.batch_size < 1:
        raise ValueError(f"--batch-size ({arguments.batch_size}) must be at least 1")
    result = evaluate(
        load(arguments.model), arguments.source, arguments.split, arguments.batch_size
    )
    lines = (
        f" {json.dumps(key)}: {json.dumps(value, ensure_ascii=False)}"
        for key, value in result.items()
    )
    text = "{\n" + ",\n".join(lines) + "\n}"
    print(text)
    if arguments.output:
        with open(arguments.output, "w", encoding="utf-8") as file:
            file.write(text + "\n")
    return 1 if result["left_out"] else 0
