"""The data of a run: loaded as it was trained on them, and refused where they changed since."""

from __future__ import annotations

import os
from typing import Literal, cast

from vitreous.data.datasets import DATASETS, Dataset, load_dataset
from vitreous.errors import DataError
from vitreous.runs.run import Run

OLD_CHECKSUM = "pixels and labels"  # of folders, up to version 0.1: of pixels as that version resized them


def load_run_data(run: Run, data: str | None = None) -> Dataset:
    """Return the data a run was trained on, or `data` in the size and channels of its model; split as in training.

    The one place where everything but training gets a run's images; its own data are an error where they changed.
    """
    own = run.config.data
    # a size and a fit that were decided in training are those of the run
    chosen = own.replace(image_size=run.preprocessing.image_size, fit=run.preprocessing.fit)
    if data is not None:
        channels = run.preprocessing.channels
        known = cast(Literal[1, 3], channels) if channels in (1, 3) else None
        chosen = chosen.replace(name=data, channels=known)
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
    recorded, name = run.record.data, str(run.path)
    same_test = recorded.test_sha256 in (None, dataset.test.sha256)
    if recorded.class_names == dataset.class_names and OLD_CHECKSUM in recorded.checksums:
        if recorded.test_sha256 == dataset.test.sha256:  # of the source images, so the same as then
            return
        raise DataError(
            f"{name!r} was trained by a version that read the images of {dataset.name!r} in another way, so it cannot be"
            " told whether they are still the same; evaluate it on other data with --data, or train a new run"
        )
    if (
        recorded.checksums not in ({}, dataset.checksums)
        or not same_test
        or recorded.class_names != dataset.class_names
    ):
        raise DataError(
            f"the data {dataset.name!r} changed since {name!r} was trained, so test images may be among those it was"
            " trained on; restore the data, or train a new run"
        )
