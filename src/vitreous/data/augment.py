"""Batched augmentation on tensors, keyed by seed, epoch and image: no per-image Python, no dependence on rank or batch.

Shapes: B images, C channels. Images are floats in [0, 1]; what comes in from outside the picture is 0.
"""

from __future__ import annotations

import math

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.config import AugmentConfig

_ELASTIC_GRID = 4  # control points a side; their displacements are interpolated smoothly in between
_ELASTIC_POINTS = 2 * _ELASTIC_GRID**2


def _mix(x: np.ndarray) -> np.ndarray:
    """splitmix64's finaliser: turns counters into well-mixed 64-bit words."""
    x = (x ^ (x >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    x = (x ^ (x >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return x ^ (x >> np.uint64(31))


def uniforms(seed: int, epoch: int, indices: Tensor, count: int) -> Tensor:
    """`count` numbers in [0, 1) for each image, a pure function of (seed, epoch, the image's index): (B, count)."""
    step = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        key = _mix(_mix(np.array([seed], dtype=np.uint64) + step) + np.uint64(epoch))
        rows = _mix(key + indices.numpy().astype(np.uint64) * step)[:, None]
        words = _mix(rows + np.arange(1, count + 1, dtype=np.uint64) * step)
    return torch.from_numpy((words >> np.uint64(40)).astype(np.float32) * np.float32(2**-24))  # 24 bits fill a float


def augment(images: Tensor, indices: Tensor, config: AugmentConfig, seed: int, epoch: int) -> Tensor:
    """(B, C, height, width) → the same shape, each image changed by its own random amounts."""
    geometric = config.shift or config.rotate or config.scale or config.shear or config.elastic or config.flip
    if not geometric and not config.erase:
        return images
    random = uniforms(seed, epoch, indices, 9 + (_ELASTIC_POINTS if config.elastic else 0))
    if geometric:
        grid = F.affine_grid(
            _inverse_affine(random, config, images.shape[-2:]), list(images.shape), align_corners=False
        )
        if config.elastic:
            grid = grid + _elastic(random[:, 9:], config.elastic, images.shape[-2:])
        images = F.grid_sample(images, grid.to(images.dtype), padding_mode="zeros", align_corners=False)
    return _erase(images, random[:, 6:9], config.erase) if config.erase else images


def _inverse_affine(random: Tensor, config: AugmentConfig, size: torch.Size) -> Tensor:
    """For each output pixel, where to read: rotation · shear · scale (· flip), then the shift; (B, 2, 3)."""
    height, width = size
    signed = random[:, :6] * 2 - 1
    angle = signed[:, 0] * math.radians(config.rotate)
    shear = torch.tan(signed[:, 1] * math.radians(config.shear))
    zoom = (signed[:, 2] * math.log1p(config.scale)).exp()  # as likely to grow as to shrink
    mirror = torch.where(random[:, 5] < 0.5, -1.0, 1.0) if config.flip else torch.ones_like(angle)
    cos, sin = angle.cos() * zoom, angle.sin() * zoom
    # coordinates run from -1 to 1 whatever the side, so an angle on a non-square image needs the aspect ratio
    aspect = height / width
    theta = torch.zeros(len(random), 2, 3)
    theta[:, 0, 0] = cos * mirror
    theta[:, 0, 1] = (cos * shear - sin) * aspect
    theta[:, 1, 0] = sin / aspect * mirror
    theta[:, 1, 1] = sin * shear + cos
    pixels = signed[:, 3:5] * config.shift
    if config.shift >= 1 and not (config.rotate or config.scale or config.shear or config.elastic):
        most = math.floor(config.shift)  # whole pixels: reading between them blurs, and the images to judge are sharp
        pixels = (random[:, 3:5] * (2 * most + 1)).floor() - most
    theta[:, 0, 2] = pixels[:, 0] * 2 / width
    theta[:, 1, 2] = pixels[:, 1] * 2 / height
    return theta


def _elastic(random: Tensor, amount: float, size: torch.Size) -> Tensor:
    """A smooth random displacement of up to `amount` pixels, in affine_grid's coordinates: (B, height, width, 2)."""
    coarse = (random * 2 - 1).view(-1, 2, _ELASTIC_GRID, _ELASTIC_GRID)
    field = F.interpolate(coarse, size=tuple(size), mode="bicubic", align_corners=True)
    in_units = torch.tensor([2 * amount / size[1], 2 * amount / size[0]])
    return field.permute(0, 2, 3, 1) * in_units


def _erase(images: Tensor, random: Tensor, share: float) -> Tensor:
    """Blank a square in half of the images, anywhere (it may hang over the edge)."""
    height, width = images.shape[-2:]
    half = share * min(height, width) / 2
    rows = (torch.arange(height)[None] - random[:, 0:1] * (height - 1)).abs() <= half  # (B, height)
    columns = (torch.arange(width)[None] - random[:, 1:2] * (width - 1)).abs() <= half
    hit = rows[:, None, :, None] & columns[:, None, None, :] & (random[:, 2] < 0.5)[:, None, None, None]
    return images.masked_fill(hit, 0.0)
