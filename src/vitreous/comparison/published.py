"""Published figures beside ours, and why one model can have two accuracies."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.comparison.results import ModelSummary
from vitreous.reports.formats import percent

#: The article's figures for its own models (docs/article.md).
PUBLISHED = {
    "post-vit": {"accuracy": 0.9038, "nll": 0.3118, "source": "the article"},
    "post-cnn": {"accuracy": 0.9755, "nll": 0.0810, "source": "the article"},
}
_EXPLANATIONS = {
    "post-vit": (
        "Its predictions depend on the batch because its encoder reads the batch as the sequence: attention mixes the"
        " images of a batch and never the patches of one image, and an image on its own can attend only to itself."
        " Its figures measure this mistake, not Vision Transformers."
    ),
}


@dataclass(frozen=True)
class Rerun:
    """One model: rows of (how it was evaluated, accuracy, negative log likelihood), and an explanation."""

    model: ModelSummary
    rows: tuple[tuple[str, str, str], ...]
    explanation: str


def rerun_rows(models: Sequence[ModelSummary]) -> list[Rerun]:
    """Return the models that have a published figure or were evaluated in more than one way."""
    return [
        Rerun(model, tuple(_rows(model)), _EXPLANATIONS.get(model.kind, ""))
        for model in models
        if model.published or any(run.extra_evaluations for run in model.runs)
    ]


def _rows(model: ModelSummary) -> list[tuple[str, str, str]]:
    rows = []
    if model.published:
        rows.append(_row(f"published ({model.published.get('source', 'its source')})", [model.published]))
    ways = dict.fromkeys(how for run in model.runs for how in run.extra_evaluations)
    for how in ways:
        rows.append(_row(how, [run.extra_evaluations[how] for run in model.runs if how in run.extra_evaluations]))
    if not ways:
        rows.append(_row("here", [{"accuracy": model.accuracy.value, "nll": model.nll}]))
    return rows


def _row(how: str, evaluations: Sequence[Mapping[str, Any]]) -> tuple[str, str, str]:
    """Average over seeds; a dash for what was not measured."""

    def mean(key: str) -> float | None:
        known = all(evaluation.get(key) is not None for evaluation in evaluations)
        return float(np.mean([evaluation[key] for evaluation in evaluations])) if known else None

    accuracy, nll = mean("accuracy"), mean("nll")
    return how, "–" if accuracy is None else percent(accuracy, 2), "–" if nll is None else f"{nll:.4f}"
