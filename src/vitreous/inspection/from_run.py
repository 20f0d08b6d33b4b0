"""`look` at a run: a person's own image, or one of the test set."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import torch
from torch import Tensor, nn

from vitreous.data.datasets import Split, load_dataset
from vitreous.data.preprocessing import ImageLike
from vitreous.errors import DataError
from vitreous.hardware import prepare
from vitreous.inspection.query import LookError
from vitreous.inspection.removal import Reduced
from vitreous.inspection.report import Against, Look, write_look
from vitreous.models import ViT
from vitreous.runs import Run, require_same_data

SURVEY_IMAGES = 64  # enough for means over heads and layers to settle; a second of work


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
    """Examine the run's model on `image`, or on image `test_index` of its test set (default: the first).

    Heads (layer, head) and patches that it shall do without are counted from 0.
    """
    prepare()
    if image is not None and test_index is not None:
        raise LookError("an image and --test were both given; choose one")
    if against is not None:
        _check_same_question(run, against, image)
    model, removed = _without(run.load_model(), without_heads, without_patches)
    test = _test_split(run)
    label, notes = None, tuple[str, ...]()
    if image is not None:
        prepared = run.preprocessing.prepare(image)
        pixels, notes = torch.as_tensor(prepared.pixels), prepared.notes
    else:
        pixels, label = _test_image(run, test, test_index or 0)
        notes = (f"image {test_index or 0} of the test set of {run.config.data.name}",)
    if removed:
        notes += (f"{run.config.name} {removed}{'' if against is None else f'; {against.config.name} is whole'}",)
    return write_look(
        out,
        model=model,
        config=run.config,
        image_pixels=pixels,
        model_input=run.preprocessing.to_input(pixels[None])[0],
        class_names=run.class_names,
        label=label,
        target=_class_index(run, target),
        patch=patch,
        survey_images=_survey_input(run, test),
        notes=notes,
        against=None if against is None else _against(against, image, test_index),
    )


def _without(model: nn.Module, heads: Sequence[tuple[int, int]], patches: Sequence[int]) -> tuple[nn.Module, str]:
    """The model without them, and what to say of it."""
    if not heads and not patches:
        return model, ""
    if not isinstance(model, ViT):
        raise LookError("only a ViT has heads and patches to do without; leave them in for this model")
    reduced = Reduced(model, heads, patches)
    columns = model.config.grid[1]
    gone = [f"head {head + 1} of layer {layer + 1}" for layer, head in sorted(set(heads))]
    gone += [
        f"patch {patch} (row {patch // columns + 1}, column {patch % columns + 1})" for patch in sorted(set(patches))
    ]
    return reduced, "does without " + ", ".join(gone)


def _check_same_question(run: Run, against: Run, image: ImageLike | None) -> None:
    """Side by side belong only answers about one picture, in the same classes."""
    if against.class_names != run.class_names:
        first, second = (f"{', '.join(each.class_names[:3])} … ({len(each.class_names)})" for each in (run, against))
        raise LookError(
            f"the classes of {run.path} are {first} and those of {against.path} {second}: lay only models with the same"
            " classes side by side"
        )
    if image is None and against.record.data.checksums != run.record.data.checksums:
        raise LookError(
            f"{run.path} was trained on {run.config.data.name!r} and {against.path} on {against.config.data.name!r}, so"
            " their test images differ; name an image file for both"
        )


def _against(run: Run, image: ImageLike | None, test_index: int | None) -> Against:
    """The second model's own view of the same image: it may want another size or other channels."""
    test = _test_split(run)
    if image is not None:
        pixels = torch.as_tensor(run.preprocessing.prepare(image).pixels)
    else:
        pixels, _ = _test_image(run, test, test_index or 0)
    model_input = run.preprocessing.to_input(pixels[None])[0]
    return Against(run.load_model(), run.config, model_input, _survey_input(run, test))


def _test_split(run: Run) -> Split | None:
    """None where the data cannot be had: looking at one's own image works without them."""
    if not run.config.data.name:
        return None
    try:
        dataset = load_dataset(run.config.data)
    except DataError:
        return None
    require_same_data(run, dataset)
    return dataset.test


def _test_image(run: Run, test: Split | None, index: int) -> tuple[Tensor, int]:
    if test is None:
        raise LookError(f"the test set of {run.path} cannot be had here; name an image file instead")
    if not 0 <= index < len(test):
        raise LookError(f"--test {index}: the test set has images 0 to {len(test) - 1}")
    return test.images[index], int(test.labels[index])


def _survey_input(run: Run, test: Split | None) -> Tensor | None:
    return None if test is None or not len(test) else run.preprocessing.to_input(test.images[:SURVEY_IMAGES])


def _class_index(run: Run, name: str | None) -> int | None:
    if name is None:
        return None
    if name not in run.class_names:
        raise LookError(f"--class {name!r}: the classes are {', '.join(run.class_names)}")
    return run.class_names.index(name)
