"""A run: the plain folder that `train` writes and everything else reads.

config.json · model.safetensors · metrics.jsonl · resume/ (while training) · report/. Every file is written whole or
not at all; nothing is unpickled.
"""

from __future__ import annotations

import contextlib
import datetime
import hashlib
import json
import os
import platform
import re
import shutil
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Literal

from pydantic import BaseModel, ConfigDict

import vitreous
from vitreous.config import Config, DataConfig, build_config
from vitreous.data.datasets import Dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.downloads.files import atomic_write_bytes, atomic_write_text, locked
from vitreous.errors import DataError, RunError, VitreousError

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitreous.models import ViT

FORMAT = 2  # 1: vitreous 0.1
CONFIG, WEIGHTS, METRICS, RESUME = "config.json", "model.safetensors", "metrics.jsonl", "resume"
BUNDLED = Path(__file__).parent / "bundled"  # the models that come with the package, as small runs
_KEPT_RESUME_POINTS = 2  # the newest, and the one before it in case the newest is damaged


# --- the record: config.json -----------------------------------------------------------------------------------


class _Stored(BaseModel):
    """A part of config.json; keys that other tools added to it are kept."""

    model_config = ConfigDict(frozen=True, extra="allow")


class DataRecord(_Stored):
    """The data a run was trained on."""

    name: str  # "": a converted checkpoint, whose data are not known
    class_names: tuple[str, ...]
    images: dict[str, int] = {}  # per split
    checksums: dict[str, str] = {}
    notes: tuple[str, ...] = ()


class Resolved(_Stored):
    """What the configuration left open and the data or the machine decided."""

    device: str = "cpu"
    threads: int = 1
    world_size: int = 1
    batch_size: int  # over all processes
    steps: int
    steps_per_epoch: int
    compile: bool = False
    teacher: dict[str, str] | None = None  # which weights distil, so that a resumed training has the same ones
    hardware: str = ""
    seconds_per_step: float | None = None  # measured, where a number of seconds became a number of steps
    starting_weights: tuple[str, ...] = ()  # what was done to fit them to the data


class TestResults(_Stored):
    """Measured once, on the test split, with the weights that were kept."""

    accuracy: float
    correct: int
    count: int
    nll: float
    calibration_error: float
    train_seconds: float
    images_per_second: float


class Results(_Stored):
    test: TestResults | None = None  # None: a converted checkpoint


class WeightsRecord(_Stored):
    sha256: str | None = None


class RunRecord(_Stored):
    """Everything in config.json."""

    format: int = FORMAT
    vitreous: str
    created: str
    status: Literal["training", "done"]
    config: Config
    preprocessing: Preprocessing
    data: DataRecord
    resolved: Resolved | None  # None: a converted checkpoint
    versions: dict[str, str] = {}
    results: Results = Results()
    weights: WeightsRecord = WeightsRecord()
    provenance: dict[str, str] | None = None  # of a bundled model: command and commit

    def replace(self, **changes: Any) -> RunRecord:
        return self.model_copy(update=changes)


