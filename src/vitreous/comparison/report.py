"""Evaluated runs → one self-contained HTML report, its figures as PNG and SVG, and `results.json`."""

from __future__ import annotations

import json
import os
import platform
import re
from collections.abc import Mapping, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitreous.comparison.confusion import draw_confusions
from vitreous.comparison.confusion import reading as confusion_reading
from vitreous.comparison.curves import ReportFigure, draw_accuracy, draw_accuracy_over_time, draw_loss
from vitreous.comparison.mistakes import READING as MISTAKES_READING
from vitreous.comparison.mistakes import Mistake, draw_mistakes, worst_mistakes
from vitreous.comparison.published import rerun_rows
from vitreous.comparison.results import Comparison, ModelResult, check_results, summarise
from vitreous.comparison.table import measures
from vitreous.comparison.verdict import TIMING_FACTOR, best_of_each, compare_pairs, headline
from vitreous.errors import RunError
from vitreous.evaluation.metrics import p_in_words
from vitreous.reports.colors import ModelStyle, model_styles
from vitreous.reports.pages import html_page, page_environment

_HERE = Path(__file__).parent


def write_report(
    results: Sequence[ModelResult],
    test_images: NDArray[np.uint8],
    class_names: Sequence[str],
    out: Path,
    *,
    title: str,
    data_name: str,
    notes: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare, draw, and write `report.html`, `results.json` and the figures into `out`.

    `settings["hardware"]`, if given, is stored as the hardware; everything else in `settings` is shown as it is.
    """
    check_results(results, test_images, class_names)
    shown = dict(settings or {})
    hardware = shown.pop("hardware", None) or _hardware()
    models = summarise(results)
    pairs = compare_pairs(models)
    comparison = Comparison(
        title=title,
        data_name=data_name,
        class_names=tuple(class_names),
        models=models,
        pairs=pairs,
        best=best_of_each(models, pairs),
        verdict=headline(models, pairs),
        notes=tuple(notes),
        settings=shown,
        hardware=hardware,
        report=out / "report.html",
        results=out / "results.json",
    )
    try:
        return _write(comparison, test_images, out)
    except OSError as error:
        raise RunError(f"cannot write the report into {str(out)!r}: {error.strerror or error}") from error


def _write(comparison: Comparison, images: NDArray[np.uint8], out: Path) -> Comparison:
    folder = out / "figures"
    folder.mkdir(parents=True, exist_ok=True)
    models, class_names = comparison.models, comparison.class_names
    styles = model_styles({model.name: model.kind for model in models})
    files = _file_names([model.name for model in models])
    accuracy = draw_accuracy(models, styles, folder)
    loss = draw_loss(models, styles, folder)
    over_time = draw_accuracy_over_time(models, styles, folder)
    confusions = draw_confusions(models, styles, class_names, folder, [f"confusion-{files[m.name]}" for m in models])
    mistakes = worst_mistakes(models, images, class_names)
    wrong = {name: shown for name, shown in mistakes.items() if shown}
    galleries = [draw_mistakes(shown, styles[name], f"mistakes-{files[name]}", folder) for name, shown in wrong.items()]
    drawn = [figure.drawn for figure in (accuracy, loss, over_time, *confusions) if figure] + galleries
    comparison = replace(comparison, figures=tuple(folder / f"{figure.name}.svg" for figure in drawn))
    page = _page(comparison, styles, accuracy, [f for f in (loss, over_time) if f], confusions, mistakes)
    comparison.results.write_text(_json(comparison.as_dict()), encoding="utf-8")
    comparison.report.write_text(page, encoding="utf-8")
    return comparison


def _page(
    comparison: Comparison,
    styles: Mapping[str, ModelStyle],
    accuracy: ReportFigure,
    training: list[ReportFigure],
    confusions: list[ReportFigure],
    mistakes: Mapping[str, list[Mistake]],
) -> str:
    environment = page_environment(_HERE)
    environment.filters["p_in_words"] = p_in_words
    body = environment.get_template("report.html.jinja").render(
        comparison=comparison,
        styles=styles,
        measures=measures(comparison),
        timing_factor=TIMING_FACTOR,
        accuracy=accuracy,
        training=training,
        confusions=list(zip(comparison.models, confusions, strict=True)),
        confusion_reading=confusion_reading(len(comparison.class_names)),
        mistakes=mistakes,
        mistakes_reading=MISTAKES_READING,
        longest_duel=max(max(pair.only_first, pair.only_second, 1.0) for pair in comparison.pairs),
        reruns=rerun_rows(comparison.models),
    )
    css = (_HERE / "report.css").read_text(encoding="utf-8")
    return html_page(comparison.title, Markup(body), description=comparison.verdict, extra_css=css)


def _file_names(names: Sequence[str]) -> dict[str, str]:
    """A model may be called anything; its files get letters, digits and dashes, and stay apart."""
    chosen: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
        while plain in chosen.values():
            plain += "-2"
        chosen[name] = plain
    return chosen


def _json(content: dict[str, Any]) -> str:
    def plain(value: Any) -> Any:
        if isinstance(value, np.generic | np.ndarray):
            return value.tolist()
        return str(value)

    return json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False, default=plain) + "\n"


def _hardware() -> dict[str, Any]:
    import torch

    return {
        "cpu": _cpu_name(),
        "cores": os.cpu_count(),
        "threads": torch.get_num_threads(),
        "python": platform.python_version(),
        "torch": torch.__version__,
    }


def _cpu_name() -> str:
    try:
        for line in Path("/proc/cpuinfo").read_text(encoding="utf-8").splitlines():
            if line.startswith("model name"):
                return line.partition(":")[2].strip()
    except OSError:
        pass
    return platform.processor() or platform.machine()
