"""Test images for the page: of the run's own data, at the model's size, and never digits for a model of photographs."""

from __future__ import annotations

import base64
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image

from vitreous.config import Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import ExportError
from vitreous.export.catalog import SAMPLES, check_images, samples_for
from vitreous.runs import Run
from vitreous.serving import server
from vitreous.serving.static_page import export_page

COLORS = {"red": (200, 40, 40), "green": (40, 200, 40)}


@pytest.fixture
def photographs(tmp_path: Path) -> Path:
    """A folder of images of 20×30 pixels in colour."""
    for name, color in COLORS.items():
        (tmp_path / "photographs" / name).mkdir(parents=True)
        for i in range(10):
            pixels = np.full((20, 30, 3), color, np.uint8)
            pixels[i, i] = 255
            Image.fromarray(pixels).save(tmp_path / "photographs" / name / f"{i}.png")
    return tmp_path / "photographs"


@pytest.fixture
def make_run(tmp_path: Path) -> Callable[..., Run]:
    def make(data: DataConfig, **changes: Any) -> Run:
        dataset = load_dataset(data)
        settings = {"image_size": dataset.image_size, "channels": dataset.channels, **changes}
        model = ViTConfig(num_classes=dataset.num_classes, patch_size=4, depth=1, dim=16, num_heads=1, **settings)
        preprocessing = Preprocessing.for_dataset(dataset)
        return Run.create(tmp_path / "run", Config(name="run", model=model, data=data), dataset, preprocessing)

    return make


def test_samples_are_of_the_models_size(photographs: Path, make_run: Callable[..., Run]) -> None:
    run = make_run(DataConfig(name=str(photographs), image_size=(16, 24)))
    found = samples_for(run)
    assert found["shape"] == [3, 16, 24]
    assert found["note"] == ""
    assert [sample["label"] for sample in found["samples"]] == ["green", "red", "green", "red"]  # two tenths of each
    for sample in found["samples"]:
        pixels = np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8).reshape(found["shape"])
        assert tuple(np.median(pixels, axis=(1, 2))) == COLORS[sample["label"]]


def test_samples_are_bounded(make_run: Callable[..., Run]) -> None:
    small = samples_for(make_run(DataConfig(name="digits")))
    assert len(small["samples"]) == SAMPLES


def test_large_samples_are_fewer(make_run: Callable[..., Run]) -> None:
    large = samples_for(make_run(DataConfig(name="digits", image_size=(256, 256))))
    assert len(large["samples"]) == 10  # one of each digit
    assert len(json.dumps(large)) < 1_000_000


def test_missing_photographs_are_a_sentence(photographs: Path, make_run: Callable[..., Run]) -> None:
    run = make_run(DataConfig(name=str(photographs), image_size=(16, 24)))
    photographs.rename(photographs.with_name("elsewhere"))
    found = samples_for(run)
    assert found["samples"] == []
    assert found["note"].startswith("There are no test images to choose from")


def test_channels_that_no_page_can_show(
    make_run: Callable[..., Run], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    run = make_run(DataConfig(name="digits"), channels=2)
    with pytest.raises(ExportError, match="takes images of 2 channels, and the page shows gray"):
        check_images([run])
    before = sorted(tmp_path.iterdir())
    with pytest.raises(ExportError, match="2 channels"):
        export_page([run], tmp_path / "site")
    assert sorted(tmp_path.iterdir()) == before
    monkeypatch.setattr(server, "_export_missing", pytest.fail)
    with pytest.raises(ExportError, match="2 channels"):
        server.serve_runs([run], port=0)
