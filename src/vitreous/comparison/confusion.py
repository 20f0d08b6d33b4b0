"""Confusion matrices that show the errors: the diagonal is set apart, the rest is coloured by how often it happens."""

from __future__ import annotations

from collections.abc import Sequence
from math import log
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison.curves import WIDTH, ReportFigure, short_name
from vitreous.comparison.results import ModelSummary
from vitreous.comparison.verdict import in_a_row
from vitreous.reports.colors import AMOUNT_STEPS, ModelStyle, amount_colors, light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Up to here every cell carries its number; up to the next, colour only; beyond, the commonest confusions as bars.
MOST_NUMBERED = 12
MOST_DRAWN = 30
_MOST_BARS = 15
LONGEST_NAME = 14
_NARROW_COLUMN_NAME = 2  # longer names stand upright under their column

Counts = NDArray[np.float64]
READING = {
    "matrix": (
        "Row: what the image is; column: what the model says; grey diagonal: percent of that class it gets right."
        " Colour counts mistakes only, on one scale for all models, by ratio: one mistake is seen beside fifty."
        " A few mistakes in one cell may be chance."
    ),
    "bars": (
        "Too many classes for a matrix: these are the confusions that happen most often, the true class first."
        " A class with more test images has more chances to be mistaken, and a few mistakes may be chance."
    ),
}


def reading(classes: int) -> str:
    return READING["matrix" if classes <= MOST_DRAWN else "bars"]


def number(value: float) -> str:
    """Counts are whole for one run, means for several."""
    return f"{value:,.0f}" if value >= 10 or value == round(value) else f"{value:.1f}"


def commonest_confusions(counts: Counts, class_names: Sequence[str], most: int) -> list[tuple[str, str, float]]:
    """(true class, answer, how often), the commonest first."""
    errors = counts.copy()
    np.fill_diagonal(errors, 0)
    order = np.argsort(-errors, axis=None, kind="stable")[:most]
    cells = [divmod(int(flat), len(errors)) for flat in order]
    found = [(class_names[row], class_names[column], float(errors[row, column])) for row, column in cells]
    return [confusion for confusion in found if confusion[2] > 0]


def draw_confusions(
    models: Sequence[ModelSummary],
    styles: dict[str, ModelStyle],
    class_names: Sequence[str],
    folder: Path,
    names: list[str],
) -> list[ReportFigure]:
    """One figure a model, all on one scale; `names` are the figures' file names."""
    matrices = [model.mean_confusion() for model in models]
    most = max(float((matrix - np.diag(np.diag(matrix))).max()) for matrix in matrices)
    figures = []
    for model, matrix, name in zip(models, matrices, names, strict=True):
        if len(class_names) <= MOST_DRAWN:
            drawn = _draw_matrix(matrix, class_names, max(most, 1.0), name, folder, model.name)
        else:
            drawn = _draw_bars(matrix, class_names, most, styles[model.name], name, folder, model.name)
        figures.append(ReportFigure(drawn, _shows(model, matrix, class_names), "", _alt(model, matrix, class_names)))
    return figures


def _shows(model: ModelSummary, matrix: Counts, class_names: Sequence[str]) -> str:
    mistakes = float(matrix.sum() - np.trace(matrix))
    if mistakes == 0:
        return "No mistakes."
    worst = [f"{true} taken for {answer} ({number(count)}×)" for true, answer, count in _top(matrix, class_names, 3)]
    per_run = "" if len(model.runs) == 1 else f" a run, mean over {len(model.runs)} seeds"
    noun = "mistake" if mistakes == 1 else "mistakes"
    return f"{number(mistakes)} {noun}{per_run}; most often {in_a_row(worst)}."


def _top(matrix: Counts, class_names: Sequence[str], most: int) -> list[tuple[str, str, float]]:
    return commonest_confusions(matrix, [short_name(name, 2 * LONGEST_NAME) for name in class_names], most)


def _alt(model: ModelSummary, matrix: Counts, class_names: Sequence[str]) -> str:
    kind = "Confusion matrix" if len(class_names) <= MOST_DRAWN else "Commonest confusions"
    return f"{kind} of {model.name}, {len(class_names)} classes. {_shows(model, matrix, class_names)}"


# --- the matrix --------------------------------------------------------------------------------------------


def _level(count: float, most: float) -> int:
    """Step 1 (a single mistake) … 8 (the most there are), by ratio."""
    if count <= 1 or most <= 1:
        return 1
    return 1 + round((AMOUNT_STEPS - 1) * log(count) / log(most))


def _draw_matrix(
    matrix: Counts, class_names: Sequence[str], most: float, name: str, folder: Path, title: str
) -> DrawnFigure:
    classes = len(class_names)
    with figure_style(name, WIDTH, WIDTH) as figure:
        axes = figure.add_subplot()
        axes.set_aspect("equal")
        _matrix_axes(axes, class_names)
        for row in range(classes):
            for column in range(classes):
                _draw_cell(axes, matrix, row, column, most)
        axes.set_title(short_name(title, 40), pad=10)
        if most > 1:
            _draw_scale(axes, classes, most)
        return finish_figure(figure, name, folder)


