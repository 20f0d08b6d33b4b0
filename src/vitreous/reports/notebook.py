"""What results show in a notebook: short HTML that needs nothing else, and tables as pandas data frames."""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import escape

from vitreous.errors import require_packages

if TYPE_CHECKING:
    from vitreous.reports.figures import DrawnFigure

#: Colours are the notebook's own: it may be dark.
_LEFT = "text-align:left;padding:2px 16px 2px 0"
MOST_ROWS = 20


def html_card(title: str, facts: Mapping[str, object], *parts: str) -> str:
    """Return a title, a table of facts and further HTML."""
    rows = "".join(
        f'<tr><td style="{_LEFT};opacity:.7">{escape(name)}</td><td style="{_LEFT}">{escape(str(value))}</td></tr>'
        for name, value in facts.items()
    )
    table = f"<table>{rows}</table>" if rows else ""
    return f"<div><p><strong>{escape(title)}</strong></p>{table}{''.join(parts)}</div>"


def html_table(columns: Sequence[str], rows: Iterable[Sequence[object]], most: int = MOST_ROWS) -> str:
    """Return an HTML table; a cell that has `__html__` is kept as it is."""
    listed = list(rows)
    head = "".join(f'<th style="{_LEFT}">{escape(column)}</th>' for column in columns)
    body = "".join(
        "<tr>" + "".join(f'<td style="{_LEFT}">{escape(cell)}</td>' for cell in row) + "</tr>" for row in listed[:most]
    )
    rest = f"<p>… and {len(listed) - most} more</p>" if len(listed) > most else ""
    return f"<table><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table>{rest}"


def html_figure(figure: DrawnFigure | Path, alt: str = "") -> str:
    """Return a figure, or the file of one with its text alternative, as an image; nothing where there is no file."""
    if isinstance(figure, Path):
        if not figure.is_file():
            return ""
        svg, alt = figure.read_bytes(), alt or figure.stem
    else:
        svg, alt = figure.svg.encode(), figure.alt
    source = base64.b64encode(svg).decode("ascii")
    return f'<img alt="{escape(alt)}" style="background:#fff;max-width:100%" src="data:image/svg+xml;base64,{source}">'


def data_frame(columns: Mapping[str, Any]) -> Any:
    """Return a pandas data frame, or an error that says how to install pandas."""
    require_packages("pandas", extra="pandas", needed_for="to_pandas()")
    import pandas

    return pandas.DataFrame(columns)
