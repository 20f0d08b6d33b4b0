"""The rows of the comparison with the paper, for the terminal."""

from __future__ import annotations

from collections import Counter
from typing import Any

from rich.table import Column, Table
from rich.text import Text

from vitreous.conformance.rows import Row
from vitreous.reports.tables import FirstThatFits

_COLOURS = {"same": "green", "differs": "yellow", "does not apply": "dim"}


def conformance_table(rows: list[Row], title: str = "") -> FirstThatFits:
    """Return the rows as a table; where that is too wide, as a list."""
    counts = Counter(row.verdict for row in rows)
    caption = f"{counts['same']} same, {counts['differs']} differ, {counts['does not apply']} do not apply"
    style: dict[str, Any] = {"title": title or None, "caption": caption, "caption_justify": "left"}
    widths = {"item": 18, "the paper": 50, "this model": 30, "verdict": 40}  # 151 columns with the frame
    columns = [Column(header, overflow="fold", max_width=width) for header, width in widths.items()]
    table = Table(*columns, show_lines=True, **style)
    narrow = Table(Column(no_wrap=True), Column(overflow="fold"), box=None, show_header=False, pad_edge=False, **style)
    for row in rows:
        paper = row.paper + (f"\n(not confirmed: {row.unconfirmed})" if row.unconfirmed else "")
        verdict = Text(row.verdict, style=_COLOURS[row.verdict]).append(f": {row.note}" if row.note else "", "default")
        table.add_row(row.item, Text(paper), Text(row.here), verdict)
        narrow.add_row("", Text.assemble((row.item, "bold"), ": ", verdict))
        narrow.add_row("paper", Text(paper))
        narrow.add_row("here", Text(row.here))
        narrow.add_row()
    return FirstThatFits(table, narrow)
