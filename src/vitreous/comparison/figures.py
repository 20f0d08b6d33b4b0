"""Figures of the whole comparison: accuracy with its interval, loss while training, accuracy against seconds."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from math import isfinite
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison.results import ModelResult, ModelSummary
from vitreous.reports.colors import ModelStyle, light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.formats import join, percent, percent_decimals
from vitreous.reports.text_width import shorten_to, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

#: CSS pixels: two fit side by side on a desktop screen, and one stays readable on a phone.
WIDTH, HEIGHT = 496, 352
_FONT_SIZE = 9  # points, as in the style
_LONGEST_LABEL, _LONGEST_IN_LEGEND = 224, 136  # CSS pixels of a model's name
_MOST_POINTS = 160
_LOG_FROM_RATIO = 8.0
_ERROR_TICKS = [0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001, 0.0005, 0.0002, 0.0001]

Floats = NDArray[np.float64]
Styles = Mapping[str, ModelStyle]


def tick_percent(share: float) -> str:
    """Return a tick label of an accuracy axis; the margin above 100 % has none."""
    return f"{round(100 * share, 9):.4g} %" if share <= 1 + 1e-9 else ""


# --- accuracy with its interval ----------------------------------------------------------------------------


def draw_accuracy(models: Sequence[ModelSummary], styles: Styles) -> DrawnFigure:
    decimals = percent_decimals(len(models[0].labels))
    with figure_style("accuracy", WIDTH, 72 + 48 * len(models)) as figure:
        axes = figure.add_subplot()
        for row, model in enumerate(models):
            _draw_interval(axes, row, model, styles[model.name])
        axes.set_ylim(len(models) - 0.35, -0.75)
        axes.set_yticks([])
        axes.spines["left"].set_visible(False)
        axes.grid(axis="y", visible=False)
        axes.margins(x=0.06)
        low, high = axes.get_xlim()
        axes.set_xlim(low, min(high, 1.0 + 0.02 * (1.0 - low)))
        for row, model in enumerate(models):
            value, name = model.accuracy.value, shorten_to(model.name, _LONGEST_LABEL, _FONT_SIZE, bold=True)
            _label(axes, f"{name}  {percent(value, decimals)}", value, row, 9, bold=True)
            if model.published:
                value = float(model.published["accuracy"])
                _label(axes, f"published {percent(value, 2)}", value, row, -15, color="ink-soft")
        axes.locator_params(axis="x", nbins=5, steps=[1, 2, 5, 10])
        axes.xaxis.set_major_formatter(lambda value, _: tick_percent(value))
        axes.set_xlabel("test accuracy, with its 95 % interval")
        alt = join(
            f"{m.name} {percent(m.accuracy.value, decimals)} ({percent(m.accuracy.low, decimals)} to"
            f" {percent(m.accuracy.high, decimals)})"
            for m in models
        )
        return finish_figure(figure, "accuracy", alt=f"Test accuracy with 95 % intervals: {alt}.")


def _draw_interval(axes: Axes, row: int, model: ModelSummary, style: ModelStyle) -> None:
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


def _label(axes: Axes, text: str, x: float, row: int, offset: int, bold: bool = False, color: str = "ink") -> None:
    """Centre a label on its mark, or align it with the mark where it would leave the figure."""
    low, high = axes.get_xlim()
    place = (x - low) / (high - low)
    half = 0.5 * text_width(text, _FONT_SIZE, bold) / WIDTH
    side = "left" if place < half else "right" if place > 1 - half else "center"
    shift = {"left": -4, "right": 4, "center": 0}[side]
    axes.annotate(
        text, (x, row), (shift, offset), textcoords="offset points", ha=side, color=light(color),
        weight="bold" if bold else "normal",
    )  # fmt: skip


# --- loss --------------------------------------------------------------------------------------------------


def draw_loss(models: Sequence[ModelSummary], styles: Styles) -> DrawnFigure | None:
    """Draw training and validation loss of all models on one plot; None without any history."""
    lines = [line for model in models for run in model.runs for line in run.history if line.get("event") == "train"]
    x_axis = "epoch" if all(_is_number(line.get("epoch")) for line in lines) else "step"
    curves = {
        (model.name, event): curve
        for model in models
        for event in ("train", "val")
        if (curve := _curve(model, event, x_axis, "loss"))
    }
    if not curves:
        return None
    with figure_style("loss", WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for (name, event), curve in curves.items():
            _draw_curve(axes, curve, styles[name], faint=event == "train")
        losses = np.concatenate([curve.mean for curve in curves.values()])
        if losses.min() > 0 and losses.max() / losses.min() > _LOG_FROM_RATIO:
            _log_axis(axes)
        axes.set_xlabel(x_axis)
        axes.set_ylabel("loss", labelpad=6)
        axes.set_xlim(left=0)
        has_validation = any(event == "val" for _, event in curves)
        _legend(figure, models, styles, {"training": 0.9, "validation": 2.0} if has_validation else {})
        words = {"train": "training", "val": "validation"}
        spoken = join(
            f"{name} {words[event]} from {curve.mean[0]:.3g} to {curve.mean[-1]:.3g}"
            for (name, event), curve in curves.items()
        )
        return finish_figure(figure, "loss", alt=f"Line plot of loss against {x_axis}: {spoken}.")


def _log_axis(axes: Axes) -> None:
    from matplotlib.ticker import LogLocator, NullFormatter

    axes.set_yscale("log")
    axes.yaxis.set_major_locator(LogLocator(base=10, subs=(1.0, 2.0, 5.0), numticks=12))
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:.3g}")
    axes.yaxis.set_minor_formatter(NullFormatter())


# --- accuracy against seconds ------------------------------------------------------------------------------


def draw_accuracy_over_time(models: Sequence[ModelSummary], styles: Styles) -> DrawnFigure:
    """Draw the error on an inverted log axis, labelled as accuracy: 99.0 to 99.5 % is as far as 98 to 99 %."""
    floor = 0.5 / len(models[0].labels)
    decimals = percent_decimals(len(models[0].labels))
    with figure_style("accuracy-over-time", WIDTH, HEIGHT) as figure:
        axes = figure.add_subplot()
        for model in models:
            if curve := _curve(model, "val", "elapsed_seconds", "accuracy"):
                errors = _Curve(curve.x, np.maximum(1 - curve.seeds, floor))
                _draw_curve(axes, errors, styles[model.name])
            _draw_test_point(axes, model, styles[model.name], floor)
        accuracy_axis(axes)
        axes.set_xlim(left=0)
        axes.set_xlabel("seconds of training")
        axes.set_ylabel("accuracy", labelpad=6)
        _legend(figure, models, styles, {})
        spoken = join(f"{m.name} {percent(m.accuracy.value, decimals)} after {m.train_seconds:.3g} s" for m in models)
        alt = f"Accuracy against training time; on the test images at the end: {spoken}."
        return finish_figure(figure, "accuracy-over-time", alt=alt)


def _draw_test_point(axes: Axes, model: ModelSummary, style: ModelStyle, floor: float) -> None:
    value, low, high = (max(1 - end, floor) for end in (model.accuracy.value, model.accuracy.low, model.accuracy.high))
    axes.plot([model.train_seconds] * 2, [low, high], color=style.color, linewidth=1.25)
    edge = light("paper")
    axes.plot([model.train_seconds], [value], style.marker, color=style.color, markersize=9, markeredgecolor=edge)


def accuracy_axis(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.minorticks_off()
    low, high = axes.get_ylim()
    ticks = [tick for tick in _ERROR_TICKS if low <= tick <= high]
    if len(ticks) < 2:  # too small a range for the ticks of a log axis
        axes.set_yscale("linear")
        axes.locator_params(axis="y", nbins=5, steps=[1, 2, 5, 10])
    else:
        axes.set_yticks(ticks)
    axes.yaxis.set_major_formatter(lambda error, _: tick_percent(1 - error))
    axes.invert_yaxis()


# --- curves ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class _Curve:
    x: Floats  # (points,)
    seeds: Floats  # (seeds, points)

    @property
    def mean(self) -> Floats:
        return self.seeds.mean(axis=0)


def _curve(model: ModelSummary, event: str, x: str, y: str) -> _Curve | None:
    """Return a measure over a model's training, on the stretch that all its seeds share; None if it has no history."""
    points = [_points(run, event, x, y) for run in model.runs]
    curves = [(_thinned(xs), _thinned(ys)) for xs, ys in points if len(xs)]
    if not curves:
        return None
    grid = curves[0][0]
    start, end = max(xs[0] for xs, _ in curves), min(xs[-1] for xs, _ in curves)
    shared = grid[(grid >= start) & (grid <= end)]
    if len(shared) == 0:  # interrupted runs: show the first one alone
        curves, shared = curves[:1], grid
    return _Curve(shared, np.stack([np.interp(shared, xs, ys) for xs, ys in curves]))


