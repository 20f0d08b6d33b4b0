"""Options that mean the same in every command."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from vitreous.errors import ConfigError

if TYPE_CHECKING:
    from vitreous.config import Config
    from vitreous.runs import Run

RunOption = Annotated[Path | None, Option("--run", help="A run folder; default: bundled:vit.")]
OutOption = Annotated[Path | None, Option("--out", "-o", help="Where to write; default: a new folder in runs/.")]
DataOption = Annotated[
    str | None, Option("--data", help="mnist, fashion-mnist, cifar10, digits, a folder or FILE.npz.")
]
FitOption = Annotated[
    str | None,
    Option("--fit", help="Images of another shape: stretch, crop or letterbox; default: by the data."),
]
SkipCorruptOption = Annotated[bool, Option("--skip-corrupt", help="Leave out files that cannot be read.")]
SplitOption = Annotated[str, Option(help="train, val or test.")]
SeedOption = Annotated[int | None, Option("--seed", help="The seed of everything random.", min=0, max=2**31 - 1)]
JsonOption = Annotated[bool, Option("--json", help="Print JSON.")]
SetOption = Annotated[list[str] | None, Option("--set", help="Override a setting: --set model.depth=6; repeatable.")]
DeviceOption = Annotated[str, Option("--device", help="auto, cpu, cuda or mps.")]
PresetArgument = Annotated[str | None, Argument(help="A preset; default: vit.")]
RunInsteadOption = Annotated[Path | None, Option("--run", help="A run folder, instead of a preset.")]


def preset_or_run(preset: str | None, run: Path | None, settings: list[str] | None) -> tuple[Config, Run | None]:
    """Return the configuration that the user named, and the run it belongs to, if any."""
    from vitreous.config import configure
    from vitreous.runs import Run

    if run is None:
        return configure(preset or "vit", settings=settings or ()), None
    if preset is not None or settings:
        raise ConfigError(f"--run has its own settings: leave out {preset or '--set'}")
    opened = Run.open(run)
    return opened.config, opened
