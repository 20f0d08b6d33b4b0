"""A diagnosis as text: coloured and wrapped in a terminal, plain anywhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from typing import TextIO

from rich.console import Console
from rich.text import Text

from vitreous.doctor.findings import LEVELS, Diagnosis
from vitreous.reports.formats import plural

_COLOURS = {"broken": "bold red", "warning": "bold yellow", "note": "bold blue"}


def plain_text(diagnosis: Diagnosis, title: str = "") -> str:
    """Return one paragraph per finding, the worst first, without line wrapping."""
    return "".join(f"{line.plain}\n" for line in _lines(diagnosis, title))


def render(diagnosis: Diagnosis, title: str = "", file: TextIO | None = None) -> None:
    """Print a diagnosis to `file` (default: standard output)."""
    console = Console(file=file, highlight=False)
    if console.is_terminal:
        for line in _lines(diagnosis, title):
            console.print(line)
    else:
        console.file.write(plain_text(diagnosis, title))


def _lines(diagnosis: Diagnosis, title: str) -> Iterator[Text]:
    if title:
        yield Text(title, style="bold")
    for note in diagnosis.notes:
        yield Text(note)
    for finding in sorted(diagnosis.findings, key=lambda finding: LEVELS.index(finding.level)):
        yield Text.assemble(
            (finding.level, _COLOURS[finding.level]), " ", (finding.id, "bold"), f": {finding.measured}"
        )
        yield Text(f"  why: {finding.why}", style="dim")
        yield Text.assemble(("  fix: ", "green"), finding.fix)
        yield Text()
    for unmeasured in diagnosis.not_measured:
        yield Text.assemble(("not measured ", "magenta"), unmeasured.id, (f": {unmeasured.reason}", "dim"))
    if diagnosis.healthy:
        yield Text.assemble(("in order: ", "green"), (", ".join(diagnosis.healthy), "dim"))
    yield Text(_summary(diagnosis), style="bold")


def _summary(diagnosis: Diagnosis) -> str:
    counts = Counter(finding.level for finding in diagnosis.findings)
    found = [plural(counts[level], level, "broken" if level == "broken" else None) for level in LEVELS if counts[level]]
    return (
        f"{', '.join(found) or 'nothing found'}; {plural(len(diagnosis.healthy), 'check')} in order,"
        f" {len(diagnosis.not_measured)} not measured, {diagnosis.elapsed_seconds:.1f} s"
    )