def _read_record(file: Path) -> RunRecord:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{str(file.parent)!r} is not a run folder: it has no {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{str(file)!r} cannot be read ({error}); it was edited or truncated: train again") from None
    if not _is_record(record):
        raise RunError(f"{str(file)!r} is not a vitreous run's configuration; train again, or name another run")
    if record["format"] > FORMAT:
        raise RunError(
            f"{str(file)!r} has format {record['format']}, made by vitreous {record.get('vitreous', '?')}; this is"
            f" {vitreous.__version__}, which reads up to {FORMAT}: pip install --upgrade vitreous"
        )
    missing = [name for name, field in RunRecord.model_fields.items() if field.is_required() and name not in record]
    if missing:
        raise RunError(f"{str(file)!r} lacks {', '.join(missing)}; it was edited by hand: train again")
    # the two parts a person edits are checked first, for messages that name the setting alone
    config, preprocessing = _migrated(record)
    record["config"] = build_config(Config, config, source=str(file))
    record["preprocessing"] = build_config(Preprocessing, preprocessing, source=str(file))
    return build_config(RunRecord, record, source=str(file))


def _is_record(record: Any) -> bool:
    return isinstance(record, dict) and isinstance(record.get("format"), int) and "vitreous" in record


def _migrated(record: dict[str, Any]) -> tuple[Any, Any]:
    """Return the configuration and the preprocessing of a record of any format, in today's fields."""
    config, preprocessing = record["config"], record["preprocessing"]
    if record["format"] == 1 and isinstance(config, dict) and isinstance(preprocessing, dict):
        preprocessing = {key: value for key, value in preprocessing.items() if key != "range"}  # it was always 0 to 1
        if isinstance(model := config.get("model"), dict):
            renamed = {"mends": "fixes"}  # vocabulary: ok
            without_effect = {"patch_embed"}  # "conv" and "linear" were the same arithmetic
            model = {renamed.get(key, key): value for key, value in model.items() if key not in without_effect}
            config = {**config, "model": model}
        record["format"] = FORMAT
        record["resolved"] = record["resolved"] or None
    return config, preprocessing


# --- the run ---------------------------------------------------------------------------------------------------


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
            versions=versions(),
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
        return cls(path, _read_record(path / CONFIG))

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


def versions() -> dict[str, str]:
    import numpy
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}


# --- finding runs and naming folders -----------------------------------------------------------------------------


def new_run_path(config: Config, root: Path = Path("runs")) -> Path:
    """Return runs/mnist-vit, or the next free runs/mnist-vit-2, -3, …"""
    data = re.sub(r"[^A-Za-z0-9]+", "-", Path(config.data.name).stem).strip("-").lower()
    # a recipe that names its data already (mnist-fast) does not repeat it
    stem = config.name if config.name.startswith(data) else f"{data}-{config.name}"
    return free_folder(root / stem)


def is_taken(path: Path) -> bool:
    """Return whether writing to `path` would lose something; an empty folder is free."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def free_folder(path: Path) -> Path:
    """Return the path itself, or the first of path-2, path-3, … that does not exist."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def report_folder(out: Path | str | None, default: Path) -> Path:
    """Return where a report goes: `out`, unless it is a run, which is never written into; by default a free folder."""
    if out is None:
        return free_folder(default)
    if is_run(out):
        raise RunError(f"{str(out)!r} is a run, and reports do not go into runs: name another folder with -o")
    return Path(out)


def is_run(path: Path | str) -> bool:
    """Return whether a folder is a vitreous run; published checkpoints have a config.json of another kind."""
    try:
        return _is_record(json.loads(((bundled_path(str(path)) or Path(path)) / CONFIG).read_text(encoding="utf-8")))
    except (OSError, ValueError):
        return False


def bundled_path(name: str) -> Path | None:
    """Return the folder of `bundled:vit` or `bundled:cnn`; None for any other kind of name."""
    prefix, colon, model = name.partition(":")
    if not colon or prefix not in ("bundled", "box"):  # "box" is the name of 0.1, an alias for one release
        return None
    names = sorted(path.parent.name for path in BUNDLED.glob(f"*/{CONFIG}"))
    if model not in names:
        raise RunError(f"there is no bundled model {model!r}; choose from {', '.join(names)}")
    return BUNDLED / model


def open_run(path: Path | str | None) -> Run:
    """Open the run in that folder; None means the bundled ViT."""
    return Run.open("bundled:vit" if path is None else path)


def require_same_data(run: Run, dataset: Dataset) -> None:
    """Raise if `dataset` is no longer what the run was trained on: the one rule for everything that reads its images.

    A changed data set is split anew, so images of the test split may have been trained on.
    """
    expected = run.record.data.checksums
    if expected and dataset.checksums != expected:
        raise DataError(
            f"the data {dataset.name!r} changed since {str(run.path)!r} was trained, so test images may be among those"
            " it was trained on; restore the data, or train a new run"
        )
