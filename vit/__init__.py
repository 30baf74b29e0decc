"""Vision Transformer image classification: train, fine-tune on photos, see where it looks.

Names are imported when first used, so `import vit` costs nothing and needs no torch.
"""

from importlib import import_module

__version__ = "0.1.0"

_HOME = {
    "Architecture": "vit.model",
    "VisionTransformer": "vit.model",
    "SelfAttention": "vit.attention",
    "Preprocess": "vit.fitting",
    "from_timm": "vit.pretrained",
    "load": "vit.model_source",
    "save": "vit.model_file",
    "check": "vit.checkup",
    "train": "vit.commands.train",
    "rollout": "vit.explain",
    "overlay": "vit.overlay",
}
__all__ = sorted(_HOME)


def __getattr__(name: str):
    if name not in _HOME:
        raise AttributeError(f"module 'vit' has no attribute {name!r}")
    return getattr(import_module(_HOME[name]), name)


def __dir__():
    return sorted([*globals(), *_HOME])
