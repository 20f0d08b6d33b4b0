"""What skipping blank patches takes from the data: the background, and how many patches of an image have ink.

A pixel is ink if a channel differs from the background by more than `INK` levels: compression and scanners change blank
paper by less.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TypeGuard

import numpy as np
import torch
from torch import Tensor

from vitreous.config import ViTConfig
from vitreous.data.datasets import Dataset, Split
from vitreous.data.preprocessing import Preprocessing
from vitreous.models import ViT, blank

INK = 16  # of 255
KEPT_WHOLE = 0.95  # share of the training images that lose nothing with tokens="auto"
_MOST_IMAGES = 10_000  # from which the background and K are taken
_BATCH = 512


def resolve(model: ViTConfig, dataset: Dataset) -> ViTConfig:
    """Return the configuration with the background, and K in place of "auto", taken from the training images."""
    if not model.knows_background:
        return model
    sample = _sample(dataset.train)
    background = most_frequent(sample) if model.background is None else model.background
    model = model.replace(background=background if len(background) == model.channels else background * model.channels)
    if model.tokens == "auto":
        needed = torch.cat([_needed_patches(images, model, dataset.std) for images in sample.batches(_BATCH)])
        model = model.replace(tokens=max(1, int(np.quantile(needed.numpy(), KEPT_WHOLE, method="higher"))))
    return model


def _needed_patches(images: Tensor, config: ViTConfig, std: Sequence[float]) -> Tensor:
    """(B, C, H, W) of uint8 → (B,): the smallest K with which an image loses no ink."""
    background, scale = (torch.tensor(values).float().view(-1, 1, 1) for values in (config.background, std))
    deviation = ((images.float() - background) / scale).abs().sum(dim=1, keepdim=True)
    order = blank.largest_first(blank.per_patch(deviation, config))  # (B, P)
    places = torch.arange(1, config.num_patches + 1)
    return (has_ink(images, config).gather(1, order) * places).amax(dim=1)


def most_frequent(split: Split) -> tuple[int, ...]:
    """Return the most frequent pixel value of each channel."""
    counts = torch.zeros(split.image_shape[0], 256, dtype=torch.long)
    for images in split.batches(_BATCH):
        for channel, count in enumerate(counts):
            count += torch.bincount(images[:, channel].flatten().int(), minlength=256)
    return tuple(counts.argmax(dim=1).tolist())


def has_ink(images: Tensor, config: ViTConfig) -> Tensor:
    """(B, C, H, W) of uint8 → (B, P): whether a patch has ink."""
    background = torch.tensor(config.background, dtype=torch.float32).view(-1, 1, 1)
    ink = ((images.float() - background).abs() > INK).any(dim=1, keepdim=True).float()
    return blank.per_patch(ink, config) > 0


def lost_patches(model: ViT, split: Split, preprocessing: Preprocessing) -> Tensor:
    """Return how many patches with ink of each image do not become tokens, (n,)."""
    lost, device = [], next(model.parameters()).device
    for images in split.batches(_BATCH):
        inked, x = has_ink(images, model.config), preprocessing.to_input(images.to(device))
        kept = model.choose_patches(x)
        lost.append(torch.zeros(len(images)) if kept is None else inked.scatter(1, kept.cpu(), value=False).sum(dim=1))
    return torch.cat(lost).long()


def set_background(model: torch.nn.Module, preprocessing: Preprocessing) -> None:
    """Give a new model its background, normalised as its input is."""
    if isinstance(model, ViT) and model.config.knows_background:
        pixels = torch.tensor(model.config.background or (0,), dtype=torch.float32).view(-1, 1, 1)
        model.background.copy_(preprocessing.to_input((pixels / 255).expand(model.config.channels, 1, 1)[None])[0])


def in_words(model: ViT, train: Split, preprocessing: Preprocessing) -> str:
    """Return what is skipped, in a sentence for the log."""
    config = model.config
    background = ", ".join(map(str, config.background or ()))
    return (
        f"{config.kept_patches} of {config.num_patches} patches become tokens, those that differ most from the"
        f" background (pixel value {background}); {losing_ink(lost_patches(model, _sample(train), preprocessing))}"
    )


def losing_ink(lost: Tensor) -> str:
    """Return how many images have ink in patches that are skipped, in words."""
    losing = int((lost > 0).sum())
    return f"{losing:,} of {len(lost):,} images ({losing / max(1, len(lost)):.1%}) have ink in some that are skipped"


def skips(model: torch.nn.Module) -> TypeGuard[ViT]:
    return isinstance(model, ViT) and model.config.kept_patches < model.config.num_patches


def _sample(split: Split) -> Split:
    return split.take(np.linspace(0, len(split) - 1, min(len(split), _MOST_IMAGES)).round().astype(int))
