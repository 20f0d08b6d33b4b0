"""The learning-rate finder: raise the rate from step to step until the loss diverges, and suggest one from the curve.

Smith, "Cyclical learning rates for training neural networks" (2017). The model is thrown away and no run is written.
"""

from __future__ import annotations

import time
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.config import Config
from vitreous.data.sampler import BatchSampler
from vitreous.errors import ConfigError
from vitreous.reports.colors import light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.text_width import shorten_to
from vitreous.training.distributed import Group
from vitreous.training.progress import Progress, make_progress
from vitreous.training.setup import prepare
from vitreous.training.step import Stepper

Floats = NDArray[np.float64]

LOWEST, HIGHEST = 1e-6, 10.0  # learning rates between which to search
SECONDS = 120.0  # at most, unless train.budget_seconds says otherwise
_MOST_STEPS, _FEWEST_STEPS = 140, 35  # twenty per decade; five where steps are slow
_FIRST_STEPS = 2  # with the lowest rate; the second is timed
_SMOOTHING = 0.9  # of the moving average, at twenty steps per decade
_DIVERGED = 4.0  # times the lowest loss
RULE = "the learning rate at which the smoothed loss has fallen half of the way to its minimum"


@dataclass(frozen=True)
class LearningRateSweep:
    """The training loss at rising learning rates, and the rate to train with."""

    config: Config
    title: str  # the model and the data
    lrs: Floats  # (steps,)
    losses: Floats  # (steps,)
    steps_planned: int

    @cached_property
    def smoothed(self) -> Floats:
        """The losses as a moving average, (steps,), with less memory where there are fewer steps per decade."""
        decay = _SMOOTHING ** (_MOST_STEPS / self.steps_planned)
        return moving_average(self.losses, decay)

    @cached_property
    def suggested(self) -> float:
        """The learning rate, rounded to two digits."""
        return float(f"{halfway(self.lrs, self.losses, self.smoothed):.1e}")

    @property
    def settings(self) -> dict[str, float]:
        """The settings to train with; Muon has two learning rates, which keep their ratio."""
        factor = self.suggested / self.config.train.lr
        return {name: float(f"{lr * factor:.2g}") for name, lr in self.configured.items()}

    @property
    def configured(self) -> dict[str, float]:
        train = self.config.train
        return {"train.lr": train.lr} | ({"train.muon_lr": train.muon_lr} if train.optimizer == "muon" else {})

    def as_json(self) -> dict[str, Any]:
        curve = zip(self.lrs.tolist(), self.losses.tolist(), self.smoothed.tolist(), strict=True)
        return {
            "suggested": self.settings,
            "configured": self.configured,
            "rule": RULE,
            "curve": [{"lr": lr, "loss": loss, "smoothed": smoothed} for lr, loss, smoothed in curve],
        }

    def figure(self) -> DrawnFigure:
        start, lowest = float(self.smoothed[0]), float(self.losses.min())
        with figure_style("find-lr", 800, 400) as figure:
            axes = figure.add_subplot()
            axes.plot(self.lrs, self.losses, color=light("ink-soft"), linewidth=0.9, alpha=0.6, label="of each batch")
            axes.plot(self.lrs, self.smoothed, color=light("vit"), label="smoothed")
            ours, theirs = self.suggested, self.config.train.lr
            axes.axvline(ours, color=light("cnn"), label=f"suggested, {ours:g}")
            axes.axvline(theirs, color=light("ink-soft"), linestyle=":", label=f"configured, {theirs:g}")
            axes.set_xscale("log")
            axes.xaxis.set_major_formatter(lambda value, _: f"{value:g}")
            axes.set_xlim(self.lrs[0], max(self.lrs[-1], theirs))
            axes.set_ylim(lowest - 0.1 * (start - lowest), start + 0.4 * (start - lowest))  # divergence ends above
            axes.set_xlabel("learning rate (train.lr)")
            axes.set_ylabel("training loss", labelpad=6)
            axes.set_title(shorten_to(f"Learning rate for {self.title}", 640, points=10, bold=True))
            axes.legend(loc="lower left")
            alt = (
                f"Line plot of the training loss of {self.title} against the learning rate, from {self.lrs[0]:g} to"
                f" {self.lrs[-1]:g}: it falls from {start:.3g} to {lowest:.3g}; {ours:g} is suggested."
            )
            return finish_figure(figure, "find-lr", alt=alt)


