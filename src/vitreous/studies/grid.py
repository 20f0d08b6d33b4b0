"""One training of a grid: trained now, resumed, or reused."""

from __future__ import annotations

from pathlib import Path

from vitreous.config import Config
from vitreous.errors import RunError
from vitreous.runs import CONFIG, Run, load_run_data
from vitreous.training.loop import fit
from vitreous.training.restart import same_training


def train_or_reuse(config: Config, path: Path, device: str, progress: bool) -> Run:
    """Train into `path`; a finished run there is reused, an interrupted one resumed."""
    if not (path / CONFIG).exists():
        return fit(config, path, device=device, progress=progress)
    run = Run.open(path)
    if not same_training(run.config, config):
        raise RunError(f"{str(path)!r} holds a run with other settings: name another folder with -o")
    if not run.is_done:
        return fit(config, path, resume=True, device=device, progress=progress)
    load_run_data(run)  # raises where the data changed: its figures would stand beside those of other images
    return run
