"""MNIST and digits for the tests of data; tests of MNIST are skipped where no origin can be reached."""

from __future__ import annotations

import pytest
from hypothesis import settings

from vitreous.config import DataConfig
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.errors import DataError

# The same examples each time, and no deadline: a busy machine is not a failure.
settings.register_profile("vitreous", deadline=None, derandomize=True, database=None)
settings.load_profile("vitreous")


@pytest.fixture(scope="session")
def mnist() -> Dataset:
    try:
        return load_dataset(DataConfig(name="mnist"))
    except DataError as error:
        pytest.skip(f"MNIST is out of reach: {error}")


@pytest.fixture(scope="session")
def digits() -> Dataset:
    return load_dataset(DataConfig(name="digits"))
