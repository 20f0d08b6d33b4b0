"""`vitreous study`: test a claim by a grid of runs, by `vitreous.studies.study`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from vitreous.cli.options import DataOption, DeviceOption, JsonOption, SetOption
from vitreous.cli.output import print_result
from vitreous.errors import ConfigError


def study(
    name: Annotated[str | None, Argument(help="A study, or a TOML file of your own.")] = None,
    quick: Annotated[bool, Option("--quick", help="A small version, at most five minutes on two quiet cores.")] = False,
    seeds: Annotated[int | None, Option(help="Trainings of each kind.", min=1)] = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Where to write; what is there goes on. Default: runs/study-NAME.")
    ] = None,
    data: DataOption = None,
    settings: SetOption = None,
    jobs: Annotated[int | None, Option(help="Runs at once, one thread each; default: one per core.", min=1)] = None,
    docs: Annotated[Path | None, Option(help="Also write a Markdown page and the figure into this folder.")] = None,
    list_studies: Annotated[bool, Option("--list", help="List the studies and what they test.")] = False,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Test a claim about ViTs: train what a study declares, and report the verdict with its intervals."""
    from vitreous.studies import pages
    from vitreous.studies import study as runner

    if list_studies or name is None:
        if name is not None or not list_studies:
            raise ConfigError("name a study, or --list alone: as in `vitreous study order --quick`")
        table, value = pages.list_table()
        print_result(table, value=value, as_json=as_json)
        return
    result = runner.run_study(
        name, quick=quick, seeds=seeds, out=out, data=data, settings=settings or [], jobs=jobs, device=device
    )
    written = [f"Page: {pages.write_page(result, docs)}"] if docs else []
    tables = pages.terminal_tables(result)
    print_result(*tables, result.verdict, f"Report: {result.report}", *written, value=result.as_dict(), as_json=as_json)
