"""The check that a model gets images of its own size."""

from __future__ import annotations

from torch import Tensor

from vitreous.config import CNNConfig, MixerConfig, ViTConfig
from vitreous.errors import DataError


def check_input(images: Tensor, config: ViTConfig | CNNConfig | MixerConfig) -> None:
    """Raise unless `images` is (B, C, height, width) as the configuration says: nothing is resized silently."""
    expected = (config.channels, *config.image_size)
    if images.ndim != 4 or tuple(images.shape[1:]) != expected:
        channels, height, width = expected
        raise DataError(
            f"the model got images of shape {tuple(images.shape)}; expected (B, {channels}, {height}, {width}): resize"
            " the images (as run.preprocessing.prepare does), or load the weights for their size"
            " (vitreous.checkpoints.load_model(…, image_size=…))"
        )
