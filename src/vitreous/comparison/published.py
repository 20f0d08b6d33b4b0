"""What a source published beside what its model does here, and why one model can have two accuracies."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.comparison.results import ModelSummary
from vitreous.evaluation.metrics import percent

_DECIMALS = 2  # as published
_EXPLANATIONS = {
    "post-vit": (
        "The answers change with the batch because its encoder reads the batch as the sequence: attention mixes the"
        " images of a batch and never the patches of one image, and alone an image has nothing to attend to but itself."
        " Its figures are those of this slip, not of Vision Transformers."
    ),
}


@dataclass(frozen=True)
class Rerun:
    """One model: rows of (how it was evaluated, accuracy, negative log likelihood), and the sentence that explains."""

    model: ModelSummary
    rows: tuple[tuple[str, str, str], ...]
    explanation: str


def rerun_rows(models: Sequence[ModelSummary]) -> list[Rerun]:
    """For the models that have a published figure or were evaluated in more than one way."""
    return [
        Rerun(model, tuple(_rows(model)), _EXPLANATIONS.get(model.kind, ""))
        for model in models
        if model.published or any(run.extra_evaluations for run in model.runs)
    ]


def _rows(model: ModelSummary) -> list[tuple[str, str, str]]:
    rows = []
    if model.published:
        published = {key: value for key, value in model.published.items() if isinstance(value, int | float)}
        rows.append(_row(f"published ({model.published.get('source', 'its source')})", published))
    evaluations = _mean_evaluations(model)
    if not evaluations:
        evaluations = {"here": {"accuracy": model.accuracy.value, "nll": model.nll}}
    rows += [_row(how, values) for how, values in evaluations.items()]
    return rows


def _row(how: str, values: dict[str, float]) -> tuple[str, str, str]:
    accuracy = percent(values["accuracy"], _DECIMALS) if "accuracy" in values else "–"
    return how, accuracy, f"{values['nll']:.4f}" if "nll" in values else "–"


def _mean_evaluations(model: ModelSummary) -> dict[str, dict[str, float]]:
    """How → mean over seeds of what is a number."""
    ways: dict[str, list[dict[str, Any]]] = {}
    for run in model.runs:
        for how, values in run.extra_evaluations.items():
            ways.setdefault(how, []).append(values)

    def means(values: list[dict[str, Any]]) -> dict[str, float]:
        known = [key for key in ("accuracy", "nll") if all(key in value for value in values)]
        return {key: float(np.mean([value[key] for value in values])) for key in known}

    return {how: means(values) for how, values in ways.items()}
