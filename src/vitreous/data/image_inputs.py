"""Images as Python code has them, for `vitreous.predict`: paths, folders, arrays, tensors, batches and lists of these.

Shapes: n images, C channels (1 or 3), H, W: height and width.
"""

from __future__ import annotations

import os
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image

from vitreous.data.images import SUFFIXES
from vitreous.data.preprocessing import ImageLike
from vitreous.errors import DataError, quoted

_CHANNELS = (1, 3)
_SHAPES = "expected (H, W), (H, W, C), (C, H, W), (n, H, W), (n, H, W, C) or (n, C, H, W), with C of 1 or 3"


def as_images(images: Any, channels: int) -> list[ImageLike]:
    """Return single images, in their order, for a model of so many `channels`.

    Pixels are uint8, or floats from 0 to 1. An array (3, H, W) is one colour image for a model that takes colours, and
    three gray ones for a model that does not.
    """
    if isinstance(images, bytes | Image.Image):
        return [images]
    if isinstance(images, str | os.PathLike):
        path = Path(images)
        return [*_files_in(path)] if os.path.isdir(path) else [path]
    if hasattr(images, "detach"):  # a tensor, on any device
        return _split_array(images.detach().cpu().numpy(), channels, channels_first=True)
    if hasattr(images, "__array__") and np.ndim(images) > 0 and np.asarray(images).dtype.kind in "uifb":
        return _split_array(np.asarray(images), channels, channels_first=False)
    if isinstance(images, Iterable):
        return [one for entry in images for one in as_images(entry, channels)]
    raise DataError(
        f"{quoted(images)} is no image; expected a path, a folder, a Pillow image, an array, a tensor, or several of"
        " these"
    )


def _files_in(folder: Path) -> list[Path]:
    files = sorted(
        Path(parent, name)
        for parent, _, names in os.walk(folder)
        for name in names
        if name.lower().endswith(SUFFIXES) and not name.startswith(".")
    )
    if not files:
        raise DataError(f"the folder {quoted(str(folder))} has no images; expected files of {', '.join(SUFFIXES)}")
    return files


def _split_array(pixels: np.ndarray, channels: int, channels_first: bool) -> list[ImageLike]:
    """Return the uint8 images (H, W) or (H, W, C) of an array; `channels_first` tells where either axis could be C."""
    if not pixels.size:
        if pixels.ndim in (3, 4) and not len(pixels):
            return []
        raise DataError(f"an image array of shape {pixels.shape} is empty; {_SHAPES}")
    if pixels.ndim == 2:
        return [_as_bytes(pixels)]
    first, last = pixels.shape[pixels.ndim - 3] in _CHANNELS, pixels.shape[-1] in _CHANNELS
    if pixels.ndim == 3:
        is_image = first and (pixels.shape[0] == 1 or channels == 3)
        if last and not (is_image and channels_first):
            return [_as_bytes(pixels)]
        return [_as_bytes(pixels.transpose(1, 2, 0))] if is_image else [*_as_bytes(pixels)]
    if pixels.ndim == 4 and (first or last):
        is_first = first and (channels_first or not last)
        return [*_as_bytes(pixels.transpose(0, 2, 3, 1) if is_first else pixels)]
    raise DataError(f"an image array of shape {pixels.shape}; {_SHAPES}")


def _as_bytes(pixels: np.ndarray) -> np.ndarray:
    if pixels.dtype == np.uint8:
        return np.ascontiguousarray(pixels)
    low, high = pixels.min(), pixels.max()
    if pixels.dtype.kind in "fb" and low >= 0 and high <= 1:
        return np.ascontiguousarray(np.rint(pixels.astype(np.float64) * 255).astype(np.uint8))
    if pixels.dtype.kind in "ui" and low >= 0 and high <= 255:
        return np.ascontiguousarray(pixels.astype(np.uint8))
    raise DataError(
        f"pixels of type {pixels.dtype} from {low:.4g} to {high:.4g}; expected whole numbers from 0 to 255 or floats"
        " from 0 to 1, not normalised: the run's own normalisation follows"
    )
