"""`vitreous paper`: compare a model with the paper's ViT, one row per item, measured on the model or its configuration.

    from vitreous.conformance import conformance
    for row in conformance(preset("vit-b16")):
        print(row.item, "|", row.here, "|", row)

The paper is "An Image is Worth 16×16 Words" (Dosovitskiy et al., 2021). Its items were read in a public transcription
(version 2) and in the authors' code, google-research/vision_transformer, and are listed in paper.toml; what neither
states is "not confirmed".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import nn

from vitreous.config import Config, ModelConfig
from vitreous.conformance import equations, initialisation, positions, settings  # noqa: F401 - they register rows
from vitreous.conformance.rows import ITEMS, Item, Row, Subject, Verdict

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ITEMS", "Item", "Row", "Subject", "Verdict", "as_json", "conformance", "conformance_table"]


def conformance(config: Config | ModelConfig, model: nn.Module | None = None) -> list[Row]:
    """Compare a configuration, or a model built from it (a run's, for example), with the paper.

    A bare model configuration has no training settings: those rows do not apply.
    """
    subject = Subject(config.model, config, model) if isinstance(config, Config) else Subject(config, None, model)
    return [item.compare(subject) for item in ITEMS]


def as_json(rows: list[Row]) -> dict[str, Any]:
    return {"summary": dict(Counter(row.verdict for row in rows)), "rows": [asdict(row) for row in rows]}


def conformance_table(rows: list[Row], title: str = "") -> Table:
    """Return the rows as a table for a terminal."""
    from rich.markup import escape  # brackets in the text are not markup
    from rich.table import Column, Table

    counts = Counter(row.verdict for row in rows)
    caption = f"{counts['same']} same, {counts['differs']} differ, {counts['does not apply']} do not apply"
    colours = {"same": "green", "differs": "yellow", "does not apply": "dim"}
    columns = [Column(header, overflow="fold") for header in ("item", "the paper", "this model", "verdict")]
    table = Table(*columns, title=title or None, caption=caption, caption_justify="left", show_lines=True)
    for row in rows:
        paper = row.paper + (f"\n(not confirmed: {row.unconfirmed})" if row.unconfirmed else "")
        verdict = f"[{colours[row.verdict]}]{row.verdict}[/]" + (f": {escape(row.note)}" if row.note else "")
        table.add_row(row.item, escape(paper), escape(row.here), verdict)
    return table
