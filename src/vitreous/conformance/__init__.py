"""`vitreous paper`: is this the paper's ViT? One row an item, each measured on the model or its configuration.

    from vitreous.conformance import conformance
    for row in conformance(preset("vit-b16")):
        print(row.item, "|", row.here, "|", row)

The paper is "An Image is Worth 16×16 Words" (Dosovitskiy et al., 2021). Its side of each row was read in a public
transcription (version 2) and in the authors' code, google-research/vision_transformer; where neither settles
a point, the row says "not confirmed".
"""

from __future__ import annotations

from collections import Counter
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

from torch import nn

from vitreous.config import Config, ModelConfig
from vitreous.conformance import equations, places, settings, start
from vitreous.conformance.sheet import Item, Row, Subject, Verdict

if TYPE_CHECKING:
    from rich.table import Table

__all__ = ["ITEMS", "Item", "Row", "Subject", "Verdict", "as_json", "conformance", "conformance_table"]

#: The sheet, in the order of the paper.
ITEMS: tuple[Item, ...] = (
    equations.tokens,
    equations.attention_layer,
    equations.mlp_layer,
    equations.representation,
    places.class_token,
    places.positions,
    equations.gelu,
    equations.norm_eps,
    settings.depth,
    settings.width,
    settings.mlp_size,
    settings.heads,
    settings.parameters,
    start.initialisation,
    start.pretraining_head,
    settings.table_3,
    start.finetuning_head,
    settings.fine_tuning,
    places.interpolation,
    places.position_variants,
)


def conformance(config: Config | ModelConfig, model: nn.Module | None = None) -> list[Row]:
    """The sheet for a configuration, or for a model made from it (a run's, say), which is measured itself.

    A bare model configuration says nothing about training: those rows do not apply.
    """
    whole = config if isinstance(config, Config) else None
    subject = Subject(config.model if isinstance(config, Config) else config, whole, model)
    return [item(subject) for item in ITEMS]


def summary(rows: list[Row]) -> str:
    """One line: how many rows are the paper's."""
    counts = Counter(row.verdict for row in rows)
    return f"{counts['same']} same, {counts['differs']} differ, {counts['does not apply']} do not apply"


def as_json(rows: list[Row]) -> dict[str, Any]:
    return {"summary": dict(Counter(row.verdict for row in rows)), "rows": [asdict(row) for row in rows]}


def conformance_table(rows: list[Row], title: str = "") -> Table:
    """The sheet for a terminal."""
    from rich.markup import escape  # the paper's brackets are not colours
    from rich.table import Table

    colours = {"same": "green", "differs": "yellow", "does not apply": "dim"}
    table = Table(title=title or None, caption=summary(rows), caption_justify="left", show_lines=True)
    for header in ("item", "the paper", "this model", "verdict"):
        table.add_column(header, overflow="fold")
    for row in rows:
        paper = escape(row.paper + (f"\n(not confirmed: {row.unconfirmed})" if row.unconfirmed else ""))
        verdict = f"[{colours[row.verdict]}]{row.verdict}[/]" + (f": {escape(row.note)}" if row.note else "")
        table.add_row(row.item, paper, escape(row.here), verdict)
    return table
