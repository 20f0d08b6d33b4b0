"""`vitreous look`: look inside a model, by `vitreous.inspection`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Option

from vitreous.cli.options import (
    JsonOption,
    OutOption,
    RunOption,
)
from vitreous.cli.output import print_result
from vitreous.errors import ConfigError


def look(
    image: Annotated[Path | None, Argument(help="An image file; default: one of the test set.")] = None,
    test: Annotated[int | None, Option("--test", help="Image INDEX of the test set.", min=0)] = None,
    run: RunOption = None,
    against: Annotated[Path | None, Option("--against", help="A second run, shown beside the first.")] = None,
    target: Annotated[str | None, Option("--class", help="Explain this class, not the predicted one.")] = None,
    patch: Annotated[int | None, Option("--patch", help="Also show attention from this patch.", min=0)] = None,
    heads: Annotated[list[str] | None, Option("--without-head", help="Remove LAYER-HEAD, from 1; repeatable.")] = None,
    patches: Annotated[list[int] | None, Option("--without-patch", help="Remove it; repeatable.", min=0)] = None,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """See through a model: attention, relevance, occlusion, logit lens, and whether the maps are faithful."""
    from vitreous.inspection.from_run import look_at_run
    from vitreous.runs import Run, open_run, report_folder

    opened = open_run(run)
    found = look_at_run(
        opened, image, test_index=test, against=None if against is None else Run.open(against), target=target,
        patch=patch, without_heads=[_parse_head(text) for text in heads or ()], without_patches=patches or (),
        out=report_folder(out, Path("runs") / f"look-{opened.config.name}"),
    )  # fmt: skip
    print_result(found.summary, *found.advice, f"Report: {found.report}", value=found.as_json(), as_json=as_json)


def _parse_head(text: str) -> tuple[int, int]:
    """`3-2` → layer 2, head 1, counted from 0."""
    layer, dash, head = text.partition("-")
    if not (dash and layer.isdecimal() and head.isdecimal() and int(layer) and int(head)):
        raise ConfigError(f"--without-head {text!r}: expected LAYER-HEAD, counted from 1, as in 3-2")
    return int(layer) - 1, int(head) - 1
