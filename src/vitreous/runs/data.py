"""The data of a run: loaded as it was trained on them, and refused where they changed since."""

from __future__ import annotations

import os
from typing import Literal, cast

from vitreous.data.datasets import DATASETS, Dataset, load_dataset
from vitreous.errors import DataError
from vitreous.runs.run import Run


def load_run_data(run: Run, data: str | None = None) -> Dataset:
    """Return the data a run was trained on, or `data` in the size and channels of its model; split as in training.

    The one place where everything but training gets a run's images; its own data are an error where they changed.
    """
    own = run.config.data
    if data is None:
        chosen = own
    else:
        channels = run.preprocessing.channels
        known = cast(Literal[1, 3], channels) if channels in (1, 3) else None
        chosen = own.replace(name=data, image_size=run.preprocessing.image_size, channels=known)
    if not chosen.name:
        raise DataError(
            f"{str(run.path)!r} was converted and has no data of its own: name some with --data, or another run that"
            " was trained on data"
        )
    dataset = load_dataset(chosen)
    if _same_source(chosen.name, own.name):
        require_same_data(run, dataset)
    return dataset


def _same_source(data: str, own: str) -> bool:
    """Return whether two names of data mean the same: a path can be written in several ways."""
    if data == own or data in DATASETS or own in DATASETS:
        return data == own
    paths = [os.path.expanduser(name) for name in (data, own)]
    return all(map(os.path.exists, paths)) and os.path.samefile(*paths)


def require_same_data(run: Run, dataset: Dataset) -> None:
    """Raise if `dataset` is no longer what the run was trained on: the one rule for everything that reads its images.

    A changed data set is split anew, so images of the test split may have been trained on.
    """
    recorded = run.record.data
    if (
        recorded.checksums not in ({}, dataset.checksums)
        or recorded.test_sha256 not in (None, dataset.test.sha256)
        or recorded.class_names != dataset.class_names
    ):
        raise DataError(
            f"the data {dataset.name!r} changed since {str(run.path)!r} was trained, so test images may be among those"
            " it was trained on; restore the data, or train a new run"
        )
