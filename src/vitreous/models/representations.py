"""Representations of an image inside a model: early ones, and the one that the head reads.

Novelty is measured in them (`vitreous.evaluation.novelty`), and features for label errors are the last of them. Early
representations tell strange strokes and textures apart, late ones strange meanings: docs/calibration.md has the
figures.

Shapes: B images, N tokens, P patches, D width, C channels.
"""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models import blank
from vitreous.models.article import ArticleViT
from vitreous.models.cnn import CNN
from vitreous.models.fast.vit import FastViT
from vitreous.models.vit import Taps, ViT

Representations = tuple[Tensor, ...]  # (B, width) or (B, places, width) each; the last has no places


def representation_names(model: nn.Module) -> tuple[str, ...]:
    """Return what `represent` gives for this kind of model, in words."""
    if isinstance(model, ViT):
        after = f"after layer {middle_block(model) + 1}"
        return f"mean of the patches {after}", f"patches {after}", "input of the head"
    if isinstance(model, CNN):
        return ("mean of the second convolution", "hidden layer")
    return () if isinstance(model, ArticleViT) else ("logits",)


def middle_block(model: ViT) -> int:
    """Return the index of the block after which the patches are read."""
    return (model.config.depth - 1) // 2


def represent(model: nn.Module, images: Tensor) -> tuple[Tensor, Representations]:
    """Return `model(images)` and its representations, for a model in eval mode."""
    if isinstance(model, CNN):
        features = model.features(images)  # (B, C, height, width)
        hidden = F.relu(model.fc1(F.max_pool2d(features, 2).flatten(1)))
        return model.fc2(hidden), (features.mean(dim=(2, 3)), hidden)
    if not isinstance(model, ViT):
        logits = model(images)
        # the attention of the article's ViT mixes the images of a batch: it represents none of them alone
        return logits, () if isinstance(model, ArticleViT) else (logits,)
    x = patches = model.embed(images)  # without the blank patches, if they are skipped
    last = model.config.depth - 1
    for index, block in enumerate(model.blocks):
        first_only = index == last > middle_block(model) and isinstance(model, FastViT) and model.reads_first_token
        x = block(x, first_only=True) if first_only else block(x)
        if index == middle_block(model):
            patches = patches_of(model, x)
    taps: Taps = {}
    logits = model.classify(x, taps=taps)
    return logits, (patches.mean(dim=1), patches, taps["pooled"])


def representations_in(model: nn.Module, taps: Taps) -> Representations:
    """Return the representations of a ViT that were recorded in a forward pass with taps."""
    assert isinstance(model, ViT), "only a ViT has taps"
    patches = patches_of(model, taps[f"blocks.{middle_block(model)}.output"])
    if "chosen" in taps:
        patches = blank.take(patches, taps["chosen"])
    return patches.mean(dim=1), patches, taps["pooled"]


def patches_of(model: ViT, tokens: Tensor) -> Tensor:
    """(B, N, D) → (B, P, D), without the class token."""
    return tokens[:, int(model.config.has_class_token) :]
