"""Confusion matrices that emphasise mistakes: a grey diagonal, every other cell coloured by its count."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from math import log
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitreous.reports.colors import AMOUNT_STEPS, amount_colors, light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.formats import join, mean_count, shorten
from vitreous.reports.text_width import shorten_to, text_width

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Counts = NDArray[np.float64]  # row: label; column: prediction; means over seeds are not whole

#: Up to here every cell carries its number; up to the next, colour only; beyond, the commonest confusions as bars.
_MOST_NUMBERED, MOST_DRAWN, _MOST_BARS = 12, 30, 15
_WIDTH = 496  # CSS pixels
_LONGEST_NAME, _LONGEST_BAR_NAME = 112, 216  # CSS pixels
_LONGEST_IN_TEXT = 28  # letters


def commonest_confusions(counts: Counts, class_names: Sequence[str], most: int) -> list[tuple[str, str, float]]:
    """Return (label, prediction, count), the commonest first."""
    errors = mistakes_only(counts)
    cells = [divmod(int(flat), len(errors)) for flat in np.argsort(-errors, axis=None, kind="stable")[:most]]
    return [(class_names[i], class_names[j], float(errors[i, j])) for i, j in cells if errors[i, j] > 0]


def mistakes_only(counts: Counts) -> Counts:
    """Return the counts with a diagonal of zeros."""
    return counts - np.diag(np.diag(counts))


def draw_confusion(
    counts: Counts,
    class_names: Sequence[str],
    *,
    name: str,
    title: str,
    color: str,
    scale_end: float | None = None,
    seeds: int = 1,
) -> DrawnFigure:
    """Draw one model's confusions; figures with the same `scale_end` (a count) can be compared by colour."""
    names = [shorten(class_name, _LONGEST_IN_TEXT) for class_name in class_names]
    scale_end = max(1.0, float(mistakes_only(counts).max()) if scale_end is None else scale_end)
    if len(names) <= MOST_DRAWN:
        kind, drawn = "Confusion matrix", _draw_matrix(counts, class_names, scale_end, name, title)
    else:
        confusions = commonest_confusions(counts, class_names, _MOST_BARS)
        kind, drawn = "Commonest confusions", _draw_bars(confusions, scale_end, color, name, title)
    caption = _summary(counts, names, seeds)
    return replace(drawn, caption=caption, alt=f"{kind} of {title}, {len(names)} classes. {caption}")


def _summary(counts: Counts, class_names: Sequence[str], seeds: int) -> str:
    total = float(mistakes_only(counts).sum())
    if total == 0:
        return "No mistakes."
    worst = [f"{a} taken for {b} ({mean_count(n)}×)" for a, b, n in commonest_confusions(counts, class_names, 3)]
    per_run = "" if seeds == 1 else f" per run, mean over {seeds} seeds"
    return f"{mean_count(total)} mistake{'s' * (total != 1)}{per_run}; most often {join(worst)}."


# --- the matrix --------------------------------------------------------------------------------------------


def _draw_matrix(counts: Counts, class_names: Sequence[str], scale_end: float, name: str, title: str) -> DrawnFigure:
    with figure_style(name, _WIDTH, _WIDTH) as figure:
        axes = figure.add_subplot()
        axes.set_aspect("equal")
        _matrix_axes(axes, class_names)
        for row, column in np.ndindex(counts.shape):
            _draw_cell(axes, counts, row, column, scale_end)
        axes.set_title(_fitting_title(title), pad=10)
        if scale_end > 1:
            _draw_scale(axes, len(counts), scale_end)
        return finish_figure(figure, name)


def _fitting_title(title: str) -> str:
    return shorten_to(title, 0.6 * _WIDTH, points=10, bold=True)


