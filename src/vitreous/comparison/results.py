"""What a comparison starts from: evaluated runs as plain data, and what it says of each model.

The glue that makes `ModelResult`s from run folders lives elsewhere: nothing here opens a run or a model.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.evaluation import metrics
from vitreous.reports.colors import MOST_MODELS

FEWEST_CLASSES = 2
_SUM_TOLERANCE = 1e-3


@dataclass(frozen=True)
class ModelResult:
    """One trained run, evaluated on the test set."""

    name: str  # several seeds of one preset share a name
    seed: int
    kind: str  # config.model.kind: "vit", "cnn", "post-vit", …
    parameters: int
    flops: int  # per image, forward
    train_seconds: float
    images_per_second: float  # while training
    history: list[dict[str, Any]]  # the lines of metrics.jsonl
    probabilities: NDArray[np.float32]  # (n_test, classes)
    labels: NDArray[np.integer[Any]]  # (n_test,)
    run: str  # folder
    #: how → {"accuracy", "nll", "correct", "count"}, where one model was evaluated in more than one way
    extra_evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    published: dict[str, Any] | None = None  # {"accuracy", "nll", "source"}


def check_results(results: Sequence[ModelResult], images: NDArray[np.uint8], class_names: Sequence[str]) -> None:
    """One sentence for whatever cannot be compared; the report may then rely on it."""
    _check_names(results)
    classes, labels = len(class_names), results[0].labels
    if classes < FEWEST_CLASSES:
        raise DataError(f"a comparison needs at least two classes, not {classes}")
    if images.ndim != 4 or len(images) != len(labels) or images.dtype != np.uint8:
        raise DataError(f"expected {len(labels)} test images (n, C, H, W) of bytes, not {images.shape} {images.dtype}")
    for result in results:
        _check_one(result, labels, classes)


def _check_names(results: Sequence[ModelResult]) -> None:
    seen: dict[tuple[str, int], str] = {}
    for result in results:
        key = (result.name, result.seed)
        if key in seen:
            raise DataError(
                f"{seen[key]} and {result.run} are both called {result.name!r} with seed {result.seed};"
                " give them different names"
            )
        seen[key] = result.run
    names = list(dict.fromkeys(result.name for result in results))
    for name in names:
        of_name = {(result.kind, result.parameters, result.flops) for result in results if result.name == name}
        if len(of_name) > 1:
            raise DataError(f"the runs called {name!r} are not seeds of one model: {sorted(of_name)}")
    if not 2 <= len(names) <= MOST_MODELS:
        raise DataError(f"a comparison takes 2 to {MOST_MODELS} models, not {len(names)}: {', '.join(names) or 'none'}")


def _check_one(result: ModelResult, labels: NDArray[Any], classes: int) -> None:
    if not np.array_equal(result.labels, labels):
        raise DataError(f"{result.name!r} (seed {result.seed}) was evaluated on other test images than the first model")
    if result.probabilities.shape != (len(labels), classes):
        raise DataError(
            f"{result.name!r} (seed {result.seed}) has probabilities {result.probabilities.shape}, expected"
            f" {(len(labels), classes)}: one row a test image, one column a class"
        )
    table = result.probabilities.astype(np.float64)
    if not np.isfinite(table).all() or table.min() < 0 or np.abs(table.sum(axis=1) - 1).max() > _SUM_TOLERANCE:
        raise DataError(f"{result.name!r} (seed {result.seed}): its rows are not probabilities (0 to 1, sum 1)")


@dataclass(frozen=True)
class ModelSummary:
    """One model over its seeds: means, and the accuracy's 95 % interval."""

    name: str
    kind: str
    parameters: int
    flops: int
    train_seconds: float
    images_per_second: float
    accuracy: metrics.Interval  # Wilson for one run, t over seeds for several
    nll: float
    calibration_error: float
    seeds: tuple[dict[str, Any], ...]
    runs: tuple[ModelResult, ...] = field(repr=False)

    @property
    def interval_kind(self) -> str:
        return "Wilson" if len(self.runs) == 1 else f"t over {len(self.runs)} seeds"

    @property
    def labels(self) -> NDArray[Any]:
        return self.runs[0].labels

    @property
    def published(self) -> dict[str, Any] | None:
        return next((run.published for run in self.runs if run.published), None)

    def mean_probabilities(self) -> NDArray[np.float64]:
        return np.mean([run.probabilities.astype(np.float64) for run in self.runs], axis=0)

    def share_correct(self) -> NDArray[np.float64]:
        """For each image, the share of seeds that get it right (0 or 1 for one seed)."""
        return np.mean([metrics.correct(run.probabilities, run.labels) for run in self.runs], axis=0)

    def image_nll(self) -> NDArray[np.float64]:
        """For each image, its negative log likelihood, mean over seeds."""
        return np.mean([metrics.image_nll(run.probabilities, run.labels) for run in self.runs], axis=0)

    def over_seeds(self, key: str) -> list[float]:
        return [float(seed[key]) for seed in self.seeds]

    def mean_confusion(self) -> NDArray[np.float64]:
        return np.mean([metrics.confusion_matrix(run.probabilities, run.labels) for run in self.runs], axis=0)

    def as_dict(self) -> dict[str, Any]:
        return {
            "name": self.name,
            "kind": self.kind,
            "accuracy": self.accuracy.value,
            "accuracy_interval": [self.accuracy.low, self.accuracy.high],
            "accuracy_interval_kind": self.interval_kind,
            "nll": self.nll,
            "calibration_error": self.calibration_error,
            "parameters": self.parameters,
            "flops": self.flops,
            "train_seconds": self.train_seconds,
            "images_per_second": self.images_per_second,
            "seeds": list(self.seeds),
            "published": self.published,
        }


