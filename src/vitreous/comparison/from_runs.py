"""Run folders → evaluated results on their common test set."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence

from vitreous.comparison.results import ModelResult
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.errors import RunError
from vitreous.evaluation.prediction import evaluate_model
from vitreous.models import count_parameters
from vitreous.models.summary import count_flops
from vitreous.runs import Run, require_same_data

#: What the post reports for its own models (docs/posts.md).
PUBLISHED = {
    "post-vit": {"accuracy": 0.9038, "nll": 0.3118, "source": "the post"},
    "post-cnn": {"accuracy": 0.9755, "nll": 0.0810, "source": "the post"},
}


def common_dataset(runs: Sequence[Run]) -> Dataset:
    """The data all runs were trained on; an error where they differ, since their figures would not compare."""
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
    """What each is called: its configuration's name, or its folder's where two would be called the same."""
    calls = Counter((run.config.name, run.config.seed) for run in runs)
    return [run.config.name if calls[run.config.name, run.config.seed] == 1 else run.path.name for run in runs]


def results_from_runs(runs: Sequence[Run]) -> list[ModelResult]:
    return [_evaluated(run, name) for run, name in zip(runs, names_of(runs), strict=True)]


def _evaluated(run: Run, name: str) -> ModelResult:
    dataset = load_dataset(run.config.data)  # a run may want other pixels (size, channels) of the same images
    model, train = run.load_model(), run.config.train
    evaluation = evaluate_model(model, dataset.test, run.preprocessing, train.eval_batch_size)
    extra = {}
    if run.config.model.kind == "post-vit":  # its answers depend on the company an image keeps
        alone = evaluate_model(model, dataset.test, run.preprocessing, batch_size=1)
        extra = {f"batches of {train.eval_batch_size}": evaluation.summary(), "one image at a time": alone.summary()}
    measured = run.test_results
    return ModelResult(
        name=name,
        seed=run.config.seed,
        kind=run.config.model.kind,
        parameters=count_parameters(model),
        flops=count_flops(run.config.model),
        train_seconds=measured.train_seconds,
        images_per_second=measured.images_per_second,
        history=run.metrics(),
        probabilities=evaluation.probabilities,
        labels=evaluation.labels,
        run=str(run.path),
        extra_evaluations=extra,
        published=PUBLISHED.get(run.config.name),
    )
