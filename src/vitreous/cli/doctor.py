"""`vitreous doctor`: diagnose any model, by `vitreous.doctor`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option, echo

from vitreous.cli.options import DataOption, JsonOption, SeedOption
from vitreous.cli.output import print_result
from vitreous.errors import ConfigError


def doctor(
    target: Annotated[
        str | None,
        Argument(help="A preset, a run folder, path/to/model.py:ViT, or package.module:callable (any nn.Module)."),
    ] = None,
    data: DataOption = None,
    input_shape: Annotated[str | None, Option("--input-shape", help="Shape of one input, as in 1,28,28.")] = None,
    arguments: Annotated[
        str | None, Option("--args", help="Constructor arguments as JSON; missing sizes are guessed.")
    ] = None,
    run: Annotated[Path | None, Option("--run", help="Examine the curves of a training run instead.")] = None,
    explain: Annotated[str | None, Option("--explain", help="Print the page of a finding, by its id.")] = None,
    sarif: Annotated[Path | None, Option("--sarif", help="Write the findings as SARIF 2.1.0 to this file.")] = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why does my ViT get 90 %? Measure a model, report what is wrong and how to fix it; exit code 1 if anything is."""
    from vitreous import doctor as doctors

    if sum(value is not None for value in (target, run, explain)) != 1:
        raise ConfigError("name one of: a model (a preset, path/to/model.py:ViT, …), --run RUN, --explain ID")
    if explain is not None:
        echo(doctors.explain(explain).rstrip())
        return
    if run is not None:
        subject, diagnosis = str(run), doctors.diagnose_curves(run)
    else:
        assert target is not None
        subject = target
        diagnosis = doctors.diagnose_target(
            target, data=data, input_shape=input_shape, arguments=arguments, seed=seed or 0
        )
    if sarif is not None:
        doctors.write_sarif(diagnosis, subject, sarif)
    if as_json:
        print_result(value=diagnosis.as_json(), as_json=True)
    else:
        doctors.render(diagnosis, subject)
    raise Exit(diagnosis.exit_code)
