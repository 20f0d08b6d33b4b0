"""`vitreous mistakes`: show the worst mistakes, by `vitreous.comparison.mistakes`."""

from pathlib import Path
from typing import Annotated

from typer import Option

from vitreous.cli.options import (
    JsonOption,
    OutOption,
    RunOption,
    SplitOption,
)
from vitreous.cli.output import print_result


def mistakes(
    run: RunOption = None,
    split: SplitOption = "test",
    most: Annotated[int, Option(help="Number of images.", min=1)] = 24,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the images with the highest loss, likely label errors and near-duplicates, with their files."""
    from vitreous.comparison.mistakes import find_mistakes, write_mistakes
    from vitreous.runs import open_run, report_folder

    found = find_mistakes(open_run(run), split, most)
    page = write_mistakes(found, report_folder(out, Path("runs") / f"mistakes-{Path(found.run).name}"))
    lines = [found.verdict]
    for image in found.worst[:5]:
        where = image.path or f"{split} image {image.index}"
        lines.append(f"  {where}: labelled {image.label}, predicted {image.own.label} ({image.own.percent})")
    if found.suspects is not None and found.suspects.count:
        how = "out-of-fold" if split == "train" else "held-out"
        lines.append(f"Likely label errors: {found.suspects.count} (confident learning, {how} probabilities)")
        for image in found.suspects.images[:5]:
            where = image.path or f"{split} image {image.index}"
            lines.append(f"  {where}: labelled {image.label}, rather {image.own.label} ({image.own.percent})")
    if found.near.pairs:
        lines.append(f"Almost the same picture: {len(found.near.pairs)} pairs")
        for first, second, similarity in found.near.pairs[:5]:
            labels = "" if first.label == second.label else f"; labels {first.label} and {second.label}"
            lines.append(f"  {first.name} and {second.name}, similarity {similarity:.3f}{labels}")
    print_result(*lines, f"Gallery: {page}", value=found.as_dict(), as_json=as_json)
