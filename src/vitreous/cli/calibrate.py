"""`vitreous calibrate`: make probabilities mean what they say, by `vitreous.evaluation.calibration`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from vitreous.cli.options import JsonOption
from vitreous.cli.output import log, print_result


def calibrate(
    run: Annotated[Path, Option("--run", help="The run folder; it is changed.")],
    data: Annotated[str | None, Option("--data", help="For a converted run: images of the same classes.")] = None,
    as_json: JsonOption = False,
) -> None:
    """Fit the temperature and the novelty score of an existing run on its validation images, and store them in it."""
    from vitreous.evaluation.calibration import calibrate_run, in_words
    from vitreous.runs import open_run

    opened = open_run(run)
    calibration = calibrate_run(opened, data, log)
    lines = [f"{opened.config.name}: {in_words(calibration)}"]
    if novelty := calibration.novelty:
        lines.append(
            f"Novelty is measured from {novelty.train_images:,} training images; about {novelty.share:.1%} of images of"
            " the same kind exceed its threshold."
        )
    value = {"run": str(opened.path), **calibration.model_dump(mode="json")}
    print_result(*lines, value=value, as_json=as_json)
