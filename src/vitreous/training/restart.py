"""Which run a restart by torchrun goes on with."""

from __future__ import annotations

import contextlib
import os
from pathlib import Path

from vitreous.config import Config, ViTConfig
from vitreous.errors import VitreousError
from vitreous.runs import Run


def is_restart() -> bool:
    """Return whether torchrun restarted this process (`--max-restarts`); a host that replaces another counts anew."""
    return os.environ.get("TORCHELASTIC_RESTART_COUNT", "0") != "0"


def run_to_restart(config: Config, out: Path | str | None, root: Path = Path("runs")) -> Path | None:
    """Return the unfinished run of this configuration, for a job that torchrun restarted.

    With `out` only that folder is tried; whatever else is there is refused, as without a restart. Without `out` the
    first start chose a new name in `root`, so it is the newest run there that is unfinished and of this configuration.
    If there is none (the first start ended too early), a restart chooses a new name as well.
    """
    found = []
    for path in [Path(out)] if out is not None else root.glob("*"):
        with contextlib.suppress(VitreousError):  # not a run, or a damaged one
            found.append(Run.open(path))
    unfinished = [run for run in found if not run.is_done and same_training(run.config, config)]
    return max(unfinished, key=lambda run: run.record.created).path if unfinished else None


def same_training(done: Config, asked: Config) -> bool:
    """Return whether a run was configured as asked; fields that the data or the weights determine are ignored."""
    if done.model.kind != asked.model.kind:
        return False
    determined = {name: getattr(done.model, name) for name in ("image_size", "channels", "num_classes")}
    if isinstance(done.model, ViTConfig) and isinstance(asked.model, ViTConfig):
        open_fields = {"background": None, "tokens": "auto"}
        determined |= {
            name: getattr(done.model, name)
            for name, value in open_fields.items()
            if getattr(asked.model, name) == value
        }
    model = done.model if asked.start.weights else asked.model.replace(**determined)
    return asked.replace(model=model) == done
