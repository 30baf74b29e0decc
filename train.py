"""Trains a Vision Transformer: `python train.py [--config NAME] [--section.name VALUE ...]`."""

import sys

from vit.cli import train

if __name__ == "__main__":
    sys.exit(train())
