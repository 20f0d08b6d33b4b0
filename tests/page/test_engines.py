"""One interface, two engines: the results of the server, of the browser and of the model itself are the same."""

from __future__ import annotations

import base64
import json
import re
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.evaluation.novelty import Novelty
from vitreous.inspection.attention import rollout
from vitreous.models.representations import represent
from vitreous.runs import Run

expect = pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright").expect

LOOK = """async ([requests, site, loaded = true]) => {
  const { chooseEngine, isViT } = await import(site + "engine.js");
  const engine = await chooseEngine();
  let models = [];
  await engine.start(() => {}, (list) => { models = list; });
  const list = (value) => (value.data ? { data: [...value.data], shape: [...value.shape] } : [...value]);
  const plain = (value) => (value && typeof value === "object" ? list(value) : value);
  const results = [];
  for (const { kind, pixels, headMask, tokenMask, want } of requests) {
    const model = models.find((each) => each.kind === kind);
    if (loaded) await engine.load(model);
    const result = await engine.look(model, { pixels: Uint8Array.from(pixels), headMask, tokenMask, want });
    results.push(Object.fromEntries(Object.entries(result).map(([name, value]) => [name, plain(value)])));
  }
  return { engine: engine.constructor.name, hasGradients: engine.hasGradients, results };
}"""
WANT = ["probabilities", "novelty", "attention", "lens", "qkv", "rollout", "patch_removal"]
VECTORS = ("probabilities", "rollout", "patch_removal")
HALF = 1e-3  # what weights or results in float16 change at most
TENSORS = ("attention", "lens", "queries", "keys", "values")


@pytest.fixture(scope="module")
def pictures(static_folder: Any) -> list[np.ndarray]:
    samples = json.loads((static_folder / "samples" / "digits-vit.json").read_text(encoding="utf-8"))["samples"]
    return [np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8) for sample in samples[:4]]


def _requests(pictures: list[np.ndarray]) -> list[dict[str, Any]]:
    patches = [1] * 16
    without = [0 if patch in (5, 9) else 1 for patch in range(16)]
    masks: list[tuple[Any, Any]] = [
        (None, None),
        ([[1, 0], [1, 1]], None),
        (None, without),
        ([[0, 1], [1, 0]], patches),
    ]
    requests = [
        {"kind": "vit", "pixels": picture.tolist(), "headMask": heads, "tokenMask": tokens, "want": WANT}
        for picture, (heads, tokens) in zip(pictures, masks, strict=True)
    ]
    plain = {"kind": "cnn", "headMask": None, "tokenMask": None, "want": ["probabilities", "novelty"]}
    return [*requests, *({**plain, "pixels": picture.tolist()} for picture in pictures)]


@torch.inference_mode()
def test_both_engines_give_the_results_of_the_model(
    open_page: Any, served_site: str, static_site: str, runs: list[Run], pictures: list[np.ndarray]
) -> None:
    requests = _requests(pictures)
    served = open_page(served_site).page.evaluate(LOOK, [requests, served_site])
    static = open_page(static_site).page.evaluate(LOOK, [requests, static_site])
    assert (served["engine"], static["engine"]) == ("HttpEngine", "BrowserEngine")
    assert (served["hasGradients"], static["hasGradients"]) == (True, False)

    vit, cnn = (run.load_model().eval() for run in runs)
    vit_novelty, cnn_novelty = (Novelty.of_run(run) for run in runs)
    assert vit_novelty is not None
    assert cnn_novelty is not None
    assert runs[0].temperature != 1
    for i, request in enumerate(requests):
        one, other = served["results"][i], static["results"][i]
        images = runs[0].preprocessing.to_input(torch.tensor(request["pixels"], dtype=torch.uint8).view(1, 1, 28, 28))
        if request["kind"] == "cnn":
            logits, parts = represent(cnn, images)
            expected = (logits / runs[1].temperature).softmax(dim=1)[0].numpy()
            for result, tolerance in ((one, 2e-5), (other, HALF)):
                np.testing.assert_allclose(result["probabilities"], expected, atol=tolerance)
                assert result["novelty"] == pytest.approx(float(cnn_novelty.score(parts)), rel=2e-3)
            continue
        assert one["novelty"] == pytest.approx(other["novelty"], rel=2e-3)
        if request["headMask"] is None and request["tokenMask"] is None:
            assert one["novelty"] == pytest.approx(float(vit_novelty.score(represent(vit, images)[1])), rel=1e-3)
        for name in VECTORS:
            np.testing.assert_allclose(one[name], other[name], atol=HALF, err_msg=name)
        for name in TENSORS:
            assert one[name]["shape"] == other[name]["shape"], name
            # the server sends the large ones as float16, and the browser's weights are float16
            largest = max(1.0, float(np.abs(one[name]["data"]).max()))
            np.testing.assert_allclose(one[name]["data"], other[name]["data"], atol=2 * HALF * largest, err_msg=name)
        np.testing.assert_allclose(one["lens"]["data"][-10:], one["probabilities"], atol=2e-5)
        _assert_as_torch(vit, images, request, one, runs[0].temperature)


