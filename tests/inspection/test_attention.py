"""Attention maps, rollout, distance and entropy against versions written independently in NumPy."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitreous.inspection.attention import (
    attention_distance,
    attention_entropy,
    attention_layers,
    pooling_weights,
    rollout,
)
from vitreous.inspection.cells import patch_cells
from vitreous.inspection.examination import Attention, examine


@pytest.fixture
def taps_of(image_for):
    def make(model):
        taps: dict[str, torch.Tensor] = {}
        with torch.no_grad():
            model(image_for(model)[None], taps)
        return taps

    return make


def test_rows_sum_to_one(any_vit, image_for) -> None:
    weights = examine(any_vit, image_for(any_vit), random_orders=2, integration_steps=4).attention.weights
    np.testing.assert_allclose(weights.sum(axis=-1), 1, atol=1e-12)


def numpy_rollout(layers: list[np.ndarray], readout: np.ndarray) -> np.ndarray:
    tokens = layers[0].shape[-1]
    flow = readout
    for attention in reversed(layers):  # from the read-out back to the first layer
        average = sum(attention[h] for h in range(len(attention))) / len(attention)
        flow = np.array([sum(flow[q] * (average[q, k] + (q == k)) / 2 for q in range(tokens)) for k in range(tokens)])
    return flow


def test_rollout(any_vit, taps_of) -> None:
    taps = taps_of(any_vit)
    layers = [layer[0] for layer in attention_layers(taps, any_vit.config.depth)]
    readout = pooling_weights(any_vit, taps)[0]
    ours = rollout(layers, readout).detach().numpy()
    expected = numpy_rollout([layer.numpy() for layer in layers], readout.detach().numpy())
    np.testing.assert_allclose(ours, expected, rtol=1e-10)
    assert ours.sum() == pytest.approx(1)


def test_rollout_applies_the_first_layer_first() -> None:
    """Token 0 reads from 1 in the second layer, and 1 from 2 in the first: rollout must find 2."""
    first, second = torch.eye(3), torch.eye(3)
    first[1], second[0] = torch.tensor([0.0, 0, 1]), torch.tensor([0.0, 1, 0])
    flow = rollout([first[None], second[None]], torch.tensor([1.0, 0, 0]))
    torch.testing.assert_close(flow, torch.tensor([0.5, 0.25, 0.25]))


def test_pooling_weights_reproduce_the_pooled_token(any_vit, taps_of) -> None:
    taps = taps_of(any_vit)
    weights = pooling_weights(any_vit, taps)
    torch.testing.assert_close((weights[:, None] @ taps["normed"]).squeeze(1), taps.get("mean", taps["pooled"]))


def test_removed_patches_have_no_pooling_weight(any_vit, image_for) -> None:
    kept = torch.ones(1, any_vit.config.num_patches, dtype=torch.bool)
    kept[0, 1:2] = False
    taps: dict[str, torch.Tensor] = {}
    any_vit(image_for(any_vit)[None], taps, patch_mask=kept)
    weights = pooling_weights(any_vit, taps)
    torch.testing.assert_close((weights[:, None] @ taps["normed"]).squeeze(1), taps.get("mean", taps["pooled"]))
    assert weights.sum().item() == pytest.approx(1)


def test_distance(any_vit, taps_of) -> None:
    """Per patch: weights over patches only, normalised to sum to 1, times the distance between the centres."""
    weights = attention_layers(taps_of(any_vit), any_vit.config.depth)[0][0].numpy()  # (H, N, N)
    centres, first = patch_cells(any_vit.config).centres, any_vit.config.num_prefix_tokens
    ours = attention_distance(torch.from_numpy(weights), torch.from_numpy(centres), first).numpy()
    for head, attention in enumerate(weights):
        total = 0.0
        for q, query in enumerate(centres):
            row = attention[q + first, first:] / attention[q + first, first:].sum()
            total += sum(weight * np.hypot(*(query - key)) for weight, key in zip(row, centres, strict=True))
        assert ours[head] == pytest.approx(total / len(centres), abs=1e-9)


def test_entropy() -> None:
    rows = np.random.default_rng(0).dirichlet(np.ones(5), size=(2, 5))  # (H, N, N)
    expected = -(rows * np.log(rows)).sum(axis=-1).mean(axis=-1) / np.log(5)
    np.testing.assert_allclose(attention_entropy(torch.from_numpy(rows)).numpy(), expected)
    assert attention_entropy(torch.full((4, 4), 0.25)).item() == pytest.approx(1)
    assert attention_entropy(torch.eye(4)).item() == 0  # not NaN, though 0 · log 0


def test_attention_from_the_readout_and_from_a_patch() -> None:
    weights = np.arange(9.0).reshape(1, 1, 3, 3)
    with_class_token = Attention(weights, (1, 2), patch=1, has_class_token=True)
    without = Attention(weights, (1, 3), patch=1, has_class_token=False)
    one_register = Attention(weights, (1, 2), patch=1, has_class_token=False)
    assert with_class_token.readout.tolist() == [[[[1, 2]]]]
    assert without.readout.tolist() == [[[[3, 4, 5]]]]  # the mean of the rows
    assert one_register.readout.tolist() == [[[[5.5, 6.5]]]]  # the mean of the patches' rows
    assert with_class_token.from_patch(1).tolist() == [[[[7, 8]]]]
    assert without.from_patch(1).tolist() == [[[[3, 4, 5]]]]
