"""POST /v1/look returns the arrays that the library computes."""

from __future__ import annotations

import base64
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
import torch
from starlette.testclient import TestClient

from vitreous.config import ViTConfig
from vitreous.inspection.attention import attention_layers, pooling_weights, rollout
from vitreous.inspection.relevance import Trace, class_relevance, forward_and_back, relevance_readout
from vitreous.models import ViT
from vitreous.runs import Run
from vitreous.serving import look as looking

WANTS = ["probabilities", "attention", "lens", "qkv", "rollout", "patch_removal", "relevance"]


def look_request(pixels: np.ndarray, **more: Any) -> dict[str, Any]:
    return {"pixels": base64.b64encode(pixels.tobytes()).decode(), "want": WANTS, **more}


@pytest.fixture
def vit(runs: list[Run]) -> ViT:
    model = runs[0].load_model()
    assert isinstance(model, ViT)
    return model


def relevance_of(vit: ViT, trace: Trace) -> torch.Tensor:
    layers = [layer[0] for layer in attention_layers(trace.taps, vit.config.depth)]
    return class_relevance(layers, trace.attention_gradients, relevance_readout(vit, trace))


def test_everything(client: TestClient, runs: list[Run], vit: ViT, digits: np.ndarray) -> None:
    response = client.post("/v1/look", json=look_request(digits[0], model="tiny-vit"))
    assert response.status_code == 200, response.text
    found = {name: np.array(value) for name, value in response.json().items()}
    image = runs[0].preprocessing.to_input(torch.from_numpy(digits[0].copy())[None, None])
    taps: dict[str, torch.Tensor] = {}
    with torch.no_grad():
        logits = vit(image, taps)
        layers = attention_layers(taps, 2)
        early = vit.classify(taps["tokens"]).softmax(1)[0]
    np.testing.assert_allclose(found["probabilities"], logits.softmax(1)[0], atol=1e-5)
    np.testing.assert_allclose(found["attention"], torch.cat(layers), atol=1e-5)
    np.testing.assert_allclose(found["queries"][1], taps["blocks.1.q"][0], atol=1e-4)
    np.testing.assert_allclose(found["keys"][0], taps["blocks.0.k"][0], atol=1e-4)
    np.testing.assert_allclose(found["values"][0], taps["blocks.0.v"][0], atol=1e-4)
    np.testing.assert_allclose(found["lens"][0], early, atol=1e-5)
    np.testing.assert_allclose(found["lens"][-1], found["probabilities"], atol=1e-5)
    rolled = rollout([layer[0] for layer in layers], pooling_weights(vit, taps)[0])[1:]
    np.testing.assert_allclose(found["rollout"], rolled, atol=1e-5)
    expected = relevance_of(vit, forward_and_back(vit, image[0], None))[1:]
    np.testing.assert_allclose(found["relevance"], expected, atol=1e-4)
    best = int(logits.argmax())
    for patch in (0, 9):
        kept = torch.ones(1, 16, dtype=torch.bool)
        kept[0, patch] = False
        with torch.no_grad():
            without = vit(image, patch_mask=kept).softmax(1)[0, best]
        assert found["patch_removal"][patch] == pytest.approx(float(logits.softmax(1)[0, best] - without), abs=1e-5)


def test_masks(client: TestClient, runs: list[Run], vit: ViT, digits: np.ndarray) -> None:
    heads, patches = [[True, False], [0, 1.0]], [1] * 12 + [0] * 4
    masked = look_request(digits[1], head_mask=heads, token_mask=patches, relevance_class=3)
    found = client.post("/v1/look", json=masked).json()
    image = runs[0].preprocessing.to_input(torch.from_numpy(digits[1].copy())[None, None])
    masks = {"head_mask": torch.tensor(heads).float(), "patch_mask": torch.tensor([patches]) > 0}
    with torch.no_grad():
        expected = vit(image, **masks).softmax(1)[0]
    np.testing.assert_allclose(found["probabilities"], expected, atol=1e-5)
    assert found["patch_removal"][12:] == [0, 0, 0, 0]  # removed already
    assert found["relevance"][12:] == [0, 0, 0, 0]
    assert np.isfinite(found["relevance"]).all()


