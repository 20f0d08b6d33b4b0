"""The article's models: exactly as written, flaws shown, so that nobody fixes them by accident."""

from __future__ import annotations

from collections.abc import Callable

import pytest
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import ArticleCNNConfig, ArticleDesignConfig, ArticleViTConfig
from vitreous.errors import ConfigError
from vitreous.models import build, count_parameters
from vitreous.models.article import ArticleDesign, ArticleViT, DesignBlock, PatchesArticleViT

Randomise = Callable[..., nn.Module]


@pytest.fixture
def images() -> Tensor:
    return torch.randn(4, 1, 28, 28)


@pytest.mark.parametrize(
    "config", [ArticleCNNConfig(), ArticleViTConfig(), ArticleDesignConfig()], ids=lambda c: c.kind
)
def test_returns_log_probabilities(config, images: Tensor, randomise: Randomise) -> None:
    log_probabilities = randomise(build(config).eval(), scale=0.05)(images)
    assert log_probabilities.shape == (4, 10)
    torch.testing.assert_close(log_probabilities.exp().sum(dim=1), torch.ones(4))


@pytest.mark.parametrize("kind", [ArticleCNNConfig, ArticleViTConfig, ArticleDesignConfig])
@pytest.mark.parametrize("change", [{"image_size": 32}, {"channels": 3}, {"num_classes": 9}], ids=str)
def test_only_the_articles_geometry(kind, change: dict[str, int]) -> None:
    with pytest.raises(ConfigError, match=r"written for 28×28×1 images of 10 classes.*`vit` and `cnn` take any"):
        kind().replace(**change)


def test_post_cnn_is_the_table_of_s3() -> None:
    kinds = " ".join(type(layer).__name__ for layer in build(ArticleCNNConfig()).layers)
    assert kinds == "Conv2d ReLU Conv2d ReLU MaxPool2d Dropout Flatten Linear ReLU Dropout Linear LogSoftmax"
    assert count_parameters(build(ArticleCNNConfig())) == 1_199_882


# --- the article's ViT --------------------------------------------------------------------------------------


def test_post_vit_equals_its_steps_written_out(randomise: Randomise) -> None:
    """Step by step from its parameters, with attention spelled out over the *first* axis, as the article's runs."""
    config = ArticleViTConfig(dim=16, num_heads=2)
    model = randomise(PatchesArticleViT(config).double().eval(), scale=0.1)
    patches = torch.randn(5, 16, 7, 7, dtype=torch.float64)
    x = patches.flatten(2) @ model.patch_projection.weight.T + model.patch_projection.bias
    x = torch.cat([model.class_token.double().expand(5, 1, 16), x], dim=1) + model.position_embedding.weight
    x = x / x.square().sum(dim=1, keepdim=True).sqrt()  # across the 17 tokens
    for layer in model.encoder.layers:
        attended = torch.stack([_attention(x[:, token], layer.self_attn) for token in range(17)], dim=1)
        x = F.layer_norm(x + attended, (16,), layer.norm1.weight, layer.norm1.bias)
        hidden = F.gelu(x @ layer.linear1.weight.T + layer.linear1.bias)
        x = F.layer_norm(
            x + hidden @ layer.linear2.weight.T + layer.linear2.bias, (16,), layer.norm2.weight, layer.norm2.bias
        )
    expected = model.linear3(model.linear2(model.linear1(x[:, 0])).tanh()).log_softmax(dim=1)
    torch.testing.assert_close(model(patches), expected)


def _attention(x: Tensor, attention: nn.MultiheadAttention) -> Tensor:
    """Attention among the rows of x (images × width)."""
    q, k, v = (x @ attention.in_proj_weight.T + attention.in_proj_bias).chunk(3, dim=1)
    width, heads = x.shape[1] // attention.num_heads, []
    for start in range(0, x.shape[1], width):
        part = slice(start, start + width)
        heads.append((q[:, part] @ k[:, part].T / width**0.5).softmax(dim=1) @ v[:, part])
    return torch.cat(heads, dim=1) @ attention.out_proj.weight.T + attention.out_proj.bias


def test_post_vit_mixes_the_images_of_a_batch(images: Tensor, randomise: Randomise) -> None:
    """The flaw: an image's prediction depends on its neighbours, so it changes one image at a time."""
    model = randomise(ArticleViT(ArticleViTConfig()).eval(), scale=0.1)
    together = model(images)
    one_by_one = torch.cat([model(image[None]) for image in images])
    assert not torch.allclose(together, one_by_one, atol=1e-3)
    neighbours_changed = torch.cat([images[:1], torch.randn(3, 1, 28, 28)])
    assert not torch.allclose(together[0], model(neighbours_changed)[0], atol=1e-3)


def test_post_vit_never_attends_between_patches(images: Tensor, randomise: Randomise) -> None:
    """Without the normalisation across tokens, no pixel would reach the class token at all."""
    model = randomise(PatchesArticleViT(ArticleViTConfig()).eval(), scale=0.1)
    x = torch.randn(4, 17, 64)
    changed = torch.cat([x[:, :1], torch.randn(4, 16, 64)], dim=1)
    torch.testing.assert_close(model.encoder(x)[:, 0], model.encoder(changed)[:, 0])


