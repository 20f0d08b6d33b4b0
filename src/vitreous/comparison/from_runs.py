"""Run folders → evaluated results on their common test set."""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence

import numpy as np

from vitreous.comparison.published import PUBLISHED
from vitreous.comparison.results import ModelResult
from vitreous.config import AugmentConfig, DataConfig
from vitreous.data.datasets import Dataset, duplicates_between
from vitreous.errors import RunError
from vitreous.evaluation.prediction import evaluate_model
from vitreous.models import count_parameters
from vitreous.models.summary import count_flops
from vitreous.reports.formats import join, plural
from vitreous.runs import Run, load_run_data, require_same_data


def load_test_data(runs: Sequence[Run]) -> list[Dataset]:
    """Return the data of every run, emptied of training images; raise unless the test images are the same in all.

    Sizes and channels may differ: what is compared are the images of the source.
    """
    loaded: dict[DataConfig, Dataset] = {}
    datasets: list[Dataset] = []
    for run in runs:
        if run.class_names != runs[0].class_names:
            raise RunError(
                f"{runs[0].path} was trained on {runs[0].config.data.name!r} and {run.path} on"
                f" {run.config.data.name!r}, which has other classes: models are compared on the same test images"
            )
        config = run.config.data.replace(augment=AugmentConfig())  # has no effect on the test images
        if config not in loaded:
            dataset, nothing = load_run_data(run), np.array([], dtype=np.int64)
            loaded[config] = dataclasses.replace(
                dataset, train=dataset.train.take(nothing), val=dataset.val.take(nothing)
            )
        require_same_data(run, loaded[config])
        datasets.append(loaded[config])
        if datasets[-1].test.sha256 != datasets[0].test.sha256:
            raise RunError(_difference(runs[0], run))
    return datasets


def _difference(first: Run, second: Run) -> str:
    """Return a sentence on how the test images of two runs differ."""
    a, b = load_run_data(first), load_run_data(second)
    common = len(np.intersect1d(a.test.digests, b.test.digests))
    counts = f"{len(a.test):,} and {len(b.test):,}, {common:,} in both"
    trained = [
        f"{run.path} was trained on {count:,} of the other's"
        for run, own, other in ((first, a, b), (second, b, a))
        if (count := len(duplicates_between(own.train, other.test)))
    ]
    return (
        f"{first.path} and {second.path} do not have the same test images in the same order"
        f" ({'; '.join([counts, *trained])}): models are compared on the same test images, so train one again with the"
        " other's data and data.split_seed"
    )


def training_notes(runs: Sequence[Run], datasets: Sequence[Dataset]) -> tuple[list[str], list[str]]:
    """Return notes on the training data where they differ, and a warning where they contain test images."""
    names, notes, warnings = names_of(runs), [], []
    sources = [f"{dataset.name!r} ({plural(run.record.data.images['train'], 'image')})"
               for run, dataset in zip(runs, datasets, strict=True)]  # fmt: skip
    if len(set(sources)) > 1:
        each = dict.fromkeys(f"{name} on {source}" for name, source in zip(names, sources, strict=True))
        notes.append(f"trained on different images: {join(each)}")
    trained_on = dict.fromkeys(
        f"{name} on {dataset.duplicates:,}" for name, dataset in zip(names, datasets, strict=True) if dataset.duplicates
    )
    if trained_on:
        warnings.append(
            f"Some of the {len(datasets[0].test):,} test images were trained on, pixel for pixel: {join(trained_on)};"
            " accuracy on them means nothing: remove them from the training images, and train again."
        )
    return notes, warnings


def names_of(runs: Sequence[Run]) -> list[str]:
    """Return each run's name: its configuration's, or its folder's where two would be called the same."""
    calls = Counter((run.config.name, run.config.seed) for run in runs)
    return [run.config.name if calls[run.config.name, run.config.seed] == 1 else run.path.name for run in runs]


def results_from_runs(runs: Sequence[Run], datasets: Sequence[Dataset]) -> list[ModelResult]:
    """Evaluate every run on its test split."""
    return [_evaluate(*each) for each in zip(runs, names_of(runs), datasets, strict=True)]


def _evaluate(run: Run, name: str, dataset: Dataset) -> ModelResult:
    model, batch_size = run.load_model(), run.config.train.eval_batch_size
    evaluation = evaluate_model(model, dataset.test, run.preprocessing, batch_size, run.temperature)
    extra = {}
    if run.config.model.kind == "post-vit":  # its predictions depend on the other images in the batch
        alone = evaluate_model(model, dataset.test, run.preprocessing, 1, run.temperature)
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
        threads=run.resolved.threads,
        hardware=run.resolved.hardware,
        raw_nll=evaluation.raw_nll,
        raw_calibration_error=evaluation.raw_calibration_error,
    )
