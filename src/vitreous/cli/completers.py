"""What a shell offers for a value when TAB is pressed: presets, data sets, settings, runs and files.

A TAB waits for this, so it imports neither torch nor numpy: the names are kept in the cache, and made again when a
file that defines them has changed.
"""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any, Literal, TypedDict, get_args, get_origin

Offer = tuple[str, str]  # a value, and what it is
Completer = Callable[[str], Iterable[Offer]]

_PACKAGE = Path(__file__).parents[1]
_SOURCES = ("config/schema.py", "config/presets.py", "data/specs.py", "cli/completers.py")
_DATA_FILES = (".npz", ".npy", ".csv", ".tsv", ".jsonl", ".parquet", ".tar")


class Words(TypedDict):
    """Every name that a configuration knows."""

    stamps: list[int]  # of the files that define them
    presets: dict[str, str]  # name → description
    datasets: dict[str, str]
    settings: dict[str, list[str]]  # section.field → its choices, if it has any


def load_words() -> Words:
    """Return the names from the cache, or collect them and keep them there."""
    from vitreous.downloads.cache import cache_dir
    from vitreous.downloads.files import atomic_write_text

    stamps = [(_PACKAGE / source).stat().st_mtime_ns for source in _SOURCES]
    file = cache_dir() / "completion.json"
    try:
        words: Words = json.loads(file.read_bytes())
        if words["stamps"] == stamps:
            return words
    except (OSError, ValueError, KeyError, TypeError):
        pass
    words = _collect_words(stamps)
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        atomic_write_text(file, json.dumps(words))
    except OSError:
        pass  # a cache that cannot be written makes a TAB slower, no more
    return words


def _collect_words(stamps: list[int]) -> Words:
    from vitreous.config import Config
    from vitreous.config.presets import PRESETS
    from vitreous.data.specs import DATASETS

    return {
        "stamps": stamps,
        "presets": {name: (function.__doc__ or "").strip().splitlines()[0] for name, function in PRESETS.items()},
        "datasets": {name: spec.title for name, spec in DATASETS.items()},
        "settings": dict(sorted(_settings(Config))),
    }


def _settings(model: Any, prefix: str = "") -> Iterable[tuple[str, list[str]]]:
    """Yield every `section.field` of a configuration, and its choices."""
    for name, field in model.model_fields.items():
        sections = [part for part in _parts(field.annotation) if hasattr(part, "model_fields")]
        for section in sections:
            yield from _settings(section, f"{prefix}{name}.")
        if not sections:
            yield f"{prefix}{name}", _choices(field.annotation)


def _parts(annotation: Any) -> Iterable[Any]:
    """Yield the types that a union, however it is written, consists of."""
    if get_args(annotation) and get_origin(annotation) not in (Literal, tuple):
        for part in get_args(annotation):
            yield from _parts(part)
    else:
        yield annotation


def _choices(annotation: Any) -> list[str]:
    found: list[str] = []
    for part in _parts(annotation):
        if get_origin(part) is Literal:
            found += map(str, get_args(part))
        elif part is bool:
            found += ["true", "false"]
    return found


# --- the completers ----------------------------------------------------------------------------------------------


def choices(*names: str) -> Completer:
    """Return a completer that offers these words."""

    def complete_choice(incomplete: str) -> list[Offer]:
        return [(name, "") for name in names]

    return complete_choice


def complete_preset(incomplete: str) -> list[Offer]:
    return list(load_words()["presets"].items())


def complete_known_data(incomplete: str) -> list[Offer]:
    return list(load_words()["datasets"].items())


def complete_data(incomplete: str) -> list[Offer]:
    return complete_known_data(incomplete) + _paths(incomplete, _DATA_FILES)


def complete_setting(incomplete: str) -> list[Offer]:
    """Offer `section.field=`, and behind it the choices of that field."""
    settings = load_words()["settings"]
    name, equals, _ = incomplete.partition("=")
    if equals:
        return [(f"{name}={choice}", "") for choice in settings.get(name, ())]
    return [(f"{key}=", ", ".join(values)) for key, values in settings.items()]


def complete_run(incomplete: str) -> list[Offer]:
    bundled = [
        (f"bundled:{path.parent.name}", "bundled model") for path in sorted(_PACKAGE.glob("bundled/*/config.json"))
    ]
    usual = [offer for offer in _paths("runs/", ()) if not offer[0].endswith("/")] if not incomplete else []
    return bundled + usual + _paths(incomplete, ())


def complete_weights(incomplete: str) -> list[Offer]:
    return complete_run(incomplete) + _paths(incomplete, (".safetensors", ".pth", ".pt", ".bin", ".npz"), folders=False)


def complete_preset_or_run(incomplete: str) -> list[Offer]:
    return complete_preset(incomplete) + complete_run(incomplete)


def complete_study(incomplete: str) -> list[Offer]:
    bundled = [(path.stem, "study") for path in sorted(_PACKAGE.glob("studies/*.toml"))]
    return bundled + _paths(incomplete, (".toml",))


#: By the name of the option or argument, or by the command and the name. The values of all others are files or text.
COMPLETERS: dict[str, Completer] = {
    "preset": complete_preset,
    "presets name": complete_preset,
    "run": complete_run,
    "runs": complete_run,
    "against": complete_run,
    "teacher": complete_run,
    "weights": complete_weights,
    "convert source": complete_weights,
    "compare subjects": complete_preset_or_run,
    "doctor target": complete_preset_or_run,
    "data": complete_data,
    "show name": complete_data,
    "fetch name": complete_known_data,
    "verify name": complete_data,
    "prepare source": complete_data,
    "study name": complete_study,
    "transfer source": complete_data,
    "transfer target": complete_data,
    "settings": complete_setting,
    "precision": choices("float32", "bfloat16", "float64", "auto"),
    "split": choices("train", "val", "test"),
    "device": choices("auto", "cpu", "cuda", "mps"),
    "equal": choices("epochs", "seconds"),
    "convert to": choices("timm", "hf", "torchvision", "google", "vitreous"),
    "export to": choices("onnx", "page"),
    "shell": choices("bash", "zsh", "fish"),
}


def _paths(incomplete: str, suffixes: tuple[str, ...], folders: bool = True) -> list[Offer]:
    """Offer the folders and files that begin so; a run's folder is complete, any other one can be entered."""
    parent, name = os.path.split(incomplete)
    found: list[Offer] = []
    try:
        with os.scandir(os.path.expanduser(parent) or ".") as entries:
            for entry in sorted(entries, key=lambda entry: entry.name):
                if not entry.name.startswith(name) or (entry.name.startswith(".") and not name.startswith(".")):
                    continue
                path = os.path.join(parent, entry.name)
                if entry.is_dir() and folders:
                    is_run = os.path.exists(os.path.join(entry.path, "config.json"))
                    found.append((path, "run") if is_run else (f"{path}/", "folder"))
                elif entry.name.lower().endswith(suffixes) and suffixes and not entry.is_dir():
                    found.append((path, "file"))
    except OSError:  # no such folder
        return []
    return found
