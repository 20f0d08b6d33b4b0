"""Files of the page that are made from what is on this machine, when they are first asked for: data sets are large."""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

from vitreous.export.broken import broken_files
from vitreous.export.training_digits import training_digits

MEDIA_TYPES = {".png": "image/png", ".json": "application/json", ".safetensors": "application/octet-stream"}


@cache
def _digits() -> dict[str, bytes]:
    return training_digits()


@cache
def _broken() -> dict[str, bytes]:
    return broken_files()


#: file, below the page's folder → its content
MADE_FILES: dict[str, Callable[[], bytes]] = {
    "train/digits.png": lambda: _digits()["digits.png"],
    "train/digits.json": lambda: _digits()["digits.json"],
    "play/broken.safetensors": lambda: _broken()["broken.safetensors"],
    "play/broken.json": lambda: _broken()["broken.json"],
}
