"""Change a configuration: a TOML file overrides a preset, `--set` overrides the file, flags override both."""

from __future__ import annotations

import tomllib
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from vitreous.config.presets import preset
from vitreous.config.schema import Config, build_config
from vitreous.downloads.files import read_plain
from vitreous.errors import ConfigError, quoted


def configure(
    base: Config | str,
    *,
    file: Path | None = None,
    settings: Iterable[str] = (),
    data: str | Path | None = None,
    seed: int | None = None,
) -> Config:
    """Return a preset (by name) or a configuration with a TOML file, settings and flags applied; later ones win."""
    config = preset(base) if isinstance(base, str) else base
    if file is not None:
        config = merge_toml(config, file)
    config = override(config, settings)
    if data is not None:
        config = config.replace(data=config.data.replace(name=str(data)))
    return config if seed is None else config.replace(seed=seed)


def _loads(text: str) -> dict[str, Any]:
    """Parse TOML; an integer too long to be printed, which only hexadecimals can be, is a ValueError here already."""
    parsed = tomllib.loads(text)
    repr(parsed)
    return parsed


def _parse_value(text: str) -> Any:
    """Parse a TOML value (`6`, `0.1`, `true`, `[4, 7]`, `"text"`); anything else is a bare word; null is None."""
    if text.lower() == "null":
        return None
    try:
        parsed = _loads(f"value = {text}")
    except (ValueError, RecursionError):  # not TOML, an integer of 4,300 digits, or lists nested for ever
        return text
    return parsed["value"] if len(parsed) == 1 else text  # a line break may start another key


def override(config: Config, settings: Iterable[str]) -> Config:
    """Apply `section.field=value` settings (`--set model.depth=6`) and validate the whole again."""
    values = config.model_dump()
    for setting in settings:
        path, equals, text = setting.partition("=")
        *sections, field = path.strip().split(".")
        shown = quoted(setting)
        if not equals or not field:
            raise ConfigError(f"the setting {shown} is incomplete: expected section.field=value, as in model.depth=6")
        target = values
        for section in sections:
            if not isinstance(target.get(section), dict):
                raise ConfigError(
                    f"the setting {shown}: there is no section {quoted(section)}; there are model, data, train, start"
                )
            target = target[section]
        if field not in target:
            known = ", ".join(sorted(key for key in target if key != "kind"))
            raise ConfigError(f"the setting {shown}: there is no setting {quoted(path.strip())}; choose from {known}")
        if isinstance(target[field], dict):
            raise ConfigError(
                f"the setting {shown}: {path.strip()!r} is a section; set one of {', '.join(target[field])}"
            )
        value = _parse_value(text.strip())
        # "none" is a choice of some fields (model.positions) and the absence of a value in others (train.threads)
        is_none = isinstance(value, str) and value.lower() == "none" and not isinstance(target[field], str)
        target[field] = None if is_none else value
        if path.strip() == "model.kind":  # another kind of model has other fields: start from its defaults
            values["model"] = build_config(Config, {"model": {"kind": target[field]}}).model.model_dump()
    return build_config(Config, values)


def merge_toml(config: Config, path: Path) -> Config:
    """Override `config` by the tables of a TOML file: [model], [data], [data.augment], [train], and `seed`, `name`."""
    return build_config(Config, merge(config.model_dump(), read_toml(path)), source=str(path))


def read_toml(path: Path) -> dict[str, Any]:
    try:
        return _loads(read_plain(path).decode("utf-8"))
    except (OSError, ValueError, RecursionError) as error:
        problem = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot read the configuration {quoted(str(path))}: {problem}") from None


def merge(base: dict[str, Any], top: Mapping[str, Any]) -> dict[str, Any]:
    """Return nested dictionaries with the values of `top` in place of those of `base`."""
    merged = dict(base)
    for key, value in top.items():
        if isinstance(value, Mapping) and isinstance(merged.get(key), dict):
            # another kind of model has other fields: keep nothing of the old one
            other_kind = "kind" in value and value["kind"] != merged[key].get("kind")
            merged[key] = dict(value) if other_kind else merge(merged[key], value)
        else:
            merged[key] = value
    return merged
