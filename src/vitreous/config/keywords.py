"""Settings as Python writes them: `depth=6`, `train={"lr": 1e-3}`, a model configuration, a dictionary, a TOML file."""

from __future__ import annotations

import difflib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel

from vitreous.config.overrides import merge, override, read_toml
from vitreous.config.presets import PRESETS, preset
from vitreous.config.schema import Config, ModelConfig, build_config
from vitreous.errors import ConfigError, quoted

AnyModelConfig = get_args(get_args(ModelConfig)[0])
ConfigLike = Config | BaseModel | Mapping[str, Any] | Path | str
Keys = tuple[str, ...]  # of a setting: ("train", "lr")

#: the section of a name that two have: a model's size and channels follow the data, and `start` describes a file
_PREFERRED: dict[str, Keys] = {
    "image_size": ("data", "image_size"), "channels": ("data", "channels"), "num_heads": ("model", "num_heads"),
    "pool": ("model", "pool"), "gelu": ("model", "gelu"), "norm_eps": ("model", "norm_eps"), "name": ("name",),
}  # fmt: skip
_SECTIONS: dict[str, Keys] = {
    "model": ("model",), "train": ("train",), "data": ("data",), "augment": ("data", "augment"), "start": ("start",),
}  # fmt: skip
_FROM_THE_DATA = {"num_classes", "kind"}  # of a model; another kind is another preset


def configure_from_keywords(
    base: ConfigLike,
    *,
    sections: Mapping[str, Mapping[str, Any] | BaseModel | None] | None = None,
    settings: Iterable[str] | Mapping[str, Any] = (),
    keywords: Mapping[str, Any] | None = None,
    function: str = "fit",
) -> Config:
    """Return `base` with settings (`section.field=value`), sections (dictionaries) and keywords applied, and checked.

    A keyword is the name of a field of any section; an unknown one, or one of two sections, is an error that says so.
    """
    config = as_config(base)
    changes: dict[Keys, Any] = {}
    if isinstance(settings, Mapping):
        changes |= {_known_path(config, tuple(str(name).split("."))): value for name, value in settings.items()}
    else:
        config = override(config, [settings] if isinstance(settings, str) else settings)
    for section, given in (sections or {}).items():
        if isinstance(given, BaseModel) and isinstance(given, _types_of(config, section)):
            config = build_config(Config, _put(config.model_dump(), {_SECTIONS[section]: given.model_dump()}))
            continue
        if not isinstance(given, Mapping | None):
            raise ConfigError(
                f"{section}={quoted(given)}: expected a dictionary of settings, as in {_EXAMPLES[section]}"
            )
        if section == "model" and given and given.get("kind", config.model.kind) != config.model.kind:
            config = as_config(merge(config.model_dump(), {"model": {"kind": given["kind"]}}))
        changes |= {_known_path(config, (*_SECTIONS[section], name)): value for name, value in (given or {}).items()}
    for name, value in (keywords or {}).items():
        path = _path_of(config, name, function)
        if path in changes:
            raise ConfigError(f"{name} was given twice, as a keyword and in {'.'.join(path[:-1])}: leave one out")
        changes[path] = value
    plain = {path: _plain(value) for path, value in changes.items()}
    return build_config(Config, _put(config.model_dump(), plain)) if changes else config


_EXAMPLES = {
    "model": "model={'depth': 6}", "train": "train={'lr': 1e-3}", "augment": "augment={'flip': True}",
    "start": "start={'weights': 'runs/mine'}",
}  # fmt: skip


def as_config(base: ConfigLike) -> Config:
    """Return the configuration that a preset's name, a model configuration, a dictionary or a TOML file stands for.

    What the last three leave open is that of the preset with the name of the model's kind.
    """
    if isinstance(base, Config):
        return base
    if isinstance(base, AnyModelConfig):
        return preset(base.kind).replace(model=base)
    if isinstance(base, Path) or (isinstance(base, str) and base not in PRESETS and base.endswith(".toml")):
        return _merged(read_toml(Path(base)), source=str(base))
    if isinstance(base, Mapping):
        return _merged(base, source="")
    if isinstance(base, str):
        return preset(base)
    raise ConfigError(
        f"config={quoted(base)}: expected the name of a preset, a Config, the configuration of a model, a dictionary or"
        " the path of a TOML file"
    )