def _assert_as_torch(
    vit: Any, images: torch.Tensor, request: dict[str, Any], result: dict[str, Any], temperature: float
) -> None:
    taps: dict[str, torch.Tensor] = {}
    heads = None if request["headMask"] is None else torch.tensor(request["headMask"], dtype=torch.float32)
    tokens = None if request["tokenMask"] is None else torch.tensor([request["tokenMask"]], dtype=torch.bool)
    logits = vit(images, taps, head_mask=heads, patch_mask=tokens) / temperature
    np.testing.assert_allclose(result["probabilities"], logits.softmax(dim=1)[0], atol=2e-5)
    layers = [taps[f"blocks.{layer}.attention"][0] for layer in range(vit.config.depth)]
    attention = np.reshape(result["attention"]["data"], result["attention"]["shape"])
    np.testing.assert_allclose(attention, torch.stack(layers), atol=2**-12)  # half a step of float16 below 1
    readout = torch.zeros(len(layers[0][0]))
    readout[0] = 1
    np.testing.assert_allclose(result["rollout"], rollout(layers, readout)[1:], atol=2e-5)
    kept = torch.ones(16, 16, dtype=torch.bool) if tokens is None else tokens.expand(16, -1).clone()
    kept &= ~torch.eye(16, dtype=torch.bool)
    without = (vit(images.expand(16, -1, -1, -1), head_mask=heads, patch_mask=kept) / temperature).softmax(dim=1)
    best = int(logits.argmax())
    np.testing.assert_allclose(result["patch_removal"], logits.softmax(dim=1)[0, best] - without[:, best], atol=2e-5)


def test_the_weights_alone_predict_what_the_graph_does(
    open_page: Any, static_site: str, pictures: list[np.ndarray]
) -> None:
    want = ["probabilities", "attention", "lens", "qkv", "rollout", "kept"]
    requests = [{**request, "want": want} for request in _requests(pictures) if request["kind"] == "vit"]
    tab = open_page(static_site)
    graph = tab.page.evaluate(LOOK, [requests, static_site])["results"]
    early = tab.page.evaluate(LOOK, [requests, static_site, False])["results"]
    for one, other in zip(early, graph, strict=True):
        assert one["novelty"] is None
        assert other["novelty"] is None  # not asked for
        for name in ("probabilities", "rollout", "kept"):
            np.testing.assert_allclose(one[name], other[name], atol=1e-5, err_msg=name)
        for name in TENSORS:
            assert one[name]["shape"] == other[name]["shape"], name
            np.testing.assert_allclose(one[name]["data"], other[name]["data"], atol=2e-5, err_msg=name)


