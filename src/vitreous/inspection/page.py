"""The look page: what the template needs, gathered model by model, and the whole page around it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from markupsafe import Markup

from vitreous.inspection import panels, pictures, words
from vitreous.inspection.cells import Array
from vitreous.inspection.examination import Examination
from vitreous.inspection.model_survey import Survey
from vitreous.inspection.positions import first_filters
from vitreous.inspection.subject import Subject
from vitreous.models import count_parameters
from vitreous.reports.pages import html_page, page_environment

_HERE = Path(__file__).parent


def build_page(
    subjects: Sequence[Subject],
    class_names: Sequence[str],
    label: int | None,
    notes: Sequence[str],
    summary: str,
    array_names: Mapping[str, str],
) -> str:
    template = page_environment(_HERE).get_template("look.html.jinja")
    body = template.render(
        css=Markup((_HERE / "look.css").read_text(encoding="utf-8")),
        subjects=[_view(subject, class_names, label) for subject in subjects],
        summary=summary,
        notes=notes,
        label=None if label is None else class_names[label],
        arrays=array_names,
        bars={
            "amount": pictures.data_uri(pictures.scale_bar(signed=False)),
            "signed": pictures.data_uri(pictures.scale_bar(signed=True)),
        },
        number=panels.number,
        verdicts=words.VERDICT_WORDS,
    )
    return html_page(f"Look: {summary}", Markup(body), description=summary)


def _view(subject: Subject, class_names: Sequence[str], label: int | None) -> dict[str, Any]:
    """What the template needs of one model."""
    found, brightness = subject.found, pictures.grey(subject.pixels)
    charts = subject.charts
    shown: dict[str, Any] = {
        "key": subject.key,
        "name": subject.name,
        "name_inside": words.name_inside(subject.name),
        "color": subject.style.css,
        "marker": subject.style.path,
        "run": subject.config.name,
        "parameters": f"{count_parameters(subject.model):,}",
        "is_vit": subject.is_vit,
        "part": subject.part,
        "note": found.cells.note,
        "grid": f"{found.cells.grid[0]} × {found.cells.grid[1]}",
        "picture": pictures.map_svg(
            pictures.plain_picture(subject.pixels), found.cells, f"The picture, cut into {found.cells.count} cells."
        ),
        "explains": class_names[found.target],
        "own_answer": found.target == found.answer,
        "bars": panels.answer_bars(found, class_names, label),
        "needed": words.most_needed(found, class_names, subject.part),
        "advice": words.advice(found),
        "maps": panels.map_panels(found, brightness),
        "pixel_maps": panels.pixel_panels(found, brightness),
        "strip": panels.gain_strip(found),
        "random_gain": found.faithfulness.random_gain,
        "orders": len(found.faithfulness.random_deletion),
        "judgement": Markup(charts["judgement"].inline(_judgement_alt(found))),
        "missing": words.missing(found.integration_gap),
        "surveyed": subject.surveyed,
        "filters": _filters(subject),
    }
    if subject.surveyed is not None:
        shown |= _vit_view(subject, class_names, brightness)
    return shown


def _vit_view(subject: Subject, class_names: Sequence[str], brightness: Array) -> dict[str, Any]:
    found, surveyed = subject.found, subject.surveyed
    assert surveyed is not None
    similarity = surveyed.position_similarity
    return {
        "heads": panels.heads_panel(found, brightness, subject.pixels, subject.looks_from, subject.key),
        "looks_from": subject.looks_from,
        "starts_at": subject.starts_at,
        "lens": panels.lens_rows(found, class_names),
        "head_rows": panels.head_rows(found),
        "depth": Markup(subject.charts["depth"].inline(_depth_alt(surveyed))),
        "positions": None if similarity is None else pictures.data_uri(pictures.positions_picture(similarity)),
        "position_kind": subject.config.model.positions if subject.config.model.kind == "vit" else "",
    }


def _filters(subject: Subject) -> dict[str, Any] | None:
    filters = first_filters(subject.model)
    if filters is None:
        return None
    components = filters.components.cpu().numpy()
    return {
        "uris": [pictures.data_uri(pictures.filter_picture(component)) for component in components],
        "colour": components.shape[1] == 3,
        "words": words.filters_words(filters.source, float(filters.explained.sum()), len(components)),
    }


def _judgement_alt(found: Examination) -> str:
    best = found.faithfulness.scores[0]
    return (
        f"Deletion and insertion curves. The best map is {words.TITLES[best.name]}: area {best.deletion:.2f} under"
        f" deletion and {best.insertion:.2f} under insertion."
    )


def _depth_alt(surveyed: Survey) -> str:
    distance = surveyed.attention_distance_pixels.mean(axis=1)
    likeness = surveyed.patch_similarity
    return (
        f"Layer by layer: mean attention distance goes from {distance[0]:.1f} to {distance[-1]:.1f} pixels, likeness of"
        f" patches from {likeness[0]:.2f} to {likeness[-1]:.2f}."
    )
