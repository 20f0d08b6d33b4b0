"""Precision, recall and F1 of every class, and their means over classes, from a confusion matrix.

Undefined cases are as in scikit-learn: precision of a class that is never predicted, recall of one without images and
F1 of one with neither are 0; balanced accuracy is the mean recall of the classes that have images. Macro F1 is the
mean over the classes that have images or are predicted.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.errors import DataError
from vitreous.reports.formats import percent, plural, shorten

if TYPE_CHECKING:
    from rich.table import Table

MOST_LISTED = 20
_LONGEST_NAME = 30  # characters: the table fits into 80 columns

Counts = NDArray[Any]  # (classes, classes): row = label, column = prediction


@dataclass(frozen=True)
class ClassMetrics:
    """One class; `predicted` counts the images that were taken for it, `support` those that are of it."""

    name: str
    precision: float
    recall: float
    f1: float
    support: int
    predicted: int

    def as_dict(self) -> dict[str, Any]:
        return asdict(self)


def _ratios(confusion: Counts) -> tuple[NDArray[np.float64], ...]:
    """Return precision, recall, F1, support and predicted counts, (classes,) each."""
    counts = np.asarray(confusion, np.float64)
    if counts.ndim != 2 or counts.shape[0] != counts.shape[1]:
        raise DataError(f"expected a (classes, classes) confusion matrix, not {counts.shape}")
    hits, support, predicted = np.diag(counts), counts.sum(axis=1), counts.sum(axis=0)

    def ratio(part: NDArray[np.float64], whole: NDArray[np.float64]) -> NDArray[np.float64]:
        return np.divide(part, whole, out=np.zeros_like(whole), where=whole > 0)

    return ratio(hits, predicted), ratio(hits, support), ratio(2 * hits, support + predicted), support, predicted


def per_class_metrics(confusion: Counts, class_names: Sequence[str] = ()) -> list[ClassMetrics]:
    """Return one entry per class, in their order; without names they are numbered."""
    names = class_names or [str(label) for label in range(len(confusion))]
    columns = zip(names, *_ratios(confusion), strict=True)
    return [
        ClassMetrics(name, float(precision), float(recall), float(f1), round(support), round(predicted))
        for name, precision, recall, f1, support, predicted in columns
    ]


def macro_f1(confusion: Counts) -> float:
    """Return the mean F1 over classes, each counting the same whatever its size."""
    _, _, f1, support, predicted = _ratios(confusion)
    return float(f1[(support + predicted) > 0].mean())


def balanced_accuracy(confusion: Counts) -> float:
    """Return the mean recall over the classes that have images."""
    _, recall, _, support, _ = _ratios(confusion)
    return float(recall[support > 0].mean())


def class_table(metrics: Sequence[ClassMetrics], most: int = MOST_LISTED) -> tuple[Table, str]:
    """Return a table of at most 80 columns, and a note: of many classes only those with the lowest F1 are listed."""
    from rich.table import Table
    from rich.text import Text

    shown, note = list(metrics), ""
    if len(metrics) > most:
        shown = sorted(metrics, key=lambda one: (one.f1, one.recall))[:most]
        note = f"the {most} of {plural(len(metrics), 'class', 'classes')} with the lowest F1; all with --json"
    table = Table(box=None, pad_edge=False, header_style="bold", padding=(0, 2, 0, 0))
    table.add_column("class", no_wrap=True)
    for heading in ("precision", "recall", "F1", "images"):
        table.add_column(heading, justify="right", no_wrap=True)
    for one in shown:
        # where no image was predicted, or there is none, the ratio is undefined
        precision = percent(one.precision, 1) if one.predicted else "–"
        recall = percent(one.recall, 1) if one.support else "–"
        f1 = percent(one.f1, 1) if one.support or one.predicted else "–"
        table.add_row(Text(shorten(one.name, _LONGEST_NAME)), precision, recall, f1, f"{one.support:,}")
    return table, note
