"""The binary form of /v1/look, and compressed responses: the same content in fewer bytes."""

from __future__ import annotations

import base64
import gzip
from typing import Any

import numpy as np
import orjson
import pytest
import safetensors.numpy
from starlette.testclient import TestClient

from vitreous.runs import Run
from vitreous.serving import look as looking
from vitreous.serving.compression import accepts_gzip, compressed
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import load_models
from vitreous.serving.pages import page_files

TENSORS = {"accept": "application/x-safetensors"}
LIVE = ["probabilities", "novelty", "attention", "lens", "kept", "rollout"]  # as requests.js while a person draws


def look_request(pixels: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"pixels": base64.b64encode(pixels.tobytes()).decode(), **more}


@pytest.mark.parametrize("want", [LIVE, [*LIVE, "qkv"], ["patch_removal", "relevance"]])
def test_binary_and_json_agree(client: TestClient, digits: np.ndarray, want: list[str]) -> None:
    request = look_request(digits[0], want=want, token_mask=[1] * 12 + [0] * 4)
    expected = client.post("/v1/look", json=request).json()
    response = client.post("/v1/look", json=request, headers=TENSORS)
    assert response.headers["content-type"] == "application/x-safetensors"
    found = safetensors.numpy.load(response.content)
    assert found.keys() == {name for name, value in expected.items() if value is not None}
    for name, array in found.items():
        assert array.dtype == (np.float16 if name in looking.LARGE else np.float32), name
        assert array.shape == np.shape(expected[name]), name
        largest = max(1.0, float(np.abs(expected[name]).max()))
        np.testing.assert_allclose(array.astype(np.float32), expected[name], atol=1e-3 * largest, err_msg=name)


def test_attention_is_rounded_unless_it_is_explained(client: TestClient, digits: np.ndarray) -> None:
    def attention(*want: str) -> np.ndarray:
        response = client.post("/v1/look", json=look_request(digits[0], want=["attention", *want]), headers=TENSORS)
        return safetensors.numpy.load(response.content)["attention"].astype(np.float64)

    rounded, exact = attention(), attention("qkv")
    np.testing.assert_array_equal(rounded * 1024, np.rint(rounded * 1024))
    assert (exact * 1024 != np.rint(exact * 1024)).any()
    np.testing.assert_allclose(rounded, exact, atol=0.5 / 1024 + 2**-11)


def test_numbers_too_large_for_float16_stay_float32() -> None:
    found = safetensors.numpy.load(looking.as_tensors({"queries": np.array([1e6, 1.0]), "relevance": None}))
    assert found["queries"].dtype == np.float32
    assert found["queries"].tolist() == [1e6, 1.0]
    assert found.keys() == {"queries"}


@pytest.mark.parametrize("accept", ["*/*", "application/json", "", "application/*", "x-safetensors", "\x00, ;;=,"])
def test_json_is_the_default(client: TestClient, digits: np.ndarray, accept: str) -> None:
    response = client.post("/v1/look", json=look_request(digits[0], want=["lens"]), headers={"accept": accept})
    assert (response.status_code, response.headers["content-type"]) == (200, "application/json")


@pytest.mark.parametrize("accept", ["application/x-safetensors;q=1, */*;q=0.1", "text/html, Application/X-Safetensors"])
def test_binary_is_sent_to_those_who_name_it(client: TestClient, digits: np.ndarray, accept: str) -> None:
    response = client.post("/v1/look", json=look_request(digits[0], want=["lens"]), headers={"accept": accept})
    assert response.headers["content-type"] == "application/x-safetensors"


def test_mistakes_are_json_also_for_binary(client: TestClient, digits: np.ndarray) -> None:
    for body, status in ((b"{", 400), (b"[]", 422), (orjson.dumps(look_request(digits[0], want=["all"])), 422)):
        headers = {**TENSORS, "content-type": "application/json"}
        response = client.post("/v1/look", content=body, headers=headers)
        assert (response.status_code, response.headers["content-type"]) == (status, "application/problem+json")


def test_a_stroke_takes_less_than_60_kb(digits: np.ndarray) -> None:
    """The bundled ViT's response while a person draws, compressed as the server compresses it."""
    model = load_models([Run.open("bundled:vit")], Limits(), Metrics(), show_paths=False)["vit"]
    sizes = []
    for digit in digits[:6]:
        inputs = looking.LookInputs(digit[None], None, None, None, frozenset(LIVE))
        sizes.append(len(compressed(looking.as_tensors(looking.look(model, inputs)), 1)))
    assert max(sizes) <= 60_000


# --- gzip -------------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("sent", "accepted"),
    [("gzip", True), ("gzip, deflate, br", True), ("br;q=1.0, GZIP;q=0.5", True), ("*", True), ("", False),
     ("gzip;q=0", False), ("gzip;q=0, *", False), ("br", False), ("identity", False), ("gzip;q=x", False),
     ("x-gzip", True), ("*;q=0", False), (";;,,=;q", False), ("gzip" + ";" * 1000, True)],
)  # fmt: skip
def test_accept_encoding(sent: str, accepted: bool) -> None:
    assert accepts_gzip({b"accept-encoding": sent.encode()}) is accepted


def _raw(client: TestClient, method: str, path: str, **more: Any) -> tuple[Any, bytes]:
    """Return a response and its body as it was sent."""
    with client.stream(method, path, **more) as response:
        return response, b"".join(response.iter_raw())


def test_large_responses_are_compressed_for_those_who_ask(client: TestClient, digits: np.ndarray) -> None:
    look = {"json": look_request(digits[0], want=["attention"])}
    for method, path, more in (("GET", "/v1/models", {}), ("GET", "/v1/samples", {}), ("POST", "/v1/look", look)):
        plain, plain_body = _raw(client, method, path, headers={"accept-encoding": "identity"}, **more)
        assert "content-encoding" not in plain.headers
        packed, packed_body = _raw(client, method, path, headers={"accept-encoding": "gzip"}, **more)
        assert packed.headers["content-encoding"] == "gzip"
        assert packed.headers["content-length"] == str(len(packed_body))
        assert len(packed_body) < 0.6 * len(plain_body)
        assert gzip.decompress(packed_body) == plain_body
    small, _ = _raw(client, "GET", "/healthz", headers={"accept-encoding": "gzip"})
    assert "content-encoding" not in small.headers


def test_each_form_of_a_file_has_its_own_tag(client: TestClient) -> None:
    for name in ("index.html", "main.js", "vitreous.css"):
        plain, plain_body = _raw(client, "GET", f"/{name}", headers={"accept-encoding": "identity"})
        packed, packed_body = _raw(client, "GET", f"/{name}", headers={"accept-encoding": "gzip"})
        assert gzip.decompress(packed_body) == plain_body == page_files()[name]
        assert plain.headers["vary"] == packed.headers["vary"] == "accept-encoding"
        assert plain.headers["cache-control"] == packed.headers["cache-control"] == "no-cache"
        assert plain.headers["etag"] != packed.headers["etag"]
        for encoding, etag, status in (
            ("gzip", packed.headers["etag"], 304),
            ("identity", plain.headers["etag"], 304),
            ("gzip", plain.headers["etag"], 200),
        ):
            headers = {"accept-encoding": encoding, "if-none-match": etag}
            assert _raw(client, "GET", f"/{name}", headers=headers)[0].status_code == status
