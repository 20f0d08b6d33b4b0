"""`look.html`: the values that the template lays out, model by model.

Shapes: L layers, H heads, P patches, K classes, cells in `rows` × `columns`.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from markupsafe import Markup

from vitreous.inspection import pictures, wording
from vitreous.inspection.cells import Array, Cells
from vitreous.inspection.examination import CONTROL, Examination
from vitreous.inspection.faithfulness import Faithfulness, Score
from vitreous.inspection.figures import head_scale, shown_classes
from vitreous.inspection.model_survey import first_filters
from vitreous.inspection.subject import Subject
from vitreous.models import count_parameters
from vitreous.reports.figures import DrawnFigure
from vitreous.reports.formats import number, percent
from vitreous.reports.tiles import displayable

#: Above this number of patches there is no view per patch: the page would have many megabytes.
MOST_VIEWS = 64
Values = dict[str, Any]  # for the template, by name


def page_values(
    subjects: Sequence[Subject],
    figures: Sequence[Mapping[str, DrawnFigure]],
    class_names: Sequence[str],
    label: int | None,
) -> Values:
    return {
        "views": [_view(*each, class_names, label) for each in zip(subjects, figures, strict=True)],
        "bars": {signed: pictures.data_uri(pictures.scale_bar(signed)) for signed in (False, True)},
        "verdicts": wording.VERDICTS,
        "filter_uri": lambda component: pictures.data_uri(pictures.filter_picture(component)),
    }


def _view(
    subject: Subject, figures: Mapping[str, DrawnFigure], class_names: Sequence[str], label: int | None
) -> Values:
    """Return what the template needs for one model."""
    result, judged, cells = subject.result, subject.result.faithfulness, subject.result.cells
    ranked = sorted(judged.scores, key=lambda score: score.name == CONTROL)  # best first, the control last
    view: Values = {
        "subject": subject,
        "name_inside": wording.mid_sentence(subject.name),
        "parameters": f"{count_parameters(subject.model):,}",
        "cells": cells,
        "image": pictures.map_svg(displayable(subject.pixels), cells, f"The image, split into {cells.count} cells."),
        "explains": class_names[result.target],
        "own_prediction": result.target == result.prediction,
        "bars": [
            {
                "name": class_names[k],
                "p": float(result.probabilities[k]),
                "predicted": k == result.prediction,
                "label": k == label,
            }
            for k in shown_classes(result)
        ],
        "most_important": wording.most_important(result, class_names, subject.part),
        "advice": wording.advice(judged),
        "maps": [_panel(subject, score.name, score) for score in ranked],
        "pixel_maps": [
            _panel(subject, name) for name, drawn in result.maps.items() if drawn.pixels is not None and name != CONTROL
        ],
        "strip": _gain_strip(judged),
        "random_gains": judged.random_gains,
        "figures": figures,
        "integration_gap": "less than 0.1 %" if result.integration_gap < 0.001 else percent(result.integration_gap),
        "filters": first_filters(subject.model),
    }
    if subject.survey is not None:
        similarity = subject.survey.position_similarity
        view |= {
            "heads": _head_explorer(subject),
            "lens": _lens_rows(result, class_names),
            "head_rows": _head_rows(result),
            "positions": None if similarity is None else pictures.data_uri(pictures.positions_picture(similarity)),
        }
    return view


def _panel(subject: Subject, name: str, score: Score | None = None) -> Values:
    """Return a map on the cells with its score, or without one the map at every pixel."""
    cells, drawn, by_pixel = subject.result.cells, subject.result.maps[name], score is None
    best = wording.place(int(drawn.cells.argmax()), cells.grid)
    where = "at every pixel" if by_pixel else f"over the image; the highest value is in {best}"
    picture = pictures.map_picture(drawn, subject.brightness, cells, by_pixel=by_pixel)
    high = float(np.abs(drawn.cells).max())
    scale_ends = {
        "log-odds": (wording.odds(-high), wording.odds(high)),
        "logit": ("against", "for") if by_pixel else (f"−{high:.2g} logit", f"+{high:.2g} logit"),
        "share": ("0 %", percent(high)),
    }
    low_end, high_end = scale_ends.get(drawn.kind.unit, ("none", "most"))
    return {
        "drawn": drawn,
        "control": name == CONTROL,
        "svg": pictures.map_svg(picture, cells, f"{drawn.kind.title} {where}.", on_white=drawn.signed),
        "low": low_end,
        "high": high_end,
        "score": score,
    }


def _gain_strip(judged: Faithfulness) -> Values:
    """Return the positions of the gains between the worst and the best, in percent of the strip."""
    gains = {score.name: score.gain for score in judged.scores}
    everything = [*gains.values(), *judged.random_gains]
    span = (max(everything) - min(everything)) or 1.0
    low, span = min(everything) - 0.03 * span, 1.06 * span
    at = {name: 100 * (gain - low) / span for name, gain in gains.items()}
    left, right = (100 * (np.quantile(judged.random_gains, [0.1, 0.9]) - low) / span).tolist()
    return {"random_low": left, "random_high": right, "occlusion": at["occlusion"], "at": at}


# --- attention explorer ------------------------------------------------------------------------------------


def _head_explorer(subject: Subject) -> Values:
    """Return the attention of every head from the read-out and from patches (all of them if they are few)."""
    attention, cells = subject.result.attention, subject.result.cells
    assert attention is not None
    L, H = attention.weights.shape[:2]
    height, width = cells.image_size
    gap = max(1, round(3 * width / 28))

    def view(key: str, token: str, weights: Array, css_position: str = "") -> Values:
        high, scale_end = head_scale(weights)
        tiles = pictures.amount_picture(subject.brightness, pictures.spread(weights, cells), high)
        mosaic = pictures.mosaic(tiles.swapaxes(0, 1), gap * (tiles.shape[2] // height))  # heads down, layers across
        uri = pictures.data_uri(mosaic)
        return {"key": key, "label": token, "uri": uri, "high": scale_end, "position": css_position}

    views = [view("readout", subject.readout, attention.readout)]
    for patch in range(cells.count) if cells.count <= MOST_VIEWS else [attention.patch]:
        token = f"the patch in {wording.place(patch, cells.grid)}"
        views.append(view(f"patch-{patch}", token, attention.from_patch(patch), _css_box(cells, patch)))
    path_id = f"cell-borders-{subject.key}"  # unique where two models share the page
    borders = "".join(
        f'<use href="#{path_id}" x="{layer * (width + gap)}" y="{head * (height + gap)}"/>'
        for head in range(H)
        for layer in range(L)
    )
    path = f'<defs><path id="{path_id}" class="borders" d="{pictures.border_path(cells)}"/></defs>'
    return {
        "views": views,
        "all_patches": cells.count <= MOST_VIEWS,
        "layers": L,
        "heads": H,
        "width": L * (width + gap) - gap,
        "height": H * (height + gap) - gap,
        "borders": Markup(path + borders),
    }


def _css_box(cells: Cells, patch: int) -> str:
    row, column = divmod(patch, cells.grid[1])
    left, right = (100 * edge / cells.image_size[1] for edge in cells.column_edges[column : column + 2])
    top, bottom = (100 * edge / cells.image_size[0] for edge in cells.row_edges[row : row + 2])
    return f"left:{left:.3f}%;top:{top:.3f}%;width:{right - left:.3f}%;height:{bottom - top:.3f}%"


# --- tables ------------------------------------------------------------------------------------------------


def _lens_rows(result: Examination, class_names: Sequence[str]) -> list[Values]:
    """Return the logit lens: one row per class, one column per layer, cells as (text, style)."""
    assert result.logit_lens is not None
    return [
        {
            "name": class_names[k],
            "cells": [(percent(p) if p >= 0.1 else "", _amount_style(p)) for p in result.logit_lens[:, k].tolist()],
            "marked": k == result.target,
        }
        for k in shown_classes(result)
    ]


def _amount_style(share: float) -> str:
    """Return a step of cividis for light and dark; small shares stay plain, so that the others stand out."""
    if share < 0.02:
        return "background:var(--surface)"
    step = min(8, 1 + int(share * 8))
    return f"background:var(--amount-{step});color:var(--on-amount-{'low' if step <= 4 else 'high'})"


def _head_rows(result: Examination) -> list[Values]:
    """Return the effect of removing each head: one row per head, one column per layer."""
    assert result.head_effects is not None
    high = float(np.abs(result.head_effects).max()) or 1.0
    return [
        {
            "name": f"head {head}",
            "cells": [(number(value, "+.2f"), _signed_style(value / high)) for value in values],
            "marked": False,
        }
        for head, values in enumerate(result.head_effects.T.tolist(), start=1)
    ]


def _signed_style(share: float) -> str:
    color = "#d9730d" if share > 0 else "#2f6db5"
    return f"background:color-mix(in srgb, {color} {80 * abs(share):.0f}%, var(--paper))"
