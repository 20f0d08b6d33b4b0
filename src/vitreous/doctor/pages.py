"""The page of a finding: what it means, how to fix it, the smallest model that has it, and the change that fixes it."""

from __future__ import annotations

import difflib
from pathlib import Path

from vitreous.doctor.examples import example_diff, examples
from vitreous.doctor.findings import explanations
from vitreous.errors import ConfigError


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
        parts += ["A model that has it (`TinyViT` and `TinyBlock` are in `vitreous.testing`):"]
        parts += [f"```python\n{faulty}\n```", "Without it:", f"```python\n{fixed}\n```"]
        parts += ["The change:", f"```diff\n{example_diff(id)}\n```"]
    return "\n\n".join(parts) + "\n"


def write_pages(folder: Path) -> None:
    """Write one page per finding; a test checks that docs/doctor is up to date."""
    folder.mkdir(parents=True, exist_ok=True)
    for id in explanations():
        (folder / f"{id}.md").write_text(explain(id), encoding="utf-8")
