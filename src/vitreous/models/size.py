"""A lower bound of a model's size, so that one which cannot fit is refused before any of it is built."""

from __future__ import annotations

import itertools
import math

from vitreous.config import ArticleDesignConfig, ArticleViTConfig, CNNConfig, MixerConfig, ModelConfig, ViTConfig
from vitreous.hardware import require_memory


def require_size(config: ModelConfig) -> None:
    """Raise if the weights alone, in float32, need more memory than is free."""
    count = least_parameters(config)
    change = "lower the sizes that --set model.… gave, or data.image_size"
    require_memory(4 * count, f"the {count:,} and more parameters of this {config.kind!r}", change)


def least_parameters(config: ModelConfig) -> int:
    """Return a lower bound of the parameters: those of the matrices, kernels and positions."""
    if isinstance(config, ViTConfig):
        blocks = config.depth * (4 * config.dim**2 + 2 * config.dim * config.mlp_dim)
        widths = (config.channels, *config.stem_channels)
        stem = sum(9 * a * b + (config.stem_depth - 1) * 9 * b * b for a, b in itertools.pairwise(widths))
        inputs = widths[-1] * math.prod(config.window or config.patch_size)
        hidden = config.embed_hidden
        patches = config.dim * inputs if hidden is None else hidden * (inputs + config.dim)
        positions = config.dim * config.num_patches if config.positions in ("learned", "sincos-2d") else 0
        offsets = config.depth * config.num_tokens**2 if config.positions == "relative" else 0
        head = config.dim * config.num_classes
        if config.head == "mlp":
            hidden = config.head_hidden or config.dim
            head = hidden * (config.dim + config.num_classes)
        return blocks + stem + patches + positions + offsets + head
    if isinstance(config, CNNConfig):
        first, second = config.conv_channels
        convolutions = 9 * first * (config.channels + second)
        return convolutions + config.hidden * (config.flat_features + config.num_classes)
    if isinstance(config, MixerConfig):
        mixing = 2 * config.num_patches * config.token_dim + 2 * config.dim * config.mlp_dim
        return config.depth * mixing + config.dim * config.channels * math.prod(config.patch_size)
    if isinstance(config, ArticleViTConfig):
        return 4 * (4 * config.dim**2 + 2 * 3000 * config.dim)
    if isinstance(config, ArticleDesignConfig):
        return config.depth * (4 * config.dim**2 + 2 * config.dim * config.mlp_dim)
    return 0
