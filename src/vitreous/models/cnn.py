"""The CNN that the ViT is compared with: two convolutions, one max-pool, two linear layers; returns logits."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import CNNConfig
from vitreous.models.input import check_input


class CNN(nn.Module):
    """Map normalised images (B, C, height, width) to logits (B, classes)."""

    def __init__(self, config: CNNConfig):
        super().__init__()
        self.config = config
        first, second = config.conv_channels
        self.conv1 = nn.Conv2d(config.channels, first, kernel_size=3)
        self.conv2 = nn.Conv2d(first, second, kernel_size=3)
        self.conv_dropout = nn.Dropout(config.conv_dropout)
        self.fc1 = nn.Linear(config.flat_features, config.hidden)
        self.hidden_dropout = nn.Dropout(config.hidden_dropout)
        self.fc2 = nn.Linear(config.hidden, config.num_classes)

    def features(self, images: Tensor) -> Tensor:
        """Return the second convolution's output, (B, C₂, height − 4, width − 4), for Grad-CAM-like maps."""
        check_input(images, self.config)
        return F.relu(self.conv2(F.relu(self.conv1(images))))

    def classify(self, features: Tensor) -> Tensor:
        x = self.conv_dropout(F.max_pool2d(features, 2)).flatten(1)
        return self.fc2(self.hidden_dropout(F.relu(self.fc1(x))))

    def forward(self, images: Tensor) -> Tensor:
        return self.classify(self.features(images))
