"""The views that layouts give of a photo: which of a network's maps each shows, and their names."""

from dataclasses import dataclass

import numpy as np
from torch import Tensor

from vit.explain import METHOD, Explanation, layers_of
from vit.head_maps import head_maps
from vit.layouts import Arrangement, Map
from vit.legend import percent_of
from vit.looking import (
    asked,
    class_words,
    for_class,
    map_of,
    mass_of,
    named,
    notes_of,
    outliers_of,
    own_layers,
    prefixes,
    unlike,
)
from vit.methods import depth_words
from vit.model_file import TrainedModel
from vit.question import FOR_A_CLASS, Question, check

DEPTHS = (1, 2, 3, 4, 6)  # last layers, beside all of them


@dataclass(frozen=True)
class Seen:
    """What the network gave back for one photo.

    Args:
        maps: in the order of the panels.
        explanations: the one behind each map, of a batch of one; fewer where maps share one.
        arrangement: how they stand on the page.
        label: what they are, in words, to stand after "Where NETWORK looks: ".
        mass: what is spread over the patches, "attention" or "relevance".
        notes: sentences on what they are, what is left out and what is outlined.
        frames: of a moving picture, of which `maps` has the first alone.
    """

    maps: list[Map]
    explanations: list[Explanation]
    arrangement: Arrangement
    label: str
    mass: str = "attention"
    notes: tuple[str, ...] = ()
    frames: int = 1


def look(model: TrainedModel, pixels: Tensor, question: Question, said: list) -> Seen:
    """All maps that a layout shows of one photo.

    Args:
        pixels: (1, 3, height, width), normalised.
        said: `answers` of it.

    Raises:
        ValueError: the layout does not go with the method or the network; says which would.
    """
    check(model, question)
    return LOOKS[question.layout](model, pixels, question, said)


def single(model: TrainedModel, pixels: Tensor, question: Question, said: list) -> Seen:
    """One map, or one for each of several classes."""
    if len(question.targets) > 1:
        return classes(model, pixels, question, said)
    one = asked(model, pixels, question)
    label = named(one, question, len(model.net.blocks)) + for_class(model, one, question, said)
    arrangement = Arrangement(parts=question.layout == "panels")
    maps = [map_of(one, question)]
    notes = notes_of(model, question, [one.method], prefixes([one]), outliers_of(maps), bool(said))
    return Seen(maps, [one], arrangement, label, mass_of(one.method), notes)


def depth(model: TrainedModel, pixels: Tensor, question: Question, said: list) -> Seen:
    """The same method over ever more of the last layers."""
    whole = len(model.net.blocks)
    counts = [count for count in DEPTHS if count < whole] + [whole]
    explanations = [asked(model, pixels, question, layers=f"last:{count}") for count in counts]
    maps, variants = [], unlike(question.method, question)
    for count, one in zip(counts, explanations, strict=True):
        heading = "the last layer" if count == 1 else f"the last {count} layers"
        if count == whole > 1:
            plain = question.method == "rollout" and not variants
            paper = f" (as in {METHOD['rollout'].paper})" * plain
            heading = f"all {whole} layers{paper}"
        maps.append(map_of(one, question, with_outliers(heading, one, question)))
    words = METHOD[question.method].words
    label = f"{words} over ever more of its {whole} layers{variants}"
    shares, outliers = prefixes(explanations), outliers_of(maps)
    notes = notes_of(model, question, [question.method], shares, outliers, bool(said))
    return Seen(maps, explanations, Arrangement(), label, mass_of(question.method), notes)


def with_outliers(heading: str, one: Explanation, question: Question) -> str:
    """A heading with the share of outlier patches, where they are marked."""
    share = float(one.outlier_share[0])
    if question.sinks != "mark" or not share:
        return heading
    return f"{heading}: {percent_of(share)} on outliers"


def classes(model: TrainedModel, pixels: Tensor, question: Question, said: list) -> Seen:
    """A map for each of the named classes, or for the three most probable ones."""
    method = question.method if question.method in FOR_A_CLASS else FOR_A_CLASS[0]
    targets = question.targets or tuple(number for number, _ in said[:3])
    explanations = [
        asked(model, pixels, question, method=method, target=target) for target in targets
    ]
    maps = [
        map_of(one, question, f"for {class_words(model, target, said)}")
        for one, target in zip(explanations, targets, strict=True)
    ]
    label = f"{explanations[0].label}, for each of {len(targets)} classes"
    notes = notes_of(model, question, [method], prefixes(explanations), outliers_of(maps), True)
    return Seen(maps, explanations, Arrangement(), label, mass_of(method), notes)


def methods(model: TrainedModel, pixels: Tensor, question: Question, said: list) -> Seen:
    """Every method at the depth it has by itself; a class's methods where there is a head."""
    names = [name for name in METHOD if said or name not in FOR_A_CLASS]
    explanations = [asked(model, pixels, question, method=name) for name in names]
    if "rollout" in names and own_layers("rollout", len(model.net.blocks)) != "all":
        explanations.append(asked(model, pixels, question, method="rollout", layers="all"))
    maps = [map_of(one, question, heading_of(model, one, question)) for one in explanations]
    twice = ", rollout at two depths," * (len(maps) > len(names))
    label = f"{len(names)} methods{twice} on one scale"
    if said:
        target = question.targets[0] if question.targets else said[0][0]
        words = ", ".join(METHOD[name].words for name in FOR_A_CLASS)
        label += f"; {words} for {class_words(model, target, said)}"
    shares, outliers = prefixes(explanations), outliers_of(maps)
    notes = notes_of(model, question, names, shares, outliers, bool(said))
    return Seen(maps, explanations, Arrangement(), label, "heat", notes)


def heading_of(model: TrainedModel, one: Explanation, question: Question) -> str:
    """The method and the layers of a map among others, and how far it is not its paper's."""
    words = f"{METHOD[one.method].words} {depth_words(one.layers, len(model.net.blocks))}"
    return words + unlike(one.method, question)


def heads(model: TrainedModel, pixels: Tensor, question: Question, said: list) -> Seen:
    """The attention of each head in each of the layers, one row of panels for a layer."""
    count = len(model.net.blocks)
    layers = range(count)[layers_of(question.layers or "all", count)]
    one = asked(model, pixels, question, method="raw", heads="mean")
    grid = head_maps(model.net, pixels, layers, question.patch)[0].cpu().double().numpy()
    marks = map_of(one, question)
    prefix = np.maximum(1 - grid.sum(axis=(2, 3)), 0)
    if question.sinks == "exclude":
        grid = np.where(marks.outliers, 0.0, grid)
    shares = (prefix / (prefix + grid.sum(axis=(2, 3)))).ravel().tolist()
    maps = [
        Map(heat, f"head {number + 1}" if row == 0 else "", marks.outliers, question.patch)
        for row, layer in enumerate(grid)
        for number, heat in enumerate(layer)
    ]
    names = tuple(f"layer {layer + 1}" for layer in layers)
    label = f"attention of each head in {len(layers)} of its {count} layers, the last at the bottom"
    label += unlike("raw", question)
    arrangement = Arrangement(grid.shape[1], names)
    notes = notes_of(model, question, ["raw"], shares, outliers_of(maps), bool(said))
    return Seen(maps, [one], arrangement, label, notes=notes)


LOOKS = {
    "overlay": single,
    "panels": single,
    "depth": depth,
    "heads": heads,
    "classes": classes,
    "methods": methods,
}
