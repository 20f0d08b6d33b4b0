"""A diagnosis as text: coloured and wrapped in a terminal, plain anywhere else."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from html import escape
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
        if finding.location:
            yield Text(f"  at: {finding.location}", style="dim")
        yield Text(f"  why: {finding.why}", style="dim")
        yield Text.assemble(("  fix: ", "green"), finding.fix)
        if finding.diff:
            yield Text(f"  example: vitreous doctor --explain {finding.id}", style="dim")
        yield Text()
    reasons: dict[str, list[str]] = {}
    for unmeasured in diagnosis.not_measured:
        reasons.setdefault(unmeasured.reason, []).append(unmeasured.id)
    for reason, ids in reasons.items():
        yield Text.assemble(("not measured ", "magenta"), ", ".join(ids), (f": {reason}", "dim"))
    if diagnosis.healthy:
        yield Text.assemble(("in order: ", "green"), (", ".join(diagnosis.healthy), "dim"))
    yield Text(_summary(diagnosis), style="bold")


def as_html(diagnosis: Diagnosis) -> str:
    """Return the findings as an HTML table, the worst first."""
    rows = [
        f"<tr><td>{escape(found.level)}</td><td><code>{escape(found.id)}</code></td>"
        f"<td>{escape(found.measured)}<br><small>{escape(found.why)}</small></td>"
        f"<td>{escape(found.fix)}{f'<pre>{escape(found.diff)}</pre>' if found.diff else ''}"
        f"<small>{escape(found.location)}</small></td></tr>"
        for found in sorted(diagnosis.findings, key=lambda found: LEVELS.index(found.level))
    ]
    head = "<tr><th>level</th><th>finding</th><th>measured</th><th>fix</th></tr>"
    table = f"<table>{head}{''.join(rows)}</table>" if rows else ""
    return f"{table}<p>{escape(_summary(diagnosis))}</p>"


def _summary(diagnosis: Diagnosis) -> str:
    counts = Counter(finding.level for finding in diagnosis.findings)
    found = [plural(counts[level], level, "broken" if level == "broken" else None) for level in LEVELS if counts[level]]
    return (
        f"{', '.join(found) or 'nothing found'}; {plural(len(diagnosis.healthy), 'check')} in order,"
        f" {len(diagnosis.not_measured)} not measured, {diagnosis.elapsed_seconds:.1f} s"
    )
