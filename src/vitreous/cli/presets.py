"""`vitreous presets`: list the configurations of `vitreous.config.presets`."""

from typing import Annotated

from typer import Argument

from vitreous.cli.options import JsonOption
from vitreous.cli.output import print_result


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
