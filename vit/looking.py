"""What is asked of a network about a photo: a map by a method, and what it says the photo is.

One photo at a time, so that its picture does not depend on its neighbours in a batch.
"""

import numpy as np
import torch
from torch import Tensor

from vit.attention_rows import evaluating
from vit.captions import of_method, of_no_class, of_outliers, of_prefix
from vit.explain import METHOD, Explanation, explain
from vit.layouts import Map
from vit.legend import Answer, percent_of
from vit.methods import depth_words, variants_of
from vit.model_file import TrainedModel
from vit.question import DEFAULT_LAYERS, FOR_A_CLASS, Question


@torch.no_grad()
def answers(model: TrainedModel, images: Tensor) -> list[tuple[int, Answer]]:
    """All classes with their probabilities, most probable first; none for a network without.

    Args:
        images: one photo's, (1, 3, height, width), normalised.
    """
    if not model.classes:
        return []
    with evaluating(model.net):
        logits = model.net(images)[0].cpu()  # MPS has no float64
    probabilities = (logits.double() / model.temperature).softmax(dim=0)
    order = probabilities.argsort(descending=True, stable=True).tolist()
    return [(k, Answer(str(model.classes[k]), float(probabilities[k]))) for k in order]


def asked(model: TrainedModel, pixels: Tensor, question: Question, **changes) -> Explanation:
    """One explanation, by the question but for the changes; arguments a method lacks are left out.

    Args:
        **changes: method, layers, target.
    """
    method = changes.pop("method", question.method)
    takes = METHOD[method].takes
    given = {
        "query": question.patch,
        "target": question.targets[0] if question.targets else None,
        "heads": question.heads,
        "discard": question.discard,
    } | changes
    depth = len(model.net.blocks)
    layers = given.pop("layers", None) or question.layers or own_layers(method, depth)
    taken = {name: value for name, value in given.items() if name in takes}
    sinks = "exclude" if question.sinks == "exclude" else "show"
    return explain(model.net, pixels, method, layers=layers, sinks=sinks, **taken)


def own_layers(method: str, depth: int) -> str | None:
    """The layers of a method where none are asked for; None: as it is defined."""
    own = DEFAULT_LAYERS.get(method)
    return "all" if own and depth <= int(own.removeprefix("last:")) else own


def map_of(explanation: Explanation, question: Question, heading: str = "") -> Map:
    """The first of an explanation's maps, with what is marked on it."""
    outliers = None
    if question.sinks != "show":
        outliers = explanation.outliers[0].cpu().numpy()
    heat = explanation.heat[0].detach().cpu().double().numpy()
    return Map(heat, heading, outliers, question.patch)


def named(one: Explanation, question: Question, depth: int) -> str:
    """What a map is called, and how far a rollout is its paper's.

    Args:
        depth: layers of the network.
    """
    if one.method != "rollout" or unlike(one.method, question) or depth == 1:
        return one.label
    start = f"{METHOD[one.method].words} {depth_words(one.layers, depth)}"
    whole, paper = len(one.layers) == depth, METHOD[one.method].paper
    says = f" (as in {paper})" if whole else f" ({paper} take all layers)"
    return start + says + one.label.removeprefix(start)


def unlike(method: str, question: Question) -> str:
    """How far a method as it is asked for is not its paper's, in brackets; empty where it is."""
    takes = METHOD[method].takes
    heads = question.heads if "heads" in takes else "mean"
    discard = question.discard if "discard" in takes else 0.0
    return variants_of(method, heads, discard, question.sinks)


def mass_of(method: str) -> str:
    """What a method spreads over the patches."""
    return "relevance" if method in FOR_A_CLASS else "attention"


def notes_of(
    model: TrainedModel,
    question: Question,
    methods: list[str],
    prefix: list[float],
    outliers: list[tuple[float, int]],
    said: bool,
) -> tuple[str, ...]:
    """What maps are, what of them is not on the photo, and what is outlined.

    Args:
        methods: of each map, or one for all.
        prefix: of each map the share on prefix tokens.
        outliers: `outliers_of` the maps.
        said: whether the picture says what the network answers.
    """
    network, kinds = model.net.architecture, list(dict.fromkeys(methods))
    blind = [METHOD[name].words for name in kinds if name not in FOR_A_CLASS]
    shares, counts = zip(*outliers, strict=True)
    mass = mass_of(kinds[0]) if len(kinds) == 1 else "heat"
    notes = (
        *(of_method(kind, METHOD[kind].words, network, question.patch) for kind in kinds),
        of_no_class(len(prefix), blind if len(blind) < len(kinds) else ())
        if said and blind
        else "",
        of_prefix(prefix, network, mass),
        of_outliers(shares, counts, question.sinks),
    )
    return tuple(note for note in notes if note)


def outliers_of(maps: list[Map]) -> list[tuple[float, int]]:
    """Of each map the share that lies on its outliers, and how many these are."""
    found = []
    for one in maps:
        marked = np.zeros(one.heat.shape, bool) if one.outliers is None else one.outliers
        found.append((one.share(marked), int(marked.sum())))
    return found


def prefixes(explanations: list[Explanation]) -> list[float]:
    """Of each map the share on prefix tokens."""
    return [float(one.prefix_share[0]) for one in explanations]


def for_class(model: TrainedModel, one: Explanation, question: Question, said: list) -> str:
    """Which class a map explains, in words; empty for methods that know none.

    Args:
        said: `answers` of the photo; empty where they are not known.
    """
    if one.targets is None:
        return ""
    words = f" for {class_words(model, int(one.targets[0]), said)}"
    return words + ("" if question.targets else ", its answer")


def class_words(model: TrainedModel, number: int, said: list) -> str:
    """A class and how probable it is."""
    probability = dict(said)[number].probability if said else None
    share = "" if probability is None else f" ({percent_of(probability)})"
    return f'"{model.classes[number]}"{share}'
