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
from typing import TYPE_CHECKING, Any

import vitreous
from vitreous.config import Config, DataConfig, build_config
from vitreous.data.datasets import Dataset
from vitreous.errors import RunError, VitreousError
from vitreous.preprocess import Preprocessing
from vitreous.sources import atomic_write_bytes, atomic_write_text

if TYPE_CHECKING:
    from torch import Tensor, nn

    from vitreous.models import ViT

FORMAT = 1
CONFIG, WEIGHTS, METRICS, RESUME = "config.json", "model.safetensors", "metrics.jsonl", "resume"
_KEPT_RESUME_POINTS = 2  # the newest, and the one before it in case the newest was cut short


@dataclass(frozen=True)
class ResumePoint:
    """What exact resume needs at one step: named tensors, and plain numbers beside them."""

    step: int
    tensors: dict[str, Tensor]
    facts: dict[str, Any]


class Run:
    """One run folder. `config`, `preprocessing`, `class_names` come from config.json, the only source for them."""

    def __init__(self, path: Path, record: dict[str, Any]):
        self.path = path
        self.record = record
        source = str(path / CONFIG)
        self.config = build_config(Config, record["config"], source=source)
        self.preprocessing = build_config(Preprocessing, record["preprocessing"], source=source)
        self.class_names: tuple[str, ...] = tuple(record["data"]["class_names"])

    def __repr__(self) -> str:
        return f"Run({str(self.path)!r}: {self.config.name}, {self.record['status']})"

    # --- making and opening --------------------------------------------------------------------------------

    @classmethod
    def create(
        cls, path: Path, config: Config, dataset: Dataset, preprocessing: Preprocessing, resolved: Mapping[str, Any]
    ) -> Run:
        """A new folder for a training; an existing one that holds anything is left alone."""
        data = {
            "name": dataset.name,
            "class_names": list(dataset.class_names),
            "images": {"train": len(dataset.train), "val": len(dataset.val), "test": len(dataset.test)},
            "checksums": dataset.checksums,
            "notes": list(dataset.notes),
        }
        return cls._create(path, config, preprocessing, data, resolved)

    @classmethod
    def adopt(
        cls, path: Path, model: ViT, preprocessing: Preprocessing, class_names: Sequence[str], notes: Sequence[str]
    ) -> Run:
        """A run of somebody else's weights: no data and no metrics, but everything that predicting and looking need."""
        config = Config(name=path.name, model=model.config, data=DataConfig(name=""))
        data = {"name": "", "class_names": list(class_names), "images": {}, "checksums": {}, "notes": list(notes)}
        run = cls._create(path, config, preprocessing, data, {})
        run.finish(model, {})
        return run

    @classmethod
    def _create(
        cls,
        path: Path,
        config: Config,
        preprocessing: Preprocessing,
        data: Mapping[str, Any],
        resolved: Mapping[str, Any],
    ) -> Run:
        path = Path(path)
        if is_taken(path):
            go_on = "add --resume to go on with it, or " if is_run(path) else ""
            raise RunError(f"{str(path)!r} exists already: {go_on}name another folder")
        record = {
            "format": FORMAT,
            "vitreous": vitreous.__version__,
            "created": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "status": "training",
            "config": config.model_dump(mode="json"),
            "preprocessing": preprocessing.model_dump(mode="json"),
            "data": dict(data),
            "resolved": dict(resolved),
            "versions": versions(),
        }
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
        """The run of that folder; `box:vit` and `box:cnn` are those that come with the package."""
        path = in_the_box(str(path)) or Path(path)
        if not path.is_dir():
            raise RunError(f"there is no run folder {str(path)!r}; `vitreous train PRESET -o {path}` makes one")
        return cls(path, _read_record(path / CONFIG))

    def write_record(self) -> None:
        atomic_write_text(self.path / CONFIG, json.dumps(self.record, indent=2, ensure_ascii=False) + "\n")

    @property
    def is_done(self) -> bool:
        return self.record["status"] == "done"

    # --- weights -------------------------------------------------------------------------------------------

    def finish(self, model: nn.Module, results: Mapping[str, Any]) -> None:
        """Write the weights, then the record that vouches for them; the resume folder is no longer needed."""
        from safetensors.torch import save

        data = save({name: tensor.detach().cpu().contiguous() for name, tensor in model.state_dict().items()})
        with self._writing():
            atomic_write_bytes(self.path / WEIGHTS, data)
            weights = {"sha256": hashlib.sha256(data).hexdigest()}
            self.record.update(status="done", results=dict(results), weights=weights)
            self.write_record()
        shutil.rmtree(self.path / RESUME, ignore_errors=True)

    @contextlib.contextmanager
    def _writing(self) -> Iterator[None]:
        """A full disk, or a folder that went away, is told in a sentence; the checkpoints before it stay."""
        try:
            yield
        except OSError as error:
            raise RunError(
                f"cannot write to {str(self.path)!r}: {error.strerror or error}; make room, then go on with"
                f" `vitreous train --resume -o {self.path}`"
            ) from None

    def load_model(self) -> nn.Module:
        """The trained model, in eval mode."""
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
        expected = self.record.get("weights", {}).get("sha256")
        if expected and hashlib.sha256(data).hexdigest() != expected:
            raise RunError(
                f"{str(file)!r} is not the file that was written (its SHA-256 differs from {CONFIG}'s); train again"
            )
        return data

    # --- metrics -------------------------------------------------------------------------------------------

    def log(self, **values: Any) -> None:
        """One line of metrics.jsonl."""
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
                    f"line {number} of {str(file)!r} is not JSON; it was edited or cut short: remove it"
                ) from None
        return lines

    # --- checkpoints: exact resume -------------------------------------------------------------------------

    def save_resume_point(self, point: ResumePoint) -> None:
        """Tensors first, then the small file that vouches for them by SHA-256; older ones go last."""
        from safetensors.torch import save

        folder = self.path / RESUME
        stem = _step_name(point.step)
        data = save({name: tensor.detach().cpu().contiguous() for name, tensor in point.tensors.items()})
        with self._writing():
            with (self.path / METRICS).open("ab") as metrics:
                os.fsync(metrics.fileno())  # what the checkpoint counts on is on the disk before it is
                metrics_bytes = metrics.tell()
            facts = {
                **point.facts,
                "step": point.step,
                "sha256": hashlib.sha256(data).hexdigest(),
                "metrics_bytes": metrics_bytes,
            }
            folder.mkdir(exist_ok=True)
            atomic_write_bytes(folder / f"{stem}.safetensors", data)
            atomic_write_text(folder / f"{stem}.json", json.dumps(facts))
        for old in sorted(folder.glob("step-*.json"))[:-_KEPT_RESUME_POINTS]:
            old.unlink()
            old.with_suffix(".safetensors").unlink(missing_ok=True)

    def resume_point(self) -> ResumePoint | None:
        """The newest whole checkpoint; None: there is none."""
        files = sorted((self.path / RESUME).glob("step-*.json"), reverse=True)
        return next((point for file in files if (point := _read_resume_point(file)) is not None), None)

    def rewind(self) -> ResumePoint | None:
        """Go back to the newest whole checkpoint: metrics.jsonl is cut to what it was then. None: start over.

        Damaged checkpoints go: by their number they would count as newer than those that training writes next.
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
                    file.truncate(kept.rfind(b"\n") + 1)  # a line that a power cut left half goes too
        return point

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """One process trains a run at a time; where the system has no locks, nobody is stopped."""
        try:
            import fcntl
        except ImportError:
            yield
            return
        folder = os.open(self.path, os.O_RDONLY)
        try:
            fcntl.flock(folder, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(folder)
            raise RunError(f"{str(self.path)!r} is being trained by another process: wait for it, or stop it") from None
        except OSError:
            pass  # a file system without locks
        try:
            yield
        finally:
            os.close(folder)


def _step_name(step: int) -> str:
    return f"step-{step:09d}"


def _read_resume_point(facts_file: Path) -> ResumePoint | None:
    """None where the file was cut short or its tensors are not the ones it vouches for."""
    try:
        facts = json.loads(facts_file.read_text(encoding="utf-8"))
        data = facts_file.with_suffix(".safetensors").read_bytes()
        if hashlib.sha256(data).hexdigest() != facts["sha256"]:
            return None
        return ResumePoint(facts["step"], _read_tensors(data, facts_file), facts)
    except (OSError, ValueError, KeyError, VitreousError):
        return None


def _read_tensors(data: bytes, file: Path) -> dict[str, Tensor]:
    from safetensors import SafetensorError
    from safetensors.torch import load

    try:
        return load(data)
    except SafetensorError as error:
        raise RunError(
            f"{str(file)!r} is not a whole safetensors file ({error}); train again, or restore the file"
        ) from None


def _read_record(file: Path) -> dict[str, Any]:
    try:
        record = json.loads(file.read_text(encoding="utf-8"))
    except FileNotFoundError:
        raise RunError(f"{str(file.parent)!r} is not a run folder: it has no {CONFIG}") from None
    except (OSError, ValueError) as error:
        raise RunError(f"{str(file)!r} cannot be read ({error}); it was edited or cut short: train again") from None
    if not isinstance(record, dict) or not isinstance(record.get("format"), int):
        raise RunError(f"{str(file)!r} is not a vitreous run's configuration; train again, or name another run")
    if record["format"] > FORMAT:
        raise RunError(
            f"{str(file)!r} has format {record['format']}, made by vitreous {record.get('vitreous', '?')}; this is"
            f" {vitreous.__version__}, which reads up to {FORMAT}: pip install --upgrade vitreous"
        )
    missing = [key for key in ("config", "preprocessing", "data", "status", "resolved") if key not in record]
    if missing or "class_names" not in record["data"]:
        raise RunError(
            f"{str(file)!r} lacks {', '.join(missing) or 'data.class_names'}; it was edited by hand: train again"
        )
    return record


def new_run_path(config: Config, root: Path = Path("runs")) -> Path:
    """runs/mnist-vit, or the next free runs/mnist-vit-2, -3, …"""
    data = re.sub(r"[^A-Za-z0-9]+", "-", Path(config.data.name).stem).strip("-").lower()
    # a recipe that names its data already (mnist-fast) is not named twice
    stem = config.name if config.name.startswith(data) else f"{data}-{config.name}"
    return free_folder(root / stem)


def is_taken(path: Path) -> bool:
    """Whether something is there that writing would lose; an empty folder is free."""
    return path.exists() and (not path.is_dir() or any(path.iterdir()))


def free_folder(path: Path) -> Path:
    """The path itself, or the first of path-2, path-3, … that is not taken."""
    number, free = 1, path
    while free.exists():
        number += 1
        free = path.with_name(f"{path.name}-{number}")
    return free


def versions() -> dict[str, str]:
    import numpy
    import torch

    return {"python": platform.python_version(), "torch": torch.__version__, "numpy": numpy.__version__}


def report_folder(out: Path | str | None, default: Path) -> Path:
    """Where a report goes: the folder asked for, unless that is a run, which stays as it is; else a free one."""
    if out is None:
        return free_folder(default)
    if is_run(out):
        raise RunError(f"{str(out)!r} is a run, which stays as it is: name another folder with -o")
    return Path(out)


def is_run(path: Path | str) -> bool:
    """Whether a folder is a run of ours; published checkpoints may have a config.json of another kind."""
    file = (in_the_box(str(path)) or Path(path)) / CONFIG
    return file.is_file() and '"preprocessing"' in file.read_text(encoding="utf-8", errors="replace")


BOX = Path(__file__).parent / "box"  # the models that come with the package, as small runs


def in_the_box(name: str) -> Path | None:
    """The folder of `box:vit` or `box:cnn`; None: another kind of name."""
    if not name.startswith("box:"):
        return None
    boxed = sorted(path.parent.name for path in BOX.glob(f"*/{CONFIG}"))
    if name.removeprefix("box:") not in boxed:
        raise RunError(f"there is no model {name.removeprefix('box:')!r} in the box; choose from {', '.join(boxed)}")
    return BOX / name.removeprefix("box:")


def open_run(path: Path | str | None) -> Run:
    """The run of that folder; None: the ViT in the box."""
    return Run.open("box:vit" if path is None else path)
