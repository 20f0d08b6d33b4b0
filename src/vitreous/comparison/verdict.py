"""Which model is significantly better: paired tests between models, the best model per measure, and the verdict.

One run each: McNemar's exact test on the images. Several seeds: both the training and the choice of test images could
have turned out differently, so a difference counts only if it is significant over seeds (Welch's t) and over images
(a paired t); the larger p value is reported. Several pairs: Holm's correction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from vitreous.comparison.results import ModelSummary
from vitreous.evaluation import metrics
from vitreous.evaluation.metrics import LEVEL
from vitreous.reports import formats
from vitreous.reports.formats import join, percent

_BOOTSTRAP_SAMPLES = 2000
_BOOTSTRAP_CHUNK = 250  # samples at a time, of many images fewer
_BOOTSTRAP_WEIGHTS = 2**22  # that are in memory at a time
#: A single timing on a shared machine varies by tens of percent; less than this factor is not called a difference.
TIMING_FACTOR = 1.25

#: Two models' names → a p value.
PairValues = Mapping[frozenset[str], float]


@dataclass(frozen=True)
class Pair:
    """Two models on the same test images. Counts are means over seeds, hence floats."""

    first: str
    second: str
    both_right: float
    only_first: float
    only_second: float
    both_wrong: float
    test: str
    p_images: float
    p_seeds: float | None
    p_value: float  # corrected if there are several pairs
    verdict: str

    @property
    def significant(self) -> bool:
        return self.p_value < LEVEL

    @property
    def better(self) -> str | None:
        """The significantly better model, if there is one."""
        if not self.significant:
            return None
        return self.first if self.only_first > self.only_second else self.second

    def as_dict(self) -> dict[str, Any]:
        same = ("test", "p_value", "p_images", "p_seeds", "significant", "better", "both_right", "both_wrong")
        return {
            "models": [self.first, self.second],
            "verdict": self.verdict,
            "only_right": {self.first: self.only_first, self.second: self.only_second},
            **{key: getattr(self, key) for key in same},
        }


def compare_pairs(models: Sequence[ModelSummary]) -> tuple[Pair, ...]:
    """Compare every two models once."""
    couples = list(combinations(models, 2))
    tests = [_accuracy_test(first, second) for first, second in couples]
    corrected = metrics.holm([max(p_images, p_seeds or 0.0) for p_images, p_seeds in tests])
    return tuple(
        _pair(first, second, p_images, p_seeds, p_value, len(couples) > 1)
        for (first, second), (p_images, p_seeds), p_value in zip(couples, tests, corrected, strict=True)
    )


def _accuracy_test(first: ModelSummary, second: ModelSummary) -> tuple[float, float | None]:
    """Return the p values over images and, if both models have several, over seeds."""
    a, b = first.share_correct(), second.share_correct()
    if len(first.runs) == len(second.runs) == 1:
        return metrics.mcnemar(a, b).p_value, None
    return metrics.paired_t_test(a - b), _p_over_seeds(first, second, "accuracy")


def _p_over_seeds(first: ModelSummary, second: ModelSummary, key: str) -> float | None:
    # Welch, not paired by seed: the same seed initialises different architectures differently
    samples = first.over_seeds(key), second.over_seeds(key)
    return metrics.welch_t_test(*samples) if min(map(len, samples)) >= 2 else None


def _pair(
    first: ModelSummary, second: ModelSummary, p_images: float, p_seeds: float | None, p_value: float, corrected: bool
) -> Pair:
    a, b = first.share_correct(), second.share_correct()
    one_run_each = len(first.runs) == len(second.runs) == 1
    test = "McNemar, exact, two-sided" if one_run_each else "paired t over images"
    if p_seeds is not None:
        test += " and Welch's t over seeds, the larger p value"
    if corrected:
        test += ", corrected for several pairs (Holm)"
        p_text = f"{formats.p_value(p_value)}, corrected for several pairs"
    elif p_seeds is not None:
        p_text = f"{formats.p_value(p_seeds)} over seeds, {formats.p_value(p_images)} over images"
    else:
        p_text = formats.p_value(p_value)
    if one_run_each and not corrected:
        sentence = metrics.mcnemar(a, b).in_words(first.name, second.name)
    else:
        sentence = _sentence(first, second, p_value < LEVEL, p_text)
    return Pair(
        first=first.name,
        second=second.name,
        both_right=float((a * b).sum()),
        only_first=float((a * (1 - b)).sum()),
        only_second=float(((1 - a) * b).sum()),
        both_wrong=float(((1 - a) * (1 - b)).sum()),
        test=test,
        p_images=p_images,
        p_seeds=p_seeds,
        p_value=p_value,
        verdict=sentence,
    )


def _sentence(first: ModelSummary, second: ModelSummary, significant: bool, p_text: str) -> str:
    better, worse = (first, second) if first.accuracy.value >= second.accuracy.value else (second, first)
    shares = f"{_accuracy(better)} against {_accuracy(worse)}"
    counts = dict.fromkeys((len(better.runs), len(worse.runs)))
    if list(counts) != [1]:
        shares += f" on average over {join(counts)} seeds"
    if significant:
        return f"{better.name} is better: {shares} ({p_text})."
    return f"No significant difference: {better.name} and {worse.name} have {shares} ({p_text})."


def _accuracy(model: ModelSummary) -> str:
    return percent(model.accuracy.value, formats.percent_decimals(len(model.labels)))


def headline(models: Sequence[ModelSummary], pairs: Sequence[Pair]) -> str:
    """Return the whole comparison in a sentence."""
    if len(pairs) == 1:
        return pairs[0].verdict
    first, *others = sorted(models, key=lambda model: -model.accuracy.value)

    def named(group: Sequence[ModelSummary]) -> str:
        return join(f"{model.name} ({_accuracy(model)})" for model in group)

    differ = {frozenset((pair.first, pair.second)) for pair in pairs if pair.significant}
    worse = [model for model in others if frozenset((first.name, model.name)) in differ]
    tied = [model for model in others if model not in worse]
    if not tied:
        return f"{first.name} is best: {_accuracy(first)}, significantly better than {named(worse)}."
    together = f"No single best: {named([first, *tied])} do not differ significantly"
    if not worse:
        return f"{together}."
    return f"{together}; {named(worse)} {'is' if len(worse) == 1 else 'are'} significantly worse than {first.name}."


# --- the best model per measure ----------------------------------------------------------------------------


def best_of_each(models: Sequence[ModelSummary], pairs: Sequence[Pair]) -> dict[str, str | None]:
    """Return, per measure, the model that is significantly better than every other, or None."""
    accuracy_p_values = {frozenset((pair.first, pair.second)): pair.p_value for pair in pairs}
    calibration_p_values = _pairwise(models, _calibration_test(models))
    return {
        "accuracy": _tested({m.name: -m.accuracy.value for m in models}, accuracy_p_values),
        "nll": _tested({m.name: m.nll for m in models}, _pairwise(models, _nll_p_value)),
        "calibration_error": _tested({m.name: m.calibration_error for m in models}, calibration_p_values),
        "parameters": _counted({m.name: m.parameters for m in models}),
        "flops": _counted({m.name: m.flops for m in models}),
        "train_seconds": _timed(models, "train_seconds", 1),
        "images_per_second": _timed(models, "images_per_second", -1),
    }


def _best(costs: Mapping[str, float], differ: Callable[[str, str], bool]) -> str | None:
    lowest, *others = sorted(costs, key=lambda name: costs[name])
    return lowest if all(differ(lowest, other) for other in others) else None


def _tested(costs: Mapping[str, float], p_values: PairValues) -> str | None:
    return _best(costs, lambda a, b: p_values[frozenset((a, b))] < LEVEL)


def _counted(costs: Mapping[str, float]) -> str | None:
    return _best(costs, lambda a, b: costs[a] < costs[b])


def _timed(models: Sequence[ModelSummary], key: str, power: int) -> str | None:
    costs = {m.name: float(np.mean(np.maximum(m.over_seeds(key), 1e-12) ** power)) for m in models}
    return _best(costs, lambda a, b: costs[b] >= TIMING_FACTOR * costs[a])


def _pairwise(models: Sequence[ModelSummary], test: Callable[[ModelSummary, ModelSummary], float]) -> PairValues:
    """Return the corrected p value of every two models."""
    couples = list(combinations(models, 2))
    corrected = metrics.holm([test(first, second) for first, second in couples])
    return {frozenset((a.name, b.name)): p_value for (a, b), p_value in zip(couples, corrected, strict=True)}


def _nll_p_value(first: ModelSummary, second: ModelSummary) -> float:
    over_images = metrics.paired_t_test(first.image_nll() - second.image_nll())
    return max(over_images, _p_over_seeds(first, second, "nll") or 0.0)


def _calibration_test(models: Sequence[ModelSummary]) -> Callable[[ModelSummary, ModelSummary], float]:
    """Return a paired bootstrap test over images: how often does resampling reverse the difference?"""
    count = len(models[0].labels)
    num_runs, bins = np.array([len(model.runs) for model in models]), metrics.CALIBRATION_BINS
    columns = np.zeros((count, num_runs.sum() * bins), np.float32)
    for number, run in enumerate(run for model in models for run in model.runs):
        bin_of, gaps = metrics.calibration_gaps(run.probabilities, run.labels)
        columns[np.arange(count), number * bins + bin_of] = gaps
    owner = np.repeat(np.arange(len(models)), num_runs * bins)
    generator = np.random.default_rng(0)
    samples = []
    chunk = max(1, min(_BOOTSTRAP_CHUNK, _BOOTSTRAP_WEIGHTS // count))
    weights = np.empty((chunk, count), np.float32)
    for start in range(0, _BOOTSTRAP_SAMPLES, chunk):
        for row in weights:
            row[:] = np.bincount(generator.integers(0, count, count), minlength=count)
        sums = np.abs(weights @ columns)[: _BOOTSTRAP_SAMPLES - start]  # (samples, runs × bins)
        samples.append(np.stack([sums[:, owner == index].sum(axis=1) for index in range(len(models))], axis=1))
    errors = np.concatenate(samples) / (count * num_runs)  # (samples, models)
    of_model = {model.name: errors[:, index] for index, model in enumerate(models)}

    def p_value(first: ModelSummary, second: ModelSummary) -> float:
        difference = of_model[first.name] - of_model[second.name]
        over_images = min(1.0, 2 * (min((difference >= 0).sum(), (difference <= 0).sum()) + 1) / (len(difference) + 1))
        return float(max(over_images, _p_over_seeds(first, second, "calibration_error") or 0.0))

    return p_value
