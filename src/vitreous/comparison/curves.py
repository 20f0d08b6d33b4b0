"""Figures of the whole comparison: accuracy with its interval, loss while training, accuracy against seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from itertools import pairwise
from math import isfinite
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitreous.comparison.results import ModelResult, ModelSummary
from vitreous.comparison.verdict import in_a_row
from vitreous.evaluation.metrics import percent, percent_decimals
from vitreous.reports.colors import ModelStyle, light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: CSS pixels. Narrow enough to stand two abreast on a desk and to stay readable on a phone.
WIDTH = 496
HEIGHT = 352
_MOST_POINTS = 160
_LOG_FROM_RATIO = 8.0
_ERROR_TICKS = [0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001]

Curve = tuple[NDArray[np.float64], NDArray[np.float64]]
Styles = Mapping[str, ModelStyle]


@dataclass(frozen=True)
class ReportFigure:
    """A figure with what it shows, how to read it and what to be careful about; and the same for who cannot see it."""

    drawn: DrawnFigure
    shows: str
    reading: str
    alt: str

    def inline(self) -> Markup:
        return Markup(self.drawn.inline(self.alt))


# --- accuracy with its interval ----------------------------------------------------------------------------


def draw_accuracy(models: Sequence[ModelSummary], styles: Styles, folder: Path) -> ReportFigure:
    decimals = percent_decimals(len(models[0].labels))
    with figure_style("accuracy", WIDTH, 72 + 48 * len(models)) as figure:
        axes = figure.add_subplot()
        for row, model in enumerate(models):
            _interval_row(axes, row, model, styles[model.name])
        axes.set_ylim(len(models) - 0.35, -0.75)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.06)
        low, high = axes.get_xlim()
        axes.set_xlim(low, min(high, 1.0 + 0.02 * (1.0 - low)))
        for row, model in enumerate(models):
            _interval_labels(axes, row, model, decimals)
        axes.xaxis.set_major_locator(_few_ticks())
        axes.xaxis.set_major_formatter(lambda value, _: _tick_percent(value))
        axes.set_xlabel("test accuracy, with its 95 % interval")
        drawn = finish_figure(figure, "accuracy", folder)
    alt = f"Test accuracy with 95 % intervals: {in_a_row([_spoken_accuracy(model, decimals) for model in models])}."
    return ReportFigure(drawn, "Test accuracy.", _accuracy_reading(models), alt)


def _accuracy_reading(models: Sequence[ModelSummary]) -> str:
    careful = "Overlapping intervals do not mean “equal”: the paired test compares image by image and sees more."
    if any(len(model.runs) > 1 for model in models):
        return f"Each small mark is one seed; the line is where the mean of very many trainings would lie. {careful}"
    return f"The line spans the true accuracies that fit so many right answers (Wilson). {careful}"


def _spoken_accuracy(model: ModelSummary, decimals: int) -> str:
    value, low, high = (percent(x, decimals) for x in (model.accuracy.value, model.accuracy.low, model.accuracy.high))
    return f"{model.name} {value} ({low} to {high})"


def _interval_row(axes: Axes, row: int, model: ModelSummary, style: ModelStyle) -> None:
    interval = model.accuracy
    axes.plot([interval.low, interval.high], [row, row], color=style.color, linewidth=2.5, solid_capstyle="round")
    if len(model.runs) > 1:
        seeds = model.over_seeds("accuracy")
        below = [row + 0.24] * len(seeds)
        axes.plot(seeds, below, style.marker, color=style.color, markersize=3.5, alpha=0.55, markeredgewidth=0)
    axes.plot([interval.value], [row], style.marker, color=style.color, markersize=9, markeredgecolor=light("paper"))
    if model.published:
        value = float(model.published["accuracy"])
        axes.plot([value], [row], style.marker, color="none", markeredgecolor=light("ink-soft"), markersize=7)


def _interval_labels(axes: Axes, row: int, model: ModelSummary, decimals: int) -> None:
    value = model.accuracy.value
    _label_inside(axes, f"{short_name(model.name, 24)}  {percent(value, decimals)}", value, row, 9, weight="bold")
    if model.published:
        published = float(model.published["accuracy"])
        _label_inside(axes, f"published {percent(published, 2)}", published, row, -15, color=light("ink-soft"))


def _label_inside(axes: Axes, text: str, x: float, row: int, offset: int, **look: Any) -> None:
    """Centred on its mark, or flush with it where it would leave the figure."""
    low, high = axes.get_xlim()
    place = (x - low) / (high - low)
    half = 0.5 * len(text) * 6.5 / WIDTH  # roughly: bold letters are 6.5 pixels wide
    side = "left" if place < half else "right" if place > 1 - half else "center"
    shift = {"left": -4, "right": 4, "center": 0}[side]
    axes.annotate(text, (x, row), (shift, offset), textcoords="offset points", ha=side, **look)


def _few_ticks() -> Any:
    from matplotlib.ticker import MaxNLocator

    return MaxNLocator(nbins=5, steps=[1, 2, 5, 10])


def _tick_percent(share: float) -> str:
    return f"{100 * share:.4g} %" if share <= 1 + 1e-9 else ""


# --- loss --------------------------------------------------------------------------------------------------


def draw_loss(models: Sequence[ModelSummary], styles: Styles, folder: Path) -> ReportFigure | None:
    """The post's figure: training and validation loss of all models on one plot. None without any history."""
    axis = _progress_axis([run for model in models for run in model.runs])
    curves = {
        (model.name, event): merged
        for model in models
        for event in ("train", "val")
        if (merged := _over_seeds([_curve(run, event, axis, "loss") for run in model.runs]))
    }
    if not curves:
        return None
    has_validation = any(event == "val" for _, event in curves)
    with figure_style("loss", WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for (name, event), merged in curves.items():
            _draw_curve(axes, merged, styles[name], faint=event == "train")
        losses = np.concatenate([merged.middle for merged in curves.values()])
        if losses.min() > 0 and losses.max() / losses.min() > _LOG_FROM_RATIO:
            _log_axis(axes)
        axes.set_xlabel(axis)
        axes.set_ylabel("loss", labelpad=6)
        axes.set_xlim(left=0)
        _legend(figure, models, styles, [("training", True), ("validation", False)] if has_validation else [])
        drawn = finish_figure(figure, "loss", folder)
    shows = "Loss while training" + (", and on the validation images." if has_validation else ".")
    return ReportFigure(drawn, shows, _loss_reading(has_validation), _loss_alt(curves, axis))


def _loss_reading(has_validation: bool) -> str:
    if not has_validation:
        return "Lower is better. These runs kept no validation images, so nothing here shows over-fitting."
    return (
        "Thin: training; bold with marks: validation; where bold rises while thin falls, the model learns by heart."
        " Training loss is taken with dropout, augmentation and label smoothing on, so it may lie above validation."
    )


def _loss_alt(curves: Mapping[tuple[str, str], _Merged], axis: str) -> str:
    words = {"train": "training", "val": "validation"}
    parts = [
        f"{name} {words[event]} from {merged.middle[0]:.3g} to {merged.middle[-1]:.3g}"
        for (name, event), merged in curves.items()
    ]
    return f"Line plot of loss against {axis}: {in_a_row(parts)}."


def _progress_axis(runs: Sequence[ModelResult]) -> str:
    """ "epoch" where every run's lines carry a fine-grained one, else "step"."""
    for run in runs:
        epochs: list[Any] = [line.get("epoch") for line in run.history if line.get("event") == "train"]
        known = [epoch for epoch in epochs if _is_number(epoch)]
        if len(known) < len(epochs) or any(later <= earlier for earlier, later in pairwise(known)):
            return "step"
    return "epoch"


def _curve(run: ModelResult, event: str, x: str, y: str) -> Curve | None:
    points = sorted(
        (float(line[x]), float(line[y]))
        for line in run.history
        if line.get("event") == event and _is_number(line.get(x)) and _is_number(line.get(y))
    )
    if not points:
        return None
    table = np.array(points)
    return table[:, 0], table[:, 1]


def short_name(name: str, most: int) -> str:
    """Cut in the middle: names often differ at their end."""
    tail = (most - 1) // 3
    return name if len(name) <= most else f"{name[: most - 1 - tail]}…{name[len(name) - tail :]}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)


# --- accuracy against seconds ------------------------------------------------------------------------------


def draw_accuracy_over_time(models: Sequence[ModelSummary], styles: Styles, folder: Path) -> ReportFigure:
    """Error on a log axis turned upside down, labelled as accuracy: 99.0 and 99.5 % lie as far apart as 98 and 99."""
    floor = 0.5 / len(models[0].labels)
    drawn_validation = False
    with figure_style("accuracy-over-time", WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for model in models:
            runs = [_curve(run, "val", "elapsed_seconds", "accuracy") for run in model.runs]
            if merged := _over_seeds(runs):
                drawn_validation = True
                _draw_curve(axes, merged.mapped(lambda share: np.maximum(1 - share, floor)), styles[model.name])
            _test_point(axes, model, styles[model.name], floor)
        _accuracy_axis(axes)
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("accuracy", labelpad=6)
        _legend(figure, models, styles, [])
        drawn = finish_figure(figure, "accuracy-over-time", folder)
    decimals = percent_decimals(len(models[0].labels))
    ends = [f"{m.name} {percent(m.accuracy.value, decimals)} after {m.train_seconds:.3g} s" for m in models]
    return ReportFigure(
        drawn,
        "Accuracy against seconds of training.",
        _time_reading(drawn_validation),
        f"Accuracy against training time; on the test images at the end: {in_a_row(ends)}.",
    )


def _time_reading(drawn_validation: bool) -> str:
    lines = "Lines: validation images; large" if drawn_validation else "Large"
    return (
        f"{lines} marks: test images at the end, with the 95 % interval."
        " The axis stretches towards 100 %: equal heights are equal factors in mistakes."
        " Seconds hold for this machine and what else it was doing."
    )


def _test_point(axes: Axes, model: ModelSummary, style: ModelStyle, floor: float) -> None:
    value, low, high = (max(1 - end, floor) for end in (model.accuracy.value, model.accuracy.low, model.accuracy.high))
    axes.plot([model.train_seconds] * 2, [low, high], color=style.color, linewidth=1.25)
    edge = light("paper")
    axes.plot([model.train_seconds], [value], style.marker, color=style.color, markersize=9, markeredgecolor=edge)


def _accuracy_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    ticks = [tick for tick in _ERROR_TICKS if low <= tick <= high]
    if len(ticks) < 2:  # all much alike: a plain axis tells more
        axes.set_yscale("linear")
        axes.yaxis.set_major_locator(_few_ticks())
    else:
        axes.set_yticks(ticks)
    axes.yaxis.set_major_formatter(lambda error, _: _tick_percent(1 - error))
    axes.invert_yaxis()


# --- shared ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Merged:
    """A curve over seeds: the mean, and the smallest and largest where there are several."""

    x: NDArray[np.float64]
    middle: NDArray[np.float64]
    low: NDArray[np.float64]
    high: NDArray[np.float64]
    several: bool

    def mapped(self, change: Any) -> _Merged:
        return _Merged(self.x, change(self.middle), change(self.low), change(self.high), self.several)


def _over_seeds(curves: Sequence[Curve | None]) -> _Merged | None:
    present = [_thinned(curve) for curve in curves if curve is not None]
    if not present:
        return None
    start, end = max(x[0] for x, _ in present), min(x[-1] for x, _ in present)
    grid = present[0][0]
    grid = grid[(grid >= start) & (grid <= end)]
    if len(grid) == 0:  # seeds that share no stretch (interrupted runs): the first one speaks
        present, grid = present[:1], present[0][0]
    values = np.stack([np.interp(grid, x, y) for x, y in present])
    return _Merged(grid, values.mean(axis=0), values.min(axis=0), values.max(axis=0), len(present) > 1)


def _thinned(curve: Curve) -> Curve:
    """At most so many points, each the mean of its neighbours: a line, not a fur."""
    x, y = curve
    if len(x) <= _MOST_POINTS:
        return x, y
    starts = np.linspace(0, len(x), _MOST_POINTS, endpoint=False).astype(int)
    sizes = np.diff(np.append(starts, len(x)))
    return np.add.reduceat(x, starts) / sizes, np.add.reduceat(y, starts) / sizes


def _draw_curve(axes: Axes, merged: _Merged, style: ModelStyle, faint: bool = False) -> None:
    if merged.several and not faint:
        axes.fill_between(merged.x, merged.low, merged.high, color=style.color, alpha=0.15, linewidth=0)
    if faint:
        axes.plot(merged.x, merged.middle, color=style.color, linewidth=0.9, alpha=0.6)
        return
    every = max(1, len(merged.x) // 12)
    line = axes.plot(
        merged.x, merged.middle, style.marker, color=style.color, linestyle="-", markevery=every,
        markersize=4.5, markeredgecolor=light("paper"), markeredgewidth=0.6,
    )  # fmt: skip
    if style.dash:
        line[0].set_dashes(style.dash)


def _log_axis(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


def _legend(figure: Figure, models: Sequence[ModelSummary], styles: Styles, strokes: list[tuple[str, bool]]) -> None:
    from matplotlib.lines import Line2D

    handles = []
    for model in models:
        look = styles[model.name]
        label = short_name(model.name, 18)
        handles.append(Line2D([], [], color=look.color, marker=look.marker, label=label, linewidth=0, markersize=6))
    soft = light("ink-soft")
    for label, faint in strokes:
        handles.append(Line2D([], [], color=soft, label=label, linewidth=0.9 if faint else 2.0))
    letters = sum(len(str(handle.get_label())) for handle in handles)
    figure.legend(
        handles=handles, loc="outside upper left", ncols=4 if letters <= 60 else 3, handletextpad=0.4, handlelength=1.5,
        columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
