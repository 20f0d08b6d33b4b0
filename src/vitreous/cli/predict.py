"""`vitreous predict`: classify images, by `vitreous.evaluation`."""

from __future__ import annotations

import contextlib
import itertools
import json
import signal
import threading
import time
from collections.abc import Callable, Iterable, Iterator
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Exit, Option

from vitreous.cli.options import JsonOption, RunOption
from vitreous.cli.output import log, log_error, print_result
from vitreous.errors import DataError

if TYPE_CHECKING:
    from vitreous.evaluation.batch_prediction import PredictedFile, Tally

_FEW = 20  # images: a sentence each; of more, a summary
_MOST_NOTES = 5
_AT_ONCE = 256  # rows written together


def predict(
    images: Annotated[
        list[str],
        Argument(help="Image files, folders, patterns, lists (CSV, TSV, JSONL, TXT), or - for a list of paths."),
    ],
    run: RunOption = None,
    out: Annotated[
        Path | None, Option("--out", "-o", help="Write a table: FILE.csv, .jsonl or .parquet, one row per image.")
    ] = None,
    top: Annotated[int | None, Option(help="Only the TOP most probable classes; default: all.", min=1)] = None,
    as_json: JsonOption = False,
) -> None:
    """Classify any number of images. Exit code 1 if some cannot be read: their rows have the error, the others are
    predicted."""
    from vitreous.data.image_files import find_images
    from vitreous.evaluation.batch_prediction import Tally, predict_stream
    from vitreous.evaluation.novelty import Novelty
    from vitreous.evaluation.prediction_files import Layout, check_output, writing
    from vitreous.reports.progress import counting
    from vitreous.runs import open_run

    files = find_images(images)
    if out is not None:
        check_output(out, files.tables)
    opened, total, tally = open_run(run), files.count(), Tally()
    if not total:
        raise DataError("there are no images in the list; name at least one")
    layout = Layout(opened.class_names, files.columns, Novelty.of_run(opened) is not None, top)
    with counting("predict", total) as show, _interrupts() as is_stopped, contextlib.ExitStack() as stack:
        results = _tallied(predict_stream(opened, files), tally, is_stopped, show)
        if out is None and as_json:
            _print_records(layout.record(result) | {"notes": _notes(result)} for result in results)
        elif out is None and total <= _FEW:
            _print_each(results, top)
        elif out is None:
            for _ in results:
                pass
        else:
            file = stack.enter_context(writing(out, layout))
            while batch := list(itertools.islice(results, _AT_ONCE)):
                file.write(batch)
            _require_some(tally)
            if is_stopped():
                log_error(f"stopped after {tally.count:,} of {total:,} images; their rows are in {file.keep_partial()}")
                raise Exit(130)
    if is_stopped():
        log_error(f"stopped after {tally.count:,} of {total:,} images")
        raise Exit(130)
    _require_some(tally)
    for note in files.notes:
        log(f"note: {note}")
    if out is not None or (total > _FEW and not as_json):
        _print_summary(tally, out, as_json)
    if tally.failed:
        for error in tally.errors:
            log_error(error)
        if tally.failed > len(tally.errors):
            log_error(f"{tally.failed - len(tally.errors):,} more images cannot be read")
        raise Exit(1)


def _tallied(
    results: Iterable[PredictedFile], tally: Tally, is_stopped: Callable[[], bool], show: Callable[[int], None]
) -> Iterator[PredictedFile]:
    """Yield the results, counted and shown, until Ctrl-C; then those of the batch that is under way are left out."""
    shown = time.monotonic()
    for result in results:
        if is_stopped():
            return
        tally.add(result)
        if time.monotonic() - shown > 0.1:  # a bar costs more than a small prediction
            shown = time.monotonic()
            show(tally.count)
        yield result


def _require_some(tally: Tally) -> None:
    if tally.count and not tally.predicted:
        others = f" (and {tally.failed - 1:,} more that cannot be read)" if tally.failed > 1 else ""
        raise DataError(f"{tally.errors[0]}{others}")


# --- printing ----------------------------------------------------------------------------------------------------


def _notes(result: PredictedFile) -> list[str]:
    return [] if result.prediction is None else list(result.prediction.notes)


def _print_records(records: Iterable[dict[str, Any]]) -> None:
    """Print a JSON list, one element after another, so that memory does not grow with their number."""
    separator = "["
    for record in records:
        print(separator, json.dumps(record, indent=2), sep="\n", end="")
        separator = ","
    print("[]" if separator == "[" else "\n]")


def _print_each(results: Iterable[PredictedFile], top: int | None) -> None:
    for result in results:
        found = result.prediction
        if found is None:
            continue  # the errors follow, together
        others = found.most_probable(top or 3)[1:]
        rest = ", ".join(f"{name} {probability:.1%}" for name, probability in others)
        then = f"  (then {rest})" if rest else ""
        lines = [f"{result.file.name}: {found.label}  {found.probability:.1%}{then}"]
        if found.unlike:
            lines.append(
                f"  unlike the images it was trained on (novelty {found.novelty:.2g}, above 1):"
                " do not trust this prediction"
            )
        lines += [f"  {note}" for note in found.notes]
        print_result(*lines)


def _print_summary(tally: Tally, out: Path | None, as_json: bool) -> None:
    from vitreous.reports.formats import plural

    counts = sorted(tally.classes.items(), key=lambda pair: -pair[1])
    lines = [f"{plural(tally.predicted, 'image')} predicted, {tally.failed:,} failed"]
    lines += [f"  {count:8,}  {name}" for name, count in counts]
    lines += [f"  {count:,} ×: {note}" for note, count in tally.notes.most_common(_MOST_NOTES)]
    if tally.unlike:
        lines.append(f"  {tally.unlike:,} ×: unlike the images the model was trained on")
    lines.append(str(out) if out is not None else "For one row per image: -o predictions.csv (.jsonl, .parquet)")
    value = {
        "output": None if out is None else str(out),
        "predicted": tally.predicted,
        "failed": tally.failed,
        "unlike": tally.unlike,
        "classes": dict(counts),
        "notes": dict(tally.notes.most_common()),
        "errors": tally.errors,
    }
    print_result(*lines, value=value, as_json=as_json)


@contextlib.contextmanager
def _interrupts() -> Iterator[Callable[[], bool]]:
    """Yield whether Ctrl-C was pressed: rows are written whole. A second Ctrl-C stops at once."""
    pressed: list[int] = []
    previous = signal.getsignal(signal.SIGINT)
    if threading.current_thread() is not threading.main_thread() or previous is signal.SIG_IGN:  # as in the background
        yield lambda: False
        return

    def on_interrupt(number: int, frame: Any) -> None:
        pressed.append(number)
        signal.signal(signal.SIGINT, previous)

    signal.signal(signal.SIGINT, on_interrupt)
    try:
        yield lambda: bool(pressed)
    finally:
        signal.signal(signal.SIGINT, previous)
