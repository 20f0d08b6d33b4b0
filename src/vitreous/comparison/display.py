"""How a comparison is shown: in one line, in a notebook, as a data frame."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from vitreous.reports.formats import join, percent, percent_decimals
from vitreous.reports.notebook import data_frame, html_card, html_figure, html_table

if TYPE_CHECKING:
    from vitreous.comparison.results import Comparison


def comparison_line(comparison: Comparison) -> str:
    decimals = percent_decimals(comparison.test_count)
    models = join(f"{model.name} {percent(model.accuracy.value, decimals)}" for model in comparison.models)
    return f"Comparison({models} on {comparison.data_name}; report {str(comparison.report)!r})"


def comparison_html(comparison: Comparison) -> str:
    from vitreous.comparison.table import measures

    names = [model.name for model in comparison.models]
    rows = [(row.label, *(row.cells.get(name, "") for name in names)) for row in measures(comparison)]
    accuracy = [html_figure(figure) for figure in comparison.figures if figure.stem == "accuracy"]
    return html_card(comparison.verdict, {"report": comparison.report}, html_table(("", *names), rows), *accuracy)


def comparison_frame(comparison: Comparison) -> Any:
    """Return a data frame with a row per model: accuracy with its interval, nll, size, time."""
    rows = [model.as_dict() for model in comparison.models]
    for row in rows:
        row["accuracy_low"], row["accuracy_high"] = row.pop("accuracy_interval")
        row["num_seeds"] = len(row.pop("seeds"))
        row.pop("published")
    return data_frame({name: [row[name] for row in rows] for name in rows[0]})
