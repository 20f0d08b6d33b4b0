"""The figures of a study: accuracy along what varies, or a ladder of models; and the similarity of positions."""

from __future__ import annotations

import itertools
from collections.abc import Mapping
from dataclasses import replace
from typing import TYPE_CHECKING

from vitreous.comparison.figures import accuracy_axis, tick_percent
from vitreous.inspection.model_survey import position_similarity
from vitreous.inspection.pictures import positions_picture
from vitreous.inspection.sheets import Tile, draw_sheet
from vitreous.models import ViT
from vitreous.reports.colors import ModelStyle, light, model_styles
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.formats import join, percent, percent_decimals
from vitreous.reports.text_width import shorten_to, text_width
from vitreous.runs import Run
from vitreous.studies.cells import Cell, Cells
from vitreous.studies.definition import GridStudy, Points

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

_WIDTH = 720  # CSS pixels
_FONT_SIZE = 9
_LOG_FROM_RATIO = 8.0  # of the largest error to the smallest: from here on the axis is that of the error's logarithm
_LONGEST_NAME = 240
_APART = 0.09  # between the arms of one point, as a share of the distance of two points


def arm_styles(cells: Cells) -> dict[str, ModelStyle]:
    """Return a style per arm: the first ViT is teal, the first CNN ochre; in a ladder, arms of a kind share a style."""
    kinds = {cell.arm: cell.kind for cell in cells.all}
    families = {
        arm: "cnn" if kind.endswith("cnn") else "mixer" if kind == "mixer" else "vit" for arm, kind in kinds.items()
    }
    if any(cell.point is not None for cell in cells.all) and len(kinds) <= 6:
        return model_styles(kinds)
    of_family = model_styles({family: family for family in dict.fromkeys(families.values())})
    return {arm: of_family[family] for arm, family in families.items()}


def draw_study(study: GridStudy, cells: Cells, styles: Mapping[str, ModelStyle]) -> DrawnFigure:
    """Draw accuracy against the points, or, without points, one row per arm."""
    return (
        _draw_ladder(study, cells, styles) if study.points is None else _draw_lines(study, study.points, cells, styles)
    )


def _errors(cell: Cell, floor: float) -> tuple[float, float, float]:
    """Return the error, and its interval from low to high; 0 has no logarithm, so half an image is the least."""
    accuracy = cell.accuracy
    return max(1 - accuracy.value, floor), max(1 - accuracy.high, floor), max(1 - accuracy.low, floor)


def _is_log(cells: Cells, floor: float) -> bool:
    errors = [_errors(cell, floor)[0] for cell in cells.all]
    return max(errors) / min(errors) > _LOG_FROM_RATIO


# --- lines -------------------------------------------------------------------------------------------------------


def _draw_lines(study: GridStudy, points: Points, cells: Cells, styles: Mapping[str, ModelStyle]) -> DrawnFigure:
    floor = 0.5 / cells.test_images
    with figure_style(study.name, _WIDTH, 420) as figure:
        axes = figure.add_subplot()
        for place, arm in enumerate(study.arms):
            shift = (place - (len(study.arms) - 1) / 2) * _APART * (0.35 if points.scale == "log" else 1.0)
            _draw_arm(axes, points, [cells[arm.name, value] for value in points.values], styles[arm.name], shift, floor)
        _x_axis(axes, points)
        if _is_log(cells, floor):
            accuracy_axis(axes)
        else:
            axes.yaxis.set_major_formatter(lambda error, _: tick_percent(1 - error))
            axes.invert_yaxis()
        axes.set_ylabel("test accuracy", labelpad=6)
        _legend(figure, study, styles)
        return finish_figure(figure, "figure", alt=_alternative(study, cells))


def _draw_arm(axes: Axes, points: Points, cells: list[Cell], style: ModelStyle, shift: float, floor: float) -> None:
    x = [_shifted(points, points.position_of(value), shift) for value in points.values]
    errors = [_errors(cell, floor) for cell in cells]
    for position, cell, (_, low, high) in zip(x, cells, errors, strict=True):
        axes.plot([position] * 2, [low, high], color=style.color, linewidth=2, alpha=0.5)
        seeds = [max(1 - accuracy, floor) for accuracy in cell.accuracies]
        axes.plot(
            [position] * len(seeds), seeds, style.marker, color=style.color, markersize=3, alpha=0.55, markeredgewidth=0
        )
    axes.plot(
        x, [error for error, _, _ in errors], color=style.color, marker=style.marker, markersize=7,
        linestyle=(0, style.dash) if style.dash else "solid", markeredgecolor=light("paper"), linewidth=1.5,
    )  # fmt: skip


def _shifted(points: Points, position: float, shift: float) -> float:
    """Move a mark a little, so that no arm hides another."""
    if points.scale == "log":
        return float(position * 10**shift)
    positions = sorted(points.position_of(value) for value in points.values)
    return position + shift * min(b - a for a, b in itertools.pairwise(positions))


def _x_axis(axes: Axes, points: Points) -> None:
    positions = [points.position_of(value) for value in points.values]
    if points.scale == "log":
        axes.set_xscale("log")
        axes.minorticks_off()
    room = 0.8 * _WIDTH / len(positions)
    names = [shorten_to(points.name_of(value), room, _FONT_SIZE) for value in points.values]
    axes.set_xticks(positions, names)
    axes.set_xlabel(shorten_to(points.label, 0.8 * _WIDTH, _FONT_SIZE))


