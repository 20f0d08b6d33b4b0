"""Run folders → evaluated results on their common test set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vitreous.comparison.published import PUBLISHED
from vitreous.comparison.results import ModelResult
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.errors import RunError
from vitreous.evaluation.prediction import evaluate_model
from vitreous.models import count_parameters
from vitreous.models.summary import count_flops
from vitreous.runs import Run, require_same_data


def common_dataset(runs: Sequence[Run]) -> Dataset:
    """Return the data all runs were trained on; raise if they differ, since their figures would not be comparable."""
    first = runs[0]
    for run in runs[1:]:
        if run.record.data.checksums != first.record.data.checksums or run.class_names != first.class_names:
            raise RunError(
                f"{first.path} was trained on {first.config.data.name!r} and {run.path} on {run.config.data.name!r}:"
                " models are compared on the same data"
            )
    dataset = load_dataset(first.config.data)
    require_same_data(first, dataset)
    return dataset


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return each run's name: its configuration's, or its folder's where two would be called the same."""
    calls = Counter((run.config.name, run.config.seed) for run in runs)
    return [run.config.name if calls[run.config.name, run.config.seed] == 1 else run.path.name for run in runs]


def results_from_runs(runs: Sequence[Run]) -> list[ModelResult]:
    """Evaluate every run on the test split."""
    return [_evaluate(run, name) for run, name in zip(runs, names_of(runs), strict=True)]


def _evaluate(run: Run, name: str) -> ModelResult:
    dataset = load_dataset(run.config.data)  # a run may want other pixels (size, channels) of the same images
    model, batch_size = run.load_model(), run.config.train.eval_batch_size
    evaluation = evaluate_model(model, dataset.test, run.preprocessing, batch_size)
    extra = {}
    if run.config.model.kind == "post-vit":  # its predictions depend on the other images in the batch
        alone = evaluate_model(model, dataset.test, run.preprocessing, batch_size=1)
        extra = {f"batches of {batch_size}": evaluation.summary(), "one image at a time": alone.summary()}
    return ModelResult(
        name=name,
        seed=run.config.seed,
        kind=run.config.model.kind,
        parameters=count_parameters(model),
        flops=count_flops(run.config.model),
        train_seconds=run.test_results.train_seconds,
        images_per_second=run.test_results.images_per_second,
        history=run.metrics(),
        probabilities=evaluation.probabilities,
        labels=evaluation.labels,
        run=str(run.path),
        extra_evaluations=extra,
        published=PUBLISHED.get(run.config.name),
    )
