"""The calibration of a run: its block of config.json, and the statistics of novelty in a file of their own."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.downloads.files import atomic_write_bytes, read_plain
from vitreous.errors import RunError
from vitreous.runs.record import CONFIG, Calibration, Results, TestResults
from vitreous.runs.tensors import read_tensors

if TYPE_CHECKING:
    from torch import Tensor

    from vitreous.runs.run import Run

Fitted = tuple[Calibration, bytes | None]  # the record, and the content of its novelty file


def novelty_file_name(content: bytes) -> str:
    """Return a name that ends in the content's checksum: a record never refers to another fit's statistics."""
    return f"novelty-{hashlib.sha256(content).hexdigest()[:12]}.safetensors"


def write_calibration(run: Run, fitted: Fitted | None, test: TestResults | None) -> None:
    """Write the statistics, then the record that names them; then older statistics are no longer needed."""
    calibration, statistics = fitted or (None, None)
    keep = None
    if calibration is not None and calibration.novelty is not None and statistics is not None:
        keep = run.path / calibration.novelty.file
        atomic_write_bytes(keep, statistics)
    run.record = run.record.replace(results=Results(test=test), calibration=calibration)
    run.write_record()
    for old in run.path.glob("novelty-*.safetensors"):
        if old != keep:
            old.unlink(missing_ok=True)


def novelty_statistics(run: Run) -> dict[str, Tensor] | None:
    """Return the tensors of `vitreous.evaluation.novelty`; None where they were not fitted."""
    calibration = run.record.calibration
    if calibration is None or calibration.novelty is None:
        return None
    file = run.path / Path(calibration.novelty.file).name
    again = f"restore it, or run `vitreous calibrate --run {run.path}`"
    try:
        data = read_plain(file, most=2**30)
    except OSError as error:
        reason = "is missing" if isinstance(error, FileNotFoundError) else f"cannot be read ({error.strerror})"
        raise RunError(f"{str(file)!r} {reason}: {again}") from None
    if hashlib.sha256(data).hexdigest() != calibration.novelty.sha256:
        raise RunError(f"{str(file)!r} is not the file that was written (its SHA-256 differs from {CONFIG}'s): {again}")
    return read_tensors(data, file)
