"""Planted models: the construction fixes what the prediction depends on, so a map can be right or wrong."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitreous.config import CNNConfig
from vitreous.inspection.examination import CONTROL, examine
from vitreous.models import CNN


def test_nothing_but_the_planted_patch_matters(planted_vit, planted_image, planted_patch) -> None:
    """The construction holds: with a class token, the other patches cannot reach the logits."""
    model = planted_vit()
    changed = planted_image.clone()
    row, column = divmod(planted_patch, 4)
    here = (slice(None), slice(2 * row, 2 * row + 2), slice(2 * column, 2 * column + 2))
    changed += 3
    changed[here] = planted_image[here]
    with torch.no_grad():
        whole, others = model(planted_image[None]), model(changed[None])
        changed[here] = 0
        assert torch.equal(whole, others)
        assert whole.argmax() == 1
        assert model(changed[None]).argmax() == 0


def test_every_map_finds_it_and_is_zero_elsewhere(planted_vit, planted_image, planted_patch) -> None:
    found = examine(planted_vit(), planted_image)
    elsewhere = np.arange(24) != planted_patch
    for name, drawn in found.maps.items():
        if name == CONTROL:
            continue
        assert drawn.cells.argmax() == planted_patch, name
        assert drawn.cells.ravel()[planted_patch] > 0, name
        if name not in ("occlusion", "patch-removal"):  # computed in batches: zero up to rounding
            assert (drawn.cells.ravel()[elsewhere] == 0).all(), name
        np.testing.assert_allclose(drawn.cells.ravel()[elsewhere], 0, atol=1e-5)


@pytest.mark.parametrize("pool", ["mean", "seq"])
def test_pooled_models_too(planted_vit, planted_image, planted_patch, pool: str) -> None:
    found = examine(planted_vit(pool), planted_image)
    for name in ("relevance", "occlusion", "patch-removal", "integrated-gradients", "last-attention"):
        assert found.maps[name].cells.argmax() == planted_patch, name
    relevance = found.maps["relevance"].cells.ravel()
    assert (relevance[np.arange(24) != planted_patch] == 0).all()


def test_they_are_judged_faithful(planted_vit, planted_image) -> None:
    found = examine(planted_vit(), planted_image)
    for name in ("occlusion", "patch-removal", "relevance", "integrated-gradients", "attention-rollout"):
        assert found.faithfulness.score(name).verdict == "faithful", name
        assert found.faithfulness.score(name).relative_gain == pytest.approx(1)


@pytest.fixture
def planted_cnn() -> CNN:
    """Sees only the pixels of rows 2–5 and columns 2–5 of a 14 × 14 image: copies the image, then reads there."""
    model = CNN(CNNConfig(image_size=(14, 14), conv_channels=(2, 2), hidden=2, num_classes=2)).eval()
    with torch.no_grad():
        for parameter in model.parameters():
            parameter.zero_()
        model.conv1.weight[0, 0, 1, 1] = model.conv2.weight[0, 0, 1, 1] = 1
        # feature (i, j) is pixel (i + 2, j + 2); pooled feature (0 … 1) is feature (0 … 3) is pixel (2 … 5)
        model.fc1.weight.view(2, 2, 5, 5)[0, 0, :2, :2] = 1
        model.fc2.weight[0, 0], model.fc2.weight[1, 0], model.fc2.bias[0] = -1, 1, 3
    return model


def test_planted_cnn(planted_cnn) -> None:
    image = torch.zeros(1, 14, 14)
    image[0, 2:6, 2:6] = 2
    image[0, 7:13, 7:13] = 3  # brighter and larger, and not used by the model
    found = examine(planted_cnn, image)
    assert found.target == 1
    in_sight = np.zeros((14, 14), dtype=bool)
    in_sight[2:6, 2:6] = True
    for name in ("gradient", "integrated-gradients", "hires-cam"):
        assert (found.maps[name].pixels[~in_sight] == 0).all(), name
        assert found.maps[name].pixels[in_sight].max() > 0, name
    cells = found.cells.masks()[:, in_sight].any(axis=1).reshape(found.cells.grid)
    assert (found.maps["occlusion"].cells[~cells] == 0).all()
    assert found.maps["occlusion"].cells.max() > 0
    # Grad-CAM averages each feature map's gradient over the image, so it highlights the unused square
    assert found.maps["grad-cam"].pixels[~in_sight].max() > 0
    judged = found.faithfulness
    assert judged.score("hires-cam").gain > judged.score("grad-cam").gain
    assert judged.score("hires-cam").verdict == "faithful"
