"""`vitreous evaluate`: measure a run, by `vitreous.evaluation`."""

from typing import TYPE_CHECKING, Annotated, Any

from typer import Option

from vitreous.cli.options import JsonOption, RunOption, SplitOption
from vitreous.cli.output import log, print_result

if TYPE_CHECKING:
    from vitreous.evaluation.prediction import Evaluation
    from vitreous.runs import Run


def evaluate(
    run: RunOption = None,
    data: Annotated[str | None, Option("--data", help="Other data than the run's own.")] = None,
    split: SplitOption = "test",
    batch_size: Annotated[int | None, Option(help="Images per batch; it should not matter.", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Print accuracy, NLL and calibration of a run on a split of its data, and precision, recall and F1 per class."""
    from vitreous.evaluation.blank import losing_ink
    from vitreous.evaluation.class_metrics import class_table
    from vitreous.evaluation.metrics import wilson_interval
    from vitreous.evaluation.prediction import evaluate_run
    from vitreous.runs import open_run

    opened = open_run(run)
    evaluation = evaluate_run(opened, split, batch_size, data, log)
    interval = wilson_interval(evaluation.correct, evaluation.count)
    bounds = [interval.low, interval.high]
    value: dict[str, Any] = {
        "run": str(opened.path),
        "split": split,
        **evaluation.summary(),
        "temperature": evaluation.temperature,
        "accuracy_interval": bounds,
        "macro_f1": evaluation.macro_f1,
        "balanced_accuracy": evaluation.balanced_accuracy,
        "classes": [one.as_dict() for one in evaluation.per_class],
        "confusion": evaluation.confusion.tolist(),
    }
    text = (
        f"{opened.config.name}: {evaluation.accuracy:.2%} of {evaluation.count} {split} images"
        f" ({evaluation.correct} correct; 95 % interval {interval.low:.2%} to {interval.high:.2%}),"
        f" NLL {evaluation.nll:.4f}, calibration error {evaluation.calibration_error:.2%}"
        f" {_temperature(opened, evaluation)}"
    )
    notes = []
    if evaluation.lost_patches is not None:
        notes.append(f"Blank patches are skipped, and {losing_ink(evaluation.lost_patches)}")
        losing = evaluation.lost_patches.nonzero().flatten().tolist()
        value["lost_patches"] = {str(index): int(evaluation.lost_patches[index]) for index in losing}
    means = f"Macro F1 {evaluation.macro_f1:.2%}, balanced accuracy {evaluation.balanced_accuracy:.2%}"
    table, note = class_table(evaluation.per_class)
    print_result(text, means, table, *([note] if note else []), *notes, value=value, as_json=as_json)


def _temperature(run: "Run", evaluation: "Evaluation") -> str:
    if run.record.calibration is None:
        return "(not calibrated: see `vitreous calibrate`)"
    if evaluation.temperature == 1:
        return "(not calibrated: too few validation images)"
    return f"(temperature {evaluation.temperature:.3g}; {evaluation.raw_calibration_error:.2%} without it)"
