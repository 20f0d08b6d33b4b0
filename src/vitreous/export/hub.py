"""A run as a repository folder for the Hugging Face Hub: model card, weights in its ViT layout, preprocessor, the run.

Nothing is uploaded here; `Pushed.upload_command` is what does it.
"""

from __future__ import annotations

import os
import shutil
import tempfile
from dataclasses import dataclass, field
from pathlib import Path

from vitreous.checkpoints import save_model
from vitreous.checkpoints.processor import processor_limits
from vitreous.downloads.files import atomic_write_text
from vitreous.errors import CheckpointError, ExportError
from vitreous.export.model_card import RUN_FOLDER, model_card
from vitreous.models import ViT
from vitreous.reports.formats import join
from vitreous.runs import CONFIG, WEIGHTS, Run, is_taken

#: what the sub-folder keeps of the run; reports, checkpoints and graphs are left out
_KEPT = (CONFIG, WEIGHTS, "metrics.jsonl", "novelty-*.safetensors")


@dataclass(frozen=True)
class Pushed:
    """A repository folder."""

    folder: Path
    files: tuple[str, ...]
    for_transformers: bool  # False: no layout of its ViT can express the model, so it is there as a run only
    notes: tuple[str, ...] = field(repr=False)  # what the folder, or its processor, cannot do

    @property
    def upload_command(self) -> str:
        return f"huggingface-cli upload USER/{self.folder.name} {self.folder}"


def push_run(run: Run, folder: Path, *, license: str | None = None) -> Pushed:
    """Write the repository of a finished run into a new folder, or leave nothing."""
    if is_taken(folder):
        raise ExportError(f"{str(folder)!r} exists and is not empty; name another folder")
    model = run.load_model()
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}-", dir=folder.parent) as work:
            repository = Path(work, "repository")
            refusal = _write_weights(run, model, repository)
            _copy_run(run, repository / RUN_FOLDER)
            limits = [refusal] if refusal else processor_limits(run.preprocessing)
            atomic_write_text(repository / "README.md", model_card(run, limits, license, for_transformers=not refusal))
            if folder.is_dir():
                folder.rmdir()  # empty
            repository.rename(folder)
    except OSError as error:
        raise ExportError(f"cannot write {str(folder)!r}: {error.strerror or error}; name another folder") from None
    files = sorted(str(file.relative_to(folder)) for file in folder.rglob("*") if file.is_file())
    return Pushed(folder, tuple(files), not refusal, (*limits, *_sharing_notes(run, license)))


def _write_weights(run: Run, model: object, repository: Path) -> str | None:
    """Write the weights in Hugging Face's layout; return why that cannot be, if it cannot."""
    repository.mkdir()
    if not isinstance(model, ViT):
        return f"transformers has no model like this {run.config.model.kind}: it is here as a run of vitreous only"
    stats = run.preprocessing
    try:
        save_model(
            model, repository, "hf", mean=stats.mean, std=stats.std, class_names=run.class_names,
            temperature=run.temperature,
        )  # fmt: skip
    except CheckpointError as error:
        return f"{error}: the model is here as a run of vitreous only"
    return None


def _copy_run(run: Run, target: Path) -> None:
    target.mkdir()
    for pattern in _KEPT:
        for file in run.path.glob(pattern):
            shutil.copyfile(file, target / file.name)


def _sharing_notes(run: Run, license: str | None) -> list[str]:
    """Return what to think of before the folder is shared."""
    config = run.config
    paths = [name for name in (config.data.name, config.start.weights, config.train.teacher) if name and os.sep in name]
    notes = [] if license else ["README.md states no licence: add one before you share it"]
    if paths:
        notes.append(f"{RUN_FOLDER}/{CONFIG} names {join(map(repr, paths))}, as this machine does")
    return notes
