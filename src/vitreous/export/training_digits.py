"""The digits that the page trains on, as one small picture: each class a row of 28×28 digits, first those to train on.

They come from MNIST where it is in the cache and otherwise from scikit-learn's digits, which are always there. Nothing
is downloaded, and the repository contains none of them.
"""

from __future__ import annotations

import io
import json

import numpy as np
from PIL import Image

from vitreous.config import DataConfig
from vitreous.data.datasets import describe, load_dataset

PER_CLASS, VALIDATION_PER_CLASS = 100, 20  # the validation digits are no training digits, and none of the test set
GRAY_LEVELS = 16  # 4 bits per pixel: 116 kB instead of 200 kB for MNIST's
_CREDITS = {
    "mnist": "MNIST, by Yann LeCun and Corinna Cortes (CC BY-SA 3.0)",
    "digits": "scikit-learn's digits, enlarged: E. Alpaydin and C. Kaynak, UCI (CC BY 4.0)",
}


def training_digits() -> dict[str, bytes]:
    """Return digits.png and its description, digits.json."""
    name = "mnist" if describe("mnist").cached else "digits"
    split = load_dataset(DataConfig(name=name)).train
    labels, count = split.labels.numpy(), PER_CLASS + VALIDATION_PER_CLASS
    rows = [split.batch(np.flatnonzero(labels == label)[:count]).numpy()[:, 0] for label in range(10)]
    digits = np.stack(rows)  # (class, digit, 28, 28)
    side = digits.shape[-1]
    levels = np.round(digits / 255 * (GRAY_LEVELS - 1)).astype(np.uint8)
    picture = levels.transpose(0, 2, 1, 3).reshape(10 * side, count * side)
    file = io.BytesIO()
    Image.fromarray(picture).save(file, "PNG", optimize=True, bits=4)
    description = {
        "name": {"mnist": "MNIST", "digits": "scikit-learn's digits"}[name],
        "credit": _CREDITS[name],
        "side": side,
        "classes": 10,
        "train": PER_CLASS,
        "validation": VALIDATION_PER_CLASS,
    }
    return {"digits.png": file.getvalue(), "digits.json": json.dumps(description).encode()}
