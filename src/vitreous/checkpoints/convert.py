"""`vitreous convert`: a run or a published checkpoint → another library's layout, or a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from vitreous.checkpoints import TARGETS, Checkpoint, TargetLayout, load_model, save_model
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError
from vitreous.models import ViT
from vitreous.runs import Run, is_run, is_taken


def convert(
    source: Path,
    target: Path,
    to: str,
    *,
    num_heads: int | None = None,
    image_size: int | None = None,
    patch_size: int | None = None,
    channels: int | None = None,
    allow_partial: bool = False,
    approximate: bool = False,
) -> list[str]:
    """Write `source` to `target` in the layout `to`; returns what a person should be told, a line each."""
    if to not in (*TARGETS, "vitreous"):
        raise CheckpointError(f"--to {to!r}: choose from {', '.join(TARGETS)}, vitreous")
    if is_taken(target):
        raise CheckpointError(f"{str(target)!r} exists already: name another target, or remove it first")
    fitted = {"image_size": image_size, "patch_size": patch_size, "channels": channels}
    model, preprocessing, class_names, lines = _read(source, fitted, num_heads, allow_partial)
    if to == "vitreous":
        names = _distinct_names(class_names, model, lines)
        notes = [f"converted from {source.name}", *lines]
        Run.adopt(target, model, preprocessing or _unnormalised(model), names, notes)
        if preprocessing is None:
            lines.append(
                "the input's mean and std are not known: pixels are taken as 0 to 1; edit config.json if not so"
            )
        return [*lines, f"wrote the run {target}"]
    mean, std = (preprocessing.mean, preprocessing.std) if preprocessing else (None, None)
    layout = cast(TargetLayout, to)
    notes = save_model(model, target, layout, mean=mean, std=std, class_names=class_names, approximate=approximate)
    return [*lines, *notes, f"wrote {target} in the layout of {to}"]


def _read(
    source: Path, fitted: dict[str, int | None], num_heads: int | None, allow_partial: bool
) -> tuple[ViT, Preprocessing | None, tuple[str, ...] | None, list[str]]:
    if not is_run(source):
        model, checkpoint = load_model(source, num_heads=num_heads, allow_partial=allow_partial, **_given(fitted))
        return model, checkpoint.preprocessing, checkpoint.origin.class_names, _told(source, checkpoint)
    if asked := [name for name, value in fitted.items() if value is not None]:
        raise CheckpointError(f"{', '.join(asked)}: a run keeps its own; `vitreous train --from {source}` fits it anew")
    run = Run.open(source)
    loaded = run.load_model()
    if not isinstance(loaded, ViT):
        raise CheckpointError(f"{str(source)!r} holds a {run.config.model.kind}, which no ViT layout can express")
    return loaded, run.preprocessing, run.class_names, [f"{source}: a run of vitreous"]


def _given(values: dict[str, int | None]) -> dict[str, Any]:
    return {name: value for name, value in values.items() if value is not None}


def _told(source: Path, checkpoint: Checkpoint) -> list[str]:
    return [f"{source}: {checkpoint.report}", *(f"  {note}" for note in checkpoint.notes)]


def _unnormalised(model: ViT) -> Preprocessing:
    channels = model.config.channels
    return Preprocessing(
        image_size=model.config.image_size,
        channels=channels,
        mean=(0.0,) * channels,
        std=(1.0,) * channels,
        resize="bilinear",
        polarity="as-is",
    )


def _distinct_names(given: tuple[str, ...] | None, model: ViT, lines: list[str]) -> tuple[str, ...]:
    """A name for each class and no name twice (ImageNet has two cranes), since answers are given by name."""
    numbers = tuple(str(number) for number in range(model.config.num_classes))
    if given is not None and len(given) != len(numbers):
        lines.append(f"the file names {len(given)} classes and the model has {len(numbers)}: they are numbered instead")
        given = None
    if given is None:
        return numbers
    return tuple(f"{name} ({i})" if given.count(name) > 1 else name for i, name in enumerate(given))
