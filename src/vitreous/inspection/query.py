"""Forward passes that leave the model unchanged, and the log-odds that effects are measured in.

Shapes: B images, C channels, `height` × `width` pixels, K classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator
from contextlib import contextmanager

import torch
from torch import Tensor, nn

from vitreous.errors import VitreousError
from vitreous.models import CNN, ArticleCNN, ViT

#: Input values per batch: suits two cores, and is small enough for images of 224 × 224 pixels.
_BATCH_VALUES = 2**21
_LARGEST_BATCH = 256


class LookError(VitreousError):
    """An image or an option that `look` cannot use."""


@contextmanager
def eval_mode(model: nn.Module) -> Iterator[None]:
    """Switch to eval mode with gradients enabled; restore the flag of every module afterwards."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def like_parameters(model: nn.Module, tensor: Tensor) -> Tensor:
    """Return a detached copy on the device and in the precision of the model."""
    parameter = next(model.parameters(), None)
    copy = tensor.detach().clone()
    return copy if parameter is None else copy.to(parameter.device, parameter.dtype)


def batch_size(model: nn.Module, image: Tensor) -> int:
    """Return how many variants of `image` go into one batch."""
    # an unknown model (the article's ViT is one) may mix the images of a batch: pass them one at a time
    if not isinstance(model, ViT | CNN | ArticleCNN):
        return 1
    return max(1, min(_LARGEST_BATCH, _BATCH_VALUES // image.numel()))


@torch.no_grad()
def batched_logits(model: nn.Module, images: Tensor, patch_masks: Tensor | None = None) -> Tensor:
    """Return the logits (B, K) of many images; `patch_masks` (B, P) removes patches from the attention of a ViT."""
    size = batch_size(model, images[0])
    if patch_masks is None:
        return torch.cat([model(batch) for batch in images.split(size)])
    pairs = zip(images.split(size), patch_masks.split(size), strict=True)
    return torch.cat([model(batch, patch_mask=masks) for batch, masks in pairs])


def log_odds(logits: Tensor, target: int) -> Tensor:
    """Return log₁₀ of the odds of `target`, (…, K) → (…). Unlike a probability, it does not saturate.

    Adding a constant to all logits changes nothing, so log-probabilities are accepted as well.
    """
    others = torch.cat([logits[..., :target], logits[..., target + 1 :]], dim=-1)
    if not others.shape[-1]:  # with a single class there are no odds
        return logits[..., target]
    return (logits[..., target] - others.logsumexp(dim=-1)) / math.log(10)


def background(image: Tensor) -> Tensor:
    """Return the empty image: (C, height, width) filled with the median colour of the border of `image`."""
    border = torch.cat([image[:, 0], image[:, -1], image[:, :, 0], image[:, :, -1]], dim=1)
    return border.median(dim=1).values[:, None, None].expand_as(image).clone()


def check_query(model: nn.Module, image: Tensor, target: int | None, patch: int | None) -> None:
    """Raise if the image, the class or the patch does not fit the model."""
    config, shape = getattr(model, "config", None), tuple(image.shape)
    if image.dim() != 3:
        raise LookError(f"the image has shape {shape}; look takes one image, (channels, height, width)")
    if not torch.isfinite(image).all():
        raise LookError("the image holds values that are not finite numbers; check how it was read and normalised")
    if config is not None and shape != (expected := (config.channels, *config.image_size)):
        raise LookError(f"the image has shape {shape} and the model takes {expected}; apply its preprocessing first")
    if config is not None and target is not None and not 0 <= target < config.num_classes:
        raise LookError(f"target={target}: the model has classes 0 to {config.num_classes - 1}")
    if patch is None:
        return
    if not isinstance(model, ViT):
        raise LookError(f"patch={patch}: only a ViT has patches; omit `patch` for this model")
    if not 0 <= patch < model.config.num_patches:
        rows, columns = model.config.grid
        raise LookError(f"patch={patch}: the model has patches 0 to {rows * columns - 1} ({rows} rows of {columns})")
