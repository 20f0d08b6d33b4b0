"""Test images for a run, from data that are on this machine already: nothing is downloaded."""

from __future__ import annotations

from typing import TYPE_CHECKING

from vitreous.data.datasets import Dataset, describe
from vitreous.data.digits import load_digits
from vitreous.data.images import convert
from vitreous.data.specs import DATASETS
from vitreous.errors import DataError
from vitreous.runs import Run, load_run_data

if TYPE_CHECKING:
    from torch import Tensor


def local_dataset(run: Run) -> Dataset | None:
    """Return the run's data, or None if they would have to be downloaded, were moved, or changed."""
    name = run.config.data.name
    try:
        return load_run_data(run) if name not in DATASETS or describe(name).cached else None
    except DataError:
        return None


def fit_to_model(images: Tensor, run: Run) -> Tensor:
    """Resize images and convert their channels to the model's; uint8 (B, C, H, W)."""
    return convert(images, run.config.model.image_size, run.config.model.channels, run.preprocessing.fit)


def sample_images(run: Run, count: int) -> tuple[Tensor, str]:
    """Return `count` images that fit the model, from the run's test set or else the digits, and their source."""
    import torch

    dataset = local_dataset(run)
    if dataset is not None and len(dataset.test) >= count:
        test, source = dataset.test, f"test images of {run.config.data.name}"
    else:
        test, source = load_digits().splits["test"], "scikit-learn's digits"
    spread = torch.linspace(0, len(test) - 1, count).long()
    return fit_to_model(test.batch(spread), run), source
