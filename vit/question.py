"""What is asked of a network about photos, and whether it can be asked of this one."""

from dataclasses import dataclass

from vit.attention_rows import check_fusing
from vit.explain import METHOD
from vit.methods import layers_of
from vit.model_file import TrainedModel

LAYOUTS = ("overlay", "panels", "depth", "heads", "classes", "methods")
SINKS = ("mark", "exclude", "show")

# What a user who says nothing gets. Measured on 300 photos with object masks (benchmarks/explain.py):
# over all layers, as the paper has it, a rollout finds the object worse than a blob in the middle of
# the photo does; over the last two layers it is the best rollout.
DEFAULT_METHOD = "rollout"
DEFAULT_LAYERS = {"rollout": "last:2"}
FOR_A_CLASS = tuple(name for name, method in METHOD.items() if "target" in method.takes)


@dataclass(frozen=True)
class Question:
    """What is asked of the network about each photo.

    Args:
        method: one of `explain.METHODS`.
        layers: as `explain.layers_of` reads it; None: DEFAULT_LAYERS, else the method's own.
        heads: "mean", "max" or "min" over heads.
        discard: share of each attention row taken as 0.
        targets: classes by number, for methods that explain one; empty: the predicted one.
        patch: (row, column) of the patch that looks; None: what the head reads.
        sinks: outlier patches: "mark" outlines them, "exclude" takes them as 0, "show" does neither.
        layout: one of LAYOUTS.
    """

    method: str = DEFAULT_METHOD
    layers: str | None = None
    heads: str = "mean"
    discard: float = 0.0
    targets: tuple[int, ...] = ()
    patch: tuple[int, int] | None = None
    sinks: str = "mark"
    layout: str = "overlay"


def check(model: TrainedModel, question: Question) -> None:
    """The question can be asked of this network.

    Raises:
        ValueError: it cannot; says what would.
    """
    method, layout = question.method, question.layout
    if (layout == "classes" or method in FOR_A_CLASS) and not model.classes:
        what = f"--layout {layout}" if layout == "classes" else f"--method {method}"
        raise ValueError(
            f"{what} explains a class, but this network knows none: train a head "
            "(vit train --config finetune), or use --method rollout or raw"
        )
    check_numbers(model, question)
    if layout == "heads":
        check_heads(question)
    if layout == "classes" and method not in FOR_A_CLASS:
        method = FOR_A_CLASS[0]  # what is drawn then
    if layout not in ("heads", "methods"):
        for option, argument, given in (
            ("--target", "target", question.targets),
            ("--heads", "heads", question.heads != "mean"),
            ("--discard", "discard", question.discard),
            ("--patch (or --at)", "query", question.patch is not None),
        ):
            if given and argument not in METHOD[method].takes:
                able = ", ".join(name for name, one in METHOD.items() if argument in one.takes)
                raise ValueError(f"{option} goes with --method {able}, not with {method}")
    if question.patch is not None and layout in ("classes", "methods"):
        raise ValueError(f"--patch and --at do not go with --layout {layout}: use depth or heads")
    if question.layers and layout == "depth":
        raise ValueError("--layout depth shows all depths: leave --layers out")
    if len(question.targets) > 1 and layout not in ("classes", "overlay"):
        raise ValueError(f"--layout {layout} shows one class: give one --target")


def check_numbers(model: TrainedModel, question: Question) -> None:
    """Layers, share and patch are there, so that no photo is opened in vain.

    Raises:
        ValueError: they are not.
    """
    check_fusing(question.heads, question.discard)
    if question.layers is not None:
        layers_of(question.layers, len(model.net.blocks))
    rows, cols = model.net.architecture.grid_size
    row, col = question.patch or (0, 0)
    if not (0 <= row < rows and 0 <= col < cols):
        raise ValueError(
            f"--patch {question.patch} is not in the network's {rows}x{cols} grid: give ROW,COL from "
            f"0,0 to {rows - 1},{cols - 1}"
        )


def check_heads(question: Question) -> None:
    """The layout heads shows each head's attention as it is, and takes nothing that changes it.

    Raises:
        ValueError: something that does.
    """
    for option, given in (
        (f"--method {question.method}", question.method not in (DEFAULT_METHOD, "raw")),
        (f"--heads {question.heads}", question.heads != "mean"),
        (f"--discard {question.discard:g}", question.discard),
        ("--target", question.targets),
    ):
        if given:
            raise ValueError(
                f"{option} does not go with --layout heads, which shows the attention of each head "
                "as it is: leave it out, or use --layout overlay"
            )
