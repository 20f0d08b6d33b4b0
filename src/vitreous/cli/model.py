"""Describe a model: `vitreous presets`, `vitreous shapes` and `vitreous paper`."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Annotated

from typer import Argument, Option

from vitreous.cli.options import JsonOption, SetOption
from vitreous.cli.output import print_result
from vitreous.errors import ConfigError

if TYPE_CHECKING:
    from vitreous.config import Config
    from vitreous.runs import Run

PresetArgument = Annotated[str | None, Argument(help="A preset; default: vit.")]
RunInsteadOption = Annotated[Path | None, Option("--run", help="A run folder, instead of a preset.")]


def presets(
    name: Annotated[str | None, Argument(help="Print every setting of this preset, as JSON.")] = None,
    as_json: JsonOption = False,
) -> None:
    """List the named configurations, or print every setting of one."""
    from rich.table import Table

    from vitreous.config.presets import PRESETS, preset

    if name is not None:
        print_result(value=preset(name).model_dump(mode="json"), as_json=True)
        return
    table = Table("preset", "description", box=None, header_style="bold")
    for key, function in PRESETS.items():
        table.add_row(key, (function.__doc__ or "").strip().splitlines()[0])
    every = {key: function().model_dump(mode="json") for key, function in PRESETS.items()}
    print_result(table, value=every, as_json=as_json)


def shapes(
    preset: PresetArgument = None, run: RunInsteadOption = None, settings: SetOption = None, as_json: JsonOption = False
) -> None:
    """Print every step of a model: symbol, equation, numbers, output shape, parameters, FLOPs."""
    from vitreous.models import summary

    model = _preset_or_run(preset, run, settings)[0].model
    print_result(summary.shapes_table(model), value=summary.as_json(model), as_json=as_json)


def paper(
    preset: PresetArgument = None, run: RunInsteadOption = None, settings: SetOption = None, as_json: JsonOption = False
) -> None:
    """Is this the paper's ViT? Measure a model item by item."""
    from vitreous import conformance

    config, opened = _preset_or_run(preset, run, settings)
    rows = conformance.conformance(config, None if opened is None else opened.load_model())
    table = conformance.conformance_table(rows, title=config.name)
    print_result(table, value=conformance.as_json(rows), as_json=as_json)


def _preset_or_run(preset: str | None, run: Path | None, settings: list[str] | None) -> tuple[Config, Run | None]:
    from vitreous.config.overrides import configure
    from vitreous.runs import Run

    if run is None:
        return configure(preset or "vit", settings=settings or ()), None
    if preset is not None or settings:
        raise ConfigError(f"--run has its own settings: leave out {preset or '--set'}")
    opened = Run.open(run)
    return opened.config, opened
