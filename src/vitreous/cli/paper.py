"""`vitreous paper`: compare a model with the paper, by `vitreous.conformance`."""

from vitreous.cli.options import JsonOption, PresetArgument, RunInsteadOption, SetOption, preset_or_run
from vitreous.cli.output import print_result


def paper(
    preset: PresetArgument = None, run: RunInsteadOption = None, settings: SetOption = None, as_json: JsonOption = False
) -> None:
    """Is this the paper's ViT? Measure a model item by item."""
    from vitreous import conformance

    config, opened = preset_or_run(preset, run, settings)
    rows = conformance.conformance(config, None if opened is None else opened.load_model())
    table = conformance.conformance_table(rows, title=config.name)
    print_result(table, value=conformance.as_json(rows), as_json=as_json)
