"""Models: `build(config.model)` gives an `nn.Module` from normalised images (B, C, H, W) to logits (B, classes)."""

from __future__ import annotations

import torch
from torch import nn

from vitreous.config import ModelConfig
from vitreous.models.article import ArticleCNN, ArticleDesign, ArticleViT
from vitreous.models.cnn import CNN
from vitreous.models.fast.vit import FastViT
from vitreous.models.mixer import Mixer
from vitreous.models.size import require_size
from vitreous.models.vit import ViT

__all__ = ["CNN", "MODELS", "ArticleCNN", "ArticleDesign", "ArticleViT", "Mixer", "ViT", "build", "count_parameters"]

MODELS: dict[str, type[nn.Module]] = {
    "vit": FastViT,  # a ViT, with the same parameters and outputs
    "cnn": CNN,
    "mixer": Mixer,
    "post-cnn": ArticleCNN,
    "post-vit": ArticleViT,
    "post-design": ArticleDesign,
}


def build(config: ModelConfig) -> nn.Module:
    """Return a freshly initialised model; seed torch first for a repeatable one."""
    if torch.get_default_device().type != "meta":
        require_size(config)
    return MODELS[config.kind](config)


def count_parameters(model: nn.Module) -> int:
    return sum(parameter.numel() for parameter in model.parameters())
