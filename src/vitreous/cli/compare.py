"""`vitreous compare`: train and compare, by `vitreous.studies.compare` and `vitreous.comparison`."""

from typing import Annotated

from typer import Argument, Option

from vitreous.cli.options import DataOption, DeviceOption, JsonOption, OutOption, SetOption
from vitreous.cli.output import print_result


def compare(
    subjects: Annotated[list[str] | None, Argument(help="Presets (trained now) or runs; default: vit cnn.")] = None,
    data: DataOption = None,
    seeds: Annotated[int, Option(help="Trainings of each preset, with different seeds.", min=1)] = 1,
    equal: Annotated[str | None, Option(help="`epochs` or `seconds`: the same for all presets.")] = None,
    epochs: Annotated[float | None, Option(help="Train every preset for this many epochs.")] = None,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Train presets (or take runs) and report which is better, by how much, and how certain that is."""
    from vitreous.comparison import render_table
    from vitreous.studies import compare as study

    settings = (settings or []) + ([f"train.epochs={epochs}"] if epochs is not None else [])
    result = study.compare(
        subjects or ["vit", "cnn"], data=data, seeds=seeds, equal=equal, out=out, settings=settings, device=device
    )
    table = render_table(result)
    print_result(
        table, result.verdict, *result.warnings, f"Report: {result.report}", value=result.as_dict(), as_json=as_json
    )
