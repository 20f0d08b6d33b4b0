"""`vitreous predict`: classify images, by `vitreous.evaluation`."""

from pathlib import Path
from typing import Annotated

from typer import Argument

from vitreous.cli.options import (
    JsonOption,
    RunOption,
)
from vitreous.cli.output import print_result


def predict(
    images: Annotated[list[Path], Argument(help="Image files: PNG, JPEG, WebP, BMP, GIF or TIFF, any size.")],
    run: RunOption = None,
    as_json: JsonOption = False,
) -> None:
    """Classify your own images, and report how they were prepared."""
    from vitreous.evaluation.prediction import predict_images
    from vitreous.runs import open_run

    predictions = dict(zip(images, predict_images(open_run(run), images), strict=True))
    lines = []
    for path, prediction in predictions.items():
        others = sorted(prediction.probabilities.items(), key=lambda item: -item[1])[1:3]
        rest = ", ".join(f"{name} {probability:.1%}" for name, probability in others)
        lines.append(f"{path}: {prediction.label}  {prediction.probability:.1%}  (then {rest})")
        lines += [f"  {note}" for note in prediction.notes]
    value = [{"image": str(path), **prediction.as_json()} for path, prediction in predictions.items()]
    print_result(*lines, value=value, as_json=as_json)
