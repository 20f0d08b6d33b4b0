"""The ViT of the page's training (page/train/) computes the logits and gradients of models/vit.py, in node."""

from __future__ import annotations

import json
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.nn import functional as F

from vitreous.config import ViTConfig
from vitreous.models.vit import ViT
from vitreous.serving.pages import PAGE

NODE = shutil.which("node")
SCRIPT = """
import { readFileSync } from "node:fs";
const [folder, path] = process.argv.slice(1);
const { ViT } = await import(`${folder}/vit.js`);
const { crossEntropy } = await import(`${folder}/learning.js`);
const { config, parameters, images, labels } = JSON.parse(readFileSync(path, "utf8"));
const model = new ViT(config);
for (const [name] of model.shapes) model.parameters.get(name).set(parameters[name]);
const pass = model.forward(Float32Array.from(images));
const { loss, dLogits } = crossEntropy(pass.logits, labels);
model.backward(pass, dLogits);
const gradientOf = ([name, sizes]) => [name, [sizes, [...model.gradients.get(name)]]];
const gradients = Object.fromEntries(model.shapes.map(gradientOf));
const attention = [...pass.blocks.at(-1).attention.weights];
console.log(JSON.stringify({ logits: [...pass.logits], loss, attention, gradients }));
"""
BATCH = 5  # odd, so that the rows that no block of the product covers are tested too

pytestmark = pytest.mark.skipif(NODE is None, reason="the page's arithmetic is run by node: `apt-get install nodejs`")


class OverBatch(torch.nn.Module):
    """Attention as the article has it: (batch, token, feature) is read as (sequence, batch, feature)."""

    def __init__(self, attention: torch.nn.Module):
        super().__init__()
        self.attention = attention

    def forward(self, x: torch.Tensor, *_: Any) -> torch.Tensor:
        return self.attention(x.transpose(0, 1)).transpose(0, 1)


CASES = {
    "patch 7": ({"patch_size": 7}, False),
    "patch 4, the 20 patches with the most ink": ({"patch_size": 4, "tokens": 20}, False),
    "one layer, four heads, odd widths": ({"depth": 1, "num_heads": 4, "dim": 28, "mlp_dim": 30}, False),
    "attention over the batch": ({"patch_size": 14}, True),
}


@pytest.fixture(scope="module", params=CASES)
def case(request: pytest.FixtureRequest, randomise: Any) -> tuple[ViT, torch.Tensor, torch.Tensor, bool]:
    settings, over_batch = CASES[request.param]
    config = ViTConfig(**({"dim": 32, "depth": 2, "num_heads": 2, "mlp_dim": 64} | settings))
    model = randomise(ViT(config))
    if config.knows_background:
        model.background.fill_(-0.42)
    generator = torch.Generator().manual_seed(1)
    images = torch.full((BATCH, 1, 28, 28), -0.42)
    images[:, :, 6:23, 8:21] = torch.rand((BATCH, 1, 17, 13), generator=generator) * 3
    labels = torch.randint(0, 10, (BATCH,), generator=generator)
    return model, images, labels, over_batch


def run_in_node(model: ViT, images: torch.Tensor, labels: torch.Tensor, over_batch: bool, path: Path) -> dict[str, Any]:
    config = model.config
    document = {
        "config": {
            "side": 28, "patch": config.patch_size[0], "tokens": config.kept_patches, "dim": config.dim,
            "depth": config.depth, "heads": config.num_heads, "mlp": config.mlp_dim, "classes": 10,
            "background": -0.42, "overBatch": over_batch,
        },
        "parameters": {name: value.flatten().tolist() for name, value in model.named_parameters()},
        "images": images.flatten().tolist(),
        "labels": labels.tolist(),
    }  # fmt: skip
    path.write_text(json.dumps(document))
    folder = (PAGE / "train").as_uri()
    command = [str(NODE), "--input-type=module", "--eval", SCRIPT, folder, str(path)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def test_logits_and_gradients_are_those_of_vit_py(case: Any, tmp_path: Path) -> None:
    model, images, labels, over_batch = case
    found = run_in_node(model, images, labels, over_batch, tmp_path / "case.json")
    names = {name for name, _ in model.named_parameters()}
    if over_batch:
        for block in model.blocks:
            block.attn = OverBatch(block.attn)
    taps: dict[str, torch.Tensor] = {}
    logits = model(images)
    loss = F.cross_entropy(logits, labels)
    loss.backward()
    torch.testing.assert_close(torch.tensor(found["logits"]).view(BATCH, 10), logits.detach(), rtol=0, atol=1e-5)
    assert found["loss"] == pytest.approx(loss.item(), abs=1e-5)
    expected = {name.replace("attn.attention.", "attn."): value for name, value in model.named_parameters()}
    assert set(found["gradients"]) == set(expected) == names
    for name, parameter in expected.items():
        sizes, values = found["gradients"][name]
        assert tuple(sizes) == tuple(parameter.shape), name
        assert parameter.grad is not None
        difference = (torch.tensor(values).view(sizes) - parameter.grad).norm() / parameter.grad.norm().clamp(min=1e-6)
        assert difference < 1e-4, (name, float(difference))
    if not over_batch and model.config.kept_patches == model.config.num_patches:
        with torch.no_grad():
            model(images, taps)
        last = taps[f"blocks.{model.config.depth - 1}.attention"][:, :, 0]
        torch.testing.assert_close(torch.tensor(found["attention"]).view_as(last), last, rtol=0, atol=1e-5)


def test_over_the_batch_every_image_gets_the_same_prediction(tmp_path: Path) -> None:
    """With one class token for all, attention over the batch leaves nothing of the image in it."""
    torch.manual_seed(0)
    model = ViT(ViTConfig(dim=32, depth=2, num_heads=2, mlp_dim=64, zero_head=False))
    found = run_in_node(model, torch.randn(3, 1, 28, 28), torch.tensor([1, 2, 3]), True, tmp_path / "case.json")
    rows = torch.tensor(found["logits"]).view(3, 10)
    assert torch.equal(rows[0], rows[1])
    assert torch.equal(rows[0], rows[2])
    healthy = run_in_node(model, torch.randn(3, 1, 28, 28), torch.tensor([1, 2, 3]), False, tmp_path / "case.json")
    rows = torch.tensor(healthy["logits"]).view(3, 10)
    assert not torch.allclose(rows[0], rows[1], atol=1e-3)
