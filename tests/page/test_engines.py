"""One interface, two engines: the server's answers, the browser's and the model's own are the same."""

from __future__ import annotations

import base64
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.inspection.attention import rollout
from vitreous.runs import Run

LOOK = """async ([questions, site]) => {
  const { chooseEngine, isViT } = await import(site + "engine.js");
  const engine = await chooseEngine();
  const models = await engine.start(() => {});
  const plain = (value) => value && (value.data ? { data: [...value.data], shape: [...value.shape] } : [...value]);
  const answers = [];
  for (const { kind, pixels, headMask, tokenMask, want } of questions) {
    const model = models.find((each) => each.kind === kind);
    const answer = await engine.look(model, { pixels: Uint8Array.from(pixels), headMask, tokenMask, want });
    answers.push(Object.fromEntries(Object.entries(answer).map(([name, value]) => [name, plain(value)])));
  }
  return { engine: engine.constructor.name, hasGradients: engine.hasGradients, answers };
}"""
WANT = ["probabilities", "attention", "lens", "qkv", "rollout", "occlusion"]
VECTORS = ("probabilities", "rollout", "occlusion")
TENSORS = ("attention", "lens", "queries", "keys", "values")


@pytest.fixture(scope="module")
def pictures(static_folder: Any) -> list[np.ndarray]:
    import json

    samples = json.loads((static_folder / "samples.json").read_text(encoding="utf-8"))["samples"]
    return [np.frombuffer(base64.b64decode(sample["pixels"]), np.uint8) for sample in samples[:4]]


def _questions(pictures: list[np.ndarray]) -> list[dict[str, Any]]:
    patches = [1] * 16
    without = [0 if patch in (5, 9) else 1 for patch in range(16)]
    masks: list[tuple[Any, Any]] = [
        (None, None),
        ([[1, 0], [1, 1]], None),
        (None, without),
        ([[0, 1], [1, 0]], patches),
    ]
    questions = [
        {"kind": "vit", "pixels": picture.tolist(), "headMask": heads, "tokenMask": tokens, "want": WANT}
        for picture, (heads, tokens) in zip(pictures, masks, strict=True)
    ]
    plain = {"kind": "cnn", "headMask": None, "tokenMask": None, "want": ["probabilities"]}
    return [*questions, *({**plain, "pixels": picture.tolist()} for picture in pictures)]


@torch.inference_mode()
def test_both_engines_answer_as_the_model_does(
    visit: Any, served_site: str, static_site: str, runs: list[Run], pictures: list[np.ndarray]
) -> None:
    questions = _questions(pictures)
    served = visit(served_site).page.evaluate(LOOK, [questions, served_site])
    static = visit(static_site).page.evaluate(LOOK, [questions, static_site])
    assert (served["engine"], static["engine"]) == ("HttpEngine", "BrowserEngine")
    assert (served["hasGradients"], static["hasGradients"]) == (True, False)

    vit, cnn = (run.load_model().eval() for run in runs)
    for i, question in enumerate(questions):
        one, other = served["answers"][i], static["answers"][i]
        images = runs[0].preprocessing.to_input(torch.tensor(question["pixels"], dtype=torch.uint8).view(1, 1, 28, 28))
        if question["kind"] == "cnn":
            expected = cnn(images).softmax(dim=1)[0].numpy()
            for answer in (one, other):
                np.testing.assert_allclose(answer["probabilities"], expected, atol=2e-5)
            continue
        for name in VECTORS:
            np.testing.assert_allclose(one[name], other[name], atol=2e-5, err_msg=name)
        for name in TENSORS:
            assert one[name]["shape"] == other[name]["shape"], name
            # the server sends five significant digits of the large ones
            np.testing.assert_allclose(one[name]["data"], other[name]["data"], rtol=6e-5, atol=2e-5, err_msg=name)
        _as_torch(vit, images, question, one)


def _as_torch(vit: Any, images: torch.Tensor, question: dict[str, Any], answer: dict[str, Any]) -> None:
    taps: dict[str, torch.Tensor] = {}
    heads = None if question["headMask"] is None else torch.tensor(question["headMask"], dtype=torch.float32)
    tokens = None if question["tokenMask"] is None else torch.tensor([question["tokenMask"]], dtype=torch.bool)
    logits = vit(images, taps, head_mask=heads, patch_mask=tokens)
    np.testing.assert_allclose(answer["probabilities"], logits.softmax(dim=1)[0], atol=2e-5)
    layers = [taps[f"blocks.{layer}.attention"][0] for layer in range(vit.config.depth)]
    attention = np.reshape(answer["attention"]["data"], answer["attention"]["shape"])
    np.testing.assert_allclose(attention, torch.stack(layers), atol=2e-5)
    readout = torch.zeros(len(layers[0][0]))
    readout[0] = 1
    np.testing.assert_allclose(answer["rollout"], rollout(layers, readout)[1:], atol=2e-5)
    gone = torch.ones(16, 16, dtype=torch.bool) if tokens is None else tokens.expand(16, -1).clone()
    gone &= ~torch.eye(16, dtype=torch.bool)
    left = vit(images.expand(16, -1, -1, -1), head_mask=heads, patch_mask=gone).softmax(dim=1)
    best = int(logits.argmax())
    np.testing.assert_allclose(answer["occlusion"], logits.softmax(dim=1)[0, best] - left[:, best], atol=2e-5)


def test_occlusion_stops_when_nobody_waits_for_it(visit: Any, static_site: str) -> None:
    """It is asked a few patches at a time, so that a newer question waits for those and not for all."""
    told = visit(static_site).page.evaluate(
        """async (site) => {
          const sizes = [];
          const post = Worker.prototype.postMessage;
          Worker.prototype.postMessage = function (message) {
            if (message.feeds) sizes.push(message.feeds.pixels.dims[0]);
            return post.call(this, message);
          };
          const { chooseEngine, isAbort, isViT } = await import(site + "engine.js");
          const engine = await chooseEngine();
          const model = (await engine.start(() => {})).find(isViT);
          const question = { pixels: new Uint8Array(784), headMask: null, tokenMask: null, want: ["occlusion"] };
          await engine.look(model, question, new AbortController().signal);
          const whole = sizes.splice(0);
          const newer = new AbortController();
          const asked = engine.look(model, question, newer.signal);
          newer.abort();
          return { whole, aborted: await asked.then(() => false, isAbort), begun: sizes };
        }""",
        static_site,
    )
    assert told == {"whole": [8, 8, 1], "aborted": True, "begun": [8]}


def test_a_missing_server_is_told_in_place(browser: Any, static_folder: Any, static_site: str) -> None:
    """The page is there but its models are not: a sentence says so, and nothing else breaks."""
    context = browser.new_context()
    page = context.new_page()
    page.route("**/models.json", lambda route: route.fulfill(status=404))
    page.goto(static_site)
    page.locator("#engine-error", has_text="models.json is missing").wait_for()
    context.close()
