"""Evaluated runs of a study: one cell per arm and point, and the differences between cells, with intervals.

A cell's interval is over seeds (t); with a single seed it is Wilson's, over the test images. A difference could have
turned out otherwise with other seeds and with other test images, so it has two intervals and two p values, of which the
wider and the larger count: Welch's over seeds, and a paired t over images (as in `vitreous.comparison.verdict`).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison.results import accuracy_interval
from vitreous.errors import DataError
from vitreous.evaluation import metrics
from vitreous.evaluation.metrics import LEVEL, Interval
from vitreous.reports import formats
from vitreous.reports.formats import number
from vitreous.studies.definition import GridStudy, Value
from vitreous.studies.grid import Evaluated


@dataclass(frozen=True)
class Cell:
    """One arm at one point, over its seeds."""

    arm: str
    point: Value | None
    runs: tuple[Evaluated, ...]

    @property
    def accuracies(self) -> tuple[float, ...]:
        return tuple(run.accuracy for run in self.runs)

    @cached_property
    def accuracy(self) -> Interval:
        if len(self.runs) == 1:
            return metrics.wilson_interval(int(self.runs[0].correct.sum()), len(self.runs[0].correct))
        return accuracy_interval(self.accuracies)

    @cached_property
    def share_correct(self) -> NDArray[np.float64]:
        """The share of seeds that predict each image correctly."""
        return np.mean([run.correct for run in self.runs], axis=0)

    @property
    def kind(self) -> str:
        return self.runs[0].kind

    @property
    def train_seconds(self) -> float:
        return float(np.mean([run.train_seconds for run in self.runs]))

    @property
    def nll(self) -> float:
        return float(np.mean([run.nll for run in self.runs]))

    @property
    def text(self) -> str:
        """Mean ± half of the 95 % interval: "97.31 ± 0.20 %"."""
        decimals = formats.percent_decimals(len(self.runs[0].correct))
        half = formats.percent(self.accuracy.half_width, decimals)
        return f"{100 * self.accuracy.value:.{decimals}f} ± {half}"

    def as_dict(self) -> dict[str, Any]:
        first = self.runs[0]
        return {
            "arm": self.arm,
            "point": self.point,
            "accuracy": self.accuracy.value,
            "accuracy_interval": [self.accuracy.low, self.accuracy.high],
            "accuracies": list(self.accuracies),
            "nll": self.nll,
            "seeds": [run.seed for run in self.runs],
            "train_seconds": [run.train_seconds for run in self.runs],
            "steps": [run.steps for run in self.runs],
            "train_images": [run.train_images for run in self.runs],
            "parameters": first.parameters,
            "flops": first.flops,
            "kind": first.kind,
            "eval_batch_size": first.batch_size,
            "runs": [run.run for run in self.runs],
        }


@dataclass(frozen=True)
class Cells:
    """All cells of a study."""

    by_place: dict[tuple[str, Value | None], Cell]

    def __getitem__(self, place: tuple[str, Value | None]) -> Cell:
        return self.by_place[place]

    @property
    def all(self) -> tuple[Cell, ...]:
        return tuple(self.by_place.values())

    @property
    def test_images(self) -> int:
        return len(self.all[0].runs[0].correct)


def collect_cells(study: GridStudy, evaluated: dict[tuple[str, Value | None], list[Evaluated]]) -> Cells:
    """Return the cells in the study's order; raise unless all runs were tested on the same images."""
    tested = {one.test_sha256 for group in evaluated.values() for one in group}
    if len(tested) > 1:
        raise DataError(
            f"the runs of {study.name!r} do not have the same test images: give the data a test set of its own, or"
            " leave data.split_seed out of the settings"
        )
    points: Sequence[Value | None] = study.points.values if study.points else [None]
    cells = {
        (arm.name, point): Cell(arm.name, point, tuple(evaluated[arm.name, point]))
        for arm in study.arms
        for point in points
    }
    return Cells(cells)


@dataclass(frozen=True)
class Difference:
    """Accuracy of one cell minus that of another."""

    first: Cell
    second: Cell
    interval: Interval  # as a share; the wider of the one over seeds and the one over images
    p_seeds: float | None  # None: one seed each, or the same weights evaluated twice
    p_images: float
    p_value: float  # the larger; corrected (Holm) where the study asks several questions

    @property
    def significant(self) -> bool:
        return self.p_value < LEVEL

    @property
    def points(self) -> str:
        """In percentage points, with the interval: "+1.2 ± 0.4"."""
        digits = 2 if self.interval.half_width < 0.00995 else 1
        return f"{number(100 * self.interval.value, f'+.{digits}f')} ± {100 * self.interval.half_width:.{digits}f}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "first": [self.first.arm, self.first.point],
            "second": [self.second.arm, self.second.point],
            "difference": self.interval.value,
            "interval": [self.interval.low, self.interval.high],
            "p_seeds": self.p_seeds,
            "p_images": self.p_images,
            "p_value": self.p_value,
            "significant": self.significant,
        }


def difference(first: Cell, second: Cell) -> Difference:
    """Compare two cells on the same test images."""
    per_image = first.share_correct - second.share_correct
    over_images = metrics.seed_interval(per_image.tolist())  # the same arithmetic, over images
    if len(first.runs) == len(second.runs) == 1:
        p_images = metrics.mcnemar(first.share_correct, second.share_correct).p_value
        return Difference(first, second, over_images, None, p_images, p_images)
    p_images, interval, p_seeds = metrics.paired_t_test(per_image), over_images, None
    same_weights = [run.run for run in first.runs] == [run.run for run in second.runs]  # then seeds do not matter
    if min(len(first.runs), len(second.runs)) > 1 and not same_weights:
        p_seeds = metrics.welch_t_test(first.accuracies, second.accuracies)
        over_seeds = metrics.welch_interval(first.accuracies, second.accuracies)
        interval = max(over_images, over_seeds, key=lambda one: one.half_width)
    return Difference(first, second, interval, p_seeds, p_images, max(p_images, p_seeds or 0.0))


def corrected(differences: Sequence[Difference]) -> list[Difference]:
    """Return the differences with p values corrected (Holm) for their number."""
    p_values = metrics.holm([one.p_value for one in differences])
    return [replace(one, p_value=p_value) for one, p_value in zip(differences, p_values, strict=True)]
