"""The tables of a study, for the terminal, the report and Markdown alike."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

from vitreous.reports.formats import magnitude, seconds
from vitreous.studies.cells import Cells
from vitreous.studies.definition import GridStudy

if TYPE_CHECKING:
    from rich.table import Table as RichTable


@dataclass(frozen=True)
class Table:
    """Rows of text under headings; the first column names the row, the others are numbers."""

    title: str
    headings: tuple[str, ...]
    rows: tuple[tuple[str, ...], ...]

    def as_markdown(self) -> str:
        lines = [self.headings, ("---", *["---:"] * (len(self.headings) - 1)), *self.rows]
        return "\n".join(f"| {' | '.join(_escaped(cell) for cell in line)} |" for line in lines)

    def as_rich(self) -> RichTable:
        from rich.table import Table as RichTable
        from rich.text import Text

        table = RichTable(title=Text(self.title), title_justify="left", box=None, pad_edge=False, padding=(0, 2, 0, 0))
        for place, heading in enumerate(self.headings):
            table.add_column(
                Text(heading, style="bold"), justify="right" if place else "left", vertical="bottom", overflow="fold"
            )
        for row in self.rows:
            table.add_row(*(Text(cell) for cell in row))
        return table


def _escaped(cell: str) -> str:
    return cell.replace("|", "\\|").replace("\n", " ")


def make_tables(study: GridStudy, cells: Cells) -> tuple[Table, ...]:
    """Return accuracy first, then what it cost."""
    return _ladder_tables(study, cells) if study.points is None else _grid_tables(study, cells)


def _ladder_tables(study: GridStudy, cells: Cells) -> tuple[Table, ...]:
    rows = []
    for arm in study.arms:
        cell = cells[arm.name, None]
        run = cell.runs[0]
        rows.append(
            (
                arm.name,
                cell.text,
                f"{cell.nll:.3f}",
                magnitude(run.parameters),
                f"{run.steps:,}",
                seconds(cell.train_seconds),
            )
        )
    headings = ("model", "test accuracy", "NLL", "parameters", "steps", "training")
    return (Table(_accuracy_title(study), headings, tuple(rows)),)


def _grid_tables(study: GridStudy, cells: Cells) -> tuple[Table, ...]:
    points = study.points
    assert points is not None
    headings = (points.label, *(points.name_of(value) for value in points.values))

    def rows(text: Sequence[str]) -> tuple[tuple[str, ...], ...]:
        width = len(points.values)
        return tuple((arm.name, *text[place * width : (place + 1) * width]) for place, arm in enumerate(study.arms))

    ordered = [cells[arm.name, value] for arm in study.arms for value in points.values]
    accuracy = Table(_accuracy_title(study), headings, rows([cell.text for cell in ordered]))
    cost = [f"{seconds(cell.train_seconds)}, {cell.runs[0].steps:,} steps" for cell in ordered]
    return accuracy, Table("Training time and steps, mean over seeds", headings, rows(cost))


def _accuracy_title(study: GridStudy) -> str:
    if study.seeds == 1:
        return "Test accuracy, one seed ± half of its 95 % interval (Wilson)"
    return f"Test accuracy, mean of {study.seeds} seeds ± half of its 95 % interval"
