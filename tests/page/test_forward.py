"""The page's own forward pass (forward.js) computes every intermediate of models/vit.py."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from vitreous.config import Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.models import ViT, build
from vitreous.runs import Run

pytest.importorskip("playwright.sync_api", reason="pip install -c constraints.txt playwright")

TINY: dict[str, Any] = {"dim": 16, "mlp_dim": 24, "depth": 2, "num_heads": 2, "zero_head": False}
MODELS: dict[str, ViTConfig] = {
    "plain": ViTConfig(patch_size=7, **TINY),
    "mean-pooled": ViTConfig(patch_size=7, pool="mean", gelu="tanh", positions="learned-2d", **TINY),
    "norm after the mean": ViTConfig(patch_size=7, pool="mean", norm_after_pool=True, **TINY),
    "windows": ViTConfig(patch_size=4, window=(8, 8), background=(0.0,), embed_hidden=20, **TINY),
    "skipping": ViTConfig(patch_size=4, tokens=20, background=(0.0,), gelu="quick", **TINY),
    "padded": ViTConfig(patch_size=16, fit="pad", head="mlp", head_hidden=12, qkv_bias=False, pre_norm=True, **TINY),
}
TRACE = """async ([site, model, file, pixels, headMask, kept]) => {
  const { forward, whyNotTraced } = await import(site + "forward.js");
  const { readWeights } = await import(site + "weights.js");
  const weights = readWeights(Uint8Array.from(file).buffer);
  if (whyNotTraced(model) !== null) return null;
  const trace = forward(model, weights, Uint8Array.from(pixels), { headMask, kept });
  const { explain } = await import(site + "explain.js");
  const place = { node: "final", layer: 1, token: 0, at: 3 };
  trace.sums = explain({ model, weights, trace }, place).map(({ result }) => result);
  const plain = (value) => typeof value === "string" ? value : ArrayBuffer.isView(value) ? [...value]
    : Array.isArray(value) ? value.map(plain)
    : Object.fromEntries(Object.entries(value).map(([name, inner]) => [name, plain(inner)]));
  return plain(trace);
}"""


def _entry(run: Run) -> dict[str, Any]:
    from vitreous.export.catalog import model_entries
    from vitreous.export.graph import describe

    metadata = json.loads(json.dumps(describe(run, run.load_model(), {})))
    return model_entries({run.path.name: metadata})[0] | {"weights": "model.safetensors"}


@pytest.mark.parametrize("name", MODELS)
def test_every_intermediate_equals_the_taps(
    open_page: Any, served_site: str, tmp_path: Path, randomise: Any, name: str
) -> None:
    model = randomise(build(MODELS[name]))
    config = Config(name=name, model=MODELS[name], data=DataConfig(name="digits"))
    dataset = load_dataset(config.data)
    run = Run.create(tmp_path / name, config, dataset, Preprocessing.for_dataset(dataset))
    run.finish(model, None)
    vit = run.load_model().eval()
    assert isinstance(vit, ViT)
    pixels = dataset.test.images[3:4]
    head_mask = torch.tensor([[1.0, 0.0], [1.0, 1.0]])
    patch_mask = torch.ones(1, MODELS[name].num_patches, dtype=torch.bool)
    patch_mask[0, 1] = False
    taps: dict[str, torch.Tensor] = {}
    with torch.inference_mode():
        vit(run.preprocessing.to_input(pixels), taps, head_mask=head_mask, patch_mask=patch_mask)
    kept = taps["kept"][0].int().tolist()
    weights = list((run.path / "model.safetensors").read_bytes())
    arguments = [served_site, _entry(run), weights, pixels.ravel().tolist(), head_mask.ravel().tolist(), kept]
    found = open_page(served_site).page.evaluate(TRACE, arguments)

    side_by_side = lambda heads: heads[0].transpose(0, 1).reshape(heads.shape[2], -1)  # (H, N, K) → (N, H·K)  # noqa: E731
    expected = {"tokens": taps["tokens"][0], "normed": taps["normed"][0], "pooled": taps["pooled"][0]}
    expected["read"] = taps.get("mean", taps["pooled"])[0]
    expected["logits"] = taps["logits"][0]
    stream = [taps["tokens"], *(taps[f"blocks.{layer}.output"] for layer in range(2))]
    with torch.inference_mode():
        read = torch.cat([vit.classify(tokens, vit.token_mask(taps["kept"])) for tokens in stream])
    expected["lens"] = (read / run.temperature).softmax(dim=1)
    expected["probabilities"] = (taps["logits"][0] / run.temperature).softmax(dim=0)
    for layer in range(2):
        for ours, theirs in {"q": "q", "k": "k", "v": "v", "heads": "heads"}.items():
            expected[f"{layer}.{ours}"] = side_by_side(taps[f"blocks.{layer}.{theirs}"])
        expected[f"{layer}.attention"] = taps[f"blocks.{layer}.attention"][0]
        expected[f"{layer}.middle"] = taps[f"blocks.{layer}.middle"][0]
        expected[f"{layer}.output"] = taps[f"blocks.{layer}.output"][0]
        block = vit.blocks[layer]
        with torch.inference_mode():
            z = taps["tokens"] if layer == 0 else taps[f"blocks.{layer - 1}.output"]
            hidden = block.mlp.fc1(block.norm2(taps[f"blocks.{layer}.middle"]))
            expected[f"{layer}.normed"] = block.norm1(z)[0]
            expected[f"{layer}.hidden"] = hidden[0]
            expected[f"{layer}.active"] = block.mlp.act(hidden)[0]
            expected[f"{layer}.mlp"] = block.mlp.fc2(block.mlp.act(hidden))[0]
    if not MODELS[name].has_class_token:  # the page explains how the vector that the head reads comes about
        assert float(found["sums"][-1].replace("−", "-")) == pytest.approx(float(taps["pooled"][0, 3]), abs=0.006)
        assert len(found["sums"]) == (4 if MODELS[name].norm_after_pool else 1)
    for key, wanted in expected.items():
        layer, _, part = key.rpartition(".")
        value = found["layers"][int(layer)][part] if layer else found[part]
        np.testing.assert_allclose(np.array(value, np.float32), wanted.ravel().numpy(), atol=1e-4, rtol=0, err_msg=key)


def test_models_that_are_not_traced_say_why(open_page: Any, mixed_site: str) -> None:
    reasons = open_page(mixed_site).page.evaluate(
        """async (site) => {
          const { whyNotTraced } = await import(site + "forward.js");
          const { models } = await (await fetch(site + "v1/models")).json();
          const reason = (id, change) => whyNotTraced({ ...models.find((model) => model.id === id), ...change });
          const changed = [{ weights: undefined }, { dim: 9999 }].map((change) => reason("coarse", change));
          return [reason("coarse"), reason("stem"), ...changed];
        }""",
        mixed_site,
    )
    assert reasons == [None, "otherModel", "noWeights", "tooLarge"]
