"""Who is really better: paired tests between models, the best cell of each measure, and the sentence that says it.

One run each: McNemar's exact test on the images. Several seeds: two things could have gone another way, the training
and the choice of test images, so a difference counts only when it stands against both (Welch's t over seeds, a paired
t over images); the larger p value is the one reported. Several pairs: Holm's correction.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from itertools import combinations
from typing import Any

import numpy as np

from vitreous.comparison.results import ModelSummary
from vitreous.evaluation import metrics
from vitreous.evaluation.metrics import LEVEL, p_in_words, percent

_BOOTSTRAP_SAMPLES = 2000
_BOOTSTRAP_CHUNK = 250
#: A single timing on a shared machine wanders by tens of percent; less than this factor is not called a difference.
TIMING_FACTOR = 1.25


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
    def real(self) -> bool:
        return self.p_value < LEVEL

    @property
    def better(self) -> str | None:
        """The model that is really better, if one is."""
        if not self.real:
            return None
        return self.first if self.only_first > self.only_second else self.second

    def as_dict(self) -> dict[str, Any]:
        return {
            "models": [self.first, self.second],
            "test": self.test,
            "p_value": self.p_value,
            "p_images": self.p_images,
            "p_seeds": self.p_seeds,
            "real": self.real,
            "better": self.better,
            "both_right": self.both_right,
            "only_right": {self.first: self.only_first, self.second: self.only_second},
            "both_wrong": self.both_wrong,
            "verdict": self.verdict,
        }


def compare_pairs(models: Sequence[ModelSummary]) -> tuple[Pair, ...]:
    """Every two models once."""
    couples = list(combinations(models, 2))
    tests = [_accuracy_test(first, second) for first, second in couples]
    corrected = metrics.holm([max(images, seeds or 0.0) for images, seeds in tests])
    return tuple(
        _pair(first, second, images, seeds, p_value, len(couples) > 1)
        for (first, second), (images, seeds), p_value in zip(couples, tests, corrected, strict=True)
    )


def _seed_p_value(first: Sequence[float], second: Sequence[float]) -> float | None:
    # Welch, not paired by seed: the same seed starts unlike weights in unlike architectures
    return metrics.welch_t_test(first, second) if min(len(first), len(second)) >= 2 else None


def _accuracy_test(first: ModelSummary, second: ModelSummary) -> tuple[float, float | None]:
    a, b = first.share_correct(), second.share_correct()
    if len(first.runs) == len(second.runs) == 1:
        return metrics.mcnemar(a, b).p_value, None
    seeds = _seed_p_value(first.over_seeds("accuracy"), second.over_seeds("accuracy"))
    return metrics.paired_t_test(a - b), seeds


def _pair(
    first: ModelSummary, second: ModelSummary, images: float, seeds: float | None, p_value: float, corrected: bool
) -> Pair:
    a, b = first.share_correct(), second.share_correct()
    one_run_each = len(first.runs) == len(second.runs) == 1
    test = "McNemar, exact, two-sided" if one_run_each else "paired t over images"
    if seeds is not None:
        test += " and Welch's t over seeds, the larger p value"
    if one_run_each and not corrected:
        sentence = metrics.mcnemar(a, b).in_words(first.name, second.name)
    else:
        sentence = _pair_in_words(first, second, images, seeds, p_value, corrected)
    return Pair(
        first=first.name,
        second=second.name,
        both_right=float((a * b).sum()),
        only_first=float((a * (1 - b)).sum()),
        only_second=float(((1 - a) * b).sum()),
        both_wrong=float(((1 - a) * (1 - b)).sum()),
        test=test + (", corrected for several pairs (Holm)" if corrected else ""),
        p_images=images,
        p_seeds=seeds,
        p_value=p_value,
        verdict=sentence,
    )


def _pair_in_words(
    first: ModelSummary, second: ModelSummary, images: float, seeds: float | None, p_value: float, corrected: bool
) -> str:
    better, worse = (first, second) if first.accuracy.value >= second.accuracy.value else (second, first)
    decimals = metrics.percent_decimals(len(first.labels))
    shares = f"{percent(better.accuracy.value, decimals)} against {percent(worse.accuracy.value, decimals)}"
    counts = {len(first.runs), len(second.runs)}
    if counts != {1}:
        amount = f"{min(counts)}" if len(counts) == 1 else f"{len(better.runs)} and {len(worse.runs)}"
        shares += f" on average over {amount} seeds"
    evidence = f"{p_in_words(p_value)}, corrected for several pairs" if corrected else p_in_words(p_value)
    if seeds is not None and not corrected:
        evidence = f"{p_in_words(seeds)} over seeds, {p_in_words(images)} over images"
    if p_value < LEVEL:
        return f"{better.name} is better: {shares} ({evidence})."
    return f"No real difference: {better.name} and {worse.name} have {shares}, which chance can explain ({evidence})."


def headline(models: Sequence[ModelSummary], pairs: Sequence[Pair]) -> str:
    """The whole comparison in a sentence."""
    if len(pairs) == 1:
        return pairs[0].verdict
    decimals = metrics.percent_decimals(len(models[0].labels))
    ranked = sorted(models, key=lambda model: -model.accuracy.value)

    def named(group: Sequence[ModelSummary]) -> str:
        return in_a_row([f"{model.name} ({percent(model.accuracy.value, decimals)})" for model in group])

    beaten = {frozenset((pair.first, pair.second)) for pair in pairs if pair.real}
    tied = [model for model in ranked[1:] if frozenset((ranked[0].name, model.name)) not in beaten]
    rest = [model for model in ranked[1:] if model not in tied]
    if not tied:
        best = percent(ranked[0].accuracy.value, decimals)
        return f"{ranked[0].name} is best: {best}, really better than {named(rest)}."
    together = f"No single best: {named([ranked[0], *tied])} cannot be told apart"
    if not rest:
        return f"{together}."
    return f"{together}; {named(rest)} {'is' if len(rest) == 1 else 'are'} really worse than {ranked[0].name}."


def in_a_row(words: Sequence[str]) -> str:
    """a, b and c."""
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} and {words[-1]}"


# --- the best cell of each measure -------------------------------------------------------------------------


def best_of_each(models: Sequence[ModelSummary], pairs: Sequence[Pair]) -> dict[str, str | None]:
    """For each measure the model that is really better than every other, or None."""
    of_pairs = {frozenset((pair.first, pair.second)): pair.p_value for pair in pairs}
    accuracy = {model.name: -model.accuracy.value for model in models}
    return {
        "accuracy": _winner(accuracy, of_pairs),
        "nll": _winner({m.name: m.nll for m in models}, _pairwise(models, _nll_p_value)),
        "calibration_error": _winner({m.name: m.calibration_error for m in models}, _calibration_p_values(models)),
        "parameters": _smallest({model.name: model.parameters for model in models}),
        "flops": _smallest({model.name: model.flops for model in models}),
        "train_seconds": _fastest(models, "train_seconds", lambda value: value),
        "images_per_second": _fastest(models, "images_per_second", lambda value: 1 / max(value, 1e-12)),
    }


PairValues = Mapping[frozenset[str], float]


def _pairwise(models: Sequence[ModelSummary], test: Callable[[ModelSummary, ModelSummary], float]) -> PairValues:
    couples = list(combinations(models, 2))
    corrected = metrics.holm([test(first, second) for first, second in couples])
    return {frozenset((a.name, b.name)): p_value for (a, b), p_value in zip(couples, corrected, strict=True)}


def _winner(costs: Mapping[str, float], p_values: PairValues) -> str | None:
    lowest = min(costs, key=lambda name: costs[name])
    beaten = all(p_values[frozenset((lowest, other))] < LEVEL for other in costs if other != lowest)
    return lowest if beaten else None


def _smallest(costs: Mapping[str, int]) -> str | None:
    """Counted, not measured: any difference is real, a tie has no winner."""
    lowest = min(costs, key=lambda name: costs[name])
    return lowest if list(costs.values()).count(costs[lowest]) == 1 else None


def _fastest(models: Sequence[ModelSummary], key: str, cost: Callable[[float], float]) -> str | None:
    costs = {model.name: float(np.mean([cost(value) for value in model.over_seeds(key)])) for model in models}
    lowest = min(models, key=lambda model: costs[model.name])
    others = [model for model in models if model is not lowest]
    clear = all(costs[other.name] >= TIMING_FACTOR * costs[lowest.name] > 0 for other in others)
    return lowest.name if clear else None


def _nll_p_value(first: ModelSummary, second: ModelSummary) -> float:
    over_images = metrics.paired_t_test(first.image_nll() - second.image_nll())
    return max(over_images, _seed_p_value(first.over_seeds("nll"), second.over_seeds("nll")) or 0.0)


def _calibration_p_values(models: Sequence[ModelSummary]) -> PairValues:
    """Paired bootstrap over images: how often does resampling turn the difference round?"""
    count = len(models[0].labels)
    gaps = [[metrics.calibration_gaps(run.probabilities, run.labels) for run in model.runs] for model in models]
    columns = np.concatenate([gap for model in gaps for gap in model], axis=1).astype(np.float32)
    owner = np.repeat(np.arange(len(models)), [sum(gap.shape[1] for gap in model) for model in gaps])
    runs = np.array([len(model.runs) for model in models])
    generator = np.random.default_rng(0)
    samples = []
    for _ in range(_BOOTSTRAP_SAMPLES // _BOOTSTRAP_CHUNK):
        drawn = generator.integers(0, count, (_BOOTSTRAP_CHUNK, count))
        weights = np.stack([np.bincount(row, minlength=count) for row in drawn]).astype(np.float32)
        sums = np.abs(weights @ columns)  # (samples, runs × bins)
        samples.append(np.stack([sums[:, owner == index].sum(axis=1) for index in range(len(models))], axis=1))
    errors = np.concatenate(samples) / (count * runs)  # (samples, models)
    index = {model.name: position for position, model in enumerate(models)}

    def turned(first: ModelSummary, second: ModelSummary) -> float:
        difference = errors[:, index[first.name]] - errors[:, index[second.name]]
        over_images = min(1.0, 2 * (min((difference >= 0).sum(), (difference <= 0).sum()) + 1) / (len(difference) + 1))
        seeds = _seed_p_value(first.over_seeds("calibration_error"), second.over_seeds("calibration_error"))
        return float(max(over_images, seeds or 0.0))

    return _pairwise(models, turned)
