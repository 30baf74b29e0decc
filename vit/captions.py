"""The sentences that stand below a picture of heat: what its colours, lines and stripes mean."""

import math
import os
from collections.abc import Callable, Sequence

import numpy as np

from vit.architecture import Architecture
from vit.images import Photo
from vit.legend import Answer, percent_of
from vit.overlay import LEAST_TOP, MASS_BELOW_TOP, times_the_mean

FLAT = 0.1  # a map all of whose patches are within this share of the mean shows nothing
MEANINGS = {
    "rollout": "the attention of these layers followed back from {reader} to the patches "
    "(Abnar & Zuidema 2020).",
    "raw": "the share of what {reader} reads that comes from each patch.",
    "affinity": "what {reader} reads from those patches that each patch itself looks at, "
    "step by step through the layers.",
    "generic": "attention that raises the score of the class, followed back "
    "through the layers from {reader} (Chefer et al. 2021).",
    "legrad": "how much more attention to a patch would raise the score of the class, mean "
    "of the layers (Bousselham et al. 2024).",
    "gradcam": "what {reader} reads, each head counted as it raises the score of the class.",
}
READERS = {
    "token": "the class token",
    "distilled": "the class and distillation token",
    "avg": "all patches together",
    "map": "the pooling query",
}
THIN = 0.01  # of a photo's long side: a narrower strip is hardly seen
NUMBERS = ("no", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten")


def remark(heat: np.ndarray) -> str:
    """What has to be said of a map that shows little or nothing; empty for one that does."""
    values = times_the_mean(heat)
    if not values.any():
        return "zero on every patch"
    low, high = values.min(), values.max()
    if low >= 1 - FLAT and high <= 1 + FLAT:
        return f"flat, every patch between {low:.2f} and {high:.2f} times the mean"
    return f"nearly even, at most {high:.2f} times the mean" if high < LEAST_TOP else ""


def of_photo(path, answer: Answer | None) -> str:
    """The photo's name, and what the network says it is."""
    name = os.path.basename(str(path))
    if answer is None:
        return name
    return f"{name}: {answer.label} ({percent_of(answer.probability)})"


def of_chosen(patch: tuple[int, int] | None, own: Sequence[float] = ()) -> str:
    """Whose view it is, where it is a patch's.

    Args:
        own: of each map, the share that lies on that patch itself.
    """
    if patch is None:
        return ""
    share = f" ({span(own, percent_of)} of {each(own)})" if own else ""
    return (
        f"Outlined in white: the patch that looks (row {patch[0]}, column {patch[1]}, counted from "
        f"0 at the top left). What it reads of itself{share} lies within the outline and has no "
        "say in the scale."
    )


def of_scale(top: float, mass: str, aside: bool, whole: str = "the map") -> str:
    """Where the colours end, and why there.

    Args:
        top: times the mean.
        mass: what is spread over the patches, such as "attention".
        aside: whether marked patches have no say in it.
        whole: what is drawn on the scale.
    """
    even = f"1 is what each patch would get if the {mass} were spread evenly."
    if top == LEAST_TOP:
        return (
            f"{even} The colours always reach to {top:g} at least, so that a map in which all "
            "patches get about the same is drawn in about one colour."
        )
    share = f"{100 * (1 - MASS_BELOW_TOP):.0f} %"
    rest = "outlined patches aside, " if aside else ""
    return (
        f"{even} The colours end at {top:.3g}: {rest}the patches above it hold {share} of {whole}."
    )


def of_prefix(shares: Sequence[float], architecture: Architecture, mass: str) -> str:
    """How much lies on tokens that are no place on the photo.

    Args:
        shares: of each map.
    """
    if not architecture.num_prefix_tokens:
        return ""
    which = "" if len(shares) == 1 else ", by map,"
    return (
        f"{span(shares, percent_of)} of the {mass}{which} is on the "
        f"{prefix_words(architecture)}, no place on the photo, and left out."
    )


def prefix_words(architecture: Architecture) -> str:
    """The tokens before the patches, by name."""
    words = ["class token"] if architecture.class_token else []
    others = architecture.num_prefix_tokens - len(words)
    if others:
        words.append(f"{counted(others)} register or distillation token{'s' * (others > 1)}")
    return " and ".join(words)


def of_outliers(shares: Sequence[float], counts: Sequence[int], sinks: str) -> str:
    """What outliers are (as in `vit.sinks`), how much lies on them, and what was done.

    Args:
        shares: of each map.
        counts: patches, in each map.
    """
    if not any(counts) or sinks == "show":
        return ""
    several = max(counts) > 1
    number = span(counts, counted) if min(counts) else f"up to {counted(max(counts))}"
    patches = f"{number} outlier patch{'es' * several}"
    what = f"which in some layer receive{'s' * (not several)} more than ten times an even share"
    held = f"{'they hold' if several else 'it holds'} {span(shares, percent_of)}"
    done = "taken as 0 throughout" if sinks == "exclude" else f"{held} of {each(shares)}"
    return f"Outlined in cyan: {patches}, {what} of attention; {done}."


def span(values: Sequence[float], say: Callable[[float], str]) -> str:
    """The least and the greatest of some values in words, once where these are the same."""
    low, high = say(min(values)), say(max(values))
    return low if low == high else f"{low} to {high}"


def each(maps: Sequence) -> str:
    """What a share is of."""
    return "this map" if len(maps) == 1 else "each map"


def of_no_class(maps: int, names: Sequence[str] = ()) -> str:
    """What a map without a class does not say.

    Args:
        maps: how many there are.
        names: which of them; empty: all.
    """
    which = "This map belongs" if maps == 1 else "These maps belong"
    if names:
        which = f"Maps of {' and '.join(filter(None, [', '.join(names[:-1]), names[-1]]))} belong"
    return f"{which} to no class: where the network looks at all, not what speaks for its answer."


def of_drawing(grid: bool, smooth: bool) -> str:
    """What lines and squares are, where there are any."""
    if grid:
        return "Grey lines: the borders of the patches; one cell is one patch."
    return "" if smooth else "Each square of one colour is one patch."


def of_seen(photo: Photo, seen: tuple[float, float, float, float]) -> str:
    """Which part of the photo the network saw, where it is not all of it."""
    x0, y0, x1, y1 = seen
    share = (x1 - x0) * (y1 - y0) / (photo.width * photo.height)
    if share > 0.999:
        return ""
    widest = max(x0, y0, photo.width - x1, photo.height - y1)
    if widest < THIN * max(photo.width, photo.height):
        count = math.ceil(widest)
        outermost = f"outermost {counted(count)} pixels" if count > 1 else "outermost pixel"
        return f"Not seen by the network: the {outermost} of the photo, at most, on a side."
    return f"Hatched: not seen by the network, which was given {percent_of(share)} of the photo."


def of_network(name: str, source: str, architecture: Architecture, known: int = 0) -> str:
    """Which network, and what it takes.

    Args:
        known: how many classes it knows; 0: not said.
    """
    (height, width), (rows, cols) = architecture.img_size, architecture.grid_size
    weights = f" ({source})" if source else ""
    depth, heads = architecture.depth, architecture.num_heads
    classes = f"; knows {known} class{'es' * (known > 1)}" if known else ""
    return (
        f"Network: {name}{weights}, {depth} layer{'s' * (depth > 1)} (counted from 1 at the image) "
        f"of {heads} head{'s' * (heads > 1)}, reads {height} x {width} pixels as {rows} x {cols} "
        f"patches (rows x columns){classes}."
    )


def of_method(
    method: str, words: str, architecture: Architecture, query: tuple[int, int] | None
) -> str:
    """What a map of the method is, in a sentence.

    Args:
        words: what its map is called.
    """
    reader = "that patch" if query is not None else READERS[architecture.global_pool]
    return f"{words[0].upper()}{words[1:]}: {MEANINGS[method].format(reader=reader)}"


def counted(number: int) -> str:
    """A small number as a word."""
    return NUMBERS[number] if number < len(NUMBERS) else str(number)