def change_model(config: ConfigLike, settings: Mapping[str, Any], function: str) -> Any:
    """Return the configuration of a model with fields replaced, its size and number of classes included."""
    model = as_config(config).model
    for name in settings:
        if name not in type(model).model_fields:
            raise ConfigError(_unknown(function, name, [*type(model).model_fields], f" of a {model.kind!r} model"))
    return model.replace(**{name: _plain(value) for name, value in settings.items()}) if settings else model


def _merged(values: Mapping[str, Any], source: str) -> Config:
    model = values.get("model")
    kind = model.get("kind", "vit") if isinstance(model, Mapping) else "vit"
    base = preset(kind) if kind in PRESETS else Config()
    plain = {key: value.model_dump() if isinstance(value, BaseModel) else value for key, value in values.items()}
    return build_config(Config, merge(base.model_dump(), plain), source=source)


def _types_of(config: Config, section: str) -> Any:
    return AnyModelConfig if section == "model" else type(_at(config, _SECTIONS[section]))


def _at(config: Any, path: Keys) -> Any:
    for name in path:
        config = getattr(config, name)
    return config


def _places(config: Config) -> dict[str, list[Keys]]:
    """Return every field that a keyword can set, with the sections that have it."""
    places: dict[str, list[Keys]] = {"name": [("name",)], "seed": [("seed",)]}
    for path in _SECTIONS.values():
        for field in type(_at(config, path)).model_fields:
            if field not in _FROM_THE_DATA and (*path, field) not in (("data", "name"), ("data", "augment")):
                places.setdefault(field, []).append((*path, field))
    return places


def _path_of(config: Config, name: str, function: str) -> Keys:
    places = _places(config)
    if name not in places:
        of_others = [kind for kind in ("vit", "cnn") if name in type(preset(kind).model).model_fields]
        which = f" for a {config.model.kind!r} model" if of_others and name not in _FROM_THE_DATA else ""
        raise ConfigError(_unknown(function, name, [*places], which))
    if name in _PREFERRED or len(places[name]) == 1:
        return _PREFERRED.get(name, places[name][0])
    ways = [
        f"settings={{'data.{name}': …}}" if path[0] == "data" else f"{path[0]}={{{name!r}: …}}" for path in places[name]
    ]
    raise ConfigError(f"{function}() has {len(ways)} settings {name!r}: write {' or '.join(ways)}")


def _unknown(function: str, name: str, known: list[str], which: str = "") -> str:
    close = difflib.get_close_matches(name, known, n=1)
    hint = f"did you mean {close[0]}?" if close else "vitreous.preset('vit') shows all of them"
    return f"{function}() has no setting {name!r}{which}; {hint}"


def _known_path(config: Config, path: Keys) -> Keys:
    """Return `path` if the configuration has that setting."""
    section: Any = config
    for depth, name in enumerate(path):
        fields = type(section).model_fields if isinstance(section, BaseModel) else {}
        if name not in fields:
            close = difflib.get_close_matches(name, fields, n=1)
            where = ".".join(path[:depth])
            hint = (
                f"did you mean {close[0]}?" if close else f"choose from {', '.join(f for f in fields if f != 'kind')}"
            )
            raise ConfigError(f"{where or 'a configuration'} has no setting {name!r}; {hint}")
        section = getattr(section, name)
    return path


def _put(values: dict[str, Any], changes: Mapping[Keys, Any]) -> dict[str, Any]:
    for path, value in changes.items():
        target = values
        for name in path[:-1]:
            target = target[name]
        target[path[-1]] = value.model_dump() if isinstance(value, BaseModel) else value
    return values


def _plain(value: Any) -> Any:
    """Return NumPy's and torch's numbers as Python's, and paths as text."""
    if isinstance(value, Path):
        return str(value)
    return value.item() if getattr(value, "shape", None) == () and hasattr(value, "item") else value
