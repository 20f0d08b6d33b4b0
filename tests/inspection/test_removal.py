"""Removing parts gives the same as the masks of the model, one at a time; and the logit lens."""

from __future__ import annotations

import math

import numpy as np
import pytest
import torch

from vitreous.inspection.examination import examine
from vitreous.inspection.query import LookError, background, log_odds
from vitreous.inspection.removal import ReducedViT


def log10_odds(logits: torch.Tensor, target: int) -> float:
    p = logits.softmax(dim=-1)[0, target].item()
    return math.log10(p / (1 - p))


def test_head_effects(any_vit, image_for) -> None:
    image = image_for(any_vit)
    found = examine(any_vit, image, target=1, random_orders=2, integration_steps=4)
    L, H = any_vit.config.depth, any_vit.config.num_heads
    with torch.no_grad():
        whole = log10_odds(any_vit(image[None]), 1)
        for layer in range(L):
            for head in range(H):
                mask = torch.ones(L, H, dtype=torch.float64)
                mask[layer, head] = 0
                removed = log10_odds(any_vit(image[None], head_mask=mask), 1)
                assert found.head_effects[layer, head] == pytest.approx(whole - removed)


def test_patch_effects(any_vit, image_for) -> None:
    image, patches = image_for(any_vit), any_vit.config.num_patches
    found = examine(any_vit, image, target=0, random_orders=2, integration_steps=4)
    if patches == 1:
        assert found.patch_effects is None
        assert "patch-removal" not in found.maps
        return
    with torch.no_grad():
        whole = log10_odds(any_vit(image[None]), 0)
        for patch in range(patches):
            mask = torch.arange(patches)[None] != patch
            removed = log10_odds(any_vit(image[None], patch_mask=mask), 0)
            assert found.patch_effects.ravel()[patch] == pytest.approx(whole - removed)
    np.testing.assert_array_equal(found.patch_effects, found.maps["patch-removal"].cells)


def test_occlusion(any_vit, image_for) -> None:
    image = image_for(any_vit)
    found = examine(any_vit, image, target=0, random_orders=2, integration_steps=4)
    fill = background(image)
    with torch.no_grad():
        whole = log10_odds(any_vit(image[None]), 0)
        for cell, mask in enumerate(found.cells.masks()):
            occluded = image.clone()
            occluded[:, torch.from_numpy(mask)] = fill[:, torch.from_numpy(mask)]
            removed = log10_odds(any_vit(occluded[None]), 0)
            assert found.maps["occlusion"].cells.ravel()[cell] == pytest.approx(whole - removed)


def test_logit_lens(any_vit, image_for) -> None:
    image = image_for(any_vit)
    found = examine(any_vit, image, random_orders=2, integration_steps=4)
    assert found.logit_lens.shape == (any_vit.config.depth + 1, 3)
    np.testing.assert_allclose(found.logit_lens[-1], found.probabilities)
    with torch.no_grad():
        first = any_vit.classify(any_vit.embed(image[None])).softmax(dim=-1)[0]
    np.testing.assert_allclose(found.logit_lens[0], first.numpy())


def test_a_reduced_model_is_the_model_under_its_masks(any_vit, image_for) -> None:
    image, config = image_for(any_vit), any_vit.config
    gone = [0] if config.num_patches > 2 else []
    before = torch.get_rng_state()
    reduced = ReducedViT(any_vit, [(1, 0)], gone)
    assert torch.equal(torch.get_rng_state(), before)
    heads = torch.ones(config.depth, config.num_heads, dtype=torch.float64)
    heads[1, 0] = 0
    patches = torch.ones(1, config.num_patches, dtype=torch.bool)
    patches[0, gone] = False
    with torch.no_grad():
        expected = any_vit(image[None], head_mask=heads, patch_mask=patches)
        torch.testing.assert_close(reduced(image[None]), expected)
        torch.testing.assert_close(reduced(image[None], head_mask=heads, patch_mask=patches), expected)
    found = examine(reduced, image, target=0, random_orders=2, integration_steps=4)
    np.testing.assert_allclose(found.logits, expected[0].numpy())
    np.testing.assert_allclose(found.logit_lens[-1], found.probabilities)  # the lens is that of the reduced model
    assert found.head_effects[1, 0] == pytest.approx(0, abs=1e-9)
    if not gone:
        return
    assert found.patch_effects.ravel()[0] == pytest.approx(0, abs=1e-9)
    weights = found.attention.weights[..., config.num_prefix_tokens]  # attention to patch 0
    np.testing.assert_array_equal(weights, 0)
    assert found.maps["relevance"].cells.ravel()[0] == pytest.approx(0, abs=1e-9)
    assert all(np.isfinite(values).all() for values in found.arrays().values())


@pytest.mark.parametrize(
    ("heads", "patches", "message"),
    [
        ([(2, 0)], [], "no head 1 in layer 3: the model has 2 layers of 2 heads, counted from 1"),
        ([(0, -1)], [], "no head 0 in layer 1"),
        ([], [4], "no patch 4: the model has patches 0 to 3"),
        ([], [0, 1, 2], "keep at least two patches"),
    ],
)
def test_parts_that_cannot_be_removed(tiny_vit, heads, patches, message) -> None:
    with pytest.raises(LookError, match=message):
        ReducedViT(tiny_vit("mean"), heads, patches)


def test_a_class_token_predicts_without_any_patch(tiny_vit, image_for) -> None:
    blind = ReducedViT(tiny_vit(), patches=range(4))
    found = examine(blind, image_for(blind), target=0, random_orders=2, integration_steps=4)
    assert all(np.isfinite(values).all() for values in found.arrays().values())
    np.testing.assert_allclose(found.attention.weights[..., 0], 1)


def test_log_odds_do_not_saturate() -> None:
    logits = torch.tensor([200.0, 0.0, 0.0])
    assert log_odds(logits, 0).item() == pytest.approx((200 - math.log(2)) / math.log(10))
    assert log_odds(logits, 1).item() == pytest.approx(-200 / math.log(10))
    torch.testing.assert_close(log_odds(logits.log_softmax(-1), 2), log_odds(logits, 2))
    assert log_odds(torch.tensor([3.0]), 0).item() == 3  # one class only


def test_the_background_is_the_median_of_the_border() -> None:
    image = torch.zeros(2, 5, 5)
    image[1] = 7
    image[:, 1:4, 1:4] = 100
    image[0, 0, 0] = 50
    assert background(image)[:, 2, 2].tolist() == [0, 7]
