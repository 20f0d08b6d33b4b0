"""The charts of the report, by matplotlib in the shared style: curves of the judgement, and what changes with depth.

Shapes: L layers, H heads, K classes, S + 1 points on a curve, M random orders.
"""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitreous.inspection.cells import Array
from vitreous.inspection.examination import Examination
from vitreous.inspection.model_survey import Survey
from vitreous.inspection.words import TITLES
from vitreous.reports.colors import light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure

if TYPE_CHECKING:
    from matplotlib.axes import Axes

#: Lines are told apart by dash and mark as well as by colour.
_LINES = (("vit", "-", "o"), ("cnn", "--", "s"), ("model-3", "-.", "^"), ("model-5", ":", "D"))


def draw_judgement(found: Examination, name: str, folder: Path) -> DrawnFigure:
    """Deletion and insertion: the best map, occlusion, the ink control and the worst, over the random orders."""
    judged = found.faithfulness
    ranked = [score.name for score in judged.scores if score.name not in ("ink", "occlusion")]
    chosen = list(dict.fromkeys([ranked[0], "occlusion", "ink", ranked[-1]]))
    with figure_style(name, 800, 264) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        panels = (
            (axes[0], "Deletion: painted over", judged.deletion_curves, judged.random_deletion),
            (axes[1], "Insertion: put back", judged.insertion_curves, judged.random_insertion),
        )
        for axis, title, curves, random in panels:
            low, high = np.quantile(random, [0.1, 0.9], axis=0)
            x = 100 * judged.shares
            axis.fill_between(
                x, 100 * low, 100 * high, color=light("line"), linewidth=0, label="random orders, 8 in 10"
            )
            for map_name, (color, dash, marker) in zip(chosen, _LINES, strict=False):
                axis.plot(
                    x, 100 * curves[map_name], color=light(color), linestyle=dash, marker=marker, markersize=3.5,
                    markevery=max(1, len(x) // 8), label=TITLES[map_name],
                )  # fmt: skip
            axis.set(title=title, xlim=(0, 100), ylim=(-2, 102), xlabel="% of the cells")
        axes[0].set_ylabel("probability of the class, %")
        handles, labels = axes[0].get_legend_handles_labels()
        # the browser's font may be wider than the one matplotlib measures: leave room
        figure.legend(handles, labels, loc="outside right center", borderpad=2)
        return finish_figure(figure, name, folder)


def draw_depth(surveyed: Survey, name: str, folder: Path) -> DrawnFigure:
    """Mean attention distance, entropy, token lengths and patch similarity, layer by layer."""
    with figure_style(name, 1024, 232) as figure:
        distance, entropy, norms, similarity = figure.subplots(1, 4)
        _dots(distance, surveyed.attention_distance_pixels)
        uniform = surveyed.uniform_distance_pixels
        distance.axhline(uniform, color=light("ink-soft"), linewidth=1, linestyle=(0, (3, 2)))
        distance.annotate(
            "all patches alike", (1, uniform), (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
            ha="right", color=light("ink-soft"),
        )  # fmt: skip
        top = max(uniform, float(surveyed.attention_distance_pixels.max()))
        distance.set(title="Attention distance, pixels", ylim=(0, 1.2 * top or 1))
        _dots(entropy, surveyed.attention_entropy)
        entropy.set(title="Attention entropy", ylim=(0, 1.02))
        layers = np.arange(len(surveyed.patch_norms))
        norms.plot(layers, surveyed.patch_norms, color=light("vit"), marker="o", label="patches")
        if surveyed.class_norms is not None:
            norms.plot(
                layers, surveyed.class_norms, color=light("cnn"), marker="s", linestyle="--", label="class token"
            )
            norms.legend(loc="upper left")
        highest = max(surveyed.patch_norms.max(), 0 if surveyed.class_norms is None else surveyed.class_norms.max())
        norms.set(title="Length of the tokens", ylim=(0, 1.3 * float(highest) or 1))
        similarity.plot(layers, surveyed.patch_similarity, color=light("vit"), marker="o")
        similarity.set(title="Likeness of patches", ylim=(min(0, float(surveyed.patch_similarity.min())), 1.02))
        for axis, first in ((distance, 1), (entropy, 1), (norms, 0), (similarity, 0)):
            _layer_axis(axis, first, len(surveyed.attention_entropy))
        return finish_figure(figure, name, folder)


def _dots(axis: Axes, values: Array) -> None:
    """(L, H): a dot a head, side by side where heads are few enough to tell apart."""
    layers, heads = values.shape
    shift = np.linspace(-0.18, 0.18, heads) if heads > 1 else np.zeros(1)
    x = np.arange(layers)[:, None] + 1 + shift
    axis.scatter(x.ravel(), values.ravel(), s=26, color=light("vit"), alpha=0.85, linewidth=0)


def _layer_axis(axis: Axes, first: int, last: int) -> None:
    every = max(1, (last - first + 1) // 6)
    ticks = list(range(first, last + 1, every))
    axis.set_xticks(ticks, ["in" if tick == 0 else str(tick) for tick in ticks])
    axis.set(xlabel="layer", xlim=(first - 0.5, last + 0.5))