@pytest.mark.parametrize("pool", ["mean", "seq"])
def test_pooling_reads_no_removed_patch(runs: list[Run], digits: np.ndarray, randomise: Any, pool: str) -> None:
    """Without a class token, the logits, rollout and relevance depend on the remaining patches only."""
    config = ViTConfig(dim=16, depth=2, num_heads=2, mlp_dim=24, pool=pool, zero_head=False)
    vit = randomise(ViT(config)).eval()
    kept = np.array([[1] * 12 + [0] * 4], np.float32)
    inputs = looking.LookInputs(digits[0][None], None, kept, 3, frozenset({"relevance"}))
    served: Any = SimpleNamespace(torch_model=vit, run=runs[0])
    found = looking._relevance(served, inputs)
    assert found[12:].tolist() == [0, 0, 0, 0]

    image = runs[0].preprocessing.to_input(torch.from_numpy(digits[0].copy())[None, None])
    trace = forward_and_back(vit, image[0], 3, patch_mask=torch.from_numpy(kept) > 0)
    layers = [layer[0] for layer in attention_layers(trace.taps, 2)]
    weights = pooling_weights(vit, trace.taps)[0].detach()
    torch.testing.assert_close(weights @ trace.taps["normed"][0], trace.taps["pooled"][0])
    np.testing.assert_allclose(found, relevance_of(vit, trace))
    rolled = looking._rollout(torch.stack(layers).numpy(), config, kept[0])
    if pool == "mean":
        np.testing.assert_allclose(rolled, rollout(layers, weights), atol=1e-6)
        assert rolled[12:].tolist() == [0, 0, 0, 0]
    else:
        assert rolled is None


def test_large_arrays_are_sent_with_five_digits(client: TestClient, digits: np.ndarray) -> None:
    exact = np.array([0, 1, -0.123456789, 3.0000049e-7, 98765.43], np.float32)
    assert looking._shortened(exact).tolist() == np.float32([0, 1, -0.12346, 3e-7, 98765]).tolist()
    response = client.post("/v1/look", json={**look_request(digits[0]), "want": ["attention", "qkv"]})
    for name, numbers in response.json().items():
        digits_sent = [len(str(np.format_float_positional(value)).strip("-0.").replace(".", "")) for value in
                       np.ravel(numbers)]  # fmt: skip
        assert max(digits_sent) <= 5, name


def test_a_cnn_has_probabilities_only(client: TestClient, digits: np.ndarray) -> None:
    found = client.post("/v1/look", json=look_request(digits[0], model="tiny-cnn")).json()
    assert sum(found["probabilities"]) == pytest.approx(1, abs=1e-5)
    assert all(found[name] is None for name in found if name != "probabilities")
    assert {"attention", "lens", "queries", "keys", "values", "rollout"} < found.keys()


def test_only_what_was_wanted(client: TestClient, digits: np.ndarray) -> None:
    request = {**look_request(digits[0]), "want": ["rollout", "lens"]}
    assert client.post("/v1/look", json=request).json().keys() == {"rollout", "lens"}
    del request["want"]
    assert client.post("/v1/look", json=request).json().keys() == {"probabilities"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        ({"pixels": None}, "base64"),
        ({"pixels": "é"}, "base64"),
        ({"pixels": "AAAA"}, "784"),
        ({"want": ["everything"]}, "want"),
        ({"want": ["occlusion"]}, "patch_removal"),
        ({"want": "attention"}, "want"),
        ({"head_mask": [[1, 1]]}, "head_mask"),
        ({"head_mask": [[1, 1], [1, 2]]}, "head_mask"),
        ({"head_mask": [[1, 1], [1]]}, "head_mask"),
        ({"head_mask": [["1", 1], [1, 1]]}, "head_mask"),
        ({"token_mask": [1] * 15}, "token_mask"),
        ({"token_mask": "x"}, "token_mask"),
        ({"relevance_class": 10}, "relevance_class"),
        ({"relevance_class": True}, "relevance_class"),
        ({"model": "none"}, "no model"),
        ({"model": 7}, "model"),
        ({"path": "/etc/passwd"}, "'path'"),
    ],
)
def test_mistakes_get_a_sentence(client: TestClient, digits: np.ndarray, change: dict, words: str) -> None:
    response = client.post("/v1/look", json={**look_request(digits[0]), **change})
    assert response.status_code == 422, response.text
    assert words in response.json()["detail"]


def test_not_json(client: TestClient) -> None:
    assert client.post("/v1/look", content=b"{").status_code == 415
    assert client.post("/v1/look", content=b"{", headers={"content-type": "application/json"}).status_code == 400


def test_models_and_samples_are_what_the_page_reads(client: TestClient) -> None:
    document = client.get("/v1/models").json()
    vit, cnn = document["models"]
    assert (vit["id"], vit["kind"], vit["depth"], vit["num_heads"], vit["head_dim"]) == ("tiny-vit", "vit", 2, 2, 8)
    assert (vit["grid"], vit["patch_size"], vit["image_size"], vit["pool"]) == ([4, 4], [7, 7], [28, 28], "cls")
    assert np.shape(vit["position_similarity"]) == (16, 16)
    assert vit["cells"] == {
        "row_edges": [0, 7, 14, 21, 28],
        "column_edges": [0, 7, 14, 21, 28],
        "exact": True,
        "note": "",
    }
    assert (cnn["kind"], cnn["channels"], cnn["accuracy"]) == ("cnn", 1, None)
    assert "run" not in vit  # no path of this disk
    sample = client.get("/v1/samples").json()["samples"][0]
    assert len(base64.b64decode(sample["pixels"])) == 784
