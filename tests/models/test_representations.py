"""Representations of models other than ViTs (those of ViTs: test_fast_inference.py)."""

from __future__ import annotations

import pytest
import torch

from vitreous.config import ArticleCNNConfig, CNNConfig, ViTConfig
from vitreous.models import build
from vitreous.models.fast.inference import infer_and_represent
from vitreous.models.representations import middle_block, represent, representation_names


def test_a_cnn_gives_its_convolution_and_its_hidden_layer():
    torch.manual_seed(0)
    model = build(CNNConfig()).eval()
    images = torch.randn(5, 1, 28, 28)
    with torch.inference_mode():
        logits, (early, late) = represent(model, images)
        torch.testing.assert_close(logits, model(images))
        torch.testing.assert_close(early, model.features(images).mean(dim=(2, 3)))
        torch.testing.assert_close(model.fc2(late), logits)
        torch.testing.assert_close(infer_and_represent(model, images)[0], logits)


def test_a_model_without_known_parts_gives_its_logits():
    model = build(ArticleCNNConfig()).eval()
    images = torch.randn(3, 1, 28, 28)
    with torch.inference_mode():
        logits, parts = represent(model, images)
    assert len(parts) == 1
    torch.testing.assert_close(parts[0], logits)


@pytest.mark.parametrize(("depth", "middle"), [(1, 0), (2, 0), (3, 1), (6, 2), (12, 5)])
def test_the_middle_block(depth, middle):
    model = build(ViTConfig(depth=depth, dim=16, num_heads=2, mlp_dim=16))
    assert middle_block(model) == middle
    assert representation_names(model)[0].endswith(f"layer {middle + 1}")
