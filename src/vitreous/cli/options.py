"""Options that mean the same in every command, and the configuration they describe."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Option

if TYPE_CHECKING:
    from vitreous.config import Config

RunOption = Annotated[Path | None, Option("--run", help="A run folder; default: bundled:vit.")]
OutOption = Annotated[Path | None, Option("--out", "-o", help="Where to write; default: a new folder in runs/.")]
DataOption = Annotated[
    str | None, Option("--data", help="mnist, fashion-mnist, cifar10, digits, a folder or FILE.npz.")
]
SplitOption = Annotated[str, Option(help="train, val or test.")]
SeedOption = Annotated[int | None, Option("--seed", help="The seed of everything random.")]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]
SetOption = Annotated[list[str] | None, Option("--set", help="Override a setting: --set model.depth=6; repeatable.")]
DeviceOption = Annotated[str, Option("--device", help="auto, cpu, cuda or mps.")]


def configure(
    preset_or_config: str | Config,
    *,
    file: Path | None = None,
    settings: Sequence[str] = (),
    data: str | None = None,
    seed: int | None = None,
) -> Config:
    """Return a preset (or a configuration) changed by a TOML file, then `--set` settings, then flags."""
    from vitreous.config import merge_toml, override
    from vitreous.config.presets import preset

    config = preset(preset_or_config) if isinstance(preset_or_config, str) else preset_or_config
    if file is not None:
        config = merge_toml(config, file)
    config = override(config, settings)
    if data is not None:
        config = config.replace(data=config.data.replace(name=data))
    return config if seed is None else config.replace(seed=seed)