def test_the_vit_predicts_before_the_runtime_is_there(browser: Any, static_site: str) -> None:
    """Without the runtime it still does, and all modules on the way to the first prediction are preloaded."""
    context = browser.new_context()
    page = context.new_page()
    fetched: list[str] = []
    page.on("request", lambda request: fetched.append(request.url.removeprefix(static_site)))
    page.route("**/ort/**", lambda route: None)  # no response
    page.goto(static_site)
    expect(page.locator(".prediction.vit .big")).to_have_text(re.compile(r"\d"), timeout=20_000)
    expect(page.locator(".lens-table tbody tr").last).to_contain_text(re.compile(r"\d{2}"))  # percent
    first = fetched[: fetched.index("models.json")]
    links = page.locator("link[rel=modulepreload]")
    preloaded = links.evaluate_all("links => links.map((link) => link.getAttribute('href'))")
    assert {name for name in first if name.endswith(".js")} == set(preloaded)
    before = page.locator(".prediction.vit .big").inner_text()
    page.locator(f'.sample:not([aria-label*="{before}"])').first.click()
    expect(page.locator(".prediction.vit .big")).not_to_have_text(before)
    assert page.locator("html").get_attribute("data-status") == "busy"  # the CNN is still loading
    context.close()


def test_patch_removal_stops_when_it_is_cancelled(open_page: Any, static_site: str) -> None:
    """It runs a few patches at a time, so that a newer request waits for those and not for all."""
    found = open_page(static_site).page.evaluate(
        """async (site) => {
          const sizes = [];
          const post = Worker.prototype.postMessage;
          Worker.prototype.postMessage = function (message) {
            if (message.feeds) sizes.push(message.feeds.pixels.dims[0]);
            return post.call(this, message);
          };
          const { chooseEngine, isAbort, isViT } = await import(site + "engine.js");
          const engine = await chooseEngine();
          let model = null;
          await engine.start(() => {}, (list) => { model = list.find(isViT); });
          const request = { pixels: new Uint8Array(784), headMask: null, tokenMask: null, want: ["patch_removal"] };
          await engine.look(model, request, new AbortController().signal);
          const whole = sizes.splice(0);
          const newer = new AbortController();
          const cancelled = engine.look(model, request, newer.signal);
          newer.abort();
          return { whole, aborted: await cancelled.then(() => false, isAbort), begun: sizes };
        }""",
        static_site,
    )
    assert found == {"whole": [8, 8, 1], "aborted": True, "begun": [8]}


def test_the_compared_model_is_loaded_after_the_first_prediction(browser: Any, static_site: str) -> None:
    """The ViT predicts while the CNN's file is still on its way; files are fetched compressed."""
    context = browser.new_context()
    page = context.new_page()
    fetched: list[str] = []
    stopped: list[Any] = []
    page.on("request", lambda request: fetched.append(request.url.removeprefix(static_site)))
    page.route("**/models/digits-cnn.onnx*", lambda route: stopped.append(route))
    page.goto(static_site)
    expect(page.locator(".prediction.vit .big")).to_have_text(re.compile(r"\d"), timeout=20_000)
    for _ in range(200):  # a busy machine takes its time
        page.wait_for_timeout(50 if not stopped else 0)
    assert page.locator(".prediction.cnn .big").inner_text() == "–"
    assert page.locator("html").get_attribute("data-status") == "busy"
    [route] = stopped
    route.continue_()
    page.locator("html[data-status=idle]").wait_for(state="attached")
    assert page.locator(".prediction.cnn .big").inner_text().isdigit()
    large = [
        name for name in fetched if name.startswith(("models/", "samples/")) or name.endswith((".wasm", ".wasm.gz"))
    ]
    assert sorted(large) == [
        "models/digits-cnn.onnx.gz", "models/digits-vit.onnx.gz", "models/digits-vit.safetensors.gz",
        "ort/ort-wasm-simd-threaded.wasm.gz", "samples/digits-vit.json.gz",
    ]  # fmt: skip
    context.close()


def test_missing_models_are_reported_in_place(browser: Any, static_site: str) -> None:
    """The page is there but its models are not: it shows a sentence, and nothing else breaks."""
    context = browser.new_context()
    page = context.new_page()
    page.route("**/models.json", lambda route: route.fulfill(status=404))
    page.goto(static_site)
    page.locator("#engine-error", has_text="models.json is missing").wait_for()
    context.close()
