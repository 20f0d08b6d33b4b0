"""Typed, frozen configurations and the named presets."""

from vitreous.config.schema import (
    ArticleCNNConfig,
    ArticleDesignConfig,
    ArticleViTConfig,
    AugmentConfig,
    CNNConfig,
    Config,
    DataConfig,
    ModelConfig,
    Positive,
    Size,
    StartConfig,
    TrainConfig,
    ViTConfig,
    build_config,
    merge_toml,
    override,
)

__all__ = [
    "ArticleCNNConfig",
    "ArticleDesignConfig",
    "ArticleViTConfig",
    "AugmentConfig",
    "CNNConfig",
    "Config",
    "DataConfig",
    "ModelConfig",
    "Positive",
    "Size",
    "StartConfig",
    "TrainConfig",
    "ViTConfig",
    "build_config",
    "merge_toml",
    "override",
]
