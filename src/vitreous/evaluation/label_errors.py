"""Likely label errors by confident learning (Northcutt, Jiang and Chuang, 2021), from held-out probabilities.

The threshold of a class is its mean probability over the images labelled with it, less 5 %. An image counts as
confidently of class k where its probability of k reaches k's threshold (the most probable such k, if there are
several). An image that is confidently of another class than its label, and is predicted as such, is a likely label
error; those with the smallest margin p(label) - p(other) come first.

The 5 % are ours: a model that separates the classes well is equally sure of all images of a class, so that half of the
wrong labels would be below the mean by a hair.

A model's probabilities for images it was trained on say little: it has learned their labels, the wrong ones too. For
the training split `out_of_fold` gives each image probabilities by a classifier that was fitted without it.

Shapes: n images, c classes, d features.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vitreous.errors import DataError
from vitreous.evaluation.calibration import fit_temperature
from vitreous.evaluation.novelty import shrink

FOLDS = 5
TOLERANCE = 0.05  # of a threshold, below which an image still counts as confident
Floats = NDArray[np.float64]
Labels = NDArray[np.int64]


@dataclass(frozen=True)
class LabelErrors:
    """Likely label errors, the likeliest first."""

    indices: Labels  # (k,)
    suggested: Labels  # (k,): the class that the images confidently are of
    margins: Floats  # (k,): p(label) - p(suggested), negative
    joint: Labels  # (c, c) counts of confident images: row = label, column = the class they confidently are of


def find_label_errors(probabilities: Floats, labels: Labels) -> LabelErrors:
    """Return the likely label errors of n images by held-out probabilities (n, c)."""
    table, truth = np.asarray(probabilities, np.float64), np.asarray(labels, np.int64)
    if table.ndim != 2 or truth.shape != table.shape[:1] or not np.isfinite(table).all():
        raise DataError(
            f"expected finite (images, classes) probabilities and as many labels, not {table.shape} and {truth.shape}"
        )
    n, c = table.shape
    counts = np.bincount(truth, minlength=c)
    sums = np.bincount(truth, weights=table[np.arange(n), truth], minlength=c)
    # nothing is confidently of a class without images
    thresholds = np.divide(sums, counts, out=np.full(c, np.inf), where=counts > 0)
    confident = np.where(table >= (1 - TOLERANCE) * thresholds, table, -1.0)
    found = confident.argmax(axis=1)
    is_confident = confident.max(axis=1) >= 0
    joint = np.bincount(truth[is_confident] * c + found[is_confident], minlength=c * c).reshape(c, c)
    wrong = np.flatnonzero(is_confident & (found != truth) & (table.argmax(axis=1) != truth))
    margins = table[wrong, truth[wrong]] - table[wrong, found[wrong]]
    order = np.argsort(margins, kind="stable")
    return LabelErrors(wrong[order], found[wrong][order], margins[order], joint)


def out_of_fold(features: Floats, labels: Labels, num_classes: int, folds: int = FOLDS, seed: int = 0) -> Floats:
    """Return probabilities (n, c), each by linear discriminant analysis fitted on the other folds' features (n, d).

    All folds take a second, where retraining would take hours; and its class means are moved little by a few wrong
    labels, which a more flexible classifier would fit.
    """
    values, truth = np.asarray(features, np.float64), np.asarray(labels, np.int64)
    n = len(values)
    if n < 2 * folds:
        raise DataError(f"{n} images are too few for {folds} folds: at least {2 * folds}")
    fold_of = np.random.default_rng(seed).permutation(n) % folds
    values = values - values.mean(axis=0)
    scores = np.empty((n, num_classes))
    for fold in range(folds):
        held_out = fold_of == fold
        scores[held_out] = _discriminants(values[~held_out], truth[~held_out], values[held_out], num_classes)
    return special.softmax(scores / fit_temperature(scores, truth), axis=1)


def _discriminants(values: Floats, labels: Labels, new: Floats, num_classes: int) -> Floats:
    """Return the linear discriminants (m, c) of new features (m, d); lowest for classes without any image."""
    counts = np.bincount(labels, minlength=num_classes)
    present = np.flatnonzero(counts)
    means = np.stack([values[labels == label].mean(axis=0) for label in present])
    residuals = values - means[np.searchsorted(present, labels)]
    freedom = max(1, len(values) - len(present))
    covariance = shrink(residuals.T @ residuals / freedom, freedom)
    covariance += 1e-12 * np.eye(len(covariance))  # features that do not vary at all
    directions = np.linalg.solve(covariance, means.T)  # (d, c)
    found = new @ directions - 0.5 * (means * directions.T).sum(axis=1) + np.log(counts[present] / len(labels))
    scores = np.full((len(new), num_classes), found.min() - 50.0)
    scores[:, present] = found
    return scores
