"""The steps of a model as a table for the terminal."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

from rich.table import Table
from rich.text import Text

from vitreous.config import ModelConfig
from vitreous.models.summary import FLOPS_COUNTED, Step, count_flops, count_parameters_of, shapes
from vitreous.reports.formats import magnitude
from vitreous.reports.tables import FirstThatFits


def shapes_table(config: ModelConfig, title: str = "") -> FirstThatFits:
    """Return the steps as a table for the terminal; the steps of an encoder block are listed once."""
    return FirstThatFits(
        _wide_table(config, title), _narrow_table(config, title), _narrow_table(config, title, magnitude)
    )


def _wide_table(config: ModelConfig, title: str) -> Table:
    table = _empty_table(config, title, "{:,}".format, "symbol", "paper", "numbers", "output shape")
    for step, is_last in _with_sections(config):
        shape = Text(f"{step.shape_symbols}\n").append(" × ".join(map(str, step.shape)), style="bold")
        cells = (Text(step.symbol), step.equation, step.numbers, shape)
        table.add_row(_times(step), *cells, *_costs(step), end_section=is_last)
    return table


def _narrow_table(config: ModelConfig, title: str, form: Callable[[int], str] = "{:,}".format) -> Table:
    """For 80 columns or fewer: the symbol below the step, and the shape in numbers alone."""
    table = _empty_table(config, title, form, "output shape", box=None)
    for step, is_last in _with_sections(config):
        name = Text(_times(step), style="bold").append(f"\n{step.symbol}  ({step.equation})", style="not bold")
        table.add_row(name, " × ".join(map(str, step.shape)), *_costs(step, form), end_section=is_last)
    return table


def _empty_table(config: ModelConfig, title: str, form: Callable[[int], str], *columns: str, **style: Any) -> Table:
    table = Table(title=title or None, caption=FLOPS_COUNTED, show_footer=True, caption_justify="left", **style)
    table.add_column("step", "total")
    for header in columns:
        table.add_column(header)
    table.add_column("parameters", form(count_parameters_of(config)), justify="right", no_wrap=True)
    table.add_column("FLOPs", form(count_flops(config)), justify="right", no_wrap=True)
    return table


def _with_sections(config: ModelConfig) -> Iterator[tuple[Step, bool]]:
    """Yield every step, and whether a line follows it: the encoder blocks are a section."""
    steps = shapes(config)
    for step, following in zip(steps, [*steps[1:], None], strict=True):
        yield step, following is not None and following.times != step.times


def _times(step: Step) -> str:
    return f"{step.times} × {step.name}" if step.times > 1 else step.name


def _costs(step: Step, form: Callable[[int], str] = "{:,}".format) -> tuple[str, str]:
    return form(step.parameters) if step.parameters else "–", form(step.flops) if step.flops else "–"
