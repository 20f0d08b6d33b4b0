"""`vitreous doctor --run RUN`: mistakes of the training set-up that its curves show."""

from __future__ import annotations

import math
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from scipy import stats

from vitreous.doctor.findings import Diagnosis, Finding, NotMeasured, Unmeasured, finding
from vitreous.errors import RunError
from vitreous.reports.formats import number, percent
from vitreous.runs import Run


@dataclass(frozen=True)
class Curves:
    """The metrics of a run: `loss`, `accuracy`, `epoch` and `lr` per record."""

    train: list[dict[str, Any]]
    val: list[dict[str, Any]]
    num_classes: int

    @property
    def chance(self) -> float:
        """The loss of a model that knows nothing."""
        return math.log(self.num_classes)


def diagnose_curves(run: Path | str) -> Diagnosis:
    """Examine the metrics that a run has written."""
    start, cpu = time.perf_counter(), time.thread_time()
    opened = Run.open(run)
    # JSON has no NaN: a loss that is not finite is null
    records = opened.metrics()
    metrics = [record | {"loss": math.nan if record.get("loss") is None else record["loss"]} for record in records]
    curves = Curves(
        [record for record in metrics if record.get("event") == "train"],
        [record for record in metrics if record.get("event") == "val"],
        len(opened.class_names),
    )
    if len(curves.train) < 2:
        raise RunError(f"{run} has {len(curves.train)} training records; at least two are needed")
    findings: list[Finding] = []
    not_measured: list[Unmeasured] = []
    healthy: list[str] = []
    for name, check in CURVE_CHECKS.items():
        try:
            found = list(check(curves))
        except NotMeasured as error:
            not_measured.append(Unmeasured(name, str(error)))
        else:
            findings += found
            healthy += [] if found else [name]
    elapsed = time.perf_counter() - start
    seconds = time.thread_time() - cpu
    return Diagnosis(tuple(findings), tuple(not_measured), tuple(healthy), elapsed, cpu_seconds=seconds)


def diverged(curves: Curves) -> Iterator[Finding]:
    """A loss that ends far above where it started, or is not finite."""
    first, losses = curves.train[0]["loss"], [record["loss"] for record in curves.train]
    worst = next((loss for loss in losses if not math.isfinite(loss)), losses[-1])
    lowest = min((loss for loss in losses if math.isfinite(loss)), default=math.inf)
    # 1.5 nats above ln C takes confident wrong predictions; a run that learns ends below its start
    if not math.isfinite(worst) or (worst > first and worst > max(1.5 * lowest, curves.chance + 1.5)):
        rate = max(record.get("lr", 0.0) for record in curves.train)
        yield finding(
            "training-diverges",
            f"the training loss starts at {number(first)}, is {number(lowest)} at its lowest and ends at {worst:.4g},"
            f" with a learning rate of up to {rate:g}.",
        )


def at_chance(curves: Curves) -> Iterator[Finding]:
    """A loss that stays at ln C: nothing about the images reaches the loss; or it falls, but far too slowly."""
    if next(diverged(curves), None) is not None:
        raise NotMeasured("the training diverges")
    epochs = curves.train[-1].get("epoch", 0.0)
    tail = curves.train[-max(1, len(curves.train) // 4) :]
    loss = sum(record["loss"] for record in tail) / len(tail)
    accuracy = max(record.get("accuracy", 0.0) for record in tail)
    if epochs < 1 or loss < 0.9 * curves.chance:
        if epochs < 1:
            raise NotMeasured("the run is shorter than an epoch")
        return
    losses = [record["loss"] for record in curves.train]
    trend = stats.spearmanr(range(len(losses)), losses).statistic if len(losses) >= 5 else 0.0
    rate = max(record.get("lr", 0.0) for record in curves.train)
    if trend < -0.8 and losses[-1] < losses[0]:
        yield finding(
            "learning-rate-low",
            f"in {epochs:.1f} epochs the training loss falls steadily, but only from {number(losses[0])} to"
            f" {number(losses[-1])} (ln {curves.num_classes} = {number(curves.chance)}), with a learning rate of up to"
            f" {rate:g}.",
        )
    elif accuracy < 3 / curves.num_classes:
        yield finding(
            "loss-at-chance",
            f"after {epochs:.1f} epochs the training loss is {number(loss)} (ln {curves.num_classes} ="
            f" {number(curves.chance)}) and the accuracy {percent(accuracy)}: the model has learned nothing, with a"
            f" learning rate of up to {rate:g}.",
        )


def softmax_twice(curves: Curves) -> Iterator[Finding]:
    """Cross-entropy of probabilities cannot fall below ln(e + C − 1) − 1, and is that plus the error rate."""
    if not curves.val:
        raise NotMeasured("the run has no validation records")
    floor = math.log(math.e + curves.num_classes - 1) - 1
    if floor < 0.3:
        raise NotMeasured(f"with {curves.num_classes} classes the lowest loss does not tell")
    last, train = curves.val[-1], curves.train[-1]
    if last.get("accuracy", 0.0) < 0.6:
        raise NotMeasured("the validation accuracy is below 60 %")
    expected = floor + 1 - last["accuracy"]
    # label smoothing of 0.1 stays 0.9 below, mixup changes the training loss alone
    if abs(last["loss"] - expected) < 0.1 and train["loss"] > floor - 0.02:
        yield finding(
            "softmax-twice",
            f"the validation accuracy is {percent(last['accuracy'])}, but the loss {number(last['loss'])}: what"
            f" cross-entropy gives for probabilities instead of logits, ln(e + {curves.num_classes - 1}) − 1 ="
            f" {number(floor)} plus the error rate.",
        )


def perfect_at_once(curves: Curves) -> Iterator[Finding]:
    """Every validation image correct within the first epoch."""
    early = [record for record in curves.val if record.get("epoch", math.inf) <= 1.0]
    if not early:
        raise NotMeasured("there is no validation within the first epoch")
    best = max(record.get("accuracy", 0.0) for record in early)
    if best >= 0.9995:
        yield finding(
            "perfect-at-once",
            f"the validation accuracy is {100 * best:.2f} % after {early[-1]['epoch']:.1f} epochs.",
        )


CURVE_CHECKS: dict[str, Callable[[Curves], Iterator[Finding]]] = {
    "training-diverges": diverged,
    "loss-at-chance": at_chance,
    "softmax-twice": softmax_twice,
    "perfect-at-once": perfect_at_once,
}
