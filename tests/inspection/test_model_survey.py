"""The survey: filters and positions against scikit-learn and NumPy, means over images."""

from __future__ import annotations

import numpy as np
import pytest
import torch
from sklearn.decomposition import PCA

from vitreous.inspection.cells import patch_cells
from vitreous.inspection.model_survey import first_filters, mean_similarity, position_similarity, survey


def test_all_results_have_their_shapes(any_vit, image_for) -> None:
    images = torch.stack([image_for(any_vit, seed) for seed in range(3)])
    found, config = survey(any_vit, images), any_vit.config
    assert found.images == 3
    for values in (found.attention_distance_pixels, found.attention_distance_patches, found.attention_entropy):
        assert values.shape == (config.depth, config.num_heads)
    assert found.patch_norms.shape == found.patch_similarity.shape == (config.depth + 1,)
    assert (found.class_norms is not None) == config.has_class_token
    assert (found.position_similarity is None) == (config.positions in ("none", "relative"))
    assert all(np.isfinite(values).all() for values in found.arrays().values())
    # the distance of a head with uniform attention is the mean over all pairs of patches
    centres = patch_cells(config).centres
    pairs = np.linalg.norm(centres[:, None] - centres[None], axis=-1)
    assert found.uniform_distance_pixels == pytest.approx(pairs.mean())


def test_means_are_over_images(tiny_vit, image_for) -> None:
    model = tiny_vit("mean")
    images = torch.stack([image_for(model, seed) for seed in range(3)])
    together, alone = survey(model, images), [survey(model, image[None]) for image in images]
    for name in ("attention_distance_pixels", "attention_entropy", "patch_norms", "patch_similarity"):
        expected = np.mean([getattr(each, name) for each in alone], axis=0)
        np.testing.assert_allclose(getattr(together, name), expected)


def test_norms_and_similarity(tiny_vit, image_for) -> None:
    model = tiny_vit()
    image = image_for(model)
    found = survey(model, image[None])
    with torch.no_grad():
        tokens = model.embed(image[None])[0].numpy()
    assert found.patch_norms[0] == pytest.approx(np.mean([np.sqrt((t**2).sum()) for t in tokens[1:]]))
    assert found.class_norms[0] == pytest.approx(np.sqrt((tokens[0] ** 2).sum()))
    unit = tokens[1:] / np.linalg.norm(tokens[1:], axis=1, keepdims=True)
    pairs = [unit[i] @ unit[j] for i in range(4) for j in range(4) if i != j]
    assert found.patch_similarity[0] == pytest.approx(np.mean(pairs))


def test_similarity_of_a_single_patch() -> None:
    assert mean_similarity(torch.randn(1, 5)).item() == 1


def test_position_similarity(tiny_vit) -> None:
    model = tiny_vit("not square, colour")
    positions = model.positions()[0, 1:].detach().numpy()
    unit = positions / np.linalg.norm(positions, axis=1, keepdims=True)
    ours = position_similarity(model).numpy()
    assert ours.shape == (3, 4, 3, 4)
    np.testing.assert_allclose(ours.reshape(12, 12), unit @ unit.T)
    assert ours[2, 1, 2, 1] == pytest.approx(1)


@pytest.mark.parametrize("variant", ["class token", "not square, colour", "conv stem"])
def test_filters_are_principal_components(tiny_vit, variant: str) -> None:
    model = tiny_vit(variant)
    layer = model.patch_embed.proj if model.stem is None else model.stem[0]
    flat = layer.weight.detach().flatten(1).numpy()
    ours = first_filters(model)
    count = len(ours.components)
    reference = PCA(count).fit(flat)
    np.testing.assert_allclose(ours.explained, reference.explained_variance_ratio_)
    cosines = np.abs((ours.components.reshape(count, -1) * reference.components_).sum(axis=1))
    np.testing.assert_allclose(cosines, 1, atol=1e-6)
    assert ours.components.shape[1:] == layer.weight.shape[1:]
    assert ("stem" in ours.source) == (variant == "conv stem")
