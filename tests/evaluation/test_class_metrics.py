"""Per-class metrics equal scikit-learn's, in undefined cases too."""

from __future__ import annotations

import io
import warnings

import numpy as np
import pytest
from rich.console import Console
from rich.table import Table
from sklearn import metrics as reference

from vitreous.errors import DataError
from vitreous.evaluation.class_metrics import balanced_accuracy, class_table, macro_f1, per_class_metrics
from vitreous.evaluation.prediction import Evaluation

CASES = {
    "ordinary": ([0, 1, 2, 2, 1, 0, 0, 2], [0, 1, 2, 1, 1, 0, 2, 2], 3),
    "class never predicted": ([0, 1, 2, 2], [0, 1, 1, 0], 3),
    "class without images": ([0, 1, 0, 1], [0, 1, 2, 2], 3),
    "neither": ([0, 1, 0, 1], [0, 1, 1, 1], 3),
    "all wrong": ([0, 1], [1, 0], 2),
}


@pytest.mark.parametrize(("labels", "predictions", "classes"), CASES.values(), ids=CASES)
def test_they_are_scikit_learns(labels, predictions, classes):
    evaluation = Evaluation(np.eye(classes, dtype=np.float32)[predictions], np.array(labels))
    found = evaluation.per_class
    expected = reference.precision_recall_fscore_support(labels, predictions, labels=range(classes), zero_division=0)
    for name, values in zip(("precision", "recall", "f1", "support"), expected, strict=True):
        np.testing.assert_allclose([getattr(one, name) for one in found], values)
    assert evaluation.macro_f1 == pytest.approx(reference.f1_score(labels, predictions, average="macro"))
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # "y_pred contains classes not in y_true"
        assert evaluation.balanced_accuracy == pytest.approx(reference.balanced_accuracy_score(labels, predictions))
    np.testing.assert_array_equal(
        evaluation.confusion, reference.confusion_matrix(labels, predictions, labels=range(classes))
    )


def test_names_and_counts():
    confusion = np.array([[3, 1], [0, 4]])
    first, second = per_class_metrics(confusion, ["cat", "dog"])
    assert (first.name, first.support, first.predicted) == ("cat", 4, 3)
    assert (second.name, second.support, second.predicted) == ("dog", 4, 5)
    assert [one.name for one in per_class_metrics(confusion)] == ["0", "1"]
    with pytest.raises(DataError, match="confusion matrix"):
        macro_f1(np.ones((2, 3)))
    with pytest.raises(DataError, match="confusion matrix"):
        balanced_accuracy(np.ones(3))


def printed(table: Table) -> list[str]:
    stream = io.StringIO()
    Console(width=80, file=stream).print(table)
    return stream.getvalue().splitlines()


def test_the_table_fits_80_columns_and_lists_the_worst():
    confusion = np.diag(np.arange(100)) + 1  # class 0 is the worst
    table, note = class_table(per_class_metrics(confusion, [f"class {'x' * 60} {i}" for i in range(100)]))
    lines = printed(table)
    assert len(lines) == 21
    assert max(map(len, lines)) <= 80
    assert " 0 " in lines[1]  # the end of its name survives
    assert note == "the 20 of 100 classes with the lowest F1; all with --json"


def test_undefined_ratios_are_dashes():
    table, note = class_table(per_class_metrics(np.array([[2, 0, 0], [1, 0, 0], [0, 0, 0]]), ["a", "b", "c"]))
    _, a, b, c = (line.split() for line in printed(table))
    assert a == ["a", "66.7", "%", "100.0", "%", "80.0", "%", "2"]
    assert b == ["b", "–", "0.0", "%", "0.0", "%", "1"]
    assert c == ["c", "–", "–", "–", "0"]
    assert note == ""