def find_lr(config: Config, *, device: str = "auto", progress: bool = True) -> LearningRateSweep:
    """Train a throw-away model with rising learning rates; `.suggested` is the one to train with.

    All rates of the optimizer rise by the same factor. It takes as long as `train.budget_seconds`, or two minutes, at
    most. Raise a ConfigError where the loss does not fall.
    """
    limit = config.train.budget_seconds or SECONDS
    config = config.replace(train=config.train.replace(budget_seconds=None))
    config, dataset, preprocessing, resolved, weights = prepare(config, device, Group())
    stepper = Stepper(config, dataset, preprocessing, resolved, Group(), weights)
    title = f"{config.name} on {dataset.name}"
    lrs: list[float] = []
    losses: list[float] = []
    steps, started = _MOST_STEPS, time.perf_counter()
    with make_progress(f"learning rate for {title}") if progress else Progress() as shown:
        for step, epoch, indices in BatchSampler.of(dataset.train, resolved.batch_size, config.seed).steps(
            0, _FIRST_STEPS + _MOST_STEPS
        ):
            number = max(0, step - _FIRST_STEPS)
            lr = LOWEST * (HIGHEST / LOWEST) ** (number / (steps - 1))
            before = time.perf_counter()
            try:
                loss, num_correct = stepper.step(step, epoch, indices, lr / config.train.lr)
            except FloatingPointError:
                break
            elapsed = time.perf_counter() - before
            if step < _FIRST_STEPS:
                steps = _affordable_steps(elapsed, limit) if step == _FIRST_STEPS - 1 else steps
                continue
            lrs.append(lr)
            losses.append(loss)
            shown.step(number + 1, steps, loss, num_correct / len(indices), len(indices) / elapsed)
            is_late = time.perf_counter() - started > limit
            if loss > _DIVERGED * min(losses) or number + 1 == steps or is_late:
                break
    sweep = LearningRateSweep(config, title, np.array(lrs), np.array(losses), steps)
    _ = sweep.suggested  # raises where the loss did not fall
    return sweep


def _affordable_steps(seconds_per_step: float, limit: float) -> int:
    steps = int(min(_MOST_STEPS, limit / seconds_per_step))
    if steps < _FEWEST_STEPS:
        raise ConfigError(
            f"a training step takes {seconds_per_step:.2g} s, and finding a learning rate at least {_FEWEST_STEPS} of"
            f" them, which is more than {limit:g} s: allow more with --seconds"
            f" {np.ceil(1.5 * _FEWEST_STEPS * seconds_per_step):.0f}, or lower train.batch_size"
        )
    return steps


def moving_average(values: Floats, decay: float) -> Floats:
    """Return the exponential moving average of each value and those before it, without bias towards zero."""
    average, averages = 0.0, np.empty_like(values)
    for index, value in enumerate(values):
        average = decay * average + (1 - decay) * value
        averages[index] = average / (1 - decay ** (index + 1))
    return averages


def halfway(lrs: Floats, losses: Floats, smoothed: Floats) -> float:
    """Return the learning rate at which the smoothed loss has fallen half of the way to its minimum.

    It varies by a factor of 1.3 between seeds, and the one where the loss falls most steeply by 2 to 2.5.

    The first tenth of the steps, whose rates are too low to change anything, tells where the loss starts and how much
    it varies from batch to batch: a fall that is not clearly larger than that is chance, and a ConfigError.
    """
    flat = max(2, len(losses) // 10)
    start, noise = float(losses[:flat].mean()), float(losses[:flat].std())
    lowest = int(smoothed.argmin())
    if start - smoothed[lowest] < max(3 * noise, 0.01 * start):
        raise ConfigError(
            f"the training loss did not fall at any learning rate from {lrs[0]:.0e} to {lrs[-1]:.2g} (it stayed at"
            f" {start:.3g}), so none can be suggested: look at the images with `vitreous data show`, or try another"
            " model or a larger train.batch_size"
        )
    return float(lrs[int((smoothed <= (start + smoothed[lowest]) / 2).argmax())])
