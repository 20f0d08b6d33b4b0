"""`write_look`: one self-contained page, its pictures as PNG and SVG, and all arrays in one file.

Shapes: C channels, `height` × `width` pixels, L layers, H heads, K classes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.config import Config
from vitreous.inspection import words
from vitreous.inspection.cells import Array, patch_cells
from vitreous.inspection.examination import Examination
from vitreous.inspection.files import draw_files
from vitreous.inspection.model_survey import Survey
from vitreous.inspection.page import build_page
from vitreous.inspection.query import LookError
from vitreous.inspection.subject import Subject, display_names, examined
from vitreous.models import ViT
from vitreous.reports.colors import model_styles

#: What `arrays.npz` holds. MAP is a map's name; for a second model every name starts with "against.".
ARRAYS = {
    "pixels": "the picture as given, (channels, height, width), bytes",
    "logits, probabilities": "the answer, one number a class",
    "cells.row_edges, cells.column_edges": "borders of the cells in pixels of the model's input",
    "maps.MAP.cells": "a map on the cells, (rows, columns)",
    "maps.MAP.pixels": "the same at every pixel, where the map has it, (height, width)",
    "attention": "(layers, heads, tokens, tokens), [query, key]; the class token first, if there is one",
    "attention.from_readout": "(layers, heads, rows, columns), from the class token or the mean of all tokens",
    "attention.from_patch, attention.patch": "the same from one patch; which one, counted row by row from 0",
    "logit_lens": "(layers + 1, classes), probabilities read after the embedding and each layer",
    "head_effects": "(layers, heads), evidence lost without the head: log10 of the odds of the explained class",
    "patch_effects": "(rows, columns), evidence lost without the patch",
    "faithfulness.shares": "share of the cells changed at each point of the curves",
    "faithfulness.MAP.deletion, .insertion": "probability of the explained class at each point",
    "faithfulness.random.deletion, .insertion": "the same for random orders, (orders, points)",
    "survey.filters, survey.filters_explained": "principal components of the first filters; their share of variance",
    "survey.position_similarity": "(rows, columns, rows, columns), cosine similarity of positions",
    "survey.attention_distance_pixels, _patches": "(layers, heads), mean attention distance",
    "survey.uniform_distance_pixels": "the distance of a head that looks at all patches alike",
    "survey.attention_entropy": "(layers, heads), as a share of the largest",
    "survey.patch_norms, survey.class_norms": "(layers + 1), mean length of the tokens",
    "survey.patch_similarity": "(layers + 1), mean cosine similarity of two patches of one image",
}


@dataclass(frozen=True)
class Against:
    """A second model, to be laid beside the first on the same image."""

    model: nn.Module
    config: Config
    model_input: Tensor
    survey_images: Tensor | None = None


@dataclass(frozen=True)
class Look:
    """What `write_look` wrote and found."""

    report: Path
    arrays: Path
    figures: tuple[Path, ...]
    examination: Examination
    survey: Survey | None
    against: Examination | None
    summary: str  # the report's first sentence
    advice: tuple[str, ...]  # which maps may be believed, in sentences


def write_look(
    out: Path,
    *,
    model: nn.Module,
    config: Config,
    image_pixels: NDArray[np.uint8] | Tensor,
    model_input: Tensor,
    class_names: Sequence[str],
    label: int | None = None,
    target: int | None = None,
    patch: int | None = None,
    survey_images: Tensor | None = None,
    notes: Sequence[str] = (),
    against: Against | None = None,
) -> Look:
    """Examine one image and write `look.html`, `arrays.npz`, `README.txt` and `figures/` into `out`.

    `image_pixels` (C, height, width) is what a person sees, `model_input` the same normalised for the model;
    `survey_images`, normalised too, are what the section about the model is measured on (None: this image alone).
    """
    pixels = np.asarray(image_pixels)
    _check(pixels, config, class_names, label, against)
    names = display_names(config, None if against is None else against.config)
    styles = model_styles({name: each.model.kind for name, each in names})
    question: dict[str, Any] = {"pixels": pixels, "styles": styles, "target": target}
    # a model without patches is covered by the other's cells, so that the two can be compared
    cells = None
    if against is not None and isinstance(against.model, ViT) and not isinstance(model, ViT):
        cells = patch_cells(against.model.config)
    subjects = [examined(names[0], model, model_input, survey_images, **question, patch=patch, cells=cells)]
    if against is not None:
        cells = subjects[0].found.cells
        other = (against.model, against.model_input, against.survey_images)
        subjects.append(examined(names[1], *other, **question, cells=cells))
    try:
        return _write(out, subjects, pixels, class_names, label, notes)
    except OSError as error:
        raise LookError(f"cannot write the report into {str(out)!r}: {error.strerror or error}") from error


def _check(
    pixels: NDArray[Any], config: Config, class_names: Sequence[str], label: int | None, against: Against | None
) -> None:
    if pixels.dtype != np.uint8 or pixels.ndim != 3:
        raise LookError(
            f"image_pixels has shape {pixels.shape} and type {pixels.dtype}; expected bytes (uint8) of shape"
            " (channels, height, width)"
        )
    for each in (config, *([against.config] if against else [])):
        if each.model.num_classes != len(class_names):
            raise LookError(
                f"{len(class_names)} class names were given and the model {each.name!r} has {each.model.num_classes}"
                " classes; give one name a class, and lay only models with the same classes side by side"
            )
    if label is not None and not 0 <= label < len(class_names):
        raise LookError(f"label={label}: the classes are 0 to {len(class_names) - 1}")


def _write(
    out: Path,
    subjects: Sequence[Subject],
    pixels: NDArray[np.uint8],
    class_names: Sequence[str],
    label: int | None,
    notes: Sequence[str],
) -> Look:
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    for subject in subjects:
        draw_files(subject, class_names, folder, prefix=f"{subject.key}-" if len(subjects) > 1 else "")
    found = [subject.found for subject in subjects]
    summary = words.headline([subject.name for subject in subjects], found, class_names, label)
    arrays: dict[str, Array | NDArray[np.uint8]] = {"pixels": pixels}
    for subject, prefix in zip(subjects, ("", "against."), strict=False):
        arrays |= {prefix + name: values for name, values in subject.found.arrays().items()}
        if subject.surveyed is not None:
            arrays |= {prefix + name: values for name, values in subject.surveyed.arrays().items()}
    np.savez_compressed(out / "arrays.npz", **arrays)  # type: ignore[arg-type]
    (out / "README.txt").write_text(_readme(), encoding="utf-8")
    report = out / "look.html"
    report.write_text(build_page(subjects, class_names, label, notes, summary, ARRAYS), encoding="utf-8")
    first, *others = subjects
    return Look(
        report=report,
        arrays=out / "arrays.npz",
        figures=tuple(sorted(folder.iterdir())),
        examination=first.found,
        survey=first.surveyed,
        against=others[0].found if others else None,
        summary=summary,
        advice=tuple(line.text for line in words.advice(first.found)),
    )


def _readme() -> str:
    lines = ["look.html     the report; it needs nothing else", "figures/      its pictures as PNG and SVG"]
    lines += ["arrays.npz    the numbers behind it: numpy.load('arrays.npz')[NAME]", ""]
    return "\n".join(lines + [f"{name}\n    {what}" for name, what in ARRAYS.items()]) + "\n"
