"""How good a model is, how sure we may be of it, and whether one is really better than another.

Pure functions on numpy arrays or torch tensors; everything is computed in float64. Written by hand, because each is
a few lines and they must agree with what the report says in words; the tests compare them with scikit-learn and scipy.

Shapes: n images, c classes. `scores` (n, c) are anything whose largest entry is the answer.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray

# scipy.special, not scipy.stats: the same distribution functions without a second of import time.
from scipy import special

from vitreous.errors import DataError
from vitreous.reports import formats
from vitreous.reports.formats import percent, percent_decimals

Array = NDArray[Any] | torch.Tensor
Floats = NDArray[np.float64]
CALIBRATION_BINS = 15
#: Two-sided; "real" means a p value below this.
LEVEL = 0.05
#: The smallest probability a float32 softmax still tells from zero; a confident mistake costs at most 87 nats.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


def _as_numpy(values: Array | Sequence[Any]) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _scores_and_labels(scores: Array, labels: Array) -> tuple[Floats, NDArray[np.int64]]:
    table = _as_numpy(scores).astype(np.float64)
    truth = _as_numpy(labels)
    if table.ndim != 2 or truth.ndim != 1 or len(table) != len(truth) or len(truth) == 0:
        raise DataError(f"expected (images, classes) scores and as many labels, not {table.shape} and {truth.shape}")
    if not np.isfinite(table).all() and not (table[~np.isfinite(table)] == -np.inf).all():
        raise DataError("the model's scores contain NaN or infinity; it cannot be judged by them")
    if truth.min() < 0 or truth.max() >= table.shape[1]:
        raise DataError(f"labels run from {truth.min()} to {truth.max()}, but the model knows {table.shape[1]} classes")
    return table, truth.astype(np.int64)


# --- one model ---------------------------------------------------------------------------------------------


def correct(scores: Array, labels: Array) -> NDArray[np.bool_]:
    """For each image, whether the largest score is the label's. Ties go to the lowest class, as in torch."""
    table, truth = _scores_and_labels(scores, labels)
    return np.asarray(table.argmax(axis=1) == truth)


def accuracy(scores: Array, labels: Array) -> float:
    """Share of images whose largest score is the label's."""
    return float(correct(scores, labels).mean())


def nll(logits: Array, labels: Array) -> float:
    """Mean negative log likelihood in nats, from logits or log-probabilities (log-softmax leaves those as they are)."""
    table, truth = _scores_and_labels(logits, labels)
    log_probabilities = table - special.logsumexp(table, axis=1, keepdims=True)
    return float(-log_probabilities[np.arange(len(truth)), truth].mean())


def image_nll(probabilities: Array, labels: Array) -> Floats:
    """Negative log likelihood of each image, from probabilities."""
    table, truth = _scores_and_labels(probabilities, labels)
    return -np.log(np.maximum(table[np.arange(len(truth)), truth], SMALLEST_PROBABILITY))


def calibration_error(probabilities: Array, labels: Array, bins: int = CALIBRATION_BINS) -> float:
    """Expected calibration error: |confidence − accuracy|, averaged over equal-width bins of confidence (Guo, 2017)."""
    return float(np.abs(calibration_gaps(probabilities, labels, bins).sum(axis=0)).sum() / len(labels))


def calibration_gaps(probabilities: Array, labels: Array, bins: int = CALIBRATION_BINS) -> Floats:
    """(n, bins): confidence − correctness of each image in the column of its bin, 0 elsewhere.

    The calibration error is the sum of |column sums| / n, so that a resampled one is a matrix product away.
    """
    table, truth = _scores_and_labels(probabilities, labels)
    confidence = table.max(axis=1)
    column = np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1)  # bins are (low, high]
    gaps = np.zeros((len(truth), bins))
    gaps[np.arange(len(truth)), column] = confidence - (table.argmax(axis=1) == truth)
    return gaps


def confusion_matrix(scores: Array, labels: Array) -> NDArray[np.int64]:
    """(c, c) counts: row = true class, column = the model's answer."""
    table, truth = _scores_and_labels(scores, labels)
    classes = table.shape[1]
    return np.bincount(truth * classes + table.argmax(axis=1), minlength=classes**2).reshape(classes, classes)


# --- how sure ----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Interval:
    """A value with the ends of its 95 % interval."""

    value: float
    low: float
    high: float

    @property
    def half_width(self) -> float:
        return (self.high - self.low) / 2