def _matrix_axes(axes: Axes, class_names: Sequence[str]) -> None:
    classes = len(class_names)
    size = 9 if classes <= _MOST_NUMBERED else 7 if classes <= 20 else 6
    labels = [shorten_to(name, _LONGEST_NAME, size) for name in class_names]
    widest = max(text_width(label, size) for label in labels)
    vertical = widest > 0.6 * (_WIDTH - widest) / classes  # does not fit above its column
    axes.set_xlim(0, classes)
    axes.set_ylim(classes, 0)
    axes.set_xticks(np.arange(classes) + 0.5, labels, rotation=90 if vertical else 0, fontsize=size)
    axes.set_yticks(np.arange(classes) + 0.5, labels, fontsize=size)
    axes.tick_params(length=0, pad=3)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.grid(visible=False)
    for edge in range(classes + 1):  # faint lines lead from a cell to its names
        axes.axhline(edge, color=light("line"), linewidth=0.5, zorder=0, clip_on=False)
        axes.axvline(edge, color=light("line"), linewidth=0.5, zorder=0, clip_on=False)
    axes.spines[:].set_visible(False)
    axes.set_xlabel("prediction", labelpad=6)
    axes.set_ylabel("label", labelpad=6)


def _draw_cell(axes: Axes, counts: Counts, row: int, column: int, scale_end: float) -> None:
    from matplotlib.patches import Rectangle

    count, of_class = float(counts[row, column]), float(counts[row].sum())
    if row == column:
        fill, ink = light("surface"), light("ink-soft")
        share = count / of_class if of_class else 0.0  # never a rounded-up 100
        text = "" if not of_class else "100" if share == 1 else f"{min(100 * share, 99.9):.{1 if share > 0.9 else 0}f}"
    elif count:
        step = (AMOUNT_STEPS - 1) * log(count) / log(scale_end) if count > 1 else 0  # one mistake has the first step
        fill, ink = amount_colors(1 + round(step))
        text = mean_count(count)
    else:
        return
    gap = 0.02
    axes.add_patch(Rectangle((column + gap, row + gap), 1 - 2 * gap, 1 - 2 * gap, facecolor=fill, edgecolor="none"))
    if len(counts) <= _MOST_NUMBERED:
        size = 8.5 if len(text) <= 3 else 7.5
        axes.text(column + 0.5, row + 0.52, text, ha="center", va="center", color=ink, fontsize=size)


def _draw_scale(axes: Axes, classes: int, scale_end: float) -> None:
    """Draw the eight steps with their ends labelled, below the matrix at its left."""
    from matplotlib.patches import Rectangle

    step, top, height = classes / 28, classes + 0.045 * classes, classes / 32
    for level in range(1, AMOUNT_STEPS + 1):
        fill = amount_colors(level)[0]
        axes.add_patch(Rectangle((level * step, top), step, height, facecolor=fill, edgecolor="none", clip_on=False))
    ends = [(0.6 * step, "1", "right"), ((AMOUNT_STEPS + 1.4) * step, f"{mean_count(scale_end)} mistakes", "left")]
    for x, text, side in ends:
        axes.text(x, top + height / 2, text, ha=side, va="center", color=light("ink-soft"), fontsize=8, clip_on=False)


# --- too many classes for a matrix -------------------------------------------------------------------------


def _draw_bars(
    confusions: Sequence[tuple[str, str, float]], scale_end: float, color: str, name: str, title: str
) -> DrawnFigure:
    rows = max(len(confusions), 2)
    with figure_style(name, _WIDTH, 48 + 36 * rows) as figure:
        axes = figure.add_subplot()
        axes.barh(range(len(confusions)), [count for *_, count in confusions], color=color, height=0.3)
        for row, (label, prediction, count) in enumerate(confusions):
            # above its bar, not left of it: there is room for long names
            names = " → ".join(shorten_to(name, _LONGEST_BAR_NAME, 9) for name in (label, prediction))
            axes.annotate(names, (0, row), (0, 8), textcoords="offset points", va="bottom")
            axes.annotate(mean_count(count), (count, row), (4, 0), textcoords="offset points", va="center")
        axes.set_yticks([])
        axes.set_ylim(rows - 0.6, -0.9)
        axes.set_xlim(0, scale_end * 1.1)
        axes.grid(visible=False)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.set_title(_fitting_title(title))
        return finish_figure(figure, name)
