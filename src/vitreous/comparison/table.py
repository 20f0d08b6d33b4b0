"""The rows of the comparison's table, for the terminal and the report."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitreous.comparison.results import Comparison, ModelSummary
from vitreous.reports.formats import magnitude, percent, percent_decimals, rate, seconds

if TYPE_CHECKING:
    from rich.table import Table

_MOST_SIDE_BY_SIDE = 3
_ONLY_SIDE_BY_SIDE = (
    "Macro F1",
    "Balanced accuracy",
    "Without temperature",
    "Images per second",
    "Seeds",
)  # 80 columns are not enough for all
_SHORT_LABELS = {
    "Test accuracy": "Accuracy",
    "95 % interval": "95 %",
    "Published accuracy": "Published",
    "Negative log likelihood": "NLL",
    "Calibration error": "ECE",
    "Parameters": "Params",
    "Training time": "Time",
}


@dataclass(frozen=True)
class Measure:
    """A row: what is measured, one cell per model, and the significantly best model (if there is one)."""

    label: str
    explanation: str
    cells: dict[str, str]
    best: str | None


def measures(comparison: Comparison) -> list[Measure]:
    """Return the rows of the table, top to bottom."""
    models, count = comparison.models, comparison.test_count
    decimals = percent_decimals(count)
    several = any(len(model.runs) > 1 for model in models)
    over_seeds = ", mean over seeds" if several else ""

    def measure(label: str, explanation: str, cell: Callable[[ModelSummary], str], key: str = "") -> Measure:
        return Measure(label, explanation, {m.name: cell(m) for m in models}, comparison.best.get(key))

    def interval(m: ModelSummary) -> str:
        return f"{100 * m.accuracy.low:.{decimals}f}–{percent(m.accuracy.high, decimals)}"

    def published(m: ModelSummary) -> str:
        return percent(m.published["accuracy"], 2) if m.published else ""

    def nll(m: ModelSummary) -> str:
        return f"{m.nll:.3g}" if m.nll < 0.01 else f"{m.nll:.4f}"

    rows = [
        measure("Test accuracy", f"of {count:,} images{over_seeds}",
                lambda m: percent(m.accuracy.value, decimals), "accuracy"),
        measure("95 % interval", "over seeds (t); one seed: Wilson" if several else "Wilson", interval),
        measure("Macro F1", "mean over classes", lambda m: percent(m.macro_f1, decimals)),
        measure("Balanced accuracy", "mean recall of the classes", lambda m: percent(m.balanced_accuracy, decimals)),
        measure("Published accuracy", "as reported by the source", published),
        measure("Negative log likelihood", "cost of its probabilities, lower is better", nll, "nll"),
        measure("Calibration error", "gap between confidence and accuracy",
                lambda m: percent(m.calibration_error, 2), "calibration_error"),
        measure("Without temperature", "calibration error before calibration",
                lambda m: percent(m.raw_calibration_error, 2)),
        measure("Parameters", "learned numbers", lambda m: magnitude(m.parameters), "parameters"),
        measure("FLOPs", "per image, forward", lambda m: magnitude(m.flops), "flops"),
        measure("Training time", "on the machine that trained it" + over_seeds,
                lambda m: seconds(m.train_seconds), "train_seconds"),
        measure("Images per second", "while training", lambda m: rate(m.images_per_second), "images_per_second"),
        measure("Seeds", "trainings", lambda m: str(len(m.runs))),
    ]  # fmt: skip
    shown = {
        "Published accuracy": any(model.published for model in models),
        "Seeds": several,
        "Without temperature": any(model.raw_calibration_error != model.calibration_error for model in models),
    }
    return [row for row in rows if shown.get(row.label, True)]


def render_table(comparison: Comparison) -> Table:
    """Return the table for the terminal; a dot marks what is significantly better than every other model.

    Up to three models have a column each, as in the report; more have a row each.
    """
    from rich.table import Table
    from rich.text import Text

    rows, models = measures(comparison), comparison.models
    side_by_side = len(models) <= _MOST_SIDE_BY_SIDE
    dot = any(row.best for row in rows)
    table = Table(
        title=Text(comparison.title), title_justify="left", box=None, pad_edge=False,
        padding=(0, 2 if side_by_side else 1, 0, 0),
        caption=Text("● significantly better than every other") if dot else None, caption_justify="left",
    )  # fmt: skip

    def cell(row: Measure, name: str) -> Text:
        is_best = row.best == name
        return Text(row.cells[name] + (" ●" if is_best else "  " if row.best else ""), style="bold" if is_best else "")

    if not side_by_side:
        rows = [row for row in rows if row.label not in _ONLY_SIDE_BY_SIDE]
    labels = [row.label if side_by_side else _SHORT_LABELS.get(row.label, row.label) for row in rows]
    grid = [[Text(""), *(Text(model.name, style="bold") for model in models)]]
    for label, row in zip(labels, rows, strict=True):
        grid.append([Text(label), *(cell(row, model.name) for model in models)])
    headings, *body = grid if side_by_side else zip(*grid, strict=True)
    table.add_column(headings[0], overflow="fold", min_width=8)
    for heading in headings[1:]:
        table.add_column(heading, justify="right", overflow="fold")
    for cells in body:
        table.add_row(*cells)
    return table
