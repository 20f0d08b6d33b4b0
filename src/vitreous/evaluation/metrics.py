"""How good a model is, how certain that is, and whether one is significantly better than another.

Pure functions on numpy arrays or torch tensors, in float64.

Shapes: n images, c classes. `scores` (n, c) are logits or probabilities: the largest entry is the prediction.
"""

from __future__ import annotations

import warnings
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special

from vitreous.errors import DataError
from vitreous.reports import formats

Array = NDArray[Any] | torch.Tensor
Floats = NDArray[np.float64]
CALIBRATION_BINS = 15
_VALUES_AT_ONCE = 2**18  # scores in float64 that are in memory at a time
#: Two-sided; a p value below this is significant.
LEVEL = 0.05
#: The smallest probability a float32 softmax still tells from zero; a confident mistake costs at most 87 nats.
SMALLEST_PROBABILITY = float(np.finfo(np.float32).tiny)


def _as_numpy(values: Array | Sequence[Any]) -> NDArray[Any]:
    return values.detach().cpu().numpy() if isinstance(values, torch.Tensor) else np.asarray(values)


def _each(
    scores: Array, labels: Array, measure: Callable[[Floats, NDArray[np.int64]], NDArray[Any]]
) -> tuple[NDArray[Any], ...]:
    """Return what is measured on each image, (…, n), by float64 scores of some images at a time, and the labels."""
    table, truth = _as_numpy(scores), _as_numpy(labels)
    if table.ndim != 2 or truth.ndim != 1 or len(table) != len(truth) or len(truth) == 0:
        raise DataError(f"expected (images, classes) scores and as many labels, not {table.shape} and {truth.shape}")
    if truth.min() < 0 or truth.max() >= table.shape[1]:
        raise DataError(f"labels run from {truth.min()} to {truth.max()}, but the model knows {table.shape[1]} classes")
    truth, found = truth.astype(np.int64), []
    size = max(1, _VALUES_AT_ONCE // table.shape[1])
    for start in range(0, len(truth), size):
        some = table[start : start + size].astype(np.float64)
        if not np.isfinite(some).all() and not (some[~np.isfinite(some)] == -np.inf).all():
            raise DataError("the model's scores contain NaN or infinity; it cannot be judged by them")
        found.append(measure(some, truth[start : start + size]))
    return np.concatenate(found, axis=-1), truth


# --- one model ---------------------------------------------------------------------------------------------


def correct(scores: Array, labels: Array) -> NDArray[np.bool_]:
    """For each image, whether the largest score is the label's. Ties go to the lowest class, as in torch."""
    return _each(scores, labels, lambda table, truth: table.argmax(axis=1) == truth)[0]


def accuracy(scores: Array, labels: Array) -> float:
    """Share of images whose largest score is the label's."""
    return float(correct(scores, labels).mean())


def nll(logits: Array, labels: Array) -> float:
    """Mean negative log likelihood in nats, from logits or log-probabilities (log-softmax leaves those as they are)."""

    def log_probability(table: Floats, truth: NDArray[np.int64]) -> Floats:
        log_probabilities = table - special.logsumexp(table, axis=1, keepdims=True)
        return np.asarray(log_probabilities[np.arange(len(truth)), truth])

    return float(-_each(logits, labels, log_probability)[0].mean())


def image_nll(probabilities: Array, labels: Array) -> Floats:
    """Negative log likelihood of each image, from probabilities."""

    def loss(table: Floats, truth: NDArray[np.int64]) -> Floats:
        return np.asarray(-np.log(np.maximum(table[np.arange(len(truth)), truth], SMALLEST_PROBABILITY)))

    return _each(probabilities, labels, loss)[0]


def calibration_error(probabilities: Array, labels: Array, bins: int = CALIBRATION_BINS) -> float:
    """Expected calibration error: |confidence − accuracy|, averaged over equal-width bins of confidence (Guo, 2017)."""
    columns, gaps = calibration_gaps(probabilities, labels, bins)
    return float(np.abs(np.bincount(columns, gaps, bins)).sum() / len(labels))


def calibration_gaps(
    probabilities: Array, labels: Array, bins: int = CALIBRATION_BINS
) -> tuple[NDArray[np.int64], Floats]:
    """Return the bin (n,) of each image, and its confidence − correctness (n,).

    The calibration error is the sum over bins of |sum of the gaps| / n, so that a resampled one is quickly computed.
    """

    def confidence_and_gap(table: Floats, truth: NDArray[np.int64]) -> Floats:
        confidence = table.max(axis=1)
        return np.stack([confidence, confidence - (table.argmax(axis=1) == truth)])

    confidence, gaps = _each(probabilities, labels, confidence_and_gap)[0]
    return np.clip(np.ceil(confidence * bins).astype(np.int64) - 1, 0, bins - 1), gaps  # bins are (low, high]


def confusion_matrix(scores: Array, labels: Array) -> NDArray[np.int64]:
    """(c, c) counts: row = true class, column = predicted class."""
    predicted, truth = _each(scores, labels, lambda table, _: table.argmax(axis=1))
    classes = scores.shape[1]
    return np.bincount(truth * classes + predicted, minlength=classes**2).reshape(classes, classes)


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
    """Return a share with Wilson's score interval: the true rates that are compatible with `hits` of `count`."""
    if not 0 <= hits <= count or count == 0:
        raise DataError(f"{hits} of {count} is not a share")
    from scipy import stats

    ends = stats.binomtest(hits, count).proportion_ci(confidence, method="wilson")
    share = hits / count  # rounding must not exclude it from its own interval when all are correct, or none
    return Interval(share, min(float(ends.low), share), max(float(ends.high), share))


def seed_interval(values: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the mean over seeds with its t-interval, which holds the mean of very many trainings."""
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
    def significant(self) -> bool:
        return self.p_value < LEVEL

    def in_words(self, first: str, second: str) -> str:
        """Return in a sentence which model is better."""
        count = self.both_right + self.only_first + self.only_second + self.both_wrong
        num_correct = {first: self.both_right + self.only_first, second: self.both_right + self.only_second}
        if self.only_first + self.only_second == 0:
            return f"No difference: {first} and {second} are correct on the same images."
        better, worse = (first, second) if self.only_first >= self.only_second else (second, first)
        decimals = formats.percent_decimals(count)
        shares = " against ".join(formats.percent(num_correct[name] / count, decimals) for name in (better, worse))
        won, lost = max(self.only_first, self.only_second), min(self.only_first, self.only_second)
        images = formats.plural(won + lost, "image")
        split = f"on {images} only one of them is correct, {better} on {won:,} and {worse} on {lost:,}"
        test = f"(McNemar {formats.p_value(self.p_value)})"
        if self.significant:
            return f"{better} is better: {shares}; {split} {test}."
        return f"No significant difference: {better} and {worse} have {shares}; {split}, within chance {test}."


def mcnemar(first_correct: Array, second_correct: Array) -> McNemar:
    """Run McNemar's exact test: of the images that one model alone predicts correctly, does each have half?"""
    first, second = _as_numpy(first_correct).astype(bool), _as_numpy(second_correct).astype(bool)
    if first.shape != second.shape or first.ndim != 1:
        raise DataError(f"a paired test needs both models on the same images, not {first.shape} and {second.shape}")
    from scipy import stats

    only_first, only_second = int((first & ~second).sum()), int((~first & second).sum())
    differing = only_first + only_second
    p_value = float(stats.binomtest(only_first, differing).pvalue) if differing else 1.0
    return McNemar(int((first & second).sum()), only_first, only_second, int((~first & ~second).sum()), p_value)


def paired_t_test(differences: Array | Sequence[float]) -> float:
    """Return the two-sided p value of a zero mean difference: over images, or over seeds that both models share."""
    sample = _as_numpy(differences).astype(np.float64)
    if len(sample) < 2:
        raise DataError(f"a paired test needs at least two differences, not {len(sample)}")
    return _p_value("ttest_1samp", sample, 0.0, difference=sample.mean(), spread=np.ptp(sample))


def welch_t_test(first: Sequence[float], second: Sequence[float]) -> float:
    """Return the two-sided p value of equal means of two samples of seeds, whose spreads may differ."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if min(len(a), len(b)) < 2:
        raise DataError(f"Welch's test needs at least two seeds each, not {len(a)} and {len(b)}")
    spread = max(np.ptp(a), np.ptp(b))
    return _p_value("ttest_ind", a, b, equal_var=False, difference=a.mean() - b.mean(), spread=spread)


def welch_interval(first: Sequence[float], second: Sequence[float], confidence: float = 0.95) -> Interval:
    """Return the difference of the means of two samples of seeds with Welch's t-interval."""
    a, b = np.asarray(first, dtype=np.float64), np.asarray(second, dtype=np.float64)
    if min(len(a), len(b)) < 2:
        raise DataError(f"Welch's interval needs at least two seeds each, not {len(a)} and {len(b)}")
    difference, squares = float(a.mean() - b.mean()), [x.var(ddof=1) / len(x) for x in (a, b)]
    variance = float(sum(squares))
    if variance == 0:
        return Interval(difference, difference, difference)
    freedom = variance**2 / sum(square**2 / (len(x) - 1) for square, x in zip(squares, (a, b), strict=True))
    half = float(special.stdtrit(freedom, 0.5 + confidence / 2) * np.sqrt(variance))
    return Interval(difference, difference - half, difference + half)


def _p_value(test: str, *samples: Any, difference: float, spread: float, **options: Any) -> float:
    """Run a t-test of scipy.stats, which takes a second to import; without any spread only the difference is left."""
    if difference == 0 or spread == 0:
        return 1.0 if difference == 0 else 0.0
    from scipy import stats

    with warnings.catch_warnings():
        # of seeds that are exactly equal in one of two samples; the other has a spread
        warnings.filterwarnings("ignore", message="Precision loss occurred", category=RuntimeWarning)
        return float(getattr(stats, test)(*samples, **options).pvalue)


def holm(p_values: Sequence[float]) -> list[float]:
    """Holm's correction: p values that may each be compared with the level although there are several."""
    order = sorted(range(len(p_values)), key=lambda index: p_values[index])
    adjusted, running = [0.0] * len(p_values), 0.0
    for rank, index in enumerate(order):
        running = max(running, min(1.0, p_values[index] * (len(p_values) - rank)))
        adjusted[index] = running
    return adjusted
