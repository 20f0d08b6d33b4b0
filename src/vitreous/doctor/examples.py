"""The smallest model that has each fault, the same model without it, and the difference between the two."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib import resources
from typing import Any


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return the code of the faulty and of the fixed model per finding."""
    return tomllib.loads(resources.files("vitreous.doctor").joinpath("examples.toml").read_text(encoding="utf-8"))


def example_diff(id: str) -> str:
    """Return the change from the faulty to the fixed model; empty for findings without a model."""
    if id not in examples():
        return ""
    before, after = (examples()[id][which].strip("\n").splitlines() for which in ("faulty", "fixed"))
    lines = difflib.unified_diff(before, after, n=2, lineterm="")
    return "\n".join(line for line in lines if not line.startswith(("---", "+++", "@@")))
