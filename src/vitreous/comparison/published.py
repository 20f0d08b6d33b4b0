"""Published figures beside ours."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from vitreous.comparison.results import ModelSummary
from vitreous.models.article import ARTICLE
from vitreous.reports.formats import percent

#: The article's figures for its own models (docs/article.md).
PUBLISHED = {
    "post-vit": {"accuracy": 0.9038, "nll": 0.3118, "source": ARTICLE},
    "post-cnn": {"accuracy": 0.9755, "nll": 0.0810, "source": ARTICLE},
}


Row = tuple[str, str, str]  # how the model was evaluated, accuracy, negative log likelihood


def reruns(models: Sequence[ModelSummary]) -> list[tuple[ModelSummary, list[Row]]]:
    """Return the models that have a published figure or were evaluated in more than one way, with their rows."""
    found = []
    for model in models:
        ways: dict[str, list[dict[str, Any]]] = {}
        for run in model.runs:
            for how, evaluation in run.extra_evaluations.items():
                ways.setdefault(how, []).append(evaluation)
        rows = [_row(how, evaluations) for how, evaluations in ways.items()]
        if model.published:
            here = [] if ways else [_row("here", [{"accuracy": model.accuracy.value, "nll": model.raw_nll}])]
            rows = [_row(f"published ({model.published['source']})", [model.published]), *rows, *here]
        if rows:
            found.append((model, rows))
    return found


def _row(how: str, evaluations: Sequence[Mapping[str, Any]]) -> Row:
    """Return means over seeds; without temperature, which published figures do not have."""
    accuracy = float(np.mean([each["accuracy"] for each in evaluations]))
    nll = float(np.mean([each.get("raw_nll", each["nll"]) for each in evaluations]))
    return how, percent(accuracy, 2), f"{nll:.4f}"
