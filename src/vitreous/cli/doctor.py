"""`vitreous doctor`: diagnose any model, by `vitreous.doctor`."""

from typing import Annotated

from typer import Argument, Exit, Option

from vitreous.cli.options import DataOption, JsonOption, SeedOption
from vitreous.cli.output import print_result


def doctor(
    target: Annotated[str, Argument(help="A preset, a run folder, or package.module:callable (any nn.Module).")],
    data: DataOption = None,
    input_shape: Annotated[str | None, Option("--input-shape", help="Shape of one input, as in 1,28,28.")] = None,
    seed: SeedOption = None,
    as_json: JsonOption = False,
) -> None:
    """Why does my ViT get 90 %? Measure a model, report what is wrong and how to fix it; exit code 1 if anything is."""
    from vitreous.doctor import diagnose_target, render

    diagnosis = diagnose_target(target, data=data, input_shape=input_shape, seed=seed or 0)
    if as_json:
        print_result(value=diagnosis.as_json(), as_json=True)
    else:
        render(diagnosis, target)
    raise Exit(diagnosis.exit_code)
