"""Images with their patches in another order: what the study `order` trains on.

The permutation is a function of `split_seed` and, where each image has its own, of the image's place in its split.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import torch

from vitreous.config import DataConfig
from vitreous.data.splitmix import splitmix64
from vitreous.data.splits import Split
from vitreous.errors import ConfigError
from vitreous.reports.formats import by

_CHUNK = 4096  # images that are rearranged at a time


def shuffle_patches(split: Split, config: DataConfig, part: int) -> Split:
    """Return a copy of the split with every image's patches in another order; the digests stay the source's.

    `part` tells the three splits apart, so that an image of the test split shares no permutation with one of the
    training split by its place.
    """
    channels, height, width = split.image_shape
    ph, pw = config.shuffle_patch_size
    if height % ph or width % pw:
        raise ConfigError(
            f"data.shuffle_patch_size={by(ph, pw)} does not divide the images of {by(height, width)} pixels: choose a"
            " size that does"
        )
    rows, columns = height // ph, width // pw
    shuffled = torch.empty((len(split), channels, height, width), dtype=torch.uint8)
    for start in range(0, len(split), _CHUNK):
        images = split.batch(slice(start, start + _CHUNK))
        order = torch.from_numpy(_orders(config, part, start, len(images), rows * columns))  # (B, patches)
        patches = images.reshape(len(images), channels, rows, ph, columns, pw).permute(0, 2, 4, 1, 3, 5).flatten(1, 2)
        patches = patches[torch.arange(len(images))[:, None], order].unflatten(1, (rows, columns))
        whole = patches.permute(0, 3, 1, 4, 2, 5).reshape(images.shape)
        shuffled[start : start + _CHUNK] = whole
    return dataclasses.replace(
        split, store=shuffled, rows=None, store_names=split.paths, store_digests=split.digests, store_sums=None,
        view=None, block=None,
    )  # fmt: skip


def _orders(config: DataConfig, part: int, start: int, count: int, patches: int) -> np.ndarray:
    """Return for each of `count` images which patch goes to each place, (count, patches)."""
    key = splitmix64([config.split_seed & 0xFFFFFFFFFFFFFFFF], 1)
    if config.shuffle_patches == "fixed":
        images = np.broadcast_to(key, (count,))
    else:
        images = splitmix64(splitmix64(key, 2 + part), np.arange(start + 1, start + count + 1))
    return np.argsort(splitmix64(images[:, None], np.arange(1, patches + 1)), axis=1)
