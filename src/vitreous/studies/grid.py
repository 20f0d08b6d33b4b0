"""One training of a grid: trained now, resumed, or reused; and its evaluation, image by image."""

from __future__ import annotations

import dataclasses
import io
import json
import zipfile
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.config import Config
from vitreous.downloads.files import atomic_write_bytes
from vitreous.errors import RunError
from vitreous.evaluation import metrics
from vitreous.evaluation.prediction import evaluate_model
from vitreous.models import count_parameters
from vitreous.models.summary import count_flops
from vitreous.runs import CONFIG, Run, load_run_data
from vitreous.training.callbacks import Callback
from vitreous.training.loop import fit
from vitreous.training.restart import same_training


def train_or_reuse(
    config: Config, path: Path, device: str, progress: bool, callbacks: Iterable[Callback | str] = ()
) -> Run:
    """Train into `path`; a finished run there is reused, an interrupted one resumed."""
    if not (path / CONFIG).exists():
        return fit(config, path, device=device, progress=progress, callbacks=callbacks)
    run = Run.open(path)
    if not same_training(run.config, config):
        raise RunError(f"{str(path)!r} holds a run with other settings: name another folder with -o")
    if not run.is_done:
        return fit(config, path, resume=True, device=device, progress=progress, callbacks=callbacks)
    load_run_data(run)  # raises where the data changed: its figures would stand beside those of other images
    return run


@dataclass(frozen=True)
class Evaluated:
    """A finished run on its test images, predicted `batch_size` at a time."""

    run: str
    seed: int
    batch_size: int
    kind: str
    parameters: int
    flops: int
    train_images: int
    steps: int
    train_seconds: float
    nll: float  # without temperature, as published figures are
    test_sha256: str  # of the test images and labels
    hardware: str
    threads: int
    correct: NDArray[np.bool_]  # (test images,)

    @property
    def accuracy(self) -> float:
        return float(self.correct.mean())


class _Fraction(Callback):
    """Pass on which share of a training is done."""

    def __init__(self, report: Callable[[float], None]):
        self.report, self.total = report, 1

    def on_start(self, run: Run) -> None:
        self.total = run.resolved.steps

    def on_step(self, values: Mapping[str, Any]) -> None:
        self.report(values["step"] / self.total)


def train_and_evaluate(
    config: Config, path: Path, batch_sizes: Iterable[int], device: str, report: Callable[[float], None]
) -> None:
    """Train or reuse a run, then evaluate it for each batch size, unless that was done already."""
    run = train_or_reuse(config, path, device, progress=False, callbacks=[_Fraction(report)])
    for batch_size in batch_sizes:
        if read_evaluated(run, batch_size) is None:
            _write_evaluated(run, batch_size)


def _file(run: Run, batch_size: int) -> Path:
    """Beside the runs, so that a run's folder has only what training writes."""
    return run.path.parents[1] / "evaluations" / f"{run.path.name}-batch{batch_size}.npz"


def _write_evaluated(run: Run, batch_size: int) -> None:
    dataset, model = load_run_data(run), run.load_model()
    found = evaluate_model(model, dataset.test, run.preprocessing, batch_size, run.temperature)
    evaluated = Evaluated(
        run=str(run.path),
        seed=run.config.seed,
        batch_size=batch_size,
        kind=run.config.model.kind,
        parameters=count_parameters(model),
        flops=count_flops(run.config.model),
        train_images=run.record.data.images["train"],
        steps=run.steps_trained,
        train_seconds=run.test_results.train_seconds,
        nll=found.raw_nll,
        test_sha256=dataset.test.sha256,
        hardware=run.resolved.hardware,
        threads=run.resolved.threads,
        correct=metrics.correct(found.logits, found.labels),
    )
    facts = {field.name: getattr(evaluated, field.name) for field in dataclasses.fields(evaluated)}
    correct = np.packbits(facts.pop("correct"))
    facts |= {"weights": run.record.weights.sha256, "count": len(found.labels)}
    stream, file = io.BytesIO(), _file(run, batch_size)
    np.savez(stream, correct=correct, facts=np.frombuffer(json.dumps(facts).encode(), np.uint8))
    file.parent.mkdir(parents=True, exist_ok=True)
    atomic_write_bytes(file, stream.getvalue())


def read_evaluated(run: Run, batch_size: int) -> Evaluated | None:
    """Return the stored evaluation; None where there is none, or one of other weights or of a damaged file."""
    try:
        with np.load(io.BytesIO(_file(run, batch_size).read_bytes())) as arrays:
            facts = json.loads(arrays["facts"].tobytes())
            packed = arrays["correct"]
        if facts.pop("weights") != run.record.weights.sha256:
            return None
        correct = np.unpackbits(packed, count=facts.pop("count")).astype(bool)
        return Evaluated(**facts | {"run": str(run.path)}, correct=correct)
    except (OSError, ValueError, KeyError, TypeError, EOFError, zipfile.BadZipFile):
        return None
