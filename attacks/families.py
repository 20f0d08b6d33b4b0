"""The families of attacks, and how the time is shared between them."""

from __future__ import annotations

import importlib
from typing import Any

#: Two lanes run side by side, one per core; in each, a family's number is its share of the lane's time. Those with long
#: cases come first, so that the last case does not end long after the time.
LANES: tuple[dict[str, float], ...] = (
    {"runs": 4, "weights": 3, "caches": 2, "sources": 3, "images": 3},
    {"processes": 3, "kills": 4, "http": 3, "commands": 3},
)
NAMES = tuple(name for lane in LANES for name in lane)


def module_of(name: str) -> str:
    return f"attacks.{name}"


def load(name: str) -> Any:
    """Return the module of a family; see `Family` in cases.py."""
    return importlib.import_module(module_of(name))
