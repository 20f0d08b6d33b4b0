"""Fixtures: bench/parity.py as a module, and a tiny random model of ours."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from types import ModuleType

import pytest
import torch

from vitreous.config import ViTConfig
from vitreous.models.vit import ViT

BENCH = str(Path(__file__).parents[2] / "bench")
if BENCH not in sys.path:  # its scripts import each other
    sys.path.insert(0, BENCH)


@pytest.fixture(scope="session")
def parity() -> ModuleType:
    return load_parity()


def load_parity() -> ModuleType:
    """bench/parity.py, which builds the peers' models and files: the table and the tests are one measurement."""
    name = "vitreous_bench_parity"
    if name not in sys.modules:
        path = Path(__file__).parents[2] / "bench" / "parity.py"
        spec = importlib.util.spec_from_file_location(name, path)
        assert spec is not None
        assert spec.loader is not None
        sys.modules[name] = importlib.util.module_from_spec(spec)
        spec.loader.exec_module(sys.modules[name])
    return sys.modules[name]


@pytest.fixture
def tiny(randomise):
    """`tiny(pool="mean", …)`: a small model of ours, every parameter random."""

    def make(**changes) -> ViT:
        values = {
            "image_size": 24, "channels": 3, "num_classes": 7, "patch_size": 6, "dim": 32, "depth": 2, "num_heads": 4,
            "mlp_dim": 48,
        }  # fmt: skip
        return randomise(ViT(ViTConfig(**{**values, **changes}))).eval()

    return make


@pytest.fixture
def logits_of():
    """Logits on images that fit the model, without gradients."""

    def compute(model, config: ViTConfig, seed: int = 5):
        generator = torch.Generator().manual_seed(seed)
        images = torch.randn(3, config.channels, *config.image_size, generator=generator)
        with torch.no_grad():
            result = model(images)
        return getattr(result, "logits", result)

    return compute
