"""`look` at a run: on the user's own image, or on a test image."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.data.datasets import Split
from vitreous.data.preprocessing import ImageLike
from vitreous.errors import VitreousError
from vitreous.evaluation.novelty import Novelty
from vitreous.evaluation.prediction import compute_outputs
from vitreous.hardware import prepare
from vitreous.inspection.query import LookError
from vitreous.inspection.removal import ReducedViT
from vitreous.inspection.report import Look, write_look
from vitreous.inspection.subject import ModelInput
from vitreous.inspection.wording import place
from vitreous.models import ViT
from vitreous.reports.formats import join
from vitreous.runs import Run, load_run_data

SURVEY_IMAGES = 64  # enough for stable means over heads and layers; takes a second


def look_at_run(
    run: Run,
    image: ImageLike | None = None,
    *,
    test_index: int | None = None,
    against: Run | None = None,
    target: str | None = None,
    patch: int | None = None,
    without_heads: Sequence[tuple[int, int]] = (),
    without_patches: Sequence[int] = (),
    out: Path,
) -> Look:
    """Examine the model of a run on `image`, or on image `test_index` of its test set (default: the first).

    `without_heads` (layer, head) and `without_patches`, counted from 0, are removed from the model.
    """
    prepare()
    if image is not None and test_index is not None:
        raise LookError("an image and --test were both given; choose one")
    if target is not None and target not in run.class_names:
        raise LookError(f"--class {target!r}: the classes are {', '.join(run.class_names)}")
    if against is not None:
        _check_same_classes(run, against)
    model, removed = _without(run.load_model(), without_heads, without_patches)
    test = _test_split(run) if image is None else None
    first, pixels, label, notes = _model_input(run, model, image, test, test_index or 0)
    second = None
    if against is not None:
        other_test = _test_split(against) if image is None else None
        if test is not None and other_test is not None and test.sha256 != other_test.sha256:
            raise LookError(
                f"{run.path} and {against.path} have different test images ({len(test):,} and {len(other_test):,}):"
                " name an image file for both"
            )
        second, _, _, other_notes = _model_input(against, against.load_model(), image, other_test, test_index or 0)
        notes += tuple(note for note in other_notes if note not in notes)
    if removed:
        notes += (f"{run.config.name} without {removed}{f'; {against.config.name} is complete' if against else ''}",)
    return write_look(
        out,
        first,
        second,
        image_pixels=pixels,
        class_names=run.class_names,
        label=label,
        target=None if target is None else run.class_names.index(target),
        patch=patch,
        notes=notes,
    )


def _check_same_classes(run: Run, against: Run) -> None:
    if against.class_names != run.class_names:
        first, second = (f"{', '.join(each.class_names[:3])} … ({len(each.class_names)})" for each in (run, against))
        raise LookError(
            f"the classes of {run.path} are {first} and those of {against.path} are {second}: compare only models with"
            " the same classes"
        )


def _without(model: nn.Module, heads: Sequence[tuple[int, int]], patches: Sequence[int]) -> tuple[nn.Module, str]:
    """Return the model without these parts, and their names."""
    if not heads and not patches:
        return model, ""
    if not isinstance(model, ViT):
        raise LookError("only a ViT has heads and patches to remove; this model has none")
    names = [f"head {head + 1} of layer {layer + 1}" for layer, head in sorted(set(heads))]
    names += [f"patch {patch} ({place(patch, model.config.grid)})" for patch in sorted(set(patches))]
    return ReducedViT(model, heads, patches), join(names)


def _model_input(
    run: Run, model: nn.Module, image: ImageLike | None, test: Split | None, test_index: int
) -> tuple[ModelInput, Tensor, int | None, tuple[str, ...]]:
    """Return the model with its input, the pixels (C, height, width), the label if there is one, and notes.

    Changed or missing data are an error for a test image; for the user's own image the survey over test images is left
    out, with a note.
    """
    label = None
    if image is None:
        assert test is not None
        if not 0 <= test_index < len(test):
            raise LookError(f"--test {test_index}: the test set has images 0 to {len(test) - 1}")
        pixels, label = test.image(test_index), int(test.labels[test_index])
        notes: tuple[str, ...] = (f"image {test_index} of the test set of {run.config.data.name}",)
    else:
        prepared = run.preprocessing.prepare(image)
        pixels, notes = torch.from_numpy(prepared.pixels), prepared.notes
        if isinstance(model, ViT):  # only a ViT is surveyed
            try:
                test = _test_split(run)
            except VitreousError as error:
                notes += (f"{run.config.name} was surveyed on this image alone, not on test images: {error}",)
    to_input = run.preprocessing.to_input
    survey_images = to_input(test.batch(slice(SURVEY_IMAGES))) if test is not None and len(test) else None
    novelty = Novelty.of_run(run)
    if novelty is not None:
        score_of = novelty.score
        (found,) = compute_outputs(model, pixels[None], run.preprocessing, lambda _, parts: (score_of(parts),))
        score = float(found)
        if score > 1:
            notes += (
                f"unlike the images that {run.config.name} was trained on (novelty {score:.2g}; above 1 is unlike): do"
                " not trust its prediction",
            )
    shown = ModelInput(model, run.config, to_input(pixels[None])[0], survey_images, run.temperature)
    return shown, pixels, label, notes


def _test_split(run: Run) -> Split:
    if not run.config.data.name:
        raise LookError(f"{str(run.path)!r} was converted and has no test images; name an image file")
    return load_run_data(run).test
