"""Every layout against its own library, in and out, all parameters random: logits equal within 1e-5."""

from __future__ import annotations

import pytest
import torch
from safetensors.torch import save_file

from vitreous.checkpoints import load_model

TOLERANCE = 1e-5
MAIN = (
    "timm in", "timm out", "hf in", "hf out", "torchvision in", "torchvision out", "google in", "google out",
    "vit-pytorch in",
)  # fmt: skip
VARIANTS = (
    "timm pth", "timm mean", "timm no_embed_class", "timm layer scale", "timm mean out", "timm gray tanh out",
    "hf in memory", "hf gray tanh", "hf gray out", "torchvision mlp", "torchvision old", "torchvision mlp out",
    "google mlp", "big_vision", "big_vision stacked", "google mlp out", "google gap out", "vit-pytorch gray",
)  # fmt: skip


def check(row, tolerance=TOLERANCE):
    assert row.max_difference < tolerance, row
    assert row.tensors.endswith("none left over"), row


def test_no_case_is_forgotten(parity):
    assert set(MAIN) == set(parity.MAIN_CASES)
    assert set(VARIANTS) == set(parity.VARIANTS)


@pytest.mark.parametrize("name", MAIN)
def test_layout(parity, name):
    check(parity.measure(parity.MAIN_CASES[name], parity.TINY))


@pytest.mark.parametrize("name", VARIANTS)
def test_variant(parity, name):
    check(parity.measure(parity.VARIANTS[name], parity.TINY))


@pytest.mark.slow
@pytest.mark.parametrize("name", MAIN)
def test_vit_b16(parity, name):
    row = parity.measure(parity.MAIN_CASES[name], parity.B16)
    check(row)
    if name.startswith(("timm", "torchvision")):
        assert row.tensors == "152 of 152 tensors, none left over"


def test_the_tolerance_means_something(parity, timm, tmp_path):
    """Wiring mistakes and wrong facts of the kinds that happen are far above it."""
    config = parity.TINY
    theirs = parity.randomise(parity._timm_model(config))
    state = dict(theirs.state_dict())
    with torch.no_grad():
        logits = theirs(parity.images_for(config))

    def difference(changed, **arguments):
        save_file({name: tensor.clone() for name, tensor in changed.items()}, tmp_path / "w.safetensors")
        model, _ = load_model(tmp_path / "w.safetensors", **{"num_heads": config.num_heads, **arguments})
        with torch.no_grad():
            return (model(parity.images_for(config)) - logits).abs().max().item()

    q, k, v = state["blocks.1.attn.qkv.weight"].chunk(3)
    assert difference(state) < TOLERANCE
    assert difference(state, num_heads=2) > 100 * TOLERANCE
    assert difference(state | {"blocks.1.attn.qkv.weight": torch.cat([k, v, q])}) > 100 * TOLERANCE
    assert difference(state | {"blocks.0.norm1.bias": state["blocks.0.norm2.bias"]}) > 100 * TOLERANCE
    other_gelu = parity.randomise(parity._timm_model(config, act_layer="gelu_tanh"))
    with torch.no_grad():
        assert (other_gelu(parity.images_for(config)) - logits).abs().max() > TOLERANCE
