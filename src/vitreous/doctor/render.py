"""A diagnosis for people: coloured in a terminal, plain text anywhere else."""

from __future__ import annotations

import sys
from typing import TextIO

from rich.console import Console
from rich.text import Text

from vitreous.doctor.findings import LEVELS, Diagnosis, Finding

_COLOURS = {"broken": "bold red", "warning": "bold yellow", "note": "bold blue"}


def sorted_findings(diagnosis: Diagnosis) -> list[Finding]:
    """The worst first; within a level in the order of the checks."""
    return sorted(diagnosis.findings, key=lambda finding: LEVELS.index(finding.level))


def summary(diagnosis: Diagnosis) -> str:
    counts = [(level, sum(finding.level == level for finding in diagnosis.findings)) for level in LEVELS]
    plurals = {"broken": "broken", "warning": "warnings", "note": "notes"}
    said = ", ".join(f"{count} {plurals[level] if count > 1 else level}" for level, count in counts if count)
    in_order = f"{len(diagnosis.healthy)} check{'s' * (len(diagnosis.healthy) != 1)} in order"
    seconds = f"{diagnosis.elapsed_seconds:.1f} s"
    return f"{said or 'nothing found'}; {in_order}, {len(diagnosis.not_measured)} not measured, {seconds}"


def plain_text(diagnosis: Diagnosis, title: str = "") -> str:
    """One paragraph a finding, each line whole: made for logs and pipes."""
    lines = [title] if title else []
    for finding in sorted_findings(diagnosis):
        lines += [
            f"{finding.level} {finding.id}: {finding.measured}", f"  why: {finding.why}", f"  mend: {finding.mend}", "",
        ]  # fmt: skip
    lines += [f"not measured {unmeasured.id}: {unmeasured.reason}" for unmeasured in diagnosis.not_measured]
    if diagnosis.healthy:
        lines.append(f"in order: {', '.join(diagnosis.healthy)}")
    return "\n".join([*lines, summary(diagnosis)]) + "\n"


def render(diagnosis: Diagnosis, title: str = "", file: TextIO | None = None) -> None:
    """Print a diagnosis to `file` (standard output): in colour and wrapped if it is a terminal, else as plain text."""
    stream = file or sys.stdout
    console = Console(file=stream, highlight=False)
    if not console.is_terminal:
        stream.write(plain_text(diagnosis, title))
        return
    if title:
        console.print(Text(title, style="bold"))
        console.print()
    for finding in sorted_findings(diagnosis):
        console.print(Text.assemble((finding.level, _COLOURS[finding.level]), " ", (finding.id, "bold")))
        console.print(Text(finding.measured))
        console.print(Text(f"Why: {finding.why}", style="dim"))
        console.print(Text.assemble(("Mend: ", "green"), finding.mend))
        console.print()
    for unmeasured in diagnosis.not_measured:
        console.print(Text.assemble(("not measured ", "magenta"), unmeasured.id, (f": {unmeasured.reason}", "dim")))
    if diagnosis.healthy:
        console.print(Text.assemble(("in order ", "green"), (", ".join(diagnosis.healthy), "dim")))
    console.print(Text(summary(diagnosis), style="bold"))
