"""A run: the plain folder that `train` writes and everything else reads. Every file is written whole or not at all."""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import vitreous
from vitreous import hardware
from vitreous.config import Config, DataConfig
from vitreous.data.datasets import Dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.downloads.files import atomic_write_bytes, atomic_write_text, locked
from vitreous.errors import RunError, VitreousError
from vitreous.runs.folders import bundled_path, is_run, is_taken
from vitreous.runs.record import (
    CONFIG,
    DataRecord,
    Resolved,
    Results,
    RunRecord,
    TestResults,
    WeightsRecord,
    read_record,
)

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitreous.models import ViT

WEIGHTS, METRICS, RESUME = "model.safetensors", "metrics.jsonl", "resume"
_KEPT_RESUME_POINTS = 2  # the newest, and the one before it in case the newest is damaged


@dataclass(frozen=True)
class ResumePoint:
    """What exact resume needs at one step: named tensors, and plain numbers beside them."""

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


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
        if is_taken(path):
            go_on = "add --resume to go on with it, or " if is_run(path) else ""
            raise RunError(f"{str(path)!r} exists already: {go_on}name another folder")
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
        run = cls(path, record)
        try:
            path.mkdir(parents=True, exist_ok=True)
            run.write_record()
        except OSError as error:
            raise RunError(
                f"cannot write the run folder {str(path)!r}: {error.strerror}; name another with -o"
            ) from None
        return run

    @classmethod
    def open(cls, path: Path | str) -> Run:
        """Open the run in that folder; `bundled:vit` and `bundled:cnn` come with the package."""
        path = bundled_path(str(path)) or Path(path)
        if not path.is_dir():
            raise RunError(f"there is no run folder {str(path)!r}; `vitreous train PRESET -o {path}` makes one")
        return cls(path, read_record(path / CONFIG))

    def write_record(self) -> None:
        text = json.dumps(self.record.model_dump(mode="json"), indent=2, ensure_ascii=False)
        atomic_write_text(self.path / CONFIG, text + "\n")

    # --- weights -------------------------------------------------------------------------------------------

    def finish(self, model: nn.Module, test: TestResults | None) -> None:
        """Write the weights, then the record with their checksum; the resume folder is no longer needed."""
        data = _tensor_bytes(model.state_dict())
        with self._writing():
            atomic_write_bytes(self.path / WEIGHTS, data)
            weights = WeightsRecord(sha256=hashlib.sha256(data).hexdigest())
            self.record = self.record.replace(status="done", results=Results(test=test), weights=weights)
            self.write_record()
        shutil.rmtree(self.path / RESUME, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
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
        tensors = _read_tensors(self._weights_bytes(), self.path / WEIGHTS)
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
        data = file.read_bytes()
        expected = self.record.weights.sha256
        if expected and hashlib.sha256(data).hexdigest() != expected:
            raise RunError(
                f"{str(file)!r} is not the file that was written (its SHA-256 differs from {CONFIG}'s); train again"
            )
        return data

    # --- metrics -------------------------------------------------------------------------------------------

    def log(self, **values: Any) -> None:
        """Append one line to metrics.jsonl."""
        with self._writing(), (self.path / METRICS).open("a", encoding="utf-8") as file:
            file.write(json.dumps(values) + "\n")

    def metrics(self) -> list[dict[str, Any]]:
        file = self.path / METRICS
        if not file.is_file():
            return []
        lines = []
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1):
            try:
                lines.append(json.loads(line))
            except json.JSONDecodeError:
                raise RunError(
                    f"line {number} of {str(file)!r} is not JSON; it was edited or truncated: remove it"
                ) from None
        return lines

    # --- checkpoints: exact resume -------------------------------------------------------------------------

    def save_resume_point(self, point: ResumePoint) -> None:
        """Write the tensors, then the small file with their SHA-256; remove older checkpoints last."""
        folder = self.path / RESUME
        stem = _step_name(point.step)
        data = _tensor_bytes(point.tensors)
        with self._writing():
            with (self.path / METRICS).open("ab") as metrics:
                os.fsync(metrics.fileno())  # the lines a checkpoint refers to must be on the disk before it is
                metrics_bytes = metrics.tell()
            digest = hashlib.sha256(data).hexdigest()
            facts = {**point.facts, "step": point.step, "sha256": digest, "metrics_bytes": metrics_bytes}
            folder.mkdir(exist_ok=True)
            atomic_write_bytes(folder / f"{stem}.safetensors", data)
            atomic_write_text(folder / f"{stem}.json", json.dumps(facts))
        for old in sorted(folder.glob("step-*.json"))[:-_KEPT_RESUME_POINTS]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def resume_point(self) -> ResumePoint | None:
        """Return the newest undamaged checkpoint, if there is one."""
        files = sorted((self.path / RESUME).glob("step-*.json"), reverse=True)
        return next((point for file in files if (point := _read_resume_point(file)) is not None), None)

    def rewind(self) -> ResumePoint | None:
        """Go back to the newest undamaged checkpoint and truncate metrics.jsonl to it; None: start over.

        Damaged checkpoints are removed: by their number they would count as newer than those written next.
        """
        point = self.resume_point()
        with self._writing():
            for damaged in (self.path / RESUME).glob("step-*"):
                if point is None or damaged.stem > _step_name(point.step):
                    damaged.unlink()
            metrics = self.path / METRICS
            if metrics.exists():
                kept = metrics.read_bytes()[: point.facts["metrics_bytes"] if point else 0]
                with metrics.open("r+b") as file:
                    file.truncate(kept.rfind(b"\n") + 1)  # drop a line that a power failure left incomplete
        return point

    @contextlib.contextmanager
    def locked(self) -> Iterator[None]:
        """Let one process at a time train this run."""

        def busy() -> None:
            raise RunError(f"{str(self.path)!r} is being trained by another process: wait for it, or stop it")

        with locked(self.path / ".lock", busy):
            yield


def _step_name(step: int) -> str:
    return f"step-{step:09d}"


def _read_resume_point(facts_file: Path) -> ResumePoint | None:
    """Return None where the file was truncated or its tensors do not have the recorded checksum."""
    try:
        facts = json.loads(facts_file.read_text(encoding="utf-8"))
        data = facts_file.with_suffix(".safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != facts["sha256"]:
            return None
        return ResumePoint(facts["step"], _read_tensors(data, facts_file), facts)
    except (OSError, ValueError, KeyError, VitreousError):
        return None


def _tensor_bytes(tensors: Mapping[str, Tensor]) -> bytes:
    from safetensors.torch import save

    return save({name: tensor.detach().cpu().contiguous() for name, tensor in tensors.items()})


def _read_tensors(data: bytes, file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise RunError(
            f"{str(file)!r} is not a whole safetensors file ({error}); train again, or restore the file"
        ) from None


def open_run(path: Path | str | None) -> Run:
    """Open the run in that folder; None means the bundled ViT."""
    return Run.open("bundled:vit" if path is None else path)
