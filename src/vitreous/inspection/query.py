"""Asking a model without disturbing it: eval mode for the while, no gradients left behind, no random numbers drawn.

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

#: Numbers of image data in one batch: what two cores digest well, and small enough for 224-pixel images.
_BATCH_NUMBERS = 2**21
_LARGEST_BATCH = 256


class LookError(VitreousError):
    """A picture or a question that `look` cannot take."""


@contextmanager
def undisturbed(model: nn.Module) -> Iterator[None]:
    """Eval mode inside, every module's own flag restored afterwards; gradients can be taken whatever is outside."""
    flags = [(module, module.training) for module in model.modules()]
    model.eval()
    try:
        with torch.inference_mode(False), torch.enable_grad():
            yield
    finally:
        for module, training in flags:
            module.training = training


def like_parameters(model: nn.Module, tensor: Tensor) -> Tensor:
    """A detached copy on the model's device and in its precision."""
    parameter = next(model.parameters(), None)
    copy = tensor.detach().clone()
    return copy if parameter is None else copy.to(parameter.device, parameter.dtype)


def batch_size(model: nn.Module, image: Tensor) -> int:
    """How many copies of `image` to ask about at once."""
    # an unknown model (the post's ViT is one) may mix the images of a batch: ask it about one at a time
    if not isinstance(model, ViT | CNN | ArticleCNN):
        return 1
    return max(1, min(_LARGEST_BATCH, _BATCH_NUMBERS // max(1, image.numel())))


@torch.no_grad()
def answers(model: nn.Module, images: Tensor, patch_masks: Tensor | None = None) -> Tensor:
    """Logits (B, K) of many images, batch by batch; `patch_masks` (B, P) removes patches from a ViT's sight."""
    size = batch_size(model, images[0])
    if patch_masks is None:
        return torch.cat([model(batch) for batch in images.split(size)])
    pairs = zip(images.split(size), patch_masks.split(size), strict=True)
    return torch.cat([model(batch, patch_mask=masks) for batch, masks in pairs])


def evidence(logits: Tensor, target: int) -> Tensor:
    """log₁₀ of the odds of `target`: one more means ten times the odds. Unlike a probability, it does not saturate.

    (…, K) → (…). Adding a constant to all logits changes nothing, so log-probabilities serve as well.
    """
    others = torch.cat([logits[..., :target], logits[..., target + 1 :]], dim=-1)
    if not others.shape[-1]:  # one class only: there is nothing to be odds against
        return logits[..., target]
    return (logits[..., target] - others.logsumexp(dim=-1)) / math.log(10)


def background(image: Tensor) -> Tensor:
    """(C, height, width) filled with the median colour of the picture's border: the same picture with nothing on it."""
    border = torch.cat([image[:, 0], image[:, -1], image[:, :, 0], image[:, :, -1]], dim=1)
    return border.median(dim=1).values[:, None, None].expand_as(image).clone()


def check_question(model: nn.Module, image: Tensor, target: int | None, patch: int | None) -> None:
    """Refuse what cannot be answered, before anything is computed."""
    config = getattr(model, "config", None)
    if image.dim() != 3:
        raise LookError(f"the image has shape {tuple(image.shape)}; look takes one image, (channels, height, width)")
    if not torch.isfinite(image).all():
        raise LookError("the image holds values that are not finite numbers; check how it was read and normalised")
    expected = None if config is None else (config.channels, *config.image_size)
    if expected is not None and tuple(image.shape) != expected:
        raise LookError(
            f"the image has shape {tuple(image.shape)} and the model takes {expected}; prepare it with the run's"
            " preprocessing first"
        )
    if config is not None and target is not None and not 0 <= target < config.num_classes:
        raise LookError(f"target={target}: the model has classes 0 to {config.num_classes - 1}")
    if patch is None:
        return
    if not isinstance(model, ViT):
        raise LookError(f"patch={patch}: only a ViT has patches to look from; leave `patch` out for this model")
    if not 0 <= patch < model.config.num_patches:
        rows, columns = model.config.grid
        raise LookError(f"patch={patch}: the model has patches 0 to {rows * columns - 1} ({rows} rows of {columns})")
