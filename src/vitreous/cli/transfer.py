"""`vitreous transfer`: measure what pre-training gains, by `vitreous.studies.transfer`."""

from typing import Annotated

from typer import Option

from vitreous.cli.options import DeviceOption, JsonOption, OutOption, SetOption
from vitreous.cli.output import print_result
from vitreous.errors import ConfigError


def transfer(
    source: Annotated[str, Option("--from-data", help="Pre-train on these images.")] = "fashion-mnist",
    target: Annotated[str, Option("--to", help="Then learn these, from few labels.")] = "mnist",
    per_class: Annotated[str, Option(help="Labelled images per class, as in 10,100.")] = "10,100,1000",
    seeds: Annotated[int, Option(help="Trainings of each kind.", min=2)] = 3,
    preset: Annotated[str, Option(help="A ViT preset.")] = "vit",
    pretrain_epochs: Annotated[float, Option(help="Epochs of pre-training.")] = 5.0,
    epochs: Annotated[float, Option(help="Epochs on the target, but at least --fewest-steps.")] = 2.0,
    fewest_steps: Annotated[int, Option(help="Minimum number of steps on the target.", min=1)] = 300,
    out: OutOption = None,
    settings: SetOption = None,
    device: DeviceOption = "auto",
    as_json: JsonOption = False,
) -> None:
    """Measure what pre-training on other images gains when labels are few; with -o, a stopped command continues."""
    from vitreous.studies import transfer as study

    try:
        counts = [int(part) for part in per_class.split(",")]
    except ValueError:
        raise ConfigError(f"--per-class {per_class!r}: expected whole numbers, as in 10,100,1000") from None
    result = study.transfer(
        source, target, counts, seeds, preset, pretrain_epochs=pretrain_epochs, epochs=epochs,
        fewest_steps=fewest_steps, out=out, settings=settings or [], device=device,
    )  # fmt: skip
    table = study.render_table(result)
    print_result(table, result.verdict, f"Report: {result.report}", value=result.as_dict(), as_json=as_json)
