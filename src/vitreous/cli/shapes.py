"""`vitreous shapes`: print the steps of a model, by `vitreous.models`."""

from vitreous.cli.options import JsonOption, PresetArgument, RunInsteadOption, SetOption, preset_or_run
from vitreous.cli.output import print_result


def shapes(
    preset: PresetArgument = None, run: RunInsteadOption = None, settings: SetOption = None, as_json: JsonOption = False
) -> None:
    """Print every step of a model: symbol, equation, numbers, output shape, parameters, FLOPs."""
    from vitreous.models import summary
    from vitreous.models.shapes_table import shapes_table

    model = preset_or_run(preset, run, settings)[0].model
    print_result(shapes_table(model), value=summary.as_json(model), as_json=as_json)
