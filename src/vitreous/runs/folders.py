"""Which folder: new runs, free names, bundled models."""

from __future__ import annotations

import re
from pathlib import Path

from vitreous.config import Config
from vitreous.downloads.files import is_temporary, read_plain
from vitreous.errors import RunError
from vitreous.runs.record import CONFIG, is_record, parse_json

BUNDLED = Path(__file__).parents[1] / "bundled"  # the models that come with the package, as small runs
LOCK = ".lock"  # of the process that creates or trains the run


def is_run(path: Path | str) -> bool:
    """Return whether a folder is a vitreous run; published checkpoints have a config.json of another kind."""
    try:
        return is_record(parse_json(read_plain((bundled_path(str(path)) or Path(path)) / CONFIG)))
    except (OSError, ValueError):
        return False


def new_run_path(config: Config, root: Path = Path("runs")) -> Path:
    """Return runs/mnist-vit, or the next free runs/mnist-vit-2, -3, …"""
    return free_folder(root / run_name(config))


def run_name(config: Config) -> str:
    """Return the name of a run's folder: data and preset."""
    data = re.sub(r"[^A-Za-z0-9]+", "-", Path(config.data.name).stem).strip("-").lower()
    # a recipe that names its data already (mnist-fast) does not repeat it
    return config.name if config.name.startswith(data) else f"{data}-{config.name}"


def is_taken(path: Path) -> bool:
    """Return whether writing to `path` would lose something; an empty folder is free.

    So is one whose creation was killed in its first write: it holds a lock and a temporary file at most.
    """
    if not path.is_dir():
        return path.exists()
    return any(not (entry.name == LOCK or is_temporary(entry)) for entry in path.iterdir())


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


def bundled_path(name: str) -> Path | None:
    """Return the folder of `bundled:vit` or `bundled:cnn`; None for any other kind of name."""
    prefix, colon, model = name.partition(":")
    if not colon or prefix not in ("bundled", "box"):  # "box" is the name of 0.1, an alias for one release
        return None
    names = sorted(path.parent.name for path in BUNDLED.glob(f"*/{CONFIG}"))
    if model not in names:
        raise RunError(f"there is no bundled model {model!r}; choose from {', '.join(names)}")
    return BUNDLED / model
