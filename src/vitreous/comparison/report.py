"""Evaluated runs → one self-contained HTML report, its figures as PNG and SVG, and `results.json`."""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from vitreous import hardware
from vitreous.comparison import hard_images
from vitreous.comparison.figures import Styles, draw_accuracy, draw_accuracy_over_time, draw_loss
from vitreous.comparison.published import reruns
from vitreous.comparison.results import Comparison, ModelResult, ModelSummary, Pictures, check_results, summarise
from vitreous.comparison.table import measures
from vitreous.comparison.verdict import TIMING_FACTOR, Pair, best_of_each, compare_pairs, headline
from vitreous.evaluation.class_metrics import MOST_LISTED, ClassMetrics
from vitreous.hardware import versions
from vitreous.reports.colors import model_styles
from vitreous.reports.confusion import MOST_DRAWN, draw_confusion, mistakes_only
from vitreous.reports.figures import DrawnFigure
from vitreous.reports.formats import join
from vitreous.reports.pages import write_report

_TEMPLATE = Path(__file__).with_name("comparison.html.jinja")
_MISTAKES_COLUMNS = 4


def write_comparison(
    results: Sequence[ModelResult],
    test_images: Pictures,
    class_names: Sequence[str],
    out: Path,
    *,
    title: str,
    data_name: str,
    notes: Sequence[str] = (),
    warnings: Sequence[str] = (),
    settings: Mapping[str, Any] | None = None,
) -> Comparison:
    """Compare, draw, and write `report.html`, `results.json` and the figures into `out`."""
    check_results(results, test_images, class_names)
    models = summarise(results)
    pairs = compare_pairs(models)
    styles = model_styles({model.name: model.kind for model in models})
    files = _file_names([model.name for model in models])
    accuracy = draw_accuracy(models, styles)
    loss = draw_loss(models, styles)
    over_time = draw_accuracy_over_time(models, styles)
    confusions = _draw_confusions(models, styles, class_names, files)
    mistakes = hard_images.confident_mistakes(models, test_images, class_names)
    tiles = [
        hard_images.draw_hard_images(images, styles[name], f"mistakes-{files[name]}", _MISTAKES_COLUMNS)
        for name, images in mistakes.items()
        if images
    ]
    figures = [figure for figure in (accuracy, loss, over_time, *confusions, *tiles) if figure]
    comparison = Comparison(
        title=title,
        data_name=data_name,
        class_names=tuple(class_names),
        models=models,
        pairs=pairs,
        best=best_of_each(models, pairs),
        verdict=headline(models, pairs),
        notes=tuple(notes),
        warnings=tuple(warnings),
        settings=dict(settings or {}),
        hardware={
            "cpu": hardware.model_name(),
            "cores": hardware.available_cores(),
            **_trained_with(results),
            **versions(),
        },
        report=out / "report.html",
        results=out / "results.json",
        figures=tuple(out / "figures" / f"{figure.name}.svg" for figure in figures),
    )
    write_report(
        comparison.report,
        _TEMPLATE,
        title=title,
        description=comparison.verdict,
        figures=figures,
        beside={comparison.results.name: comparison.as_dict()},
        comparison=comparison,
        styles=styles,
        measures=measures(comparison),
        paired_tests=_paired_tests(pairs),
        several_seeds=any(len(model.runs) > 1 for model in models),
        timing_factor=TIMING_FACTOR,
        accuracy=accuracy,
        loss=loss,
        over_time=over_time,
        has_validation=any(line.get("event") == "val" for run in results for line in run.history),
        confusions=confusions,
        most_drawn=MOST_DRAWN,
        class_rows=_class_rows(models, class_names),
        mistakes=mistakes,
        longest_bar=max(max(pair.only_first, pair.only_second, 1.0) for pair in pairs),
        reruns=reruns(models),
    )
    return comparison


def _draw_confusions(
    models: Sequence[ModelSummary], styles: Styles, class_names: Sequence[str], files: Mapping[str, str]
) -> list[DrawnFigure]:
    """Draw one figure per model, all on one scale."""
    matrices = {model.name: model.mean_confusion() for model in models}
    scale_end = max(float(mistakes_only(matrix).max()) for matrix in matrices.values())
    return [
        draw_confusion(
            matrices[model.name], class_names, name=f"confusion-{files[model.name]}", title=model.name,
            color=styles[model.name].color, scale_end=scale_end, seeds=len(model.runs),
        )
        for model in models
    ]  # fmt: skip


def _class_rows(models: Sequence[ModelSummary], class_names: Sequence[str]) -> list[tuple[ClassMetrics, list[float]]]:
    """Return (the first model's class, every model's F1) of the classes with the lowest mean F1, the lowest first."""
    tables = [model.per_class(class_names) for model in models]
    rows = [(of_class[0], [one.f1 for one in of_class]) for of_class in zip(*tables, strict=True)]
    return sorted(rows, key=lambda row: sum(row[1]))[:MOST_LISTED]


def _trained_with(results: Sequence[ModelResult]) -> dict[str, Any]:
    """Return the threads and machines of the trainings, where known: this process may have others."""
    threads = dict.fromkeys((run.threads, run.name) for run in results if run.threads)
    machines = dict.fromkeys(run.hardware for run in results if run.hardware)
    facts: dict[str, Any] = {}
    if len({count for count, _ in threads}) == 1:
        facts["threads"] = next(iter(threads))[0]
    elif threads:
        facts["threads"] = join(f"{count} ({name})" for count, name in threads)
    if machines:
        facts["trained on"] = join(machines)
    return facts


def _paired_tests(pairs: Sequence[Pair]) -> dict[str, str]:
    """Return test → the names of its pairs, or "" where all pairs have the same test: it depends on their seeds."""
    tests: dict[str, list[str]] = {}
    for pair in pairs:
        tests.setdefault(pair.test, []).append(f"{pair.first} and {pair.second}")
    return {test: "; ".join(of_pairs) if len(tests) > 1 else "" for test, of_pairs in tests.items()}


def _file_names(names: Sequence[str]) -> dict[str, str]:
    """Return a distinct file name per model, of letters, digits and dashes: a model may be called anything."""
    chosen: dict[str, str] = {}
    for name in names:
        plain = re.sub(r"[^a-z0-9]+", "-", name.lower()).strip("-") or "model"
        while plain in chosen.values():
            plain += "-2"
        chosen[name] = plain
    return chosen
