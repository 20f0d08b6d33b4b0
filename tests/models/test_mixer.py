"""The mixer: equal to its equations written out; a dense layer over tokens that knows places without positions."""

from __future__ import annotations

import pytest
import torch
import torch.nn.functional as F

from vitreous.config import MixerConfig
from vitreous.errors import ConfigError
from vitreous.models import build, count_parameters
from vitreous.models.vit import patchify

CONFIG = MixerConfig(image_size=(8, 12), channels=2, patch_size=4, dim=10, depth=2, token_dim=5, mlp_dim=7)


def written_out(weights: dict[str, torch.Tensor], images: torch.Tensor) -> torch.Tensor:
    def dense(x, name, bias=True):
        return x @ weights[f"{name}.weight"].T + (weights[f"{name}.bias"] if bias else 0)

    def norm(x, name):
        return F.layer_norm(x, (10,), weights[f"{name}.weight"], weights[f"{name}.bias"], 1e-6)

    x = patchify(images, (4, 4)) @ weights["patch_embed.weight"].flatten(1).T + weights["patch_embed.bias"]
    for i in range(2):
        tokens = norm(x, f"blocks.{i}.norm1").transpose(1, 2)  # (B, D, N)
        hidden = F.gelu(dense(tokens, f"blocks.{i}.mix_tokens.0"))
        x = x + dense(hidden, f"blocks.{i}.mix_tokens.2", bias=False).transpose(1, 2)
        x = x + dense(F.gelu(dense(norm(x, f"blocks.{i}.norm2"), f"blocks.{i}.mlp.0")), f"blocks.{i}.mlp.2")
    return dense(norm(x, "norm").mean(dim=1), "head")


def test_equals_its_equations(randomise):
    model = randomise(build(CONFIG).double().eval())
    images = torch.randn(3, 2, 8, 12, dtype=torch.float64)
    torch.testing.assert_close(model(images), written_out(dict(model.state_dict()), images))


def test_the_order_of_the_patches_matters_to_it(randomise):
    """Unlike attention without positions: the mixing weights belong to places."""
    model = randomise(build(CONFIG).double().eval())
    images = torch.randn(2, 2, 8, 12, dtype=torch.float64)
    assert (model(images) - model(images.roll(4, dims=3))).abs().max() > 1e-3


def test_attention_or_mixing_has_equally_many_parameters():
    """The study's second mixer is as large as the ViT that it is compared with, within two percent."""
    from vitreous.config import configure

    vit, mixer = (
        count_parameters(build(configure(name, settings=[setting]).model))
        for name, setting in (("vit", "model.pool=mean"), ("mixer", "model.mlp_dim=256"))
    )
    assert abs(mixer / vit - 1) < 0.02, (vit, mixer)


def test_a_patch_must_divide_the_image():
    with pytest.raises(ConfigError, match=r"model.patch_size=5×5 does not divide the images of 28×28"):
        build(MixerConfig(patch_size=5))
