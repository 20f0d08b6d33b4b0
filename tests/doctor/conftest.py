"""What the tests of the doctor share."""

from __future__ import annotations

import pytest

from vitreous.doctor import model_under_test
from vitreous.doctor.checks import fresh
from vitreous.testing import TinyViT


@pytest.fixture(autouse=True)
def _plenty_of_time(monkeypatch) -> None:
    """Lift the limit of CPU time, which a slow machine could exceed."""
    monkeypatch.setattr(model_under_test, "CPU_SECONDS", 600.0)
    monkeypatch.setattr(fresh, "OVERFIT_SECONDS", 600.0)


@pytest.fixture
def no_overfitting(_plenty_of_time, monkeypatch) -> None:
    """Skip the slowest check: with the article's feed-forward layers of 3000, 200 steps take most of a minute."""
    monkeypatch.setattr(fresh, "OVERFIT_SECONDS", 0.0)


@pytest.fixture(scope="session")
def tiny_vit() -> type[TinyViT]:
    return TinyViT
