"""MNIST's normalisation of a drawn digit in exact integer arithmetic, so that JavaScript gives the same bytes.

The rule, on gray values 0–255 (// is division rounded down; all values are integers):

1. shrink    An image whose longer side exceeds 224 is shrunk to 224 by area averaging, which removes paper grain.
2. polarity  The border is the outermost max(1, min(H, W) // 16) pixels all round; `background` is its lower median,
             sorted[(n - 1) // 2]. If the darkest pixel is farther from it than the lightest, the strokes are dark, and
             every value v becomes 255 - v, the background's too.
3. ready     A 28×28 image whose background is now at most 16 is MNIST-like already: done.
4. ink       contrast = lightest - background; below 32 the image is blank. spread is element 95·(n - 1) // 100 of
             the border's sorted distances from the background. A value at or below
             background + min(contrast // 2, max(16, 2·spread)) is 0; any other is
             min(255, (255·(v - background) + contrast // 2) // contrast).
5. scale     The bounding box of the ink, h×w, is area averaged so that its longer side m becomes 20: each side s
             becomes max(1, (40·s + m) // (2·m)). Then every value v becomes (255·v + top // 2) // top, top the largest.
6. centre    In 28×28 zeros, the digit's first row is ceil((27·M - 2·Y) / (2·M)), M the sum of its values and Y that
             of row index × value, clamped to 0 … 28 - height; columns likewise. (It leaves each of MNIST's 10,000 test
             images where it was, to the pixel: tests/data/test_digit_normalisation.py.)

Area averaging h×w → H×W: output pixel (i, j) averages the source rectangle of rows [i·h/H, (i+1)·h/H) and columns
[j·w/W, (j+1)·w/W), source pixels counted by the area covered; in units of 1/(H·W) pixels all areas are integers, and
the weighted sum S gives (2·S + h·w) // (2·h·w).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SIDE, DIGIT_SIDE, MAX_SIDE = 28, 20, 224
MIN_CONTRAST, MIN_INK = 32, 16


@dataclass(frozen=True)
class NormalisedDigit:
    """The steps of the rule, as uint8 arrays (H, W)."""

    inverted: bool
    ready: bool  # MNIST-like already: ink and scaled are None
    ink: np.ndarray | None
    scaled: np.ndarray | None
    centred: np.ndarray  # (28, 28)


def normalise(gray: np.ndarray) -> NormalisedDigit | None:
    """Apply the rule to a uint8 (H, W) image; return None where it is blank."""
    values = _scale_longer_side(gray, MAX_SIDE) if max(gray.shape) > MAX_SIDE else gray
    border = _border(values)
    background = int(border[(len(border) - 1) // 2])
    inverted = background - int(values.min()) > int(values.max()) - background
    if inverted:
        values, border, background = 255 - values, 255 - border, 255 - background
    contrast = int(values.max()) - background
    if contrast < MIN_CONTRAST:
        return None
    if values.shape == (SIDE, SIDE) and background <= MIN_INK:
        return NormalisedDigit(inverted, ready=True, ink=None, scaled=None, centred=values.copy())
    distances = np.sort(np.abs(border.astype(np.int16) - background))
    spread = int(distances[95 * (len(distances) - 1) // 100])
    floor = background + min(contrast // 2, max(MIN_INK, 2 * spread))
    levels = np.arange(256)  # the ink of each value
    levels = np.where(levels > floor, (255 * (levels - background) + contrast // 2) // contrast, 0)
    ink = np.minimum(255, levels).astype(np.uint8)[values]
    scaled = scale_to_fit(ink)
    return NormalisedDigit(inverted, ready=False, ink=ink, scaled=scaled, centred=centre(scaled))


def scale_to_fit(ink: np.ndarray) -> np.ndarray:
    """Return the ink's bounding box, its longer side scaled to 20 and its lightest value to 255."""
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    cropped = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    scaled = _scale_longer_side(cropped, DIGIT_SIDE).astype(np.int64)
    top = max(1, int(scaled.max()))
    return ((255 * scaled + top // 2) // top).astype(np.uint8)


def centre(digit: np.ndarray) -> np.ndarray:
    """Return 28×28 zeros with the whole digit inside, its centre of mass as near the middle as that allows."""
    mass = digit.astype(np.int64)
    top, left = _first(mass.sum(axis=1)), _first(mass.sum(axis=0))
    canvas = np.zeros((SIDE, SIDE), np.uint8)
    canvas[top : top + digit.shape[0], left : left + digit.shape[1]] = digit
    return canvas


def area_average(values: np.ndarray, height: int, width: int) -> np.ndarray:
    area = values.shape[0] * values.shape[1]
    exact = np.int32 if 255 * area < 2**31 else np.int64  # the largest sum is 255·area
    by_column = np.ascontiguousarray(_sum_rows(values, height, exact).T)
    total = _sum_rows(by_column, width, exact).T.astype(np.int64)
    return ((2 * total + area) // (2 * area)).astype(np.uint8)


def _sum_rows(values: np.ndarray, target: int, dtype: type[np.signedinteger]) -> np.ndarray:
    """Return weighted sums of rows (target, W): of each row, as many 1/target as the output row covers.

    Time and memory are proportional to the image's, and no product of matrices wakes the threads of a BLAS.
    """
    source = values.shape[0]
    edges = np.arange(target + 1)[:, None] * source  # of the output rows, in 1/target of a row
    starts, ends = edges[:-1], edges[1:]
    first, last = starts // target, (ends - 1) // target  # the rows that each output row covers
    rows = first + np.arange((last - first).max() + 1)  # (target, most rows covered)
    weights = np.maximum(np.minimum(ends, (rows + 1) * target) - np.maximum(starts, rows * target), 0).astype(dtype)
    total = np.zeros((target, values.shape[1]), dtype)
    for column in range(rows.shape[1]):
        covered = values.take(rows[:, column], axis=0, mode="clip")  # clipped: beyond the last row, where weights are 0
        total += weights[:, column, None] * covered
    return total


def _scale_longer_side(values: np.ndarray, target: int) -> np.ndarray:
    longer = max(values.shape)
    height, width = (max(1, (2 * target * side + longer) // (2 * longer)) for side in values.shape)
    return area_average(values, height, width)


def _first(sums: np.ndarray) -> int:
    """Return where the digit's first row (or column) goes, from the sums of its rows (or columns)."""
    mass, moment = int(sums.sum()), int((np.arange(len(sums)) * sums).sum())
    return min(max(-((2 * moment - (SIDE - 1) * mass) // (2 * mass)), 0), SIDE - len(sums))


def _border(values: np.ndarray) -> np.ndarray:
    """Return the sorted values of the border."""
    edge = max(1, min(values.shape) // 16)
    inside = np.zeros(values.shape, bool)
    inside[edge:-edge, edge:-edge] = True
    return np.sort(values[~inside])