def _matrix_axes(axes: Axes, class_names: Sequence[str]) -> None:
    classes = len(class_names)
    labels = [short_name(name, LONGEST_NAME) for name in class_names]
    size = 9 if classes <= MOST_NUMBERED else 7 if classes <= 20 else 6
    upright = max(map(len, labels)) > (_NARROW_COLUMN_NAME if classes > 3 else 8)
    axes.set_xlim(0, classes)
    axes.set_ylim(classes, 0)
    axes.set_xticks(np.arange(classes) + 0.5, labels, rotation=90 if upright else 0, fontsize=size)
    axes.set_yticks(np.arange(classes) + 0.5, labels, fontsize=size)
    axes.tick_params(length=0, pad=3)
    axes.xaxis.tick_top()
    axes.xaxis.set_label_position("top")
    axes.grid(visible=False)
    for edge in range(classes + 1):  # faint: one can follow a row to its name
        axes.axhline(edge, color=light("line"), linewidth=0.5, zorder=0, clip_on=False)
        axes.axvline(edge, color=light("line"), linewidth=0.5, zorder=0, clip_on=False)
    for spine in axes.spines.values():
        spine.set_visible(False)
    axes.set_xlabel("the model says", labelpad=6)
    axes.set_ylabel("it is", labelpad=6)


def _draw_cell(axes: Axes, matrix: Counts, row: int, column: int, most: float) -> None:
    from matplotlib.patches import Rectangle

    classes = len(matrix)
    count = float(matrix[row, column])
    if row == column:
        fill, ink = light("surface"), light("ink-soft")
        share = count / max(float(matrix[row].sum()), 1e-12)
        text = "" if matrix[row].sum() == 0 else _class_percent(share)
    elif count == 0:
        return
    else:
        fill, ink = amount_colors(_level(count, most))
        text = number(count)
    gap = 0.02
    axes.add_patch(Rectangle((column + gap, row + gap), 1 - 2 * gap, 1 - 2 * gap, facecolor=fill, edgecolor="none"))
    if classes <= MOST_NUMBERED:
        size = 8.5 if len(text) <= 3 else 7.5
        axes.text(column + 0.5, row + 0.52, text, ha="center", va="center", color=ink, fontsize=size)


def _class_percent(share: float) -> str:
    return "100" if share == 1 else f"{min(100 * share, 99.9):.1f}" if share > 0.9 else f"{100 * share:.0f}"


def _draw_scale(axes: Axes, classes: int, most: float) -> None:
    """The eight steps with their ends labelled, below the matrix at its left."""
    from matplotlib.patches import Rectangle

    step, top, height = classes / 28, classes + 0.045 * classes, classes / 32
    for level in range(1, AMOUNT_STEPS + 1):
        corner = ((level - 1) * step + step, top)
        fill = amount_colors(level)[0]
        axes.add_patch(Rectangle(corner, step, height, facecolor=fill, edgecolor="none", clip_on=False))
    middle, soft = top + height / 2, light("ink-soft")
    axes.text(0.6 * step, middle, "1", ha="right", va="center", color=soft, fontsize=8, clip_on=False)
    end = (AMOUNT_STEPS + 1.4) * step
    axes.text(end, middle, f"{number(most)} mistakes", ha="left", va="center", color=soft, fontsize=8, clip_on=False)


# --- too many classes --------------------------------------------------------------------------------------


def _draw_bars(
    matrix: Counts,
    class_names: Sequence[str],
    most: float,
    style: ModelStyle,
    name: str,
    folder: Path,
    title: str,
) -> DrawnFigure:
    confusions = _top(matrix, class_names, _MOST_BARS)
    with figure_style(name, WIDTH, 48 + 36 * max(len(confusions), 2)) as figure:
        axes = figure.add_subplot()
        axes.barh(range(len(confusions)), [count for *_, count in confusions], color=style.color, height=0.3)
        for row, (true, answer, count) in enumerate(confusions):
            # above its bar, not left of it: there is room for long names
            axes.annotate(f"{true} → {answer}", (0, row), (0, 8), textcoords="offset points", va="bottom")
            axes.annotate(number(count), (count, row), (4, 0), textcoords="offset points", va="center")
        axes.set_yticks([])
        axes.set_ylim(max(len(confusions), 2) - 0.6, -0.9)
        axes.set_xlim(0, max(most, 1.0) * 1.1)
        axes.grid(visible=False)
        axes.xaxis.set_visible(False)
        axes.spines["bottom"].set_visible(False)
        axes.set_title(short_name(title, 40))
        return finish_figure(figure, name, folder)
