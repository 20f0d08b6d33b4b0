"""`vitreous demo`: the comparison of `make demo`, by `vitreous.studies.compare`."""

from vitreous.cli.options import DataOption, DeviceOption, JsonOption, OutOption
from vitreous.cli.output import log, print_result


def demo(
    out: OutOption = None, data: DataOption = None, device: DeviceOption = "auto", as_json: JsonOption = False
) -> None:
    """Compare a ViT with a CNN on MNIST, the main job in one command; without network, on digits."""
    from vitreous.comparison import render_table
    from vitreous.studies import compare as study

    result = study.demo(out, data, device, log)
    text = (render_table(result), result.verdict, *result.warnings, f"Report: {result.report}")
    print_result(*text, value=result.as_dict(), as_json=as_json)
