"""Accuracies of the arms over seeds → gains over training from scratch, whether they are real, and the verdict."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from vitreous.comparison.verdict import in_a_row
from vitreous.evaluation import metrics

SCRATCH, FINE_TUNED, HEAD_ONLY = "from scratch", "fine-tuned", "head only"


@dataclass(frozen=True)
class ArmResult:
    """One way to train, at one number of labelled images, over all seeds."""

    arm: str
    lr_factor: float  # chosen on the validation images of the first seed
    tried: Mapping[float, float]  # learning-rate factor → validation accuracy of the first seed
    accuracies: tuple[float, ...]  # on the test set, a seed each
    train_seconds: tuple[float, ...]
    runs: tuple[str, ...]

    @property
    def accuracy(self) -> metrics.Interval:
        """Mean over seeds with its 95 % t-interval, kept within 0 and 1."""
        interval = metrics.seed_interval(self.accuracies)
        return metrics.Interval(interval.value, max(0.0, interval.low), min(1.0, interval.high))

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
    """What an arm brings over training from scratch. Seeds are paired: both saw the same labelled images."""

    arm: str
    points: metrics.Interval  # difference of test accuracies, as a share
    p_paired: float
    p_welch: float
    p_value: float  # the paired one, corrected (Holm) for the several numbers of labelled images

    @property
    def real(self) -> bool:
        return self.p_value < metrics.LEVEL

    def as_dict(self) -> dict[str, Any]:
        return {
            "arm": self.arm,
            "gain": self.points.value,
            "gain_interval": [self.points.low, self.points.high],
            "p_paired_over_seeds": self.p_paired,
            "p_welch_over_seeds": self.p_welch,
            "p_paired_holm": self.p_value,
            "real": self.real,
        }


@dataclass(frozen=True)
class Row:
    """All arms at one number of labelled images a class."""

    per_class: int
    images: int
    steps: int
    batch_size: int
    arms: Mapping[str, ArmResult]
    gains: Mapping[str, Gain]  # every arm but scratch

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
    """What was found, and where it was written."""

    source: str
    target: str
    preset: str
    seeds: int
    test_images: int
    rows: tuple[Row, ...]
    verdict: str
    pretrained: Mapping[str, Any]  # run, epochs, its own test accuracy, how its weights were fitted to the target
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
        """What `transfer.json` holds."""
        return {
            "title": self.title,
            "verdict": self.verdict,
            "source": self.source,
            "target": self.target,
            "preset": self.preset,
            "seeds": self.seeds,
            "test_images": self.test_images,
            "level": metrics.LEVEL,
            "rows": [row.as_dict() for row in self.rows],
            "pretrained": dict(self.pretrained),
            "settings": dict(self.settings),
            "hardware": self.hardware,
        }


def gains_over_scratch(tables: Sequence[Mapping[str, ArmResult]]) -> list[dict[str, Gain]]:
    """For each number of labelled images, every other arm against scratch."""
    gains: list[dict[str, Gain]] = [{} for _ in tables]
    for arm in [name for name in tables[0] if name != SCRATCH]:
        pairs = [(table[arm].accuracies, table[SCRATCH].accuracies) for table in tables]
        differences = [[ours - theirs for ours, theirs in zip(*pair, strict=True)] for pair in pairs]
        paired = [metrics.paired_t_test(values) for values in differences]
        corrected = metrics.holm(paired)
        for place, (values, (ours, theirs)) in enumerate(zip(differences, pairs, strict=True)):
            points, welch = metrics.seed_interval(values), metrics.welch_t_test(ours, theirs)
            gains[place][arm] = Gain(arm, points, paired[place], welch, corrected[place])
    return gains


def verdict(source: str, target: str, rows: Sequence[Row], seeds: int) -> str:
    """Whether fine-tuning beats training from scratch, at which numbers of labels, whichever way it falls."""
    gains = [(row.per_class, row.gains[FINE_TUNED]) for row in rows]
    groups = {
        "helps": [pair for pair in gains if pair[1].real and pair[1].points.value > 0],
        "hurts": [pair for pair in gains if pair[1].real and pair[1].points.value <= 0],
        f"makes no difference that {seeds} seeds can tell": [pair for pair in gains if not pair[1].real],
    }
    clauses = [f"{effect} {_where(members)}" for effect, members in groups.items() if members]
    return f"At equal training steps on {target}, pre-training on {source} {in_a_row(clauses)}."


def _where(members: Sequence[tuple[int, Gain]]) -> str:
    counts = in_a_row([f"{count:,}" for count, _ in members])
    noun = "labelled image" if members[-1][0] == 1 else "labelled images"
    return f"with {counts} {noun} a class ({in_a_row([points(gain.points.value) for _, gain in members])} points)"


def points(share: float) -> str:
    """0.0312 → "+3.1": percentage points, signed."""
    return f"{100 * share:+.1f}".replace("-", "−")
