"""Typed, frozen configurations (schema), the named ones (presets), and how to change them (overrides)."""

from vitreous.config.fields import Positive, Size
from vitreous.config.overrides import configure, merge_toml, override
from vitreous.config.schema import (
    ArticleCNNConfig,
    ArticleDesignConfig,
    ArticleViTConfig,
    AugmentConfig,
    CNNConfig,
    Config,
    DataConfig,
    MixerConfig,
    ModelConfig,
    StartConfig,
    TrainConfig,
    ViTConfig,
    build_config,
)  # fmt: skip

__all__ = [
    "ArticleCNNConfig", "ArticleDesignConfig", "ArticleViTConfig", "AugmentConfig", "CNNConfig", "Config", "DataConfig",
    "MixerConfig", "ModelConfig", "Positive", "Size", "StartConfig", "TrainConfig", "ViTConfig", "build_config",
    "configure", "merge_toml", "override",
]  # fmt: skip
