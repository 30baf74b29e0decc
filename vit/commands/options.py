"""Options that the commands which use a trained network share."""

import argparse
import logging

log = logging.getLogger("vit")


def add_model(parser: argparse.ArgumentParser) -> None:
    """--model, and --architecture for weights that do not say what they are."""
    parser.add_argument(
        "--model",
        required=True,
        help="a run's folder, a model.safetensors, timm:NAME[.TAG] as `vit models` lists them, or a "
        "timm state dict (.safetensors, .pth) with --architecture",
    )
    parser.add_argument(
        "--architecture",
        metavar="NAME",
        help="what a timm state dict is of: a name of `vit models`",
    )


def opened_model(arguments: argparse.Namespace):
    """The network that the two options mean."""
    from vit.model_source import open_model

    return open_model(arguments.model, arguments.architecture)


def add_computing(parser: argparse.ArgumentParser) -> None:
    """How a network is run over photos."""
    parser.add_argument("--batch-size", type=int, default=32, help="photos at once (default: 32)")
    parser.add_argument(
        "--workers", type=int, metavar="N", help="threads that open photos (default: one per core)"
    )
    parser.add_argument(
        "--precision",
        choices=("32", "bf16"),
        default="32",
        help="bf16: numbers with 8 bits of mantissa, faster on hardware that has them (float32 is "
        "taken on other hardware); probabilities differ in the third digit (default: 32)",
    )
    parser.add_argument(
        "--tta",
        choices=("flip",),
        help="flip: the mirrored photo is looked at too, and the logits are averaged",
    )
    parser.add_argument(
        "--device",
        choices=("auto", "cpu", "cuda", "mps"),
        default="auto",
        help="auto: a GPU where there is one (default: auto)",
    )


def computing(arguments: argparse.Namespace):
    """`inference.Computing` of these options.

    Raises:
        ValueError: a number that is too small.
    """
    check_at_least_one(arguments, "batch_size", "workers")
    from vit.inference import Computing

    return Computing(
        arguments.batch_size,
        arguments.workers,
        arguments.precision,
        arguments.tta == "flip",
        arguments.device,
    )


def check_at_least_one(arguments: argparse.Namespace, *names: str) -> None:
    """Refuses numbers below 1.

    Raises:
        ValueError: names the option.
    """
    for name in names:
        value = getattr(arguments, name)
        if value is not None and value < 1:
            raise ValueError(f"--{name.replace('_', '-')} ({value}) must be at least 1")
