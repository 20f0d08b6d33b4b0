"""Confident learning finds planted label errors, by its definition and by out-of-fold probabilities."""

from __future__ import annotations

import numpy as np
import pytest
from sklearn.datasets import load_digits
from sklearn.discriminant_analysis import LinearDiscriminantAnalysis
from sklearn.linear_model import LogisticRegression

from vitreous.errors import DataError
from vitreous.evaluation.label_errors import _discriminants, find_label_errors, out_of_fold


def test_definition_by_hand():
    probabilities = np.array([
        [0.9, 0.1],  # label 0; threshold of class 0: (0.9 + 0.7 + 0.2) / 3 = 0.6
        [0.7, 0.3],
        [0.2, 0.8],  # label 0, but 0.8 reaches the threshold of class 1, 0.6: an error
        [0.1, 0.9],  # label 1
        [0.7, 0.3],  # label 1, but confidently of class 0: an error
        [0.45, 0.55],  # label 1: below both thresholds
        [0.35, 0.65],
    ])  # fmt: skip
    labels = np.array([0, 0, 0, 1, 1, 1, 1])
    found = find_label_errors(probabilities, labels)
    assert found.indices.tolist() == [2, 4]
    assert found.suggested.tolist() == [1, 0]
    assert found.margins == pytest.approx([-0.6, -0.4])
    assert found.joint.tolist() == [[2, 1], [1, 2]]


def test_a_model_that_is_equally_sure_of_all_images():
    """As many wrong labels are below the mean of their true class as above it: all are found."""
    truth, random = np.arange(400) % 2, np.random.default_rng(0)
    sure = random.normal(0.94, 0.002, 400)
    probabilities = np.where(np.arange(2) == truth[:, None], sure[:, None], 1 - sure[:, None])
    labels = np.where(np.arange(400) < 10, 1 - truth, truth)
    assert sorted(find_label_errors(probabilities, labels).indices) == list(range(10))


def test_the_predicted_class_is_never_an_error():
    """Class 1 is confidently reached, but the label's probability is larger still."""
    probabilities = np.array([[0.55, 0.45], [1.0, 0.0], [1.0, 0.0], [0.6, 0.4]])
    found = find_label_errors(probabilities, np.array([0, 0, 0, 1]))
    assert 0 not in found.indices


def test_a_class_without_images_is_never_suggested():
    found = find_label_errors(np.array([[0.1, 0.2, 0.7], [0.1, 0.2, 0.7], [0.9, 0.1, 0.0]]), np.array([0, 1, 0]))
    assert 2 not in found.suggested


def test_refusals():
    with pytest.raises(DataError, match="finite"):
        find_label_errors(np.full((2, 2), np.nan), np.array([0, 1]))
    with pytest.raises(DataError, match="too few for 5 folds"):
        out_of_fold(np.zeros((9, 2)), np.zeros(9, np.int64), 2)


@pytest.fixture(scope="module")
def noisy() -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Digits with 5 % of the labels changed: features, labels, whether each is wrong."""
    features, labels = load_digits(return_X_y=True)
    random = np.random.default_rng(0)
    wrong = random.random(len(labels)) < 0.05
    labels = np.where(wrong, (labels + random.integers(1, 10, len(labels))) % 10, labels)
    return features, labels, wrong


def test_planted_errors_are_found_by_held_out_probabilities(noisy):
    features, labels, wrong = noisy
    half = np.arange(len(labels)) % 2 == 0
    model = LogisticRegression(max_iter=2000, C=1e-3).fit(features[half], labels[half])
    found = find_label_errors(model.predict_proba(features[~half]), labels[~half])
    hits = wrong[~half][found.indices]
    assert hits.mean() >= 0.85  # precision: 0.89
    assert hits.sum() >= 0.65 * wrong[~half].sum()  # recall: 0.80


def test_planted_errors_are_found_out_of_fold(noisy):
    features, labels, wrong = noisy
    found = find_label_errors(out_of_fold(features, labels, 10), labels)
    hits = wrong[found.indices]
    assert hits.mean() >= 0.9  # precision: 0.94
    assert hits.sum() >= 0.75 * wrong.sum()  # recall: 0.82
    assert hits[:40].all()  # the likeliest come first


def test_discriminants_are_scikit_learns():
    random = np.random.default_rng(0)
    labels = np.arange(6000) % 3
    values = random.normal(size=(6000, 4)) @ random.normal(size=(4, 4)) + 3 * random.normal(size=(3, 4))[labels]
    new = 3 * random.normal(size=(50, 4))
    reference = LinearDiscriminantAnalysis(solver="lsqr").fit(values, labels)
    found, expected = _discriminants(values, labels, new, 3), reference.decision_function(new)
    # up to a constant per image, and the shrinkage of 6,000 vectors
    centred = [table - table.mean(axis=1, keepdims=True) for table in (found, expected)]
    np.testing.assert_allclose(*centred, rtol=0.02, atol=0.02 * np.abs(expected).max())


def test_folds_with_a_missing_class():
    """The only image of class 2 is held out: its fold knows no such class, and gives it no probability."""
    random = np.random.default_rng(0)
    labels = np.array([0, 1] * 20 + [2])
    table = out_of_fold(random.normal(size=(41, 3)) + 5 * labels[:, None], labels, 3)
    np.testing.assert_allclose(table.sum(axis=1), 1)
    assert table[40, 2] < 1e-3