def _legend(figure: Figure, study: GridStudy, styles: Mapping[str, ModelStyle]) -> None:
    from matplotlib.lines import Line2D

    handles, widest = [], 0.0
    for arm in study.arms:
        style, label = styles[arm.name], shorten_to(arm.name, _LONGEST_NAME, _FONT_SIZE)
        widest = max(widest, text_width(label, _FONT_SIZE))
        handle = Line2D([], [], color=style.color, marker=style.marker, label=label, markersize=6)
        handle.set_dashes(style.dash) if style.dash else handle.set_linestyle("solid")
        handles.append(handle)
    columns = max(1, min(len(handles), int(_WIDTH // (64 + widest))))
    figure.legend(handles=handles, loc="outside upper left", ncols=columns, labelcolor=light("ink"), handlelength=3)


# --- a ladder ----------------------------------------------------------------------------------------------------


def _draw_ladder(study: GridStudy, cells: Cells, styles: Mapping[str, ModelStyle]) -> DrawnFigure:
    floor, decimals = 0.5 / cells.test_images, percent_decimals(cells.test_images)
    with figure_style(study.name, _WIDTH, 76 + 34 * len(study.arms)) as figure:
        axes = figure.add_subplot()
        for row, arm in enumerate(study.arms):
            cell, style = cells[arm.name, None], styles[arm.name]
            error, low, high = _errors(cell, floor)
            axes.plot([low, high], [row, row], color=style.color, linewidth=2.5, solid_capstyle="round")
            seeds = [max(1 - accuracy, floor) for accuracy in cell.accuracies]
            if len(seeds) > 1:
                below = [row + 0.26] * len(seeds)
                axes.plot(seeds, below, style.marker, color=style.color, markersize=3, alpha=0.55, markeredgewidth=0)
            axes.plot([error], [row], style.marker, color=style.color, markersize=8, markeredgecolor=light("paper"))
            axes.annotate(
                percent(cell.accuracy.value, decimals), (min(low, error), row), (10, 0), textcoords="offset points",
                va="center", color=light("ink"), weight="bold",
            )  # fmt: skip
        _ladder_axis(axes, is_log=_is_log(cells, floor))
        axes.set_ylim(len(study.arms) - 0.4, -0.6)
        names = [shorten_to(arm.name, _LONGEST_NAME, _FONT_SIZE) for arm in study.arms]
        axes.set_yticks(range(len(study.arms)), names)
        axes.tick_params(axis="y", length=0)
        axes.grid(axis="y", visible=False)
        axes.set_xlabel("test accuracy, with its 95 % interval")
        return finish_figure(figure, "figure", alt=_alternative(study, cells))


def _ladder_axis(axes: Axes, is_log: bool) -> None:
    if is_log:
        axes.set_xscale("log")
        axes.minorticks_off()
    low, high = axes.get_xlim()
    if is_log:
        ticks = [0.9, 0.5, 0.2, 0.1, 0.05, 0.02, 0.01, 0.005, 0.002, 0.001]
        axes.set_xticks([tick for tick in ticks if low <= tick <= high])
        axes.set_xlim(high, low / (high / low) ** 0.12)  # room for the labels beside the marks
    else:
        axes.set_xlim(high, low - 0.14 * (high - low))
        axes.locator_params(axis="x", nbins=6, steps=[1, 2, 5, 10])
    axes.xaxis.set_major_formatter(lambda error, _: tick_percent(1 - error) if error >= 0 else "")


def _alternative(study: GridStudy, cells: Cells) -> str:
    """Return the figure in words."""
    if study.points is None:
        spoken = join(f"{arm.name} {cells[arm.name, None].text}" for arm in study.arms)
        return f"Test accuracy with 95 % intervals: {spoken}."
    points, lines = study.points, []
    for arm in study.arms:
        values = join(f"{cells[arm.name, value].text} at {points.name_of(value)}" for value in points.values)
        lines.append(f"{arm.name} {values}")
    return f"Line plot of test accuracy against {points.label}: {'; '.join(lines)}."


# --- positions ---------------------------------------------------------------------------------------------------


def draw_positions(study: GridStudy, cells: Cells) -> DrawnFigure | None:
    """Draw, for each arm, how similar the position of every patch is to all others (figure 7 of the paper)."""
    tiles = []
    for arm in study.arms:
        for value in study.points.values if study.points else (None,):
            model = Run.open(cells[arm.name, value].runs[0].run).load_model()
            similarity = position_similarity(model) if isinstance(model, ViT) else None
            if similarity is not None:
                lines = (arm.name, *([] if value is None else [str(value)]))
                tiles.append(Tile(positions_picture(similarity.cpu().numpy()), lines))
    if not tiles:
        return None
    title = "Similarity of positions, −1 (blue) to 1 (orange), first seed"
    sheet = draw_sheet("positions", title, tiles, columns=3, width=208)
    named = join(tile.lines[0] for tile in tiles)
    return replace(sheet, alt=f"For {named}, how similar the position of every patch is to that of all others.")