def summarise(results: Sequence[ModelResult]) -> tuple[ModelSummary, ...]:
    """One summary a model, in the order in which the models were named."""
    names = dict.fromkeys(result.name for result in results)
    return tuple(_summarise_one([result for result in results if result.name == name]) for name in names)


def _summarise_one(runs: Sequence[ModelResult]) -> ModelSummary:
    seeds = tuple(_seed_record(run) for run in runs)

    def mean(key: str) -> float:
        return float(np.mean([seed[key] for seed in seeds]))

    if len(runs) == 1:
        interval = metrics.wilson_interval(seeds[0]["correct"], len(runs[0].labels))
    else:
        over_seeds = metrics.seed_interval([seed["accuracy"] for seed in seeds])
        interval = metrics.Interval(over_seeds.value, max(0.0, over_seeds.low), min(1.0, over_seeds.high))
    return ModelSummary(
        name=runs[0].name,
        kind=runs[0].kind,
        parameters=runs[0].parameters,
        flops=runs[0].flops,
        train_seconds=mean("train_seconds"),
        images_per_second=mean("images_per_second"),
        accuracy=interval,
        nll=mean("nll"),
        calibration_error=mean("calibration_error"),
        seeds=seeds,
        runs=tuple(runs),
    )


def _seed_record(run: ModelResult) -> dict[str, Any]:
    hits = metrics.correct(run.probabilities, run.labels)
    return {
        "seed": run.seed,
        "accuracy": float(hits.mean()),
        "correct": int(hits.sum()),
        "nll": float(metrics.image_nll(run.probabilities, run.labels).mean()),
        "calibration_error": metrics.calibration_error(run.probabilities, run.labels),
        "train_seconds": float(run.train_seconds),
        "images_per_second": float(run.images_per_second),
        "run": run.run,
        "extra_evaluations": run.extra_evaluations,
    }


@dataclass(frozen=True)
class Comparison:
    """What was found, and where it was written."""

    title: str
    data_name: str
    class_names: tuple[str, ...]
    models: tuple[ModelSummary, ...]
    pairs: tuple[Any, ...]  # verdict.Pair, each two models once
    best: Mapping[str, str | None]  # measure → the model that is really better than every other
    verdict: str
    notes: tuple[str, ...]
    settings: Mapping[str, Any]
    hardware: Mapping[str, Any]
    report: Path
    results: Path
    figures: tuple[Path, ...] = ()

    @property
    def test_count(self) -> int:
        return len(self.models[0].labels)

    def as_dict(self) -> dict[str, Any]:
        """What `results.json` holds."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "models": [model.as_dict() for model in self.models],
            "paired": {
                "level": metrics.LEVEL,
                "correction": "Holm" if len(self.pairs) > 1 else "none",
                "pairs": [pair.as_dict() for pair in self.pairs],
            },
            "best": dict(self.best),
            "data": {"name": self.data_name, "test_images": self.test_count, "classes": list(self.class_names)},
            "hardware": dict(self.hardware),
            "settings": dict(self.settings),
            "notes": list(self.notes),
            "figures": [figure.name for figure in self.figures],
        }
