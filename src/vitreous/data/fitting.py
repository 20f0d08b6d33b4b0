"""How an image of any size becomes one of the model's size: `stretch`, `crop` or `letterbox`, in exact integers.

Every image goes through here: in training, prediction, the server and (in JavaScript) the page. An image of h×w pixels
becomes H×W; all numbers are integers, and // is division rounded down:

stretch     Resize h×w to H×W, whatever the aspect ratio.
crop        Cut out the largest centred rectangle with the aspect ratio of H×W, then resize that.
            If w·H > h·W (too wide): all rows, and max(1, (2·h·W + H) // (2·H)) columns.
            Otherwise: all columns, and max(1, (2·w·H + W) // (2·W)) rows.
            Of n rows (columns) with m kept, the first that is kept is (n - m) // 2.
letterbox   Resize the whole image to fit inside H×W, its aspect ratio kept, and fill the rest with 0 (black).
            If w·H > h·W: to max(1, (2·h·W + w) // (2·w)) rows of W pixels.
            Otherwise: to H rows of max(1, (2·w·H + h) // (2·h)) pixels.
            The first row of the image is (H - rows) // 2, the first column (W - columns) // 2.

Resizing is bilinear with antialiasing, Pillow's `BILINEAR`: first along the rows, then along the columns, each axis
only where its length changes, each rounded to whole levels. Along an axis from n to m pixels, with
scale = n / m, reach = max(scale, 1) and centre = (i + 0.5)·scale, output pixel i is the weighted mean of the input
pixels k from max(0, ⌊centre - reach + 0.5⌋) up to, not including, min(n, ⌊centre + reach + 0.5⌋). The weight of k is
max(0, 1 - |k + 0.5 - centre| / reach), divided by the sum of the weights, in multiples of 2⁻²² (rounded half up), and
the result is (2²¹ + Σ weight·level) >> 22, clamped to 0 … 255 (tests/data/test_fitting.py does it in NumPy).

Channels are converted after the resizing: colour becomes gray as (19595·R + 38470·G + 7471·B + 2¹⁵) >> 16, gray becomes
colour by repetition.
"""

from __future__ import annotations

from typing import Literal

import numpy as np
from PIL import Image

Fit = Literal["stretch", "crop", "letterbox"]
SAME_ASPECT = 0.02  # a relative difference up to which `stretch` is the default


def fit_image(pixels: np.ndarray, size: tuple[int, int], fit: Fit) -> np.ndarray:
    """Return a uint8 (H, W, C) image, C being 1 or 3, in another size."""
    height, width = pixels.shape[:2]
    if (height, width) == size:
        return pixels
    if fit == "crop":
        rows, columns = cropped_size((height, width), size)
        top, left = (height - rows) // 2, (width - columns) // 2
        return _resize(pixels[top : top + rows, left : left + columns], size)
    if fit == "letterbox":
        rows, columns = inner_size((height, width), size)
        top, left = (size[0] - rows) // 2, (size[1] - columns) // 2
        canvas = np.zeros((*size, pixels.shape[2]), np.uint8)
        canvas[top : top + rows, left : left + columns] = _resize(pixels, (rows, columns))
        return canvas
    return _resize(pixels, size)


def cropped_size(extent: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns that `crop` keeps of an image of this extent."""
    (h, w), (H, W) = extent, size
    if w * H > h * W:
        return h, max(1, (2 * h * W + H) // (2 * H))
    return max(1, (2 * w * H + W) // (2 * W)), w


def inner_size(extent: tuple[int, int], size: tuple[int, int]) -> tuple[int, int]:
    """Return the rows and columns that `letterbox` gives an image of this extent."""
    (h, w), (H, W) = extent, size
    if w * H > h * W:
        return max(1, (2 * h * W + w) // (2 * w)), W
    return H, max(1, (2 * w * H + h) // (2 * h))


def has_aspect_of(extents: np.ndarray, size: tuple[int, int]) -> bool:
    """Return whether all images of these extents, (n, 2), have the aspect ratio of `size`, within 2 %."""
    height, width = extents.astype(np.float64).T
    return bool((np.abs(width * size[0] / (height * size[1]) - 1) <= SAME_ASPECT).all())


def _resize(pixels: np.ndarray, size: tuple[int, int]) -> np.ndarray:
    if pixels.shape[:2] == size:
        return pixels
    image = Image.fromarray(np.ascontiguousarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels))
    # one axis at a time: in one call, versions of Pillow differ in which comes first
    for shape in ((size[1], pixels.shape[0]), (size[1], size[0])):
        image = image.resize(shape, Image.Resampling.BILINEAR)
    return np.asarray(image).reshape(*size, pixels.shape[2])


def to_channels(pixels: np.ndarray, channels: int) -> np.ndarray:
    """Convert uint8 (H, W, C) with C of 1 or 3 to (H, W, channels): to gray by luma, to colour by repetition."""
    if pixels.shape[2] == channels:
        return pixels
    return np.repeat(pixels, 3, axis=2) if channels == 3 else luma(pixels)[:, :, None]


def luma(pixels: np.ndarray) -> np.ndarray:
    """Return the gray (H, W) of an RGB (H, W, 3) uint8 image: ITU-R 601 in integers, as in Pillow and JavaScript."""
    return np.array(Image.fromarray(np.ascontiguousarray(pixels)).convert("L"))