def wilson_interval(hits: int, count: int, confidence: float = 0.95) -> Interval:
    """Wilson's score interval for a share: which true rates are compatible with `hits` of `count`."""
    if not 0 <= hits <= count or count == 0:
        raise DataError(f"{hits} of {count} is not a share")
    z = float(special.ndtri(0.5 + confidence / 2))
    share = hits / count
    centre = (share + z**2 / (2 * count)) / (1 + z**2 / count)
    half = z / (1 + z**2 / count) * np.sqrt(share * (1 - share) / count + z**2 / (4 * count**2))
    # rounding must not push the end of "all right" or "all wrong" past the share itself
    return Interval(share, max(0.0, min(centre - half, share)), min(1.0, max(centre + half, share)))


def seed_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Mean over seeds with its t-interval: where the mean of very many trainings would lie."""
    sample = np.asarray(values, dtype=np.float64)
    if len(sample) < 2:
        raise DataError(f"an interval over seeds needs at least two of them, not {len(sample)}")
    mean = float(sample.mean())
    half = float(special.stdtrit(len(sample) - 1, 0.5 + confidence / 2) * sample.std(ddof=1) / np.sqrt(len(sample)))
    return Interval(mean, mean - half, mean + half)


# --- two models --------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class McNemar:
    """Two models on the same images, by who is right; the p value is the exact two-sided binomial one (not mid-p)."""

    both_right: int
    only_first: int
    only_second: int
    both_wrong: int
    p_value: float

    @property
    def real(self) -> bool:
        return self.p_value < LEVEL

    def in_words(self, first: str, second: str) -> str:
        """Who is better, in a sentence."""
        count = self.both_right + self.only_first + self.only_second + self.both_wrong
        right = {first: self.both_right + self.only_first, second: self.both_right + self.only_second}
        decimals = percent_decimals(count)
        better, worse = (first, second) if self.only_first >= self.only_second else (second, first)
        shares = f"{percent(right[better] / count, decimals)} against {percent(right[worse] / count, decimals)}"
        if self.only_first + self.only_second == 0:
            return f"No difference: {first} and {second} are right and wrong on the same images."
        won, lost = max(self.only_first, self.only_second), min(self.only_first, self.only_second)
        images = "1 image" if won + lost == 1 else f"{won + lost:,} images"
        split = f"on {images} only one of them is right, {better} on {won:,} and {worse} on {lost:,}"
        evidence = f"(McNemar {formats.p_value(self.p_value)})"
        if self.real:
            return f"{better} is better: {shares}; {split} {evidence}."
        names = f"{better} and {worse} have {shares}"
        return f"No real difference: {names}; {split}, which chance alone explains {evidence}."


def mcnemar(first_correct: Array, second_correct: Array) -> McNemar:
    """McNemar's exact test: of the images just one model gets right, does each get half?"""
    first, second = _as_numpy(first_correct).astype(bool), _as_numpy(second_correct).astype(bool)
    if first.shape != second.shape or first.ndim != 1:
        raise DataError(f"a paired test needs both models on the same images, not {first.shape} and {second.shape}")
    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    differing = only_first + only_second
    p_value = min(1.0, 2 * float(special.bdtr(min(only_first, only_second), differing, 0.5))) if differing else 1.0
    return McNemar(int((first & second).sum()), only_first, only_second, int((~first & ~second).sum()), p_value)


def paired_t_test(differences: Array | Sequence[float]) -> float:
    """Two-sided p value that the mean difference is zero: over images, or over seeds that both models share."""
    sample = _as_numpy(differences).astype(np.float64)
    if len(sample) < 2:
        raise DataError(f"a paired test needs at least two differences, not {len(sample)}")
    return _t_p_value(float(sample.mean()), float(sample.var(ddof=1)) / len(sample), len(sample) - 1)


def welch_t_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Two-sided p value that two samples of seeds have the same mean, their spreads not assumed equal."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if min(len(a), len(b)) < 2:
        raise DataError(f"Welch's test needs at least two seeds each, not {len(a)} and {len(b)}")
    of_a, of_b = float(a.var(ddof=1)) / len(a), float(b.var(ddof=1)) / len(b)
    spread = of_a**2 / (len(a) - 1) + of_b**2 / (len(b) - 1)
    freedom = (of_a + of_b) ** 2 / spread if spread > 0 else float(len(a) + len(b) - 2)
    return _t_p_value(float(a.mean() - b.mean()), of_a + of_b, freedom)


def _t_p_value(difference: float, variance_of_it: float, freedom: float) -> float:
    if difference == 0:
        return 1.0
    if variance_of_it <= 0:  # every seed alike: nothing but the difference itself is left
        return 0.0
    return float(2 * special.stdtr(freedom, -abs(difference) / np.sqrt(variance_of_it)))


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p values that may each be held against the level although there are several."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = running
    return adjusted
