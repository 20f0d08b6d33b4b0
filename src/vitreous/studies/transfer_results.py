"""Accuracies of the arms over seeds → gains over training from scratch, their significance, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.comparison.results import accuracy_interval
from vitreous.evaluation import metrics
from vitreous.reports import formats
from vitreous.reports.formats import join, number

SCRATCH, FINE_TUNED, HEAD_ONLY = "from scratch", "fine-tuned", "head only"


@dataclass(frozen=True)
class ArmResult:
    """One way to train, at one number of labelled images, over all seeds."""

    arm: str
    lr_factor: float  # chosen on the validation images of the first seed
    tried: Mapping[float, float]  # learning-rate factor → validation accuracy of the first seed
    accuracies: tuple[float, ...]  # on the test set, one per seed
    train_seconds: tuple[float, ...]
    runs: tuple[str, ...]

    @property
    def accuracy(self) -> metrics.Interval:
        return accuracy_interval(self.accuracies)

    @property
    def text(self) -> str:
        """Mean ± half of the 95 % interval."""
        return f"{100 * self.accuracy.value:.1f} ± {formats.percent(self.accuracy.half_width, 1)}"

    def as_dict(self) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "accuracy": self.accuracy.value,
            "accuracy_interval": [self.accuracy.low, self.accuracy.high],
            "accuracies": list(self.accuracies),
            "lr_factor": self.lr_factor,
            "validation_accuracy_by_lr_factor": {f"{factor:g}": value for factor, value in self.tried.items()},
            "train_seconds": list(self.train_seconds),
            "runs": list(self.runs),
        }


@dataclass(frozen=True)
class Gain:
    """The gain of an arm over training from scratch. Seeds are paired: both saw the same labelled images."""

    arm: str
    difference: metrics.Interval  # of test accuracies, as a share
    p_paired: float
    p_welch: float
    p_value: float  # the paired one, corrected (Holm) for the several numbers of labelled images

    @property
    def significant(self) -> bool:
        return self.p_value < metrics.LEVEL

    @property
    def points(self) -> str:
        """The gain in percentage points, signed: "+3.1"."""
        return number(100 * self.difference.value, "+.1f")

    @property
    def text(self) -> str:
        return f"{self.points} ± {100 * self.difference.half_width:.1f}"

    @property
    def p_text(self) -> str:
        """The p value for a column headed "p": "0.03", "< 0.001"."""
        return formats.p_value(self.p_value).removeprefix("p ").removeprefix("= ")

    def as_dict(self) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "gain": self.difference.value,
            "gain_interval": [self.difference.low, self.difference.high],
            "p_paired_over_seeds": self.p_paired,
            "p_welch_over_seeds": self.p_welch,
            "p_paired_holm": self.p_value,
            "significant": self.significant,
        }


@dataclass(frozen=True)
class Row:
    """All arms at one number of labelled images per class."""

    per_class: int
    images: int
    steps: int
    batch_size: int
    arms: Mapping[str, ArmResult]
    gains: Mapping[str, Gain]  # every arm but scratch

    @property
    def best_arm(self) -> str | None:
        """Fine-tuned or scratch, only where they differ significantly."""
        gain = self.gains[FINE_TUNED]
        if not gain.significant:
            return None
        return FINE_TUNED if gain.difference.value > 0 else SCRATCH

    def as_dict(self) -> dict[str, Any]:
        return {
            "per_class": self.per_class,
            "images": self.images,
            "steps": self.steps,
            "batch_size": self.batch_size,
            "arms": [arm.as_dict() for arm in self.arms.values()],
            "gains": [gain.as_dict() for gain in self.gains.values()],
        }


@dataclass(frozen=True)
class Transfer:
    """The findings, and the files they were written to."""

    source: str
    target: str
    preset: str
    seeds: int
    test_images: int
    rows: tuple[Row, ...]
    verdict: str
    pretrained: Mapping[str, Any]  # run, epochs, its own test accuracy, how its weights were adapted to the target
    settings: Mapping[str, Any]
    hardware: str
    report: Path
    results: Path

    @property
    def title(self) -> str:
        return f"From {self.source} to {self.target}"

    @property
    def arms(self) -> tuple[str, ...]:
        return tuple(self.rows[0].arms)

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `transfer.json`."""
        plain = ("title", "verdict", "source", "target", "preset", "seeds", "test_images", "hardware")
        return {
            **{key: getattr(self, key) for key in plain},
            "level": metrics.LEVEL,
            "rows": [row.as_dict() for row in self.rows],
            "pretrained": dict(self.pretrained),
            "settings": dict(self.settings),
        }


def gains_over_scratch(tables: Sequence[Mapping[str, ArmResult]]) -> list[dict[str, Gain]]:
    """Return, for each number of labelled images, the gain of every other arm over scratch."""
    gains: list[dict[str, Gain]] = [{} for _ in tables]
    for arm in [name for name in tables[0] if name != SCRATCH]:
        pairs = [(table[arm].accuracies, table[SCRATCH].accuracies) for table in tables]
        differences = [[ours - theirs for ours, theirs in zip(*pair, strict=True)] for pair in pairs]
        p_paired = [metrics.paired_t_test(values) for values in differences]
        corrected = metrics.holm(p_paired)
        for index, (values, pair) in enumerate(zip(differences, pairs, strict=True)):
            interval, p_welch = metrics.seed_interval(values), metrics.welch_t_test(*pair)
            gains[index][arm] = Gain(arm, interval, p_paired[index], p_welch, corrected[index])
    return gains


def verdict(source: str, target: str, rows: Sequence[Row], seeds: int) -> str:
    """Return whether fine-tuning beats training from scratch, and at which numbers of labels."""
    groups: dict[str, list[Row]] = {"helps": [], "hurts": [], f"makes no significant difference over {seeds} seeds": []}
    helps, hurts, neither = groups.values()
    for row in rows:
        (neither if row.best_arm is None else helps if row.best_arm == FINE_TUNED else hurts).append(row)
    clauses = [f"{effect} {_where(members)}" for effect, members in groups.items() if members]
    return f"At equal training steps on {target}, pre-training on {source} {join(clauses)}."


def _where(rows: Sequence[Row]) -> str:
    counts = join(f"{row.per_class:,}" for row in rows)
    noun = "labelled image" if rows[-1].per_class == 1 else "labelled images"
    return f"with {counts} {noun} per class ({join(row.gains[FINE_TUNED].points for row in rows)} points)"
