"""Checkpoints, for exact resume: the newest undamaged one counts.

Each is two files: the tensors, and a small JSON file written after them, which vouches for them and for itself. Of a
sharded training there is a folder as well, in which every rank wrote its part of the sharded tensors (safetensors).
"""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from pydantic import BaseModel, ConfigDict, Field, NonNegativeFloat, NonNegativeInt

from vitreous.downloads.files import atomic_write_bytes, atomic_write_text, open_plain, read_plain, sha256_of
from vitreous.errors import RunError, VitreousError
from vitreous.runs.record import CHECKSUM, content_checksum, parse_json
from vitreous.runs.tensors import read_tensors, tensor_bytes

if TYPE_CHECKING:
    from torch import Tensor

_KEPT = 2  # the newest, and the one before it in case the newest is damaged


@dataclass(frozen=True)
class ResumePoint:
    """What exact resume needs at one step: named tensors, and plain numbers beside them."""

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]
    shards: dict[str, str] = field(
        default_factory=dict
    )  # SHA-256 of each file in the folder of shards; none: no folder


class _Facts(BaseModel):
    """The JSON file of a checkpoint, without its checksum."""

    model_config = ConfigDict(strict=True, allow_inf_nan=False)

    step: NonNegativeInt
    sha256: str  # of the tensors' file
    shards: dict[str, str] = {}
    metrics_bytes: NonNegativeInt  # length of metrics.jsonl
    elapsed_seconds: NonNegativeFloat = 0.0
    window: list[float] = Field(default=[0.0, 0.0, 0.0], min_length=3, max_length=3)  # sums since the last line of it
    window_seconds: NonNegativeFloat = 0.0
    best_step: NonNegativeInt | None = None  # of the best validation so far
    best_score: list[float] | None = None
    validations_since_best: NonNegativeInt = 0


def write_resume_point(folder: Path, point: ResumePoint, metrics_bytes: int) -> None:
    """Write the tensors, then the small file with their SHA-256; remove older checkpoints last.

    The shards, if there are any, are in `shards_folder` already.
    """
    stem, data = step_name(point.step), tensor_bytes(point.tensors)
    digest = hashlib.sha256(data).hexdigest()
    facts = {**point.facts, "step": point.step, "sha256": digest, "metrics_bytes": metrics_bytes}
    if point.shards:
        facts["shards"] = point.shards
    folder.mkdir(exist_ok=True)
    atomic_write_bytes(folder / f"{stem}.safetensors", data)
    atomic_write_text(folder / f"{stem}.json", json.dumps({**facts, CHECKSUM: content_checksum(facts)}))
    for old in sorted(folder.glob("step-*.json"))[:-_KEPT]:
        old.unlink()
        old.with_suffix(".safetensors").unlink(missing_ok=True)
        shutil.rmtree(old.with_suffix(""), ignore_errors=True)


def newest_resume_point(folder: Path, metrics: Path, check_shards: bool = True) -> ResumePoint | None:
    """Return the newest undamaged checkpoint, if there is one; the shards may have been checked by another rank."""
    files = sorted(folder.glob("step-*.json"), reverse=True)
    return next((point for file in files if (point := _read(file, metrics, check_shards)) is not None), None)


def shards_folder(folder: Path, step: int) -> Path:
    """Return where the shards of a step are: beside its two files."""
    return folder / step_name(step)


def step_name(step: int) -> str:
    return f"step-{step:09d}"


def _read(file: Path, metrics: Path, check_shards: bool) -> ResumePoint | None:
    """Return None for a checkpoint with any damage."""
    try:
        facts = _read_facts(file, metrics)
        with open_plain(file.with_suffix(".safetensors")) as stream:
            data = stream.read()
        if hashlib.sha256(data).hexdigest() != facts.sha256:
            return None
        shards = shards_folder(file.parent, facts.step)
        if check_shards and any(sha256_of(shards / Path(name).name) != digest for name, digest in facts.shards.items()):
            return None
        return ResumePoint(facts.step, read_tensors(data, file), facts.model_dump(), facts.shards)
    except PermissionError as error:  # no damage: it must not be removed
        raise RunError(f"cannot read the checkpoint {str(file)!r}: {error.strerror}; make it readable") from None
    except (OSError, ValueError, VitreousError):
        return None


def _read_facts(file: Path, metrics: Path) -> _Facts:
    stored = parse_json(read_plain(file))
    if not isinstance(stored, dict):
        raise ValueError("not an object")
    checksum = stored.pop(CHECKSUM, None)
    if checksum is not None and checksum != content_checksum(stored):
        raise ValueError("its content does not have its checksum")
    facts = _Facts.model_validate(stored)
    if file.stem != step_name(facts.step):
        raise ValueError("the step is not that of the file's name")
    if checksum is None:  # vitreous 0.1 wrote none, and no keys but these
        if not stored.keys() <= _Facts.model_fields.keys():
            raise ValueError("unknown keys")
        lines = read_plain(metrics)[: facts.metrics_bytes] if facts.metrics_bytes else b""
        if len(lines) < facts.metrics_bytes or (lines and not lines.endswith(b"\n")):
            raise ValueError("metrics.jsonl has no line that ends there")
    return facts
