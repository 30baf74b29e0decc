"""The sentences that stand below a picture of heat: what its colours, lines and stripes mean."""

import os

import numpy as np

from vit.architecture import Architecture
from vit.images import Photo
from vit.legend import Answer, percent_of
from vit.overlay import LEAST_TOP, MASS_BELOW_TOP, times_the_mean

FLAT = 0.1  # a map all of whose patches are within this share of the mean shows nothing
MEANINGS = {
    "rollout": "Rollout: the attention of these layers followed back from {reader} to the patches.",
    "raw": "Attention: the share of what {reader} reads that comes from each patch.",
    "affinity": "Gathered: what {reader} reads from those patches that each patch itself looks at, "
    "step by step through the layers.",
    "generic": "Generic attribution: attention that raises the score of the class, followed back "
    "through the layers from {reader} (Chefer et al. 2021).",
    "legrad": "LeGrad: how much more attention to a patch would raise the score of the class, mean "
    "of the layers (Bousselham et al. 2024).",
    "gradcam": "Attention GradCAM: what {reader} reads, each head counted as it raises the score of "
    "the class.",
}
READERS = {
    "token": "the class token",
    "distilled": "the class and distillation token",
    "avg": "all patches together",
    "map": "the pooling query",
}
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def remark(heat: np.ndarray) -> str:
    """What has to be said of a map that shows nothing; empty for one that does."""
    values = times_the_mean(heat)
    if not values.any():
        return "zero on every patch"
    low, high = values.min(), values.max()
    if low >= 1 - FLAT and high <= 1 + FLAT:
        return f"flat, every patch between {low:.2f} and {high:.2f} times the mean"
    return ""


def of_photo(path, answer: Answer | None) -> str:
    """The photo's name, and what the network says it is."""
    name = os.path.basename(str(path))
    if answer is None:
        return name
    return f"{name}: {answer.label} ({percent_of(answer.probability)})"


def of_chosen(patch: tuple[int, int] | None) -> str:
    """Whose view it is, where it is a patch's."""
    if patch is None:
        return ""
    return (
        f"Outlined in white: the patch that looks (row {patch[0]}, column {patch[1]} from 0); "
        "its view of itself has no say in the scale."
    )


def of_scale(top: float, mass: str, aside: bool) -> str:
    """Where the colours end, and why there.

    Args:
        top: times the mean.
        mass: what is spread over the patches, such as "attention".
        aside: whether marked patches have no say in it.
    """
    even = f"1 is what each patch would get if the {mass} were spread evenly."
    if top == LEAST_TOP:
        return f"{even} The colours end at {top:g}, never below: a nearly even map looks even."
    rest = ", marked ones aside," if aside else ""
    share = f"{100 * (1 - MASS_BELOW_TOP):.0f} %"
    return (
        f"{even} The colours end at {top:.3g}: the patches above it{rest} hold {share} of the map."
    )


def of_prefix(share: float, architecture: Architecture, mass: str) -> str:
    """How much lies on tokens that are no place on the photo."""
    if not architecture.num_prefix_tokens:
        return ""
    return (
        f"{percent_of(share)} of the {mass} is on the {prefix_words(architecture)}, "
        "no place on the photo, and left out."
    )


def prefix_words(architecture: Architecture) -> str:
    """The tokens before the patches, by name."""
    words = ["class token"] if architecture.class_token else []
    others = architecture.num_prefix_tokens - len(words)
    if others:
        words.append(f"{counted(others)} register or distillation token{'s' * (others > 1)}")
    return " and ".join(words)


def of_outliers(share: float, count: int, sinks: str, mass: str) -> str:
    """How much lies on patches that collect attention whatever they show, and what was done."""
    if not count or sinks == "show":
        return ""
    patches = f"{counted(count)} outlier patch{'es' * (count > 1)}"
    why = "such patches collect attention on every photo, whatever they show"
    if sinks == "exclude":
        return f"Outlined in cyan: {patches}, taken as 0 throughout; {why}."
    return f"Outlined in cyan: {patches} with {percent_of(share)} of the map; {why}."


def of_seen(photo: Photo, seen: tuple[float, float, float, float]) -> str:
    """Which part of the photo the network saw, where it is not all of it."""
    x0, y0, x1, y1 = seen
    share = (x1 - x0) * (y1 - y0) / (photo.width * photo.height)
    if share > 0.999:
        return ""
    return f"Hatched: not seen by the network, which was given {percent_of(share)} of the photo."


def of_network(name: str, source: str, architecture: Architecture) -> str:
    """Which network, and what it takes."""
    (height, width), (rows, cols) = architecture.img_size, architecture.grid_size
    weights = f" ({source})" if source else ""
    return (
        f"Network: {name}{weights}, {architecture.depth} layers of {architecture.num_heads} heads, "
        f"reads {height} x {width} pixels as {rows} x {cols} patches (rows x columns)."
    )


def of_method(method: str, architecture: Architecture, query: tuple[int, int] | None) -> str:
    """What a map of the method is, in a sentence."""
    reader = "that patch" if query is not None else READERS[architecture.global_pool]
    return MEANINGS[method].format(reader=reader)


def counted(number: int) -> str:
    """A small number as a word."""
    return NUMBERS[number] if number < len(NUMBERS) else str(number)
