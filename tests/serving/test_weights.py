"""GET /v1/weights: the weights of a ViT, where the server offers them."""

from __future__ import annotations

from typing import Any

from starlette.testclient import TestClient

from vitreous.runs import BUNDLED, WEIGHTS, Run
from vitreous.serving.app import create_app
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import load_models
from vitreous.serving.security import Gate
from vitreous.serving.service import Service


def _client(runs: list[Run], show_paths: bool) -> TestClient:
    limits, metrics = Limits(), Metrics()
    service = Service(load_models(runs, limits, metrics, show_paths=show_paths), limits, metrics)
    return TestClient(create_app(service, Gate()), base_url="http://127.0.0.1:8000", raise_server_exceptions=False)


def _entries(client: TestClient) -> dict[str, dict[str, Any]]:
    return {entry["id"]: entry for entry in client.get("/v1/models").json()["models"]}


def test_on_this_computer_the_address_leads_to_the_file(runs: list[Run]) -> None:
    client = _client(runs, show_paths=True)
    entries = _entries(client)
    assert "weights" not in entries["tiny-cnn"]
    response = client.get(f"/{entries['tiny-vit']['weights']}")
    assert response.status_code == 200
    assert response.content == (runs[0].path / WEIGHTS).read_bytes()
    assert response.headers["x-content-type-options"] == "nosniff"


def test_a_server_for_others_offers_the_bundled_ones_only(runs: list[Run]) -> None:
    client = _client([*runs, Run.open(BUNDLED / "vit")], show_paths=False)
    entries = _entries(client)
    assert "weights" not in entries["tiny-vit"]
    refused = client.get("/v1/weights?model=tiny-vit")
    assert (refused.status_code, refused.json()["detail"]) == (
        404,
        "this server does not offer the weights of this model",
    )
    assert client.get("/v1/weights?model=nothing").status_code == 422
    assert client.get(f"/{entries['vit']['weights']}").content == (BUNDLED / "vit" / WEIGHTS).read_bytes()
