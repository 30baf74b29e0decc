"""Writes vit/digits.npz, the images behind `--data.source digits`, from scikit-learn's copy.

Optical Recognition of Handwritten Digits (E. Alpaydin, C. Kaynak, UCI Machine Learning Repository,
doi 10.24432/C50P49, CC BY 4.0): 1,797 grey images of 8x8 pixels, values 0 to 16.
The fixed test part, 20 % of the images (360), is stratified and drawn once, here.

    python benchmarks/make_digits.py        # needs scikit-learn
"""

from pathlib import Path

import numpy as np
from sklearn.datasets import load_digits
from sklearn.model_selection import train_test_split

if __name__ == "__main__":
    digits = load_digits()
    rows = np.arange(len(digits.target))
    _, chosen = train_test_split(rows, test_size=0.2, stratify=digits.target, random_state=0)
    test = np.isin(rows, chosen)
    out = Path(__file__).parents[1] / "vit" / "digits.npz"
    np.savez_compressed(
        out,
        images=digits.images.astype(np.uint8),
        labels=digits.target.astype(np.uint8),
        test=test,
    )
    print(f"{out}: {len(rows)} images, {test.sum()} of them for the test")
