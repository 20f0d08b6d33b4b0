"""Facts about weights that stand beside them: in a config.json, a preprocessor's file, or a safetensors header.

All of it is a stranger's text: a value that is not what it should be is treated as not said.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from typing import Any

from vitreous.checkpoints.checkpoint import Hints
from vitreous.config import ViTConfig

#: Where a safetensors header of ours keeps what the layout has no place for.
METADATA_KEY = "vitreous"


def as_size(value: Any) -> tuple[int, int] | None:
    """28 or [28, 28] → (28, 28)."""
    if isinstance(value, int) and not isinstance(value, bool):
        value = (value, value)
    if isinstance(value, (list, tuple)) and len(value) == 2 and all(type(n) is int and 0 < n < 2**20 for n in value):
        return value[0], value[1]
    return None


def as_numbers(value: Any) -> tuple[float, ...] | None:
    if not isinstance(value, (list, tuple)) or not 0 < len(value) <= 64:
        return None
    if not all(isinstance(n, (int, float)) and math.isfinite(n) for n in value):
        return None
    return tuple(float(n) for n in value)


def as_eps(value: Any) -> float | None:
    return float(value) if isinstance(value, float) and 0 < value < 1 else None


def class_names_from(value: Any) -> tuple[str, ...] | None:
    """A list of names, or {"0": name, "1": name, …} without a gap."""
    if isinstance(value, dict):
        try:
            numbered = {int(key): name for key, name in value.items()}
        except ValueError:
            return None
        if not numbered or set(numbered) != set(range(len(numbered))):
            return None
        value = [numbered[i] for i in range(len(numbered))]
    if not isinstance(value, (list, tuple)) or not value or not all(isinstance(name, str) for name in value):
        return None
    return tuple(value)


def header_of(
    config: ViTConfig,
    mean: tuple[float, ...] | None,
    std: tuple[float, ...] | None,
    class_names: tuple[str, ...] | None,
) -> dict[str, str]:
    """What we write into a safetensors header, so that reading our own file back has nothing to ask."""
    facts = {
        "num_heads": config.num_heads,
        "image_size": config.image_size,
        "norm_eps": config.norm_eps,
        "gelu": config.gelu,
        "mean": mean,
        "std": std,
        "class_names": class_names,
    }
    return {"format": "pt", METADATA_KEY: json.dumps(facts)}


def hints_from_header(metadata: Mapping[str, str]) -> Hints:
    try:
        facts = json.loads(metadata.get(METADATA_KEY, "{}"))
    except (ValueError, RecursionError):
        return Hints()
    if not isinstance(facts, dict):
        return Hints()
    heads, gelu = facts.get("num_heads"), facts.get("gelu")
    return Hints(
        num_heads=heads if type(heads) is int else None,
        image_size=as_size(facts.get("image_size")),
        norm_eps=as_eps(facts.get("norm_eps")),
        gelu=gelu if gelu in ("erf", "tanh") else None,
        mean=as_numbers(facts.get("mean")),
        std=as_numbers(facts.get("std")),
        class_names=class_names_from(facts.get("class_names")),
    )
