"""The table of docs/reliability.md: what was tried, how often, and what happened."""

from __future__ import annotations

import subprocess
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path

from attacks.cases import Result, Verdict
from attacks.runner import ROOT
from vitreous import hardware

DOCS = ROOT / "docs" / "reliability.md"
BEGIN, END = "<!-- attacks -->", "<!-- /attacks -->"
_COLUMNS = ("what was tried", "cases", "refused in one sentence", "handled", "identical", "traceback or crash",
            "silently wrong", "hang", "too much memory", "peak memory")  # fmt: skip


def markdown(results: Mapping[str, Sequence[Result]], command: str, minutes: float) -> str:
    """Return one row per kind of attack, under the title of its family."""
    lines = [conditions(command, minutes), ""]
    lines += ["| " + " | ".join(_COLUMNS) + " |", "|---|" + "---:|" * (len(_COLUMNS) - 1)]
    for title, family in results.items():
        lines.append(row(f"**{title}**", family))
        lines += [row(kind, [r for r in family if r.case.kind == kind]) for kind in dict.fromkeys(kinds(family))]
    lines.append(row("**all**", [result for family in results.values() for result in family]))
    return "\n".join(lines)


def kinds(results: Sequence[Result]) -> list[str]:
    return [result.case.kind for result in results]


def row(title: str, results: Sequence[Result]) -> str:
    counts = [sum(result.verdict is verdict for result in results) for verdict in Verdict]
    passed, failed = counts[:3], counts[3:]
    cells = [title, f"{len(results):,}", *(f"{count:,}" if count else "–" for count in passed), *map(str, failed)]
    peak = max((result.megabytes for result in results), default=0.0)
    return "| " + " | ".join([*cells, f"{peak:,.0f} MB"]) + " |"


def conditions(command: str, minutes: float) -> str:
    return f"`{command}`, {date.today().isoformat()}, {hardware.describe()}, {commit()}, {minutes:.0f} minutes."


def commit() -> str:
    """Return the commit that was attacked, and whether files differ from it."""

    def git(*arguments: str) -> str:
        return subprocess.run(["git", *arguments], cwd=ROOT, capture_output=True, text=True, check=True).stdout.strip()

    try:
        changed = [line for line in git("status", "--porcelain").splitlines() if DOCS.name not in line]
        return f"commit {git('rev-parse', '--short', 'HEAD')}" + (" with local changes" if changed else "")
    except (OSError, subprocess.CalledProcessError):
        return "no commit"


def write(path: Path, text: str) -> None:
    """Replace what stands between the two markers of a file."""
    old = path.read_text(encoding="utf-8")
    before, begun, rest = old.partition(BEGIN)
    _, ended, after = rest.partition(END)
    if not begun or not ended:
        raise SystemExit(f"{path} has no place for the table, between {BEGIN} and {END}")
    path.write_text(f"{before}{BEGIN}\n{text}\n{END}{after}", encoding="utf-8")
