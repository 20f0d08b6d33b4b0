"""One training of a grid: trained now, resumed, or reused."""

from __future__ import annotations

from pathlib import Path

from vitreous.config import Config
from vitreous.errors import RunError
from vitreous.runs import CONFIG, Run, load_run_data
from vitreous.training.loop import fit


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


def same_training(done: Config, asked: Config) -> bool:
    """Return whether a run was configured as asked; fields that the data or the weights determine are ignored."""
    if done.model.kind != asked.model.kind:
        return False
    determined = {name: getattr(done.model, name) for name in ("image_size", "channels", "num_classes")}
    model = done.model if asked.start.weights else asked.model.replace(**determined)
    return asked.replace(model=model) == done
