"""POST /v1/predict: the same predictions as `vitreous predict`, for files and for pixels, one or many."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import pytest
from starlette.testclient import TestClient

from vitreous.evaluation.prediction import predict_images
from vitreous.runs import Run

Encode = Callable[..., bytes]


@pytest.mark.parametrize("kind", ["PNG", "BMP", "WEBP", "JPEG"])
def test_one_file(client: TestClient, runs: list[Run], digits: np.ndarray, png: Encode, kind: str) -> None:
    data = png(digits[0], kind)
    response = client.post("/v1/predict", files={"image": ("a digit.bin", data)})
    assert response.status_code == 200, response.text
    (one,) = response.json()["predictions"]
    (wanted,) = predict_images(runs[0], [data])
    assert (one["name"], one["label"], one["notes"]) == ("a digit.bin", wanted.label, list(wanted.notes))
    assert one["probabilities"] == pytest.approx(wanted.probabilities, abs=1e-5)
    assert one["probability"] == max(one["probabilities"].values())


def test_many_files_and_another_model(client: TestClient, runs: list[Run], digits: np.ndarray, png: Encode) -> None:
    photo = np.kron(255 - digits[3], np.ones((9, 11), np.uint8))  # large, dark on light: normalised on the way
    pictures = [png(digits[1]), png(photo), png(digits[2])]
    files = [("image", (f"{number}.png", data)) for number, data in enumerate(pictures)]
    response = client.post("/v1/predict?model=tiny-cnn", files=files).json()
    assert response["model"] == "tiny-cnn"
    wanted = predict_images(runs[1], pictures)
    assert [one["name"] for one in response["predictions"]] == ["0.png", "1.png", "2.png"]
    for one, other in zip(response["predictions"], wanted, strict=True):
        assert one["probabilities"] == pytest.approx(other.probabilities, abs=1e-5)
    many_fields = "&".join(f"field{number}=1" for number in range(30))
    assert client.post(f"/v1/predict?{many_fields}&model=tiny-cnn", files=files).json() == response
    by_field = client.post("/v1/predict", files=files, data={"model": "tiny-cnn"}).json()
    assert by_field == response


def test_pixels_as_json(client: TestClient, digits: np.ndarray, png: Encode) -> None:
    by_file = client.post("/v1/predict", files={"image": png(digits[0])}).json()["predictions"][0]
    one = client.post("/v1/predict", json={"pixels": digits[0].tolist()}).json()["predictions"][0]
    assert one["probabilities"] == by_file["probabilities"]
    several = client.post("/v1/predict", json={"pixels": digits[:3].tolist(), "model": "tiny-vit"}).json()
    assert len(several["predictions"]) == 3
    colour = np.repeat(digits[:2, :, :, None], 3, axis=3)
    assert len(client.post("/v1/predict", json={"pixels": colour.tolist()}).json()["predictions"]) == 2


def test_an_unreadable_image_does_not_affect_the_others(client: TestClient, digits: np.ndarray, png: Encode) -> None:
    good = png(digits[0])
    bad = [b"not an image", good[:-20], b"", png(np.zeros((28, 28), np.uint8))]
    alone = client.post("/v1/predict", files={"image": good}).json()["predictions"][0]
    files = [("image", (f"bad{number}", data)) for number, data in enumerate(bad)] + [("image", ("good", good))]
    response = client.post("/v1/predict", files=files)
    assert response.status_code == 200
    *refused, one = response.json()["predictions"]
    assert one["probabilities"] == alone["probabilities"]
    assert all(entry["name"] in entry["error"] and "label" not in entry for entry in refused)
    assert "blank" in refused[3]["error"]


def test_no_readable_image_is_a_422(client: TestClient) -> None:
    one = client.post("/v1/predict", files={"image": ("x.psd", b"8BPS")})
    assert one.status_code == 422
    assert one.headers["content-type"] == "application/problem+json"
    assert "x.psd is not a PNG" in one.json()["detail"]
    many = client.post("/v1/predict", files=[("image", ("a", b"x")), ("image", ("b", b"y"))])
    assert many.status_code == 422
    assert [error["name"] for error in many.json()["errors"]] == ["a", "b"]


@pytest.mark.parametrize(
    ("sent", "status", "words"),
    [
        ({"content": b"{}", "headers": {"content-type": "text/plain"}}, 415, "multipart/form-data"),
        ({"content": b"{", "headers": {"content-type": "application/json"}}, 400, "not JSON"),
        ({"content": b'{"pixels": [[NaN]]}', "headers": {"content-type": "application/json"}}, 400, "not JSON"),
        ({"content": b"[" * 5000, "headers": {"content-type": "application/json"}}, 400, "not JSON"),
        ({"json": []}, 422, "object"),
        ({"json": {}}, 422, "pixels"),
        ({"json": {"pixels": "text"}}, 422, "pixels"),
        ({"json": {"pixels": []}}, 422, "pixels"),
        ({"json": {"pixels": [[1, 2], [3]]}}, 422, "pixels"),
        ({"json": {"pixels": [[1, None]]}}, 422, "pixels"),
        ({"json": {"pixels": [[1, "2"]]}}, 422, "pixels"),
        ({"json": {"pixels": [[256]]}}, 422, "0 to 255"),
        ({"json": {"pixels": [[-1]]}}, 422, "0 to 255"),
        ({"json": {"pixels": [[10**30]]}}, 422, "0 to 255"),
        ({"json": {"pixels": [[[[1, 2]]]]}}, 422, "pixels"),
        ({"json": {"pixels": [[0, 1]], "model": 3}}, 422, "model"),
        ({"json": {"pixels": [[0, 1]], "model": "../../etc/passwd"}}, 422, "no model"),
        ({"json": {"pixels": [[0, 1]], "url": "http://example.org"}}, 422, "'url'"),
        ({"files": {"picture": b"x"}}, 422, "'picture'"),
        ({"data": {"model": "tiny-vit"}, "files": {"model": b"tiny-vit"}}, 422, "no image"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data"}}, 400, "boundary"),
        ({"content": b"x", "headers": {"content-type": "multipart/form-data; boundary=y"}}, 400, "boundary"),
        ({"content": b"x", "headers": {"content-encoding": "gzip"}}, 415, "compressed"),
    ],
)  # fmt: skip
def test_mistakes_get_a_sentence(client: TestClient, sent: dict, status: int, words: str) -> None:
    response = client.post("/v1/predict", **sent)
    assert response.status_code == status, response.text
    assert response.headers["content-type"] == "application/problem+json"
    problem = response.json()
    assert problem["status"] == status
    assert words in problem["detail"]
