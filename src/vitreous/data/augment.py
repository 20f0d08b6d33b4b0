"""Batched augmentation, keyed by seed, epoch and image index, so that it does not depend on the batch or the rank.

Shapes: B images, C channels. Images are floats in [0, 1]; pixels from outside the image are 0.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Sequence

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import AugmentConfig
from vitreous.data.splitmix import splitmix64

_ELASTIC_GRID = 4  # control points per side; displacements between them are interpolated
_ELASTIC_POINTS = 2 * _ELASTIC_GRID**2
_FIRST_OF_CROPS = 9 + _ELASTIC_POINTS  # of an image's random numbers
FIRST_UNUSED = _FIRST_OF_CROPS + 4
_WIDEST = 4 / 3  # aspect ratio of a crop
_MOST_IMAGES_AT_ONCE = 2**18  # whose numbers of an epoch are kept: 60 bytes per image, 190 with elastic distortion


def uniforms(seed: int, epoch: int, indices: Tensor, count: int, first: int = 0) -> Tensor:
    """Return `count` numbers in [0, 1) per image, a pure function of (seed, epoch, image index): (B, count).

    `first` of them are left out at the beginning.
    """
    epoch_key = splitmix64(splitmix64([seed], 1) + np.uint64(epoch), 0)
    image_keys = splitmix64(epoch_key, indices.numpy())[:, None]
    words = splitmix64(image_keys, np.arange(first + 1, first + count + 1))
    return torch.from_numpy((words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))  # 24 bits fill a float


def augment(
    images: Tensor,
    indices: Tensor,
    config: AugmentConfig,
    seed: int,
    epoch: int,
    size: tuple[int, int] | None = None,
    num_images: int | None = None,
) -> Tensor:
    """Transform each of the (B, C, height, width) images by random amounts of its own.

    Crops come first, and have the given size; without it, that of the images. With the number of all images, the
    amounts of an epoch are computed at once: some sixty operations less per batch, which take as long as those of a
    small model (docs/log.md).
    """
    if config.crop:
        random = uniforms(seed, epoch, indices, 4, first=_FIRST_OF_CROPS)
        images = crop_and_resize(images, _crops(random, config.crop, images.shape[-2:]), size or images.shape[-2:])
    geometric = config.shift or config.rotate or config.scale or config.shear or config.elastic or config.flip
    if not geometric and not config.erase:
        return images
    if num_images is None or num_images > _MOST_IMAGES_AT_ONCE:
        theta, random = _amounts(config, seed, epoch, indices, images.shape[-2:])
    else:
        tables = _amounts_of_epoch(config, seed, epoch, num_images, images.shape[-2:])
        theta, random = (table[indices] for table in tables)
    if geometric:
        grid = F.affine_grid(theta, list(images.shape), align_corners=False)
        if config.elastic:
            grid = grid + _elastic(random[:, 9:], config.elastic, images.shape[-2:])
        images = F.grid_sample(images, grid.to(images.dtype), padding_mode="zeros", align_corners=False)
    return _erase(images, random[:, 6:9], config.erase) if config.erase else images


def _amounts(config: AugmentConfig, seed: int, epoch: int, indices: Tensor, size: torch.Size) -> tuple[Tensor, Tensor]:
    """Return the affine map of each image, (B, 2, 3), and all of its random numbers, (B, 9 or more)."""
    random = uniforms(seed, epoch, indices, 9 + (_ELASTIC_POINTS if config.elastic else 0))
    mirrored = _is_mirrored(seed, epoch, indices) if config.flip else torch.zeros(len(indices), dtype=torch.bool)
    return _inverse_affine(random, mirrored, config, size), random


@functools.lru_cache(maxsize=2)
def _amounts_of_epoch(
    config: AugmentConfig, seed: int, epoch: int, num_images: int, size: torch.Size
) -> tuple[Tensor, Tensor]:
    return _amounts(config, seed, epoch, torch.arange(num_images), size)


def _crops(random: Tensor, smallest: float, size: torch.Size) -> Tensor:
    """Return top, left, height and width in pixels of a crop of each image, (B, 4).

    The share of the area is uniform from `smallest` to 1, the logarithm of the aspect ratio from 3:4 to 4:3, and the
    place uniform, as in torchvision's RandomResizedCrop; a side that is too long is as long as the image.
    """
    height, width = size
    area = (smallest + (1 - smallest) * random[:, 0]) * height * width
    stretch = ((random[:, 1] - 0.5) * math.log(_WIDEST)).exp()  # the root of the aspect ratio
    sides = torch.stack([(area.sqrt() / stretch).clamp(max=height), (area.sqrt() * stretch).clamp(max=width)], dim=1)
    return torch.cat([random[:, 2:] * (torch.tensor([height, width]) - sides), sides], dim=1)


def crop_and_resize(images: Tensor, crops: Tensor, size: Sequence[int]) -> Tensor:
    """Resize the crops (B, 4) of (B, C, height, width) to `size`: bilinear with antialiasing, as `fitting.py` has it.

    Each axis is one batched matrix product. So crops of all sizes are resized at once, unlike with F.interpolate, and
    shrinking averages, unlike with F.grid_sample.
    """
    rows = _resampling(crops[:, 0], crops[:, 2], images.shape[-2], size[0])  # (B, 1, new height, height)
    columns = _resampling(crops[:, 1], crops[:, 3], images.shape[-1], size[1])
    return rows @ (images @ columns.mT)


def _resampling(start: Tensor, length: Tensor, old: int, new: int) -> Tensor:
    """Return the weights of `old` pixels in each of `new` ones, (B, 1, new, old)."""
    scale = (length / new)[:, None, None]
    centres = start[:, None, None] + (torch.arange(new)[:, None] + 0.5) * scale  # (B, new, 1)
    distances = (torch.arange(old) + 0.5 - centres).abs()
    weights = (1 - distances / scale.clamp(min=1)).clamp(min=0)
    return (weights / weights.sum(dim=-1, keepdim=True))[:, None]


def _is_mirrored(seed: int, epoch: int, indices: Tensor) -> Tensor:
    """Return which images are mirrored, (B,): each in every second epoch, half of them first in this one.

    Drawn anew in each epoch, an image would be seen the same way twice in a row half of the time (Jordan, 2024).
    """
    return (uniforms(seed, 0, indices, 1, first=5)[:, 0] < 0.5) ^ bool(epoch % 2)


def _inverse_affine(random: Tensor, mirrored: Tensor, config: AugmentConfig, size: torch.Size) -> Tensor:
    """Return the map from output to input coordinates, rotation · shear · scale (· flip), then shift: (B, 2, 3)."""
    height, width = size
    signed = random[:, :6] * 2 - 1
    angle = signed[:, 0] * math.radians(config.rotate)
    shear = torch.tan(signed[:, 1] * math.radians(config.shear))
    zoom = (signed[:, 2] * math.log1p(config.scale)).exp()  # as likely to grow as to shrink
    mirror = torch.where(mirrored, -1.0, 1.0)
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    # both axes run from -1 to 1, so a rotation of a non-square image needs the aspect ratio
    aspect = height / width
    theta = torch.zeros(len(random), 2, 3)
    theta[:, 0, 0] = cos * mirror
    theta[:, 0, 1] = (cos * shear - sin) * aspect
    theta[:, 1, 0] = sin / aspect * mirror
    theta[:, 1, 1] = sin * shear + cos
    pixels = signed[:, 3:5] * config.shift
    if config.shift >= 1 and not (config.rotate or config.scale or config.shear or config.elastic):
        # whole pixels: interpolation would blur the training images, and the test images are sharp
        limit = math.floor(config.shift)
        pixels = (random[:, 3:5] * (2 * limit + 1)).floor() - limit
    theta[:, 0, 2] = pixels[:, 0] * 2 / width
    theta[:, 1, 2] = pixels[:, 1] * 2 / height
    return theta


def _elastic(random: Tensor, amount: float, size: torch.Size) -> Tensor:
    """Return smooth displacements of up to `amount` pixels in affine_grid's coordinates: (B, height, width, 2)."""
    coarse = (random * 2 - 1).view(-1, 2, _ELASTIC_GRID, _ELASTIC_GRID)
    field = F.interpolate(coarse, size=tuple(size), mode="bicubic", align_corners=True)
    return field.permute(0, 2, 3, 1) * torch.tensor([2 * amount / size[1], 2 * amount / size[0]])


def _erase(images: Tensor, random: Tensor, share: float) -> Tensor:
    """Set a square in half of the images to 0; it may extend beyond the edge."""
    height, width = images.shape[-2:]
    half = share * min(height, width) / 2
    rows = (torch.arange(height)[None] - random[:, 0:1] * (height - 1)).abs() <= half  # (B, height)
    columns = (torch.arange(width)[None] - random[:, 1:2] * (width - 1)).abs() <= half
    erased = rows[:, None, :, None] & columns[:, None, None, :] & (random[:, 2] < 0.5)[:, None, None, None]
    return images.masked_fill(erased, 0.0)
