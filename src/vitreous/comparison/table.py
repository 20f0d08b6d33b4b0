"""The table, once: its rows serve the terminal and the report."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitreous.comparison.results import Comparison, ModelSummary
from vitreous.evaluation.metrics import percent, percent_decimals

if TYPE_CHECKING:
    from rich.table import Table

_MOST_SIDE_BY_SIDE = 3
_ONLY_SIDE_BY_SIDE = ("Images per second", "Seeds")  # 80 columns are not enough for all
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
    """A row: what is measured, in which words, a cell a model, and who is really best (if anyone)."""

    label: str
    explanation: str
    cells: dict[str, str]
    best: str | None = None

    @property
    def short(self) -> str:
        """For a narrow column."""
        return _SHORT_LABELS.get(self.label, self.label)


def three_digits(value: float) -> str:
    """1199882 → "1.20 M", 12345 → "12.3 k", 83.24 → "83.2"."""
    for factor, unit in ((1e9, " G"), (1e6, " M"), (1e3, " k")):
        if abs(value) >= 0.9995 * factor:
            return _digits(value / factor) + unit
    return _digits(value)


def _digits(value: float) -> str:
    return f"{value:.0f}" if abs(value) >= 99.95 else f"{value:.1f}" if abs(value) >= 9.995 else f"{value:.2f}"


def seconds(value: float) -> str:
    return f"{value:,.0f} s" if value >= 99.95 else f"{_digits(value)} s"


def rate(value: float) -> str:
    """12,345 → "12,300": three digits, written out."""
    return f"{float(f'{value:.3g}'):,.0f}" if value >= 100 else _digits(value)


def interval_in_words(model: ModelSummary, decimals: int) -> str:
    return f"{100 * model.accuracy.low:.{decimals}f}–{percent(model.accuracy.high, decimals)}"


def measures(comparison: Comparison) -> list[Measure]:
    """The rows of the table, top to bottom."""
    models, best, count = comparison.models, comparison.best, comparison.test_count
    decimals = percent_decimals(count)
    several = any(len(model.runs) > 1 for model in models)
    over_seeds = ", mean over seeds" if several else ""
    accuracy = {m.name: percent(m.accuracy.value, decimals) for m in models}
    rows = [
        Measure("Test accuracy", f"of {count:,} images{over_seeds}", accuracy, best["accuracy"]),
        Measure(
            "95 % interval",
            "over seeds (t); one seed: Wilson" if several else "Wilson",
            {m.name: interval_in_words(m, decimals) for m in models},
        ),
    ]
    if any(model.published for model in models):
        published = {m.name: percent(m.published["accuracy"], 2) if m.published else "" for m in models}
        rows.append(Measure("Published accuracy", "what the source reports", published))
    rows += [
        Measure(
            "Negative log likelihood", "cost of its probabilities, lower is better",
            {m.name: f"{m.nll:.3g}" if m.nll < 0.01 else f"{m.nll:.4f}" for m in models}, best["nll"],
        ),
        Measure(
            "Calibration error", "gap between confidence and accuracy",
            {m.name: percent(m.calibration_error, 2) for m in models}, best["calibration_error"],
        ),
        Measure(
            "Parameters", "learned numbers",
            {m.name: three_digits(m.parameters) for m in models}, best["parameters"],
        ),
        Measure("FLOPs", "an image, forward", {m.name: three_digits(m.flops) for m in models}, best["flops"]),
        Measure(
            "Training time", "on this machine" + over_seeds,
            {m.name: seconds(m.train_seconds) for m in models}, best["train_seconds"],
        ),
        Measure(
            "Images per second", "while training",
            {m.name: rate(m.images_per_second) for m in models}, best["images_per_second"],
        ),
    ]  # fmt: skip
    if several:
        rows.append(Measure("Seeds", "trainings", {m.name: str(len(m.runs)) for m in models}))
    return rows


def render_table(comparison: Comparison) -> Table:
    """For the terminal; a dot marks what is really better than every other model.

    Up to three models stand side by side, one measure a row, as in the report; more stand below each other.
    """
    from rich.table import Table
    from rich.text import Text

    rows, models = measures(comparison), comparison.models
    side_by_side = len(models) <= _MOST_SIDE_BY_SIDE
    dot = any(row.best for row in rows)
    table = Table(
        title=Text(comparison.title), title_justify="left", box=None, pad_edge=False,
        padding=(0, 2 if side_by_side else 1, 0, 0),
        caption=Text("● really better than every other") if dot else None, caption_justify="left",
    )  # fmt: skip

    def cell(row: Measure, name: str) -> Text:
        is_best = row.best == name
        return Text(row.cells[name] + (" ●" if is_best else "  " if row.best else ""), style="bold" if is_best else "")

    if side_by_side:
        table.add_column(Text(""), no_wrap=True)
        for model in models:
            table.add_column(Text(model.name, style="bold"), justify="right", no_wrap=True)
        for row in rows:
            table.add_row(Text(row.label), *(cell(row, model.name) for model in models))
        return table
    table.add_column(Text(""), overflow="fold", min_width=8)
    rows = [row for row in rows if row.label not in _ONLY_SIDE_BY_SIDE]
    for row in rows:
        table.add_column(Text(row.short, style="bold"), justify="right", no_wrap=True)
    for model in models:
        table.add_row(Text(model.name, style="bold"), *(cell(row, model.name) for row in rows))
    return table
