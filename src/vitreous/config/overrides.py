"""The one rule for what overrides what: preset, then TOML file, then `--set`, then `--data` and `--seed`."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path

from vitreous.config.presets import preset
from vitreous.config.schema import Config, merge_toml, override


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
