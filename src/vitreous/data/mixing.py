"""CutMix (Yun et al., 2019): a rectangle of another image replaces part of an image, and as much of its label.

Like `augment`, a pure function of seed, epoch and image index: the other image is drawn from the whole training set,
not from the batch, so that batches may be divided among micro-batches, threads and processes in any way.

Shapes: B images, C channels.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.data.augment import FIRST_UNUSED, uniforms


def draw(share: float, seed: int, epoch: int, indices: Tensor, num_images: int) -> tuple[Tensor, Tensor, Tensor]:
    """Return the positions in the batch of the images to mix, the indices of the others, and three numbers for each.

    `share` of all images are mixed. M of B: (M,), (M,) and (M, 3).
    """
    random = uniforms(seed, epoch, indices, 5, first=FIRST_UNUSED)
    chosen = (random[:, 0] < share).nonzero()[:, 0]
    others = (random[chosen, 1].double() * num_images).long()  # float32 would round a large product up
    return chosen, others, random[chosen, 2:]


def paste(images: Tensor, others: Tensor, random: Tensor) -> tuple[Tensor, Tensor]:
    """Replace a rectangle of (B, C, height, width) by that of the others; return them and the share that is kept, (B,).

    The rectangle's area is uniform from 0 to the whole image, its shape the image's, its centre anywhere; it may extend
    beyond the edge, and the share counts whole pixels inside.
    """
    side = random[:, 0].sqrt()
    inside = [
        (torch.arange(length) + 0.5 - centre[:, None] * length).abs() < side[:, None] * length / 2
        for length, centre in zip(images.shape[-2:], random[:, 1:3].unbind(1), strict=True)
    ]
    rectangle = inside[0][:, :, None] & inside[1][:, None, :]  # (B, height, width)
    kept = 1 - rectangle.float().mean(dim=(1, 2))
    return torch.where(rectangle[:, None], others, images), kept


def mixed_labels(labels: Tensor, others: Tensor, kept: Tensor, num_classes: int) -> Tensor:
    """Return the classes' shares of each image, (B, num_classes), from two labels and the share of the first, (B,)."""
    shares = torch.zeros(len(labels), num_classes, dtype=kept.dtype)
    shares.scatter_add_(1, labels[:, None], kept[:, None])
    return shares.scatter_add_(1, others[:, None], 1 - kept[:, None])
