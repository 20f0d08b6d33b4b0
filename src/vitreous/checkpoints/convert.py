"""`vitreous convert`: write a run or a published checkpoint in another library's layout, or as a run."""

from __future__ import annotations

from pathlib import Path
from typing import Any, cast

from vitreous.checkpoints import TARGETS, TargetLayout, save_model
from vitreous.checkpoints.assumptions import in_words
from vitreous.checkpoints.checkpoint import bilinear_preprocessing
from vitreous.checkpoints.processor import processor_limits
from vitreous.checkpoints.read import fit_model, read_quietly
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
    pool: str | None = None,
    gelu: str | None = None,
    norm_eps: float | None = None,
    trained_size: int | tuple[int, int] | None = None,
    image_size: int | None = None,
    patch_size: int | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    allow_partial: bool = False,
    approximate: bool = False,
) -> list[str]:
    """Write `source` to `target` in the layout `to`; return the lines to print."""
    if to not in (*TARGETS, "vitreous"):
        raise CheckpointError(f"--to {to!r}: choose from {', '.join(TARGETS)}, vitreous")
    if is_taken(target):
        raise CheckpointError(f"{str(target)!r} exists already: name another target, or remove it first")
    asked = {"image_size": image_size, "patch_size": patch_size, "channels": channels, "num_classes": num_classes}
    fitted: dict[str, Any] = {name: value for name, value in asked.items() if value is not None}
    open_questions = {
        "num_heads": num_heads, "pool": pool, "gelu": gelu, "norm_eps": norm_eps, "image_size": trained_size,
    }  # fmt: skip
    preprocessing: Preprocessing | None
    temperature = 1.0
    class_names: tuple[str, ...] | None
    if is_run(source):
        model, preprocessing, class_names, temperature = _read_run(source, fitted)
        lines = [f"{source}: a run of vitreous"]
    else:
        model, checkpoint = fit_model(read_quietly(source, open_questions, None, allow_partial), fitted)
        preprocessing, class_names = checkpoint.preprocessing, checkpoint.class_names
        noted = [*checkpoint.notes, *([in_words(checkpoint.assumptions)] if checkpoint.assumptions else [])]
        lines = [f"{source}: {checkpoint.report}", *(f"  {note}" for note in noted)]
    if to != "vitreous":
        stats: dict[str, Any] = preprocessing.model_dump(include={"mean", "std"}) if preprocessing else {}
        layout = cast(TargetLayout, to)
        lines += save_model(
            model, target, layout, class_names=class_names, approximate=approximate, temperature=temperature, **stats
        )
        if to == "hf" and preprocessing is not None and is_run(source):
            lines += processor_limits(preprocessing)
        return [*lines, f"wrote {target} in the layout of {to}"]
    names = _distinct_names(class_names, model.config.num_classes, lines)
    notes = [f"converted from {source.name}", *lines]
    if preprocessing is None:
        zeros, ones = (0.0,) * model.config.channels, (1.0,) * model.config.channels
        preprocessing = bilinear_preprocessing(model.config, mean=zeros, std=ones)
        lines.append(
            "the input's mean and std are unknown: pixels are taken as 0 to 1; if not so, edit config.json and remove"
            ' its line "checksum"'
        )
    Run.adopt(target, model, preprocessing, names, notes)
    return [*lines, f"wrote the run {target}"]


def _read_run(source: Path, fitted: dict[str, Any]) -> tuple[ViT, Preprocessing, tuple[str, ...], float]:
    if fitted:
        raise CheckpointError(
            f"{', '.join(fitted)}: a run cannot be refitted here; `vitreous train --from {source}` fine-tunes it"
        )
    run = Run.open(source)
    model = run.load_model()
    if not isinstance(model, ViT):
        raise CheckpointError(f"{str(source)!r} holds a {run.config.model.kind}, which no ViT layout can express")
    return model, run.preprocessing, run.class_names, run.temperature


def _distinct_names(given: tuple[str, ...] | None, num_classes: int, lines: list[str]) -> tuple[str, ...]:
    """Return one distinct name per class (ImageNet has two cranes), since predictions are reported by name."""
    if given is not None and len(given) != num_classes:
        lines.append(f"the file names {len(given)} classes and the model has {num_classes}: they are numbered instead")
        given = None
    if given is None:
        return tuple(str(number) for number in range(num_classes))
    return tuple(f"{name} ({i})" if given.count(name) > 1 else name for i, name in enumerate(given))
