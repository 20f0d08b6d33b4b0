"""Skip the blank: keep the patches of an image that differ most from its background.

The score of a patch is the sum of |pixel − background| over its pixels and channels, normalised as the model gets them.
Shapes are fixed (K patches of every image), so no masks are needed; where fewer have ink, some blank ones are kept.

Shapes: B images, C channels, P patches, K of them kept, D width.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import ViTConfig

_TIE = 1e-6  # relative, per place: of equal patches the first is kept, in every engine


def per_patch(values: Tensor, config: ViTConfig) -> Tensor:
    """(B, 1, height, width) → (B, P): sums of non-negative values over the pixels of each patch."""
    (rows, columns), (height, width) = config.grid, config.patch_pixels
    if config.fit == "resize" and not config.stem_channels:
        values = F.interpolate(values, size=config.fitted_size, mode="bilinear", antialias=True)
    if config.stem_channels:  # a feature is centred on the first pixel of its stride
        before = 2 ** len(config.stem_channels) // 2
        values = F.pad(values, (before, 0, before, 0))[..., : rows * height, : columns * width]
    down, right = rows * height - values.shape[-2], columns * width - values.shape[-1]
    if down or right:  # the last patches reach beyond the image
        values = F.pad(values, (0, right, 0, down))
    return values.reshape(values.shape[0], rows, height, columns, width).sum(dim=(2, 4)).flatten(1)


def largest(scores: Tensor, count: int) -> Tensor:
    """Return the positions of the `count` largest of each row, (B, K), in ascending order."""
    return _without_ties(scores).topk(count, dim=1, sorted=False).indices.sort(dim=1).values


def largest_first(scores: Tensor) -> Tensor:
    """Return all positions of each row, (B, P), in the order in which `largest` takes them."""
    return _without_ties(scores).argsort(dim=1, descending=True)


def _without_ties(scores: Tensor) -> Tensor:
    ranks = torch.arange(scores.shape[1], device=scores.device, dtype=scores.dtype)
    return (scores + 1) * (1 - _TIE * ranks)


def take(patches: Tensor, kept: Tensor) -> Tensor:
    """(B, P, D), (B, K) → (B, K, D)."""
    return patches.gather(1, kept[..., None].expand(-1, -1, patches.shape[-1]))


def take_windows(images: Tensor, kept: Tensor, patch: tuple[int, int], window: tuple[int, int]) -> Tensor:
    """Return the windows around the kept patches, (B, K, C·height·width), with zeros beyond the border.

    The pixels are in the order of a convolution's kernel.
    """
    (ph, pw), (wh, ww) = patch, window
    top, left = (wh - ph) // 2, (ww - pw) // 2
    padded = F.pad(images, (left, left, top, top))
    C, height, width = padded.shape[1:]
    columns = images.shape[-1] // pw
    corners = (kept // columns) * (ph * width) + (kept % columns) * pw  # (B, K): the window's first pixel
    channel = torch.arange(C, device=images.device)[:, None, None] * (height * width)
    row = torch.arange(wh, device=images.device)[:, None] * width
    offsets = (channel + row + torch.arange(ww, device=images.device)).flatten()  # (C·wh·ww,)
    pixels = (corners[..., None] + offsets).flatten(1)
    return padded.flatten(1).gather(1, pixels).view(*kept.shape, -1)
