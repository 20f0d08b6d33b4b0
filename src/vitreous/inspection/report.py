"""`write_look`: one self-contained page, its figures as PNG and SVG, and all arrays in one file."""

from __future__ import annotations

import io
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor

from vitreous.inspection import display, wording
from vitreous.inspection.examination import Examination
from vitreous.inspection.figures import draw_figures
from vitreous.inspection.model_survey import Survey
from vitreous.inspection.page import page_values
from vitreous.inspection.query import LookError
from vitreous.inspection.subject import ModelInput, Subject, examine_models
from vitreous.reports.pages import write_report

_TEMPLATE = Path(__file__).with_name("look.html.jinja")

#: The content of `arrays.npz`. MAP is the name of a map; the names of a second model start with "against.".
ARRAYS = {
    "pixels": "the image as given, (channels, height, width), bytes",
    "logits, probabilities": "the output of the model, one number per class",
    "cells.row_edges, cells.column_edges": "borders of the cells in pixels of the model's input",
    "maps.MAP.cells": "a map on the cells, (rows, columns)",
    "maps.MAP.pixels": "the same at every pixel, if the map has it, (height, width)",
    "attention": "(layers, heads, tokens, tokens), [query, key]; the class token first, if there is one",
    "attention.from_readout": "(layers, heads, rows, columns), from the class token or the mean of all tokens",
    "attention.from_patch, attention.patch": "the same from one patch; its index, counted row by row from 0",
    "logit_lens": "(layers + 1, classes), probabilities after the embedding and after each layer",
    "head_effects": "(layers, heads), drop of the log10 odds of the explained class without the head",
    "patch_effects": "(rows, columns), drop of the log10 odds without the patch",
    "faithfulness.shares": "share of the cells changed at each point of the curves",
    "faithfulness.MAP.deletion, .insertion": "probability of the explained class at each point",
    "faithfulness.random.deletion, .insertion": "the same for random orders, (orders, points)",
    "survey.filters, survey.filters_explained": "principal components of the first filters; their share of variance",
    "survey.position_similarity": "(rows, columns, rows, columns), cosine similarity of positions",
    "survey.attention_distance_pixels, _patches": "(layers, heads), mean attention distance",
    "survey.uniform_distance_pixels": "the distance of a head with uniform attention",
    "survey.attention_entropy": "(layers, heads), as a share of the maximum",
    "survey.patch_norms, survey.class_norms": "(layers + 1), mean norm of the tokens",
    "survey.patch_similarity": "(layers + 1), mean cosine similarity of two patches of one image",
}

_README = """look.html     the report; it needs nothing else
figures/      its figures as PNG and SVG
arrays.npz    the numbers behind it: numpy.load('arrays.npz')[NAME]

""" + "".join(f"{name}\n    {meaning}\n" for name, meaning in ARRAYS.items())


@dataclass(frozen=True)
class Look:
    """The files and results of `write_look`."""

    __repr__ = display.look_line
    _repr_html_ = display.look_html
    to_pandas = display.look_frame

    report: Path
    arrays: Path
    figures: tuple[Path, ...]
    examination: Examination
    survey: Survey | None
    against: Examination | None
    summary: str  # the first sentence of the report
    advice: tuple[str, ...]  # which maps can be trusted, in sentences

    def as_json(self) -> dict[str, Any]:
        """Return the sentences and where everything else was written."""
        files = {"report": str(self.report), "arrays": str(self.arrays), "figures": list(map(str, self.figures))}
        return {"summary": self.summary, "advice": list(self.advice), **files}


def write_look(
    out: Path,
    model: ModelInput,
    against: ModelInput | None = None,
    *,
    image_pixels: NDArray[np.uint8] | Tensor,
    class_names: Sequence[str],
    label: int | None = None,
    target: int | None = None,
    patch: int | None = None,
    notes: Sequence[str] = (),
) -> Look:
    """Examine one image and write `look.html`, `arrays.npz`, `README.txt` and `figures/` into `out`.

    `image_pixels` (C, height, width) is the image to show; `against` is a second model to compare with.
    """
    pixels = np.asarray(image_pixels)
    models = [model] if against is None else [model, against]
    _check(pixels, models, class_names, label)
    subjects = examine_models(models, pixels, target, patch)
    figures = [draw_figures(each, class_names, f"{each.key}-" if against is not None else "") for each in subjects]
    summary = wording.headline(subjects, class_names, label)
    report = write_report(
        out / "look.html",
        _TEMPLATE,
        title=f"Look: {summary}",
        description=summary,
        figures=[figure for drawn in figures for figure in drawn.values()],
        beside={"arrays.npz": _pack_arrays(pixels, subjects), "README.txt": _README},
        notes=notes,
        arrays=ARRAYS,
        **page_values(subjects, figures, class_names, label),
    )
    first, *others = subjects
    return Look(
        report=report,
        arrays=out / "arrays.npz",
        figures=tuple(sorted((out / "figures").iterdir())),
        examination=first.result,
        survey=first.survey,
        against=others[0].result if others else None,
        summary=summary,
        advice=tuple(line.text for line in wording.advice(first.result.faithfulness)),
    )


def _pack_arrays(pixels: NDArray[np.uint8], subjects: Sequence[Subject]) -> bytes:
    arrays: dict[str, Any] = {"pixels": pixels}
    for subject, prefix in zip(subjects, ("", "against."), strict=False):
        found = subject.result.arrays() | ({} if subject.survey is None else subject.survey.arrays())
        arrays |= {prefix + name: values for name, values in found.items()}
    packed = io.BytesIO()
    np.savez_compressed(packed, **arrays)
    return packed.getvalue()


def _check(pixels: NDArray[Any], models: Sequence[ModelInput], class_names: Sequence[str], label: int | None) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 3:
        raise LookError(
            f"image_pixels has shape {pixels.shape} and type {pixels.dtype}; expected bytes (uint8) of shape"
            " (channels, height, width)"
        )
    for each in models:
        count = each.config.model.num_classes
        if count != len(class_names):
            raise LookError(
                f"{len(class_names)} class names were given and the model {each.config.name!r} has {count} classes;"
                " give one name per class, and compare only models with the same classes"
            )
    if label is not None and not 0 <= label < len(class_names):
        raise LookError(f"label={label}: the classes are 0 to {len(class_names) - 1}")
