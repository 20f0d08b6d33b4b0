"""`examine` on every geometry; the model is left unchanged."""

from __future__ import annotations

import numpy as np
import pytest
import torch

from vitreous.config import ArticleCNNConfig, ArticleDesignConfig, ArticleViTConfig
from vitreous.errors import VitreousError
from vitreous.inspection.examination import examine
from vitreous.inspection.model_survey import survey
from vitreous.models import build


def test_all_results_have_their_shapes(any_vit, image_for) -> None:
    found = examine(any_vit, image_for(any_vit), random_orders=3, integration_steps=4)
    config = any_vit.config
    L, H, N, grid = config.depth, config.num_heads, config.num_tokens, config.grid
    assert found.attention.weights.shape == (L, H, N, N)
    assert found.attention.readout.shape == found.attention.from_patch(0).shape == (L, H, *grid)
    assert found.head_effects.shape == (L, H)
    assert set(found.maps) >= {"occlusion", "relevance", "attention-rollout", "last-attention", "gradient"}
    for drawn in found.maps.values():
        assert drawn.cells.shape == grid
        assert drawn.pixels is None or drawn.pixels.shape == config.image_size
    arrays = found.arrays()
    assert all(np.isfinite(values).all() for values in arrays.values())
    assert {score.name for score in found.faithfulness.scores} == set(found.maps)


def test_the_model_and_random_state_are_unchanged(tiny_vit, tiny_cnn, image_for) -> None:
    for model in (tiny_vit(dropout=0.3, drop_path=0.2), tiny_cnn()):
        image = image_for(model)
        before = {name: value.clone() for name, value in model.state_dict().items()}
        with torch.no_grad():
            logits = model(image[None])
        model.train()
        next(model.children()).eval()  # mixed modes, as when a part is frozen
        flags = [module.training for module in model.modules()]
        for parameter in model.parameters():
            parameter.grad = torch.full_like(parameter, 3.0)
        random_before, numpy_before = torch.get_rng_state(), np.random.get_state()[1].copy()

        found = examine(model, image)
        if model.config.kind == "vit":
            survey(model, image[None])

        assert [module.training for module in model.modules()] == flags
        assert all((parameter.grad == 3).all() for parameter in model.parameters())
        assert all(parameter.requires_grad for parameter in model.parameters())
        assert torch.equal(torch.get_rng_state(), random_before)
        assert (np.random.get_state()[1] == numpy_before).all()
        assert all(torch.equal(value, before[name]) for name, value in model.state_dict().items())
        with torch.no_grad():
            assert torch.equal(model.eval()(image[None]), logits)
        np.testing.assert_allclose(found.logits, logits[0].numpy(), rtol=1e-12)


def test_flags_are_restored_after_an_error(tiny_vit, image_for, monkeypatch) -> None:
    model = tiny_vit().train()
    monkeypatch.setattr(model, "classify", lambda *_: 1 / 0)
    with pytest.raises(ZeroDivisionError):
        examine(model, image_for(model))
    assert all(module.training for module in model.modules())


@pytest.mark.parametrize("outside", [torch.no_grad, torch.inference_mode])
def test_gradients_work_under_any_grad_mode(tiny_vit, image_for, outside) -> None:
    model = tiny_vit()
    expected = examine(model, image_for(model))
    model.requires_grad_(False)
    with outside():
        found = examine(model, image_for(model).clone())
    np.testing.assert_array_equal(found.maps["relevance"].cells, expected.maps["relevance"].cells)


def test_the_chosen_patch_and_class(tiny_vit, image_for) -> None:
    model = tiny_vit()
    found = examine(model, image_for(model), target=2, patch=1)
    assert (found.target, found.attention.patch) == (2, 1)
    expected = found.attention.weights[:, :, 2, 1:].reshape(2, 2, 2, 2)
    np.testing.assert_array_equal(found.arrays()["attention.from_patch"], expected)
    by_default = examine(model, image_for(model))
    assert by_default.target == by_default.prediction == by_default.logits.argmax()
    assert by_default.attention.patch == by_default.maps["occlusion"].cells.argmax()


@pytest.mark.parametrize(
    "config", [ArticleCNNConfig(), ArticleViTConfig(), ArticleDesignConfig()], ids=lambda c: c.kind
)
def test_the_articles_models(config, randomise) -> None:
    """No taps, log-probabilities, and a ViT that mixes the images of a batch, so it gets them one at a time."""
    model = randomise(build(config).eval(), scale=0.1)
    image = torch.randn(1, 28, 28, generator=torch.Generator().manual_seed(0))
    found = examine(model, image, random_orders=2, integration_steps=4)
    assert found.attention is None
    assert ("grad-cam" in found.maps) == (config.kind == "post-cnn")
    assert found.probabilities.sum() == pytest.approx(1, abs=1e-5)
    with torch.no_grad():
        alone = model(image[None])[0]
    np.testing.assert_allclose(found.logits, alone.numpy(), rtol=1e-6)


@pytest.mark.parametrize(
    ("shape", "options", "message"),
    [
        ((1, 1, 8, 8), {}, "one image"),
        ((1, 9, 8), {}, r"takes \(1, 8, 8\)"),
        ((1, 8, 8), {"target": 3}, "classes 0 to 2"),
        ((1, 8, 8), {"patch": 4}, "patches 0 to 3"),
    ],
)
def test_errors(tiny_vit, shape, options, message) -> None:
    with pytest.raises(VitreousError, match=message):
        examine(tiny_vit(), torch.zeros(shape), **options)


def test_more_errors(tiny_vit, tiny_cnn) -> None:
    with pytest.raises(VitreousError, match="not finite"):
        examine(tiny_vit(), torch.full((1, 8, 8), float("nan")))
    with pytest.raises(VitreousError, match="only a ViT has patches"):
        examine(tiny_cnn(), torch.zeros(1, 12, 8), patch=0)
    with pytest.raises(VitreousError, match="one or more"):
        survey(tiny_vit(), torch.zeros(1, 8, 8))


def test_an_empty_image(tiny_vit) -> None:
    """Occlusion has no effect, and nothing divides by zero."""
    found = examine(tiny_vit(), torch.zeros(1, 8, 8), random_orders=2)
    np.testing.assert_allclose(found.maps["occlusion"].cells, 0, atol=1e-12)
    assert {score.verdict for score in found.faithfulness.scores} == {"unclear"}