def test_post_vit_class_token_comes_from_its_seed(images: Tensor) -> None:
    """It is in no state dict, so a run rebuilds it from the configuration: a reloaded model predicts as before."""
    model = ArticleViT(ArticleViTConfig(class_token_seed=3)).eval()
    assert not [name for name in model.state_dict() if "class" in name or "indices" in name]
    again = ArticleViT(ArticleViTConfig(class_token_seed=3)).eval()
    again.load_state_dict(model.state_dict())
    torch.testing.assert_close(again(images), model(images), rtol=0, atol=0)
    other_seed = ArticleViT(ArticleViTConfig(class_token_seed=4)).eval()
    other_seed.load_state_dict(model.state_dict())
    assert not torch.allclose(other_seed(images), model(images))


def test_post_vit_class_token_ignores_the_global_seed() -> None:
    tokens = []
    for seed in (1, 2):
        torch.manual_seed(seed)
        tokens.append(PatchesArticleViT(ArticleViTConfig()).class_token)
    torch.testing.assert_close(tokens[0], tokens[1], rtol=0, atol=0)


def test_post_vit_never_uses_mlp(images: Tensor) -> None:
    narrow, wide = ArticleViT(ArticleViTConfig(mlp=1)), ArticleViT(ArticleViTConfig(mlp=9999))
    assert count_parameters(narrow) == count_parameters(wide)
    wide.load_state_dict(narrow.state_dict())
    torch.testing.assert_close(narrow.eval()(images), wide.eval()(images), rtol=0, atol=0)


def test_the_adapter_splits_row_by_row(images: Tensor) -> None:
    model = ArticleViT(ArticleViTConfig()).eval()
    by_hand = [images[:, 0, 7 * row : 7 * row + 7, 7 * col : 7 * col + 7] for row in range(4) for col in range(4)]
    torch.testing.assert_close(model(images), model.model(torch.stack(by_hand, dim=1)), rtol=0, atol=0)


# --- S5: the design table ------------------------------------------------------------------------------------


@pytest.mark.parametrize("residual", ["normalised", "paper"])
def test_design_block_takes_the_residual_it_names(residual: str, randomise: Randomise) -> None:
    block = randomise(DesignBlock(ArticleDesignConfig(dim=16, num_heads=2, residual=residual)).double())
    z = torch.randn(2, 17, 16, dtype=torch.float64)
    normed = F.layer_norm(z, (16,), block.norm1.weight, block.norm1.bias)
    attended = torch.stack([_attention(image, block.attention) for image in normed])
    z1 = attended + (normed if residual == "normalised" else z)
    normed = F.layer_norm(z1, (16,), block.norm2.weight, block.norm2.bias)
    torch.testing.assert_close(block(z), block.mlp(normed) + (normed if residual == "normalised" else z1))


def test_design_positions_as_written_encode_no_order(images: Tensor, randomise: Randomise) -> None:
    """One vector is added to every token, so shuffled patches give the same logits; per index they do not."""
    shuffled = images.view(4, 1, 4, 7, 4, 7).flip(2, 4).reshape(4, 1, 28, 28)  # patches reordered, their pixels not
    for positions, order_matters in [("as-written", False), ("per-index", True)]:
        model = randomise(ArticleDesign(ArticleDesignConfig(positions=positions)).double().eval())
        same = torch.allclose(model(images.double()), model(shuffled.double()))
        assert same is not order_matters, positions


def test_design_indices_are_saved_and_normalised() -> None:
    indices = ArticleDesign(ArticleDesignConfig()).state_dict()["indices"]
    torch.testing.assert_close(indices, torch.linspace(0, 1, 17))


@torch.inference_mode()
def test_each_fix_corrects_its_flaw() -> None:
    """`attention`: a batch gives the logits of its images one by one; `class-token`: it is trained and saved."""
    torch.manual_seed(0)
    images = torch.randn(6, 1, 28, 28)

    def difference(model: torch.nn.Module) -> float:
        alone = torch.cat([model(image[None]) for image in images])
        return float((model(images) - alone).abs().max())

    as_written = build(ArticleViTConfig()).eval()
    attending = build(ArticleViTConfig(fixes=("attention",))).eval()
    assert difference(as_written) > 1e-3
    assert difference(attending) < 1e-5
    assert "model.class_token" not in attending.state_dict()
    trained = build(ArticleViTConfig(fixes=("attention", "class-token"))).eval()
    assert {"model.class_token", "model.position_indices"} <= trained.state_dict().keys()
    assert "model.class_token" in dict(trained.named_parameters())


def test_the_feed_forward_width_is_a_setting():
    sizes = {
        width: sum(p.numel() for p in ArticleViT(ArticleViTConfig(feedforward=width)).parameters())
        for width in (64, 3000)
    }
    assert ArticleViTConfig().feedforward == 3000  # the article's
    assert sizes[3000] - sizes[64] == 4 * (3000 - 64) * (
        2 * 64 + 1
    )  # four layers: two matrices and a bias of this width
