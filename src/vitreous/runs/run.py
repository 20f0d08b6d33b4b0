"""A run: the plain folder that `train` writes and everything else reads. Every file is written whole or not at all."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import shutil
import sys
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import vitreous
from vitreous import hardware
from vitreous.config import Config, DataConfig
from vitreous.data.datasets import Dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.downloads.files import atomic_write_bytes, atomic_write_text, locked, open_plain, remove_leftovers
from vitreous.errors import RunError, quoted
from vitreous.runs.calibration import Fitted, write_calibration
from vitreous.runs.folders import LOCK, bundled_path, is_run, is_taken
from vitreous.runs.record import (
    CONFIG,
    MOST_SKIPPED_NAMES,
    DataRecord,
    Resolved,
    Results,
    RunRecord,
    TestResults,
    WeightsRecord,
    parse_json,
    read_record,
    record_text,
)
from vitreous.runs.resume import ResumePoint, newest_resume_point, shards_folder, step_name, write_resume_point
from vitreous.runs.tensors import read_tensors, tensor_bytes

if TYPE_CHECKING:
    from torch import nn

    from vitreous.models import ViT

WEIGHTS, METRICS, RESUME = "model.safetensors", "metrics.jsonl", "resume"


class Run:
    """One run folder. Everything known about it comes from `record`, its config.json."""

    def __init__(self, path: Path, record: RunRecord):
        self.path = path
        self.record = record

    @property
    def config(self) -> Config:
        return self.record.config

    @property
    def preprocessing(self) -> Preprocessing:
        return self.record.preprocessing

    @property
    def class_names(self) -> tuple[str, ...]:
        return self.record.data.class_names

    @property
    def is_done(self) -> bool:
        return self.record.status == "done"

    @property
    def resolved(self) -> Resolved:
        if self.record.resolved is None:
            raise RunError(f"{str(self.path)!r} was converted, not trained: name a run that `vitreous train` made")
        return self.record.resolved

    @property
    def test_results(self) -> TestResults:
        if self.record.results.test is None:
            raise RunError(f"{str(self.path)!r} has no test results: finish its training, or name another run")
        return self.record.results.test

    @property
    def steps_trained(self) -> int:
        return self.record.results.stopped_at_step or self.resolved.steps

    @property
    def temperature(self) -> float:
        """What logits are divided by before softmax; 1 where it was not fitted."""
        return 1.0 if self.record.calibration is None else self.record.calibration.temperature

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.config.name}, {self.record.status})"

    # --- creating and opening ------------------------------------------------------------------------------

    @classmethod
    def create(
        cls,
        path: Path,
        config: Config,
        dataset: Dataset,
        preprocessing: Preprocessing,
        resolved: Resolved | None = None,
    ) -> Run:
        """Create the folder for a training; an existing one that holds anything is left alone."""
        data = DataRecord(
            name=dataset.name,
            class_names=dataset.class_names,
            images={"train": len(dataset.train), "val": len(dataset.val), "test": len(dataset.test)},
            checksums=dataset.checksums,
            test_sha256=dataset.test.sha256,
            notes=dataset.notes,
            skipped=len(dataset.skipped),
            skipped_names=dataset.skipped[:MOST_SKIPPED_NAMES],
        )
        return cls._create(path, config, preprocessing, data, resolved)

    @classmethod
    def adopt(
        cls, path: Path, model: ViT, preprocessing: Preprocessing, class_names: Sequence[str], notes: Sequence[str]
    ) -> Run:
        """Create a run from foreign weights: no data and no metrics, but all that `predict` and `look` need."""
        config = Config(name=path.name, model=model.config, data=DataConfig(name=""))
        data = DataRecord(name="", class_names=tuple(class_names), notes=tuple(notes))
        run = cls._create(path, config, preprocessing, data, None)
        run.finish(model, None)
        return run

    @classmethod
    def _create(
        cls, path: Path, config: Config, preprocessing: Preprocessing, data: DataRecord, resolved: Resolved | None
    ) -> Run:
        path = Path(path)
        require_free(path)
        record = RunRecord(
            vitreous=vitreous.__version__,
            created=datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            status="training",
            config=config,
            preprocessing=preprocessing,
            data=data,
            resolved=resolved,
            versions=hardware.versions(),
        )
        run, is_new = cls(path, record), not path.exists()
        try:
            path.mkdir(parents=True, exist_ok=True)
            with run.locked():
                require_free(path)  # again: another process may have created it meanwhile
                try:
                    run.write_record()
                except BaseException:
                    if is_new and not is_taken(path):
                        shutil.rmtree(path, ignore_errors=True)
                    raise
        except OSError as error:
            raise RunError(
                f"cannot write the run folder {str(path)!r}: {error.strerror}; name another with -o"
            ) from None
        return run

    @classmethod
    def open(cls, path: Path | str) -> Self:
        """Open the run in that folder; `bundled:vit` and `bundled:cnn` come with the package."""
        path = bundled_path(str(path)) or Path(path)
        if not os.path.isdir(path):  # Path.is_dir raises where the name is too long
            raise RunError(f"there is no run folder {quoted(str(path))}; `vitreous train PRESET -o RUN` makes one")
        return cls(path, read_record(path / CONFIG))

    def write_record(self) -> None:
        atomic_write_text(self.path / CONFIG, record_text(self.record))

    def update_resolved(self, resolved: Resolved) -> None:
        with self.writing():
            self.record = self.record.replace(resolved=resolved)
            self.write_record()

    # --- weights -------------------------------------------------------------------------------------------

    def finish(
        self,
        model: nn.Module,
        test: TestResults | None,
        fitted: Fitted | None = None,
        *,
        stopped_at_step: int | None = None,
        best_step: int | None = None,
    ) -> None:
        """Write the weights, then the record with their checksum; the resume folder is no longer needed."""
        data = tensor_bytes(model.state_dict())
        with self.writing():
            atomic_write_bytes(self.path / WEIGHTS, data)
            weights = WeightsRecord(sha256=hashlib.sha256(data).hexdigest())
            results = Results(stopped_at_step=stopped_at_step, best_step=best_step)
            self.record = self.record.replace(status="done", results=results, weights=weights)
            write_calibration(self, fitted, test)
        self.remove_checkpoints()

    def remove_checkpoints(self) -> None:
        shutil.rmtree(self.path / RESUME, ignore_errors=True)  # a finished run may be read-only

    @contextlib.contextmanager
    def writing(self) -> Iterator[None]:
        """Report a full disk or a removed folder in one sentence; earlier checkpoints stay."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"cannot write to {str(self.path)!r}: {error.strerror or error}; make room, then go on with"
                f" `vitreous train --resume -o {self.path}`"
            ) from None

    def load_model(self) -> nn.Module:
        """Return the trained model, in eval mode."""
        from vitreous.models import build

        model = build(self.config.model)
        tensors = read_tensors(self._weights_bytes(), self.path / WEIGHTS)
        try:
            model.load_state_dict(tensors, strict=True)
        except RuntimeError as error:
            detail = " ".join(str(error).split())[:300]
            raise RunError(
                f"the weights {str(self.path / WEIGHTS)!r} do not fit the model in {CONFIG}: one was edited: {detail}"
            ) from None
        return model.eval()

    def _weights_bytes(self) -> bytes:
        file = self.path / WEIGHTS
        if not file.is_file():
            if not self.is_done:
                raise RunError(
                    f"{str(self.path)!r} has no weights yet: finish it with `vitreous train --resume -o {self.path}`"
                )
            raise RunError(f"{str(self.path)!r} is missing {WEIGHTS}; train it again, or restore the file")
        try:
            with open_plain(file) as stream:
                data = stream.read()
        except OSError as error:
            raise RunError(f"cannot read {str(file)!r}: {error.strerror}; make it readable") from None
        expected = self.record.weights.sha256
        if expected and hashlib.sha256(data).hexdigest() != expected:
            raise RunError(
                f"{str(file)!r} is not the file that was written (its SHA-256 differs from {CONFIG}'s); train again"
            )
        return data

    # --- metrics -------------------------------------------------------------------------------------------

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl; JSON has no NaN, so a number that is not finite becomes null."""
        line = {key: value if _is_finite(value) else None for key, value in values.items()}
        with self.writing(), (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(line) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        file = self.path / METRICS
        try:
            with open_plain(file) as stream:
                lines = stream.read().splitlines()
        except FileNotFoundError:
            return []
        except OSError as error:
            raise RunError(f"cannot read {str(file)!r}: {error.strerror}; make it readable") from None
        return [_parse_metrics(line, f"line {number} of {str(file)!r}") for number, line in enumerate(lines, start=1)]

    # --- checkpoints: exact resume -------------------------------------------------------------------------

    def save_resume_point(self, point: ResumePoint) -> None:
        with self.writing():
            with (self.path / METRICS).open("ab") as metrics:
                os.fsync(metrics.fileno())  # the lines a checkpoint refers to must be on the disk before it is
                metrics_bytes = metrics.tell()
            write_resume_point(self.path / RESUME, point, metrics_bytes)

    def resume_point(self, check_shards: bool = True) -> ResumePoint | None:
        """Return the newest undamaged checkpoint, if there is one; `check_shards` reads all of them."""
        return newest_resume_point(self.path / RESUME, self.path / METRICS, check_shards)

    def shards_folder(self, step: int) -> Path:
        return shards_folder(self.path / RESUME, step)

    def rewind(self) -> ResumePoint | None:
        """Go back to the newest undamaged checkpoint and truncate metrics.jsonl to it; None: start over.

        Damaged checkpoints are removed: by their number they would count as newer than those written next.
        """
        point = self.resume_point()
        with self.writing():
            for damaged in (self.path / RESUME).glob("step-*"):
                if point is None or damaged.stem > step_name(point.step):
                    shutil.rmtree(damaged) if damaged.is_dir() else damaged.unlink()
            metrics = self.path / METRICS
            if metrics.exists():
                with open_plain(metrics) as stream:
                    kept = stream.read(point.facts["metrics_bytes"] if point else 0)
                with metrics.open("r+b") as file:
                    file.truncate(kept.rfind(b"\n") + 1)  # drop a line that a power failure left incomplete
        return point

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time train this run, and first remove what a killed one left of its last write."""

        def busy() -> None:
            raise RunError(f"{str(self.path)!r} is being trained by another process: wait for it, or stop it")

        with locked(self.path / LOCK, busy):
            for folder in (self.path, self.path / RESUME):
                remove_leftovers(folder)
            yield


def _is_finite(value: Any) -> bool:
    """Return False for NaN, the infinities, and integers beyond any float; True for what is no number."""
    return not isinstance(value, int | float) or abs(value) <= sys.float_info.max


def _parse_metrics(line: bytes, where: str) -> dict[str, Any]:
    try:
        values = parse_json(line)
    except ValueError as error:
        raise RunError(f"{where} is not JSON ({error}); it was edited or damaged: remove it") from None
    if not isinstance(values, dict) or not all(_is_finite(value) for value in values.values()):
        raise RunError(f"{where} is not an object of words and finite numbers; it was edited or damaged: remove it")
    return values


def require_free(path: Path) -> None:
    """Raise if a run cannot be created there."""
    if is_taken(path):
        go_on = "add --resume to go on with it, or " if is_run(path) else ""
        raise RunError(f"{str(path)!r} exists already: {go_on}name another folder")


def open_run(path: Path | str | None) -> Run:
    """Open the run in that folder; None means the bundled ViT."""
    return Run.open("bundled:vit" if path is None else path)
