"""Evaluated runs as plain data, and their summary per model. Nothing here opens a run or a model."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison import display
from vitreous.data.datasets import Split
from vitreous.errors import DataError
from vitreous.evaluation import metrics
from vitreous.evaluation.class_metrics import ClassMetrics, balanced_accuracy, macro_f1, per_class_metrics
from vitreous.reports.colors import MOST_MODELS
from vitreous.reports.formats import join

if TYPE_CHECKING:
    from vitreous.comparison.verdict import Pair

_SUM_TOLERANCE = 1e-3
#: Means over seeds.
_MEASURED = (
    "nll", "calibration_error", "raw_nll", "raw_calibration_error", "macro_f1", "balanced_accuracy", "train_seconds",
    "images_per_second",
)  # fmt: skip


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
    #: where a model was evaluated in more than one way: how → {"accuracy", "nll", "correct", "count"}
    extra_evaluations: dict[str, dict[str, Any]] = field(default_factory=dict)
    published: dict[str, Any] | None = None  # {"accuracy", "nll", "source"}
    threads: int | None = None  # of each process, while training
    hardware: str = ""  # that it was trained on
    raw_nll: float | None = None  # this and the next without temperature; None: the probabilities have none
    raw_calibration_error: float | None = None


Pictures = NDArray[np.uint8] | Split  # (n, C, H, W)


def check_results(results: Sequence[ModelResult], images: Pictures, class_names: Sequence[str]) -> None:
    """Raise a DataError if these results cannot be compared; the report relies on it."""
    _check_names(results)
    labels, num_classes = results[0].labels, len(class_names)
    if num_classes < 2:
        raise DataError(f"a comparison needs at least two classes, not {num_classes}")
    if isinstance(images, Split):
        shape: tuple[int, ...] = (len(images), *images.image_shape)
        is_bytes = True
    else:
        shape, is_bytes = images.shape, images.dtype == np.uint8
    if len(shape) != 4 or shape[0] != len(labels) or not is_bytes:
        of = "of bytes" if is_bytes else "of other numbers"
        raise DataError(f"expected {len(labels)} test images (n, C, H, W) of bytes, not {shape} {of}")
    for result in results:
        who = f"{result.name!r} (seed {result.seed})"
        if not np.array_equal(result.labels, labels):
            raise DataError(f"{who} was evaluated on other test images than the first model")
        table = result.probabilities
        if table.shape != (len(labels), num_classes):
            raise DataError(
                f"{who} has probabilities {table.shape}, expected {(len(labels), num_classes)}: one row per test image,"
                " one column per class"
            )
        if not np.isfinite(table).all() or table.min() < 0 or np.abs(table.sum(axis=1) - 1).max() > _SUM_TOLERANCE:
            raise DataError(f"{who}: its rows are not probabilities (0 to 1, sum 1)")


def _check_names(results: Sequence[ModelResult]) -> None:
    seen: dict[tuple[str, int], str] = {}
    architectures: dict[str, tuple[str, int, int]] = {}
    for result in results:
        key = (result.name, result.seed)
        if key in seen:
            raise DataError(
                f"{seen[key]} and {result.run} are both called {result.name!r} with seed {result.seed};"
                " give them different names"
            )
        seen[key] = result.run
        architecture = (result.kind, result.parameters, result.flops)
        first = architectures.setdefault(result.name, architecture)
        if architecture != first:
            raise DataError(f"the runs called {result.name!r} are not seeds of one model: {first} and {architecture}")
    if not 2 <= len(architectures) <= MOST_MODELS:
        named = join(architectures) or "none"
        raise DataError(f"a comparison takes 2 to {MOST_MODELS} models, not {len(architectures)}: {named}")


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
    raw_nll: float  # this and the next without temperature
    raw_calibration_error: float
    macro_f1: float
    balanced_accuracy: float
    seeds: tuple[dict[str, Any], ...]
    runs: tuple[ModelResult, ...] = field(repr=False)

    @property
    def labels(self) -> NDArray[Any]:
        return self.runs[0].labels

    @property
    def published(self) -> dict[str, Any] | None:
        return next((run.published for run in self.runs if run.published), None)

    def mean_probabilities(self) -> NDArray[np.floating[Any]]:
        """Return the mean over seeds in float64; one seed's as they are."""
        if len(self.runs) == 1:
            return self.runs[0].probabilities
        total = np.zeros(self.runs[0].probabilities.shape)
        for run in self.runs:
            total += run.probabilities
        return total / len(self.runs)

    def share_correct(self) -> NDArray[np.float64]:
        """Return the share of seeds that predict each image correctly (0 or 1 for one seed)."""
        return np.mean([metrics.correct(run.probabilities, run.labels) for run in self.runs], axis=0)

    def image_nll(self) -> NDArray[np.float64]:
        """Return the negative log likelihood of each image, mean over seeds."""
        return np.mean([metrics.image_nll(run.probabilities, run.labels) for run in self.runs], axis=0)

    def mean_confusion(self) -> NDArray[np.float64]:
        return np.mean([metrics.confusion_matrix(run.probabilities, run.labels) for run in self.runs], axis=0)

    def per_class(self, class_names: Sequence[str]) -> list[ClassMetrics]:
        """Return precision, recall and F1 per class, from the confusions of all seeds together."""
        counts = np.sum([metrics.confusion_matrix(run.probabilities, run.labels) for run in self.runs], axis=0)
        return per_class_metrics(counts, class_names)

    def over_seeds(self, key: str) -> list[float]:
        return [float(seed[key]) for seed in self.seeds]

    def as_dict(self) -> dict[str, Any]:
        same = ("name", "kind", *_MEASURED, "parameters", "flops")
        return {
            **{key: getattr(self, key) for key in same},
            "accuracy": self.accuracy.value,
            "accuracy_interval": [self.accuracy.low, self.accuracy.high],
            "accuracy_interval_kind": "Wilson" if len(self.runs) == 1 else f"t over {len(self.runs)} seeds",
            "seeds": list(self.seeds),
            "published": self.published,
        }


