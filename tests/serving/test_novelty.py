"""The server says where an image is unlike the training images, as `vitreous predict` does: with the bundled models."""

from __future__ import annotations

import base64
from collections.abc import Iterator

import numpy as np
import pytest
from starlette.testclient import TestClient

from vitreous.evaluation.prediction import predict_images
from vitreous.runs import Run
from vitreous.serving.app import create_app
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import load_models
from vitreous.serving.security import Gate
from vitreous.serving.service import Service


@pytest.fixture(scope="module")
def bundled() -> Iterator[tuple[TestClient, list[Run]]]:
    runs, limits, metrics = [Run.open("bundled:vit"), Run.open("bundled:cnn")], Limits(), Metrics()
    service = Service(load_models(runs, limits, metrics, show_paths=False), limits, metrics)
    with TestClient(create_app(service, Gate()), base_url="http://127.0.0.1:8000") as client:
        yield client, runs


@pytest.fixture(scope="module")
def pictures(digits: np.ndarray) -> np.ndarray:
    """Two digits, and a chessboard: uint8 (3, 28, 28)."""
    board = np.kron(np.indices((4, 4)).sum(axis=0) % 2, np.ones((5, 5))) * 255
    return np.stack([digits[0], digits[1], np.pad(board, 4)]).astype(np.uint8)


@pytest.mark.parametrize(("name", "number"), [("vit", 0), ("cnn", 1)])
def test_predict(bundled: tuple[TestClient, list[Run]], pictures: np.ndarray, name: str, number: int) -> None:
    client, runs = bundled
    response = client.post("/v1/predict", json={"pixels": pictures.tolist(), "model": name})
    found = response.json()["predictions"]
    wanted = predict_images(runs[number], list(pictures))
    for one, other in zip(found, wanted, strict=True):
        assert one["novelty"] == pytest.approx(other.novelty, rel=1e-3)
        assert one["unlike"] is other.unlike
        assert one["probabilities"] == pytest.approx(other.probabilities, abs=1e-5)
        assert sum(one["probabilities"].values()) == pytest.approx(1, abs=1e-4)
        assert len(one["probabilities"]) == 10
    assert found[2]["unlike"] is True
    assert found[2]["novelty"] > 1


@pytest.mark.parametrize("name", ["vit", "cnn"])
def test_look(bundled: tuple[TestClient, list[Run]], pictures: np.ndarray, name: str) -> None:
    client, _ = bundled
    pixels = base64.b64encode(pictures[2].tobytes()).decode()
    found = client.post("/v1/look", json={"pixels": pixels, "model": name, "want": ["probabilities", "novelty"]}).json()
    predicted = client.post("/v1/predict", json={"pixels": pictures[2].tolist(), "model": name}).json()["predictions"][
        0
    ]
    assert found["novelty"] == pytest.approx(predicted["novelty"], rel=1e-4)
    assert found["probabilities"] == pytest.approx(list(predicted["probabilities"].values()), abs=1e-5)


def test_a_run_without_it_has_null(client: TestClient, digits: np.ndarray) -> None:
    (one,) = client.post("/v1/predict", json={"pixels": digits[0].tolist()}).json()["predictions"]
    assert one["novelty"] is None
    assert one["unlike"] is None
    pixels = base64.b64encode(digits[0].tobytes()).decode()
    for model in ("tiny-vit", "tiny-cnn"):
        found = client.post("/v1/look", json={"pixels": pixels, "model": model, "want": ["novelty"]}).json()
        assert found == {"novelty": None}


def test_models_say_whether_they_measure_it(bundled: tuple[TestClient, list[Run]], client: TestClient) -> None:
    calibrated = bundled[0].get("/v1/models").json()["models"]
    assert all(model["novelty"] and model["temperature"] < 1 for model in calibrated)
    assert [(model["novelty"], model["temperature"]) for model in client.get("/v1/models").json()["models"]] == [
        (False, 1.0)
    ] * 2