def _points(run: ModelResult, event: str, x: str, y: str) -> tuple[Floats, Floats]:
    lines = [line for line in run.history if line.get("event") == event]
    points = sorted((line[x], line[y]) for line in lines if _is_number(line.get(x)) and _is_number(line.get(y)))
    table = np.array(points, dtype=np.float64).reshape(-1, 2)
    return table[:, 0], table[:, 1]


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and isfinite(value)


def _thinned(values: Floats) -> Floats:
    """Average neighbours until at most `_MOST_POINTS` are left."""
    return np.array([part.mean() for part in np.array_split(values, min(len(values), _MOST_POINTS))])


def _draw_curve(axes: Axes, curve: _Curve, style: ModelStyle, faint: bool = False) -> None:
    if faint:
        axes.plot(curve.x, curve.mean, color=style.color, linewidth=0.9, alpha=0.6)
        return
    if len(curve.seeds) > 1:
        low, high = curve.seeds.min(axis=0), curve.seeds.max(axis=0)
        axes.fill_between(curve.x, low, high, color=style.color, alpha=0.15, linewidth=0)
    line = axes.plot(
        curve.x, curve.mean, style.marker, color=style.color, linestyle="-", markevery=max(1, len(curve.x) // 12),
        markersize=4.5, markeredgecolor=light("paper"), markeredgewidth=0.6,
    )  # fmt: skip
    if style.dash:
        line[0].set_dashes(style.dash)


def _legend(figure: Figure, models: Sequence[ModelSummary], styles: Styles, strokes: Mapping[str, float]) -> None:
    """Draw the models' markers, and strokes: label → line width."""
    from matplotlib.lines import Line2D

    handles = []
    for model in models:
        style, label = styles[model.name], shorten_to(model.name, _LONGEST_IN_LEGEND, _FONT_SIZE)
        handles.append(Line2D([], [], color=style.color, marker=style.marker, label=label, linewidth=0, markersize=6))
    for label, width in strokes.items():
        handles.append(Line2D([], [], color=light("ink-soft"), label=label, linewidth=width))
    widest = max(text_width(str(handle.get_label()), _FONT_SIZE) for handle in handles)
    figure.legend(
        handles=handles, loc="outside upper left", ncols=min(4, int(WIDTH // (45 + widest))), handletextpad=0.4,
        handlelength=1.5, columnspacing=1.4, borderaxespad=0.2,
    )  # fmt: skip
