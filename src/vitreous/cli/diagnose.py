"""Find out what a model does and what is wrong: `vitreous look`, `mistakes`, `doctor` and `env`."""

from pathlib import Path
from typing import Annotated

from typer import Argument, Exit, Option

from vitreous.cli.options import DataOption, JsonOption, OutOption, RunOption, SeedOption, SplitOption
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
    print_result(found.summary, *found.advice, f"Report: {found.report}")


def _parse_head(text: str) -> tuple[int, int]:
    """`3-2` → layer 2, head 1, counted from 0."""
    layer, dash, head = text.partition("-")
    if not (dash and layer.isdecimal() and head.isdecimal() and int(layer) and int(head)):
        raise ConfigError(f"--without-head {text!r}: expected LAYER-HEAD, counted from 1, as in 3-2")
    return int(layer) - 1, int(head) - 1


def mistakes(
    run: RunOption = None,
    split: SplitOption = "test",
    most: Annotated[int, Option(help="Number of images.", min=1)] = 24,
    out: OutOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the images with the highest loss and their files: find wrong labels, weak classes and confusions."""
    from vitreous.comparison.mistakes import find_mistakes, write_mistakes
    from vitreous.runs import open_run, report_folder

    found = find_mistakes(open_run(run), split, most)
    page = write_mistakes(found, report_folder(out, Path("runs") / f"mistakes-{Path(found.run).name}"))
    lines = [found.verdict]
    for image in found.worst[:5]:
        where = image.path or f"{split} image {image.index}"
        lines.append(f"  {where}: labelled {image.label}, predicted {image.own.label} ({image.own.percent})")
    print_result(*lines, f"Gallery: {page}", value=found.as_dict(), as_json=as_json)


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


def env(as_json: JsonOption = False) -> None:
    """Print what a bug report needs: versions, CPU, threads, probes; nothing private."""
    from vitreous.hardware import describe_environment

    facts = describe_environment()
    print_result(*(f"{key:22} {value}" for key, value in facts.items()), value=facts, as_json=as_json)
