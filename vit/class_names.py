"""Names of the classes of published networks, whose files hold numbers alone.

imagenet_classes.txt has the 1,000 of ImageNet-1k in the order of the head (its synsets sorted by
their WordNet number), each by the short name that torchvision gives it.
"""

from collections import Counter
from pathlib import Path

FILE = Path(__file__).with_name("imagenet_classes.txt")
# What timm calls the larger sets, by their number of logits.
SUBSETS = {21843: "imagenet-21k-goog", 11821: "imagenet-12k", 11221: "imagenet-21k-miil"}
CLASSIFIERS = (1000, 115217, *SUBSETS)  # 115217: Bamboo, whose names no one lists


def published_classes(number: int, tag: str = "") -> list[str]:
    """The classes of weights, in the order of the logits.

    Args:
        number: of logits.
        tag: of published weights; empty for a user's own head.

    Returns:
        Names where they are known, else numbers as text. None for no logits, nor for what
        contrastive networks (CLIP and its kin) put out, which are coordinates and no classes.
    """
    if number == 1000:
        return FILE.read_text(encoding="utf-8").splitlines()
    if tag and number in SUBSETS:
        return larger_classes(SUBSETS[number])
    if tag and number not in CLASSIFIERS:
        return []
    return [str(i) for i in range(number)]


def larger_classes(subset: str) -> list[str]:
    """The classes of a larger ImageNet, by timm's lists; a name that several have gets its synset."""
    from timm.data import ImageNetInfo

    info = ImageNetInfo(subset)
    names = info.label_descriptions()
    count = Counter(names)
    return [
        f"{name} ({synset})" if count[name] > 1 else name
        for name, synset in zip(names, info.label_names(), strict=True)
    ]
