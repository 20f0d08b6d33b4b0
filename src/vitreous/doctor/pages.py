"""The page of a finding: what it means, how to fix it, the smallest model that has it, and the same model without it."""

from __future__ import annotations

import difflib
import tomllib
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any

from vitreous.doctor.findings import explanations
from vitreous.errors import ConfigError


@cache
def examples() -> dict[str, dict[str, Any]]:
    """Return the code of the faulty and of the fixed model per finding."""
    return tomllib.loads(resources.files("vitreous.doctor").joinpath("examples.toml").read_text(encoding="utf-8"))


def explain(id: str) -> str:
    """Return the page of a finding as Markdown."""
    known = explanations()
    if id not in known:
        close = difflib.get_close_matches(id, known, n=1)
        hint = f"did you mean {close[0]}?" if close else f"choose from {', '.join(known)}"
        raise ConfigError(f"There is no finding {id!r}; {hint}")
    finding = known[id]
    parts = [f"# {id}", f"Level: {finding['level']}.", finding["why"], f"**Fix.** {finding['fix']}"]
    if id in examples():
        faulty, fixed = (examples()[id][which].strip("\n") for which in ("faulty", "fixed"))
        parts += ["A model that has it:", f"```python\n{faulty}\n```", "The fix:", f"```diff\n{_diff(faulty, fixed)}\n```"]
    return "\n\n".join(parts) + "\n"


def _diff(before: str, after: str) -> str:
    lines = difflib.unified_diff(before.splitlines(), after.splitlines(), n=2, lineterm="")
    return "\n".join([line for line in lines if not line.startswith(("---", "+++"))])


def write_pages(folder: Path) -> None:
    """Write one page per finding; tests check that docs/doctor is up to date."""
    folder.mkdir(parents=True, exist_ok=True)
    for id in explanations():
        (folder / f"{id}.md").write_text(explain(id), encoding="utf-8")