def summarise(results: Sequence[ModelResult]) -> tuple[ModelSummary, ...]:
    """Return one summary per model, in the order in which the models were named."""
    names = dict.fromkeys(result.name for result in results)
    return tuple(_summarise_one([result for result in results if result.name == name]) for name in names)


def _summarise_one(runs: Sequence[ModelResult]) -> ModelSummary:
    seeds = tuple(_seed_record(run) for run in runs)
    if len(runs) == 1:
        interval = metrics.wilson_interval(seeds[0]["correct"], len(runs[0].labels))
    else:
        interval = accuracy_interval([seed["accuracy"] for seed in seeds])
    return ModelSummary(
        name=runs[0].name,
        kind=runs[0].kind,
        parameters=runs[0].parameters,
        flops=runs[0].flops,
        accuracy=interval,
        seeds=seeds,
        runs=tuple(runs),
        **{key: float(np.mean([seed[key] for seed in seeds])) for key in _MEASURED},
    )


def accuracy_interval(accuracies: Sequence[float]) -> metrics.Interval:
    """Return the mean over seeds with its 95 % t-interval, clipped to 0 and 1."""
    interval = metrics.seed_interval(accuracies)
    return metrics.Interval(interval.value, max(0.0, interval.low), min(1.0, interval.high))


def _seed_record(run: ModelResult) -> dict[str, Any]:
    correct = metrics.correct(run.probabilities, run.labels)
    nll = float(metrics.image_nll(run.probabilities, run.labels).mean())
    calibration_error = metrics.calibration_error(run.probabilities, run.labels)
    confusion = metrics.confusion_matrix(run.probabilities, run.labels)
    return {
        "seed": run.seed,
        "accuracy": float(correct.mean()),
        "correct": int(correct.sum()),
        "nll": nll,
        "calibration_error": calibration_error,
        "raw_nll": nll if run.raw_nll is None else run.raw_nll,
        "raw_calibration_error": calibration_error if run.raw_calibration_error is None else run.raw_calibration_error,
        "macro_f1": macro_f1(confusion),
        "balanced_accuracy": balanced_accuracy(confusion),
        "train_seconds": float(run.train_seconds),
        "images_per_second": float(run.images_per_second),
        "run": run.run,
        "threads": run.threads,
        "hardware": run.hardware,
        "extra_evaluations": run.extra_evaluations,
    }


@dataclass(frozen=True)
class Comparison:
    """The findings, and the files they were written to."""

    __repr__ = display.comparison_line
    _repr_html_ = display.comparison_html
    to_pandas = display.comparison_frame

    title: str
    data_name: str
    class_names: tuple[str, ...]
    models: tuple[ModelSummary, ...]
    pairs: tuple[Pair, ...]  # every two models once
    best: Mapping[str, str | None]  # measure → the model that is significantly better than every other
    verdict: str
    notes: tuple[str, ...]
    warnings: tuple[str, ...]  # what limits the verdict
    settings: Mapping[str, Any]
    hardware: Mapping[str, Any]
    report: Path
    results: Path
    figures: tuple[Path, ...]

    @property
    def test_count(self) -> int:
        return len(self.models[0].labels)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `results.json`."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "warnings": list(self.warnings),
            "models": [
                model.as_dict() | {"classes": [one.as_dict() for one in model.per_class(self.class_names)]}
                for model in self.models
            ],
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
