"""`vit export`: a trained network as one file for other programs, ONNX or torch.export."""

import argparse
from pathlib import Path

from vit.commands import options


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """The command's options."""
    options.add_model(parser)
    parser.add_argument(
        "--format",
        choices=("onnx", "pt2"),
        help="pt2: what torch.export.load reads (default: by the output's name)",
    )
    parser.add_argument("--output", metavar="FILE", help="default: beside the model, .onnx or .pt2")
    parser.add_argument("--opset", type=int, metavar="N", help="of ONNX, 18 to 23 (default: 18)")


def run(arguments: argparse.Namespace) -> int:
    """Carries the command out; returns the exit code."""
    kind = arguments.format or Path(arguments.output or "").suffix.lower().removeprefix(".")
    if kind not in ("onnx", "pt2"):
        raise ValueError("--format onnx or --format pt2 is needed, or an --output that ends so")
    output = Path(arguments.output or beside(arguments.model, kind))
    if not output.parent.is_dir():
        raise ValueError(f"--output ({output}): there is no folder {output.parent}")
    from vit.export import check, export

    check(kind, arguments.opset)
    model = options.opened_model(arguments)
    differences = export(model, output, kind, arguments.opset)
    for size, difference in differences.items():
        print(f"batch of {size}: differs from the original by at most {difference:.1e}")
    print(f"written: {output} ({output.stat().st_size / 1e6:.1f} MB)")
    return 0


def beside(model: str, kind: str) -> Path:
    """Where the file goes that no one named: in the run, beside the file, or here."""
    if model.startswith("timm:"):
        return Path(f"{model.removeprefix('timm:')}.{kind}")
    path = Path(model)
    return path / f"model.{kind}" if path.is_dir() else path.with_suffix(f".{kind}")
