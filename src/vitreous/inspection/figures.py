"""The figures of the report: charts by matplotlib in the shared style, and sheets of maps.

Shapes: L layers, H heads, cells in `rows` × `columns`, S + 1 points on a curve, M random orders.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from vitreous.inspection import pictures, wording
from vitreous.inspection.cells import Array
from vitreous.inspection.examination import CONTROL, MAPS, Examination
from vitreous.inspection.faithfulness import REFERENCE, Faithfulness
from vitreous.inspection.model_survey import Survey, first_filters
from vitreous.inspection.sheets import Tile, draw_sheet, draw_table
from vitreous.inspection.subject import Subject
from vitreous.reports.colors import light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.formats import number, percent
from vitreous.reports.text_width import shorten_to
from vitreous.reports.tiles import displayable

#: Lines differ in dash and marker as well as in colour.
_LINES = (("vit", "-", "o"), ("cnn", "--", "s"), ("model-3", "-.", "^"), ("model-5", ":", "D"))
_MOST_CLASSES = 10


def draw_figures(subject: Subject, class_names: Sequence[str], prefix: str) -> dict[str, DrawnFigure]:
    """Draw all figures of one model, by name; the names of their files start with `prefix`."""
    figures = [_draw_maps(subject, class_names), _draw_faithfulness(subject.result.faithfulness)]
    filters = first_filters(subject.model)
    if filters is not None:
        tiles = [Tile(pictures.filter_picture(component)) for component in filters.components]
        figures.append(draw_sheet("filters", f"Principal components of {filters.source}", tiles, columns=7, width=64))
    if subject.survey is not None:
        figures += [*_draw_heads(subject), *_draw_tables(subject.result, class_names), _draw_depth(subject.survey)]
        if subject.survey.position_similarity is not None:
            tile = Tile(pictures.positions_picture(subject.survey.position_similarity))
            title = "Similarity of positions, −1 (blue) to 1 (orange)"
            figures.append(draw_sheet("positions", title, [tile], columns=1, width=560))
    return {figure.name: replace(figure, name=prefix + figure.name) for figure in figures}


def _draw_maps(subject: Subject, class_names: Sequence[str]) -> DrawnFigure:
    result, target = subject.result, class_names[subject.result.target]
    tiles = [Tile(displayable(subject.pixels), (target, "the image"), result.cells)]
    for score in result.faithfulness.scores:
        drawn = result.maps[score.name]
        verdict = "a control" if score.name == CONTROL else score.verdict
        lines = (drawn.kind.title, f"gain {number(score.gain, '.2f')}, {verdict}")
        picture = pictures.map_picture(drawn, subject.brightness, result.cells)
        tiles.append(Tile(picture, lines, result.cells, drawn.signed))
    title = f"Maps for “{shorten_to(target, 320, 9)}”, ranked by insertion − deletion"
    return draw_sheet("maps", title, tiles, columns=5)


def _draw_heads(subject: Subject) -> Iterator[DrawnFigure]:
    attention, cells = subject.result.attention, subject.result.cells
    assert attention is not None
    patch = f"the patch in {wording.place(attention.patch, cells.grid)}"
    for name, weights, origin in (
        ("heads", attention.readout, subject.readout),
        ("heads-from-patch", attention.from_patch(attention.patch), patch),
    ):
        high, end = head_scale(weights)
        shown = pictures.amount_picture(subject.brightness, pictures.spread(weights, cells), high)  # (L, H, h, w, 3)
        L, H = weights.shape[:2]
        tiles = [
            Tile(shown[layer, head], (f"layer {layer + 1}, head {head + 1}",), cells)
            for head in range(H)
            for layer in range(L)
        ]
        yield draw_sheet(name, f"Attention from {origin}: 0 to {end}", tiles, columns=L, width=112)


def head_scale(weights: Array) -> tuple[float, str]:
    """Return the upper end of the scale that all heads (L, H, rows, columns) share, as a number and as text.

    A quarter of the heads exceed it: scaled to the sharpest head, all others would be dark.
    """
    high = float(np.quantile(weights.max(axis=(2, 3)), 0.75))
    return high, ("≥ " if weights.max() > high else "") + percent(high)


def shown_classes(result: Examination) -> list[int]:
    """Return all classes if they are few, else the most probable ones and the target."""
    if len(result.probabilities) <= _MOST_CLASSES:
        return list(range(len(result.probabilities)))
    best = np.argsort(-result.probabilities)[:_MOST_CLASSES].tolist()
    return best if result.target in best else [*best[:-1], result.target]


def _draw_tables(result: Examination, class_names: Sequence[str]) -> Iterator[DrawnFigure]:
    assert result.logit_lens is not None
    assert result.head_effects is not None
    layers = [f"layer {layer + 1}" for layer in range(len(result.head_effects))]
    classes = shown_classes(result)
    lens = (result.logit_lens[:, classes].T, [class_names[k] for k in classes], ["input", *layers])
    yield draw_table("logit-lens", "Prediction after each layer", *lens, signed=False)
    heads = [f"head {head + 1}" for head in range(result.head_effects.shape[1])]
    title = "Drop of log-odds without the head"
    yield draw_table("head-effects", title, result.head_effects.T, heads, layers, signed=True)


def _draw_faithfulness(judged: Faithfulness) -> DrawnFigure:
    """Draw deletion and insertion of the best map, occlusion, the control and the worst, over the random orders."""
    ranked = [score.name for score in judged.scores if score.name not in (CONTROL, REFERENCE)]
    chosen = list(dict.fromkeys([ranked[0], REFERENCE, CONTROL, ranked[-1]]))
    best = judged.scores[0]
    alt = (
        f"Deletion and insertion curves. The best map is {MAPS[best.name].title}: area {best.deletion:.2f} under"
        f" deletion and {best.insertion:.2f} under insertion."
    )
    with figure_style("judgement", 800, 264) as figure:
        axes = figure.subplots(1, 2, sharey=True)
        panels = (
            (axes[0], "Deletion: cells occluded", judged.deletion_curves, judged.random_deletion),
            (axes[1], "Insertion: cells restored", judged.insertion_curves, judged.random_insertion),
        )
        x = 100 * judged.shares
        for axis, title, curves, random in panels:
            low, high = 100 * np.quantile(random, [0.1, 0.9], axis=0)
            axis.fill_between(x, low, high, color=light("line"), linewidth=0, label="random orders, 10–90 %")
            for map_name, (color, dash, marker) in zip(chosen, _LINES, strict=False):
                axis.plot(
                    x, 100 * curves[map_name], color=light(color), linestyle=dash, marker=marker, markersize=3.5,
                    markevery=max(1, len(x) // 8), label=MAPS[map_name].title,
                )  # fmt: skip
            axis.set(title=title, xlim=(0, 100), ylim=(-2, 102), xlabel="% of the cells")
        axes[0].set_ylabel("probability of the class, %")
        handles, labels = axes[0].get_legend_handles_labels()
        # the font of the browser may be wider than the one matplotlib measures: leave room
        figure.legend(handles, labels, loc="outside right center", borderpad=2)
        return finish_figure(figure, "judgement", alt=alt)


def _draw_depth(survey: Survey) -> DrawnFigure:
    """Draw attention distance, attention entropy, token norms and patch similarity by layer."""
    means, alike = survey.attention_distance_pixels.mean(axis=1), survey.patch_similarity
    alt = (
        f"Layer by layer: mean attention distance goes from {means[0]:.1f} to {means[-1]:.1f} pixels, similarity of"
        f" patches from {alike[0]:.2f} to {alike[-1]:.2f}."
    )
    with figure_style("depth", 1024, 232) as figure:
        distance, entropy, norms, similarity = figure.subplots(1, 4)
        uniform = survey.uniform_distance_pixels
        distance.axhline(uniform, color=light("ink-soft"), linewidth=1, linestyle=(0, (3, 2)))
        distance.annotate(
            "uniform attention", (1, uniform), (0, 3), xycoords=("axes fraction", "data"), textcoords="offset points",
            ha="right", color=light("ink-soft"),
        )  # fmt: skip
        top = max(uniform, float(survey.attention_distance_pixels.max()))
        distance.set(title="Attention distance, pixels", ylim=(0, 1.2 * top or 1))
        entropy.set(title="Attention entropy", ylim=(0, 1.02))
        for axis, values in ((distance, survey.attention_distance_pixels), (entropy, survey.attention_entropy)):
            shift = np.linspace(-0.18, 0.18, values.shape[1]) if values.shape[1] > 1 else np.zeros(1)
            x = np.arange(1, len(values) + 1)[:, None] + shift  # (L, H): heads side by side
            axis.scatter(x.ravel(), values.ravel(), s=26, color=light("vit"), alpha=0.85, linewidth=0)
        norms.plot(survey.patch_norms, color=light("vit"), marker="o", label="patches")
        highest = float(survey.patch_norms.max())
        if survey.class_norms is not None:
            norms.plot(survey.class_norms, color=light("cnn"), marker="s", linestyle="--", label="class token")
            norms.legend(loc="upper left")
            highest = max(highest, float(survey.class_norms.max()))
        norms.set(title="Norm of the tokens", ylim=(0, 1.3 * highest or 1))
        similarity.plot(survey.patch_similarity, color=light("vit"), marker="o")
        similarity.set(title="Similarity of patches", ylim=(min(0, float(survey.patch_similarity.min())), 1.02))
        depth = len(survey.attention_entropy)
        for axis, first in ((distance, 1), (entropy, 1), (norms, 0), (similarity, 0)):
            ticks = list(range(first, depth + 1, max(1, (depth - first + 1) // 6)))
            axis.set_xticks(ticks, ["in" if tick == 0 else str(tick) for tick in ticks])
            axis.set(xlabel="layer", xlim=(first - 0.5, depth + 0.5))
        return finish_figure(figure, "depth", alt=alt)
