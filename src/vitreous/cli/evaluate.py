"""`vitreous evaluate`: measure a run, by `vitreous.evaluation`."""

from typing import Annotated

from typer import Option

from vitreous.cli.options import JsonOption, RunOption, SplitOption
from vitreous.cli.output import log, print_result


def evaluate(
    run: RunOption = None,
    data: Annotated[str | None, Option("--data", help="Other data than the run's own.")] = None,
    split: SplitOption = "test",
    batch_size: Annotated[int | None, Option(help="Images per batch; it should not matter.", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Print accuracy, NLL and calibration of a run on a split of its data."""
    from vitreous.evaluation.metrics import wilson_interval
    from vitreous.evaluation.prediction import evaluate_run
    from vitreous.runs import open_run

    opened = open_run(run)
    evaluation = evaluate_run(opened, split, batch_size, data, log)
    interval = wilson_interval(evaluation.correct, evaluation.count)
    bounds = [interval.low, interval.high]
    value = {"run": str(opened.path), "split": split, **evaluation.summary(), "accuracy_interval": bounds}
    text = (
        f"{opened.config.name}: {evaluation.accuracy:.2%} of {evaluation.count} {split} images"
        f" ({evaluation.correct} correct; 95 % interval {interval.low:.2%} to {interval.high:.2%}),"
        f" NLL {evaluation.nll:.4f}, calibration error {evaluation.calibration_error:.2%}"
    )
    print_result(text, value=value, as_json=as_json)
