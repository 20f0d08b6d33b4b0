"""Tiny models: one per geometry and pooling, and ones whose prediction depends on one given patch.

Shapes: the planted models take (1, 12, 8) images in 6 × 4 patches of 2 × 2 pixels.
"""

from __future__ import annotations

import pytest
import torch
from torch import Tensor

from vitreous.config import CNNConfig, ViTConfig
from vitreous.models import CNN, ViT

_TINY = {"image_size": (8, 8), "patch_size": 4, "dim": 8, "depth": 2, "num_heads": 2, "mlp_dim": 12, "num_classes": 3}

VARIANTS = {
    "class token": {},
    "mean": {"pool": "mean"},
    "seq": {"pool": "seq"},
    "not square, colour": {"image_size": (12, 8), "channels": 3, "patch_size": (4, 2)},
    "padded": {"image_size": (10, 7), "fit": "pad"},
    "resized": {"image_size": (10, 7), "fit": "resize", "pool": "mean"},
    "conv stem": {"image_size": (16, 16), "stem_channels": (4, 4), "patch_size": 1},
    "relative, mlp head": {"positions": "relative", "head": "mlp"},
    "no positions": {"positions": "none", "pool": "mean"},
    "registers": {"registers": 3},
    "registers, mean": {"registers": 1, "pool": "mean", "pre_norm": True, "gelu": "quick"},
    "norm after the mean": {"pool": "mean", "norm_after_pool": True},
    "one patch": {"patch_size": 8},
    "many patches": {"image_size": (18, 16), "patch_size": 2},
}
PLANTED_PATCH = 9  # row 3, column 2 of 6 × 4


@pytest.fixture
def tiny_vit(randomise):
    """A ViT of a variant's geometry, in float64, with every parameter random."""

    def make(variant: str = "class token", **changes) -> ViT:
        config = ViTConfig(**{**_TINY, **VARIANTS[variant], **changes})
        return randomise(ViT(config).double().eval(), seed=1, scale=0.4)

    return make


@pytest.fixture(params=VARIANTS)
def any_vit(request, tiny_vit) -> ViT:
    """Every geometry and pooling in turn."""
    return tiny_vit(request.param)


@pytest.fixture
def tiny_cnn(randomise):
    def make(**changes) -> CNN:
        config = CNNConfig(**{"image_size": (12, 8), "conv_channels": (3, 4), "hidden": 8, "num_classes": 3, **changes})
        return randomise(CNN(config).double().eval(), seed=1, scale=0.3)

    return make


@pytest.fixture
def image_for():
    """A repeatable normalised image (C, height, width) of the model's size."""

    def make(model, seed: int = 0) -> Tensor:
        generator = torch.Generator().manual_seed(seed)
        size = (model.config.channels, *model.config.image_size)
        return torch.randn(size, generator=generator, dtype=next(model.parameters()).dtype)

    return make


@pytest.fixture
def planted_vit():
    """A ViT whose prediction depends only on the brightness of `PLANTED_PATCH`, by construction.

    Channel 0 flags the planted patch, 1 carries the brightness of a patch, 2 collects the output of attention, 3 flags
    the other tokens. Keys are the flag, so large that every token attends to the planted patch with weight exactly 1;
    values are the brightness; the head reads channel 2. With a class token nothing else can reach the logits.
    """

    @torch.no_grad()
    def make(pool: str = "cls") -> ViT:
        config = ViTConfig(
            image_size=(12, 8), patch_size=2, dim=16, depth=2, num_heads=1, mlp_dim=4, num_classes=2, pool=pool
        )
        model = ViT(config).eval()
        for name, parameter in model.named_parameters():
            if "norm" not in name:
                parameter.zero_()
        model.patch_embed.proj.weight[1] = 8 / 4  # eight times the mean brightness
        first = int(config.has_class_token)
        model.pos_embed[0, :, 3] = 10
        model.pos_embed[0, first + PLANTED_PATCH, 3] = 0
        model.pos_embed[0, first + PLANTED_PATCH, 0] = 10
        for block in model.blocks:
            block.attn.qkv.bias[0] = 400  # every query matches the flag
            block.attn.qkv.weight[16, 0] = 1  # keys: the flag
            block.attn.qkv.weight[32 + 2, 1] = 1  # values: the brightness
            block.attn.proj.weight[2, 2] = 1
        model.head.weight[0, 2], model.head.weight[1, 2] = -3, 3
        model.head.bias[0] = 2  # the empty image is class 0
        return model

    return make


@pytest.fixture
def planted_patch() -> int:
    return PLANTED_PATCH


@pytest.fixture
def planted_image() -> Tensor:
    """(1, 12, 8): a dot in every patch, on an empty border; the planted patch is the brightest."""
    image = torch.zeros(1, 12, 8)
    image[0, 1::2, 1::2] = torch.linspace(0.5, 3, 24).view(6, 4)
    row, column = divmod(PLANTED_PATCH, 4)
    image[0, 2 * row + 1, 2 * column + 1] = 4
    return image
