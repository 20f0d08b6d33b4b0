"""`vitreous paper`: compare a model with the paper's ViT, one row per item, measured on the model or its configuration.

    from vitreous.conformance import conformance
    for row in conformance(preset("vit-b16")):
        print(row.item, row.here, row.verdict, row.note, sep=" | ")

The paper is "An Image is Worth 16×16 Words" (Dosovitskiy et al., 2021). Its items were read in a public transcription
(version 2) and in the authors' code, google-research/vision_transformer, and are listed in paper.toml; what neither
states is "not confirmed".
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable
from dataclasses import asdict
from functools import partial
from typing import Any

from torch import nn

from vitreous.config import Config, ModelConfig
from vitreous.conformance import equations, initialisation, positions, settings
from vitreous.conformance.parts import has_tokens
from vitreous.conformance.rows import ITEMS, Item, Measurement, Row, Subject, Verdict, differs, does_not_apply
from vitreous.conformance.table import conformance_table

__all__ = ["ITEMS", "Item", "Row", "Subject", "Verdict", "as_json", "conformance", "conformance_table"]

#: How each item of paper.toml is measured.
MEASURES: dict[str, Callable[[Subject], Measurement]] = {
    "eq1": equations.tokens,
    "eq2": equations.attention_layer,
    "eq3": equations.mlp_layer,
    "eq4": equations.representation,
    "class-token": positions.class_token,
    "positions": positions.positions,
    "gelu": equations.gelu,
    "norm-eps": equations.norm_eps,
    "table1-depth": partial(settings.compare_size, "depth"),
    "table1-dim": partial(settings.compare_size, "dim"),
    "table1-mlp-dim": partial(settings.compare_size, "mlp_dim"),
    "table1-num-heads": partial(settings.compare_size, "num_heads"),
    "table1-parameters": settings.parameters,
    "initialisation": initialisation.initialisation,
    "head-pretraining": initialisation.pretraining_head,
    "table3": settings.table_3,
    "head-finetuning": initialisation.finetuning_head,
    "finetuning": settings.fine_tuning,
    "interpolation": positions.interpolation,
    "position-variants": positions.position_variants,
}


def conformance(config: Config | ModelConfig, model: nn.Module | None = None) -> list[Row]:
    """Compare a configuration, or a model built from it (a run's, for example), with the paper.

    A bare model configuration has no training settings: those rows do not apply.
    """
    subject = Subject(config.model, config, model) if isinstance(config, Config) else Subject(config, None, model)
    return [_compare(item, subject) for item in ITEMS]


def _compare(item: Item, subject: Subject) -> Row:
    no_tokens = "a convolutional network: it has no tokens and no attention"
    if item.any_model or has_tokens(subject.model_config):
        measurement = MEASURES[item.id](subject)
    elif item.without_tokens:
        measurement = differs(no_tokens, item.without_tokens)
    else:
        measurement = does_not_apply(no_tokens)
    return Row(item.id, item.item, item.paper, *measurement, unconfirmed=item.unconfirmed)


def as_json(rows: list[Row]) -> dict[str, Any]:
    return {"summary": dict(Counter(row.verdict for row in rows)), "rows": [asdict(row) for row in rows]}
