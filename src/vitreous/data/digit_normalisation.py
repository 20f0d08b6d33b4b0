"""MNIST's own normalisation of a drawn digit, as exact integer arithmetic: any language gets the same bytes.

The rule, on gray values 0–255 (// is division rounded down; all values are integers):

1. shrink    A picture whose longer side exceeds 224 is shrunk to 224 by area averaging (paper grain averages out).
2. polarity  The border is the outermost max(1, min(H, W) // 16) pixels all round; `background` is its lower median,
             sorted[(n - 1) // 2]. If the darkest pixel is farther from it than the lightest, the strokes are dark, and
             every value v becomes 255 - v, the background's too.
3. ready     A 28×28 picture whose background is now at most 16 is MNIST-like already: done.
4. ink       contrast = lightest - background; below 32 the picture is blank. spread is element 95·(n - 1) // 100 of
             the border's sorted distances from the background. A value at or below
             background + min(contrast // 2, max(16, 2·spread)) is 0; any other is
             min(255, (255·(v - background) + contrast // 2) // contrast).
5. scale     The bounding box of the ink, h×w, is area averaged so that its longer side m becomes 20: each side s
             becomes max(1, (40·s + m) // (2·m)). Then every value v becomes (255·v + top // 2) // top, top the largest.
6. centre    In 28×28 zeros, the box's first row is ceil((27·M - 2·Y) / (2·M)), M the sum of its values and Y that of
             row index × value, held within 0 … 28 - height; columns likewise. (This puts every one of MNIST's 10,000
             test images where it was, to the pixel: tests/data/test_strokes.py.)

Area averaging h×w → H×W: output pixel (i, j) averages the source rectangle of rows [i·h/H, (i+1)·h/H) and columns
[j·w/W, (j+1)·w/W), source pixels counted by the area covered; in units of 1/(H·W) pixels all areas are integers, and
the weighted sum S gives (2·S + h·w) // (2·h·w).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

SIDE, BUNDLED, LONGEST = 28, 20, 224
LEAST_CONTRAST, LEAST_INK = 32, 16


@dataclass(frozen=True)
class Strokes:
    """Each step of the rule, for display; uint8 arrays (H, W)."""

    inverted: bool
    ready: bool  # taken as it was: 28×28, light on dark
    light_on_dark: np.ndarray
    ink: np.ndarray | None  # the next three: None where the picture was ready
    scaled: np.ndarray | None
    centred: np.ndarray  # (28, 28)


def normalise(gray: np.ndarray) -> Strokes | None:
    """The rule above on a uint8 (H, W) picture; None where it is blank."""
    values = shrink(gray).astype(np.int64)
    border = _border(values)
    background = int(border[(len(border) - 1) // 2])
    inverted = background - int(values.min()) > int(values.max()) - background
    if inverted:
        values, border, background = 255 - values, 255 - border, 255 - background
    contrast = int(values.max()) - background
    if contrast < LEAST_CONTRAST:
        return None
    light = values.astype(np.uint8)
    if values.shape == (SIDE, SIDE) and background <= LEAST_INK:
        return Strokes(inverted, True, light, None, None, light)
    distances = np.sort(np.abs(border - background))
    spread = int(distances[95 * (len(distances) - 1) // 100])
    floor = background + min(contrast // 2, max(LEAST_INK, 2 * spread))
    levels = np.minimum(255, (255 * (values - background) + contrast // 2) // contrast)
    ink = np.where(values > floor, levels, 0).astype(np.uint8)
    scaled = fit_box(ink)
    return Strokes(inverted, False, light, ink, scaled, centre(scaled))


def shrink(gray: np.ndarray, longest: int = LONGEST) -> np.ndarray:
    if max(gray.shape) <= longest:
        return gray
    height, width = (_scaled_side(side, max(gray.shape), longest) for side in gray.shape)
    return area_average(gray, height, width)


def fit_box(ink: np.ndarray) -> np.ndarray:
    """The ink's bounding box, its longer side scaled to 20, its lightest value to 255."""
    rows, columns = np.flatnonzero(ink.any(axis=1)), np.flatnonzero(ink.any(axis=0))
    box = ink[rows[0] : rows[-1] + 1, columns[0] : columns[-1] + 1]
    height, width = (_scaled_side(side, max(box.shape), BUNDLED) for side in box.shape)
    scaled = area_average(box, height, width).astype(np.int64)
    top = max(1, int(scaled.max()))
    return ((255 * scaled + top // 2) // top).astype(np.uint8)


def centre(box: np.ndarray) -> np.ndarray:
    """The box in 28×28 zeros, its centre of mass in the middle, nothing cut off."""
    mass = box.astype(np.int64)
    top, left = _first(mass.sum(axis=1)), _first(mass.sum(axis=0))
    canvas = np.zeros((SIDE, SIDE), np.uint8)
    canvas[top : top + box.shape[0], left : left + box.shape[1]] = box
    return canvas


def area_average(values: np.ndarray, height: int, width: int) -> np.ndarray:
    rows, columns = _overlaps(values.shape[0], height), _overlaps(values.shape[1], width)
    total = rows @ values.astype(np.float64) @ columns.T  # integers below 2⁵³: exact in float64, and fast
    area = values.shape[0] * values.shape[1]
    return ((2 * total.astype(np.int64) + area) // (2 * area)).astype(np.uint8)


def _overlaps(source: int, target: int) -> np.ndarray:
    """(target, source): how much of each source pixel an output pixel covers, in 1/target of a pixel."""
    starts, pixels = np.arange(target)[:, None] * source, np.arange(source)[None, :] * target
    overlap = np.minimum(starts + source, pixels + target) - np.maximum(starts, pixels)
    return np.maximum(overlap, 0).astype(np.float64)


def _scaled_side(side: int, longer: int, target: int) -> int:
    return max(1, (2 * target * side + longer) // (2 * longer))


def _first(sums: np.ndarray) -> int:
    """Where the box's first row (or column) goes, by the sums of its rows (or columns)."""
    mass, moment = int(sums.sum()), int((np.arange(len(sums)) * sums).sum())
    return min(max(-((2 * moment - (SIDE - 1) * mass) // (2 * mass)), 0), SIDE - len(sums))


def _border(values: np.ndarray) -> np.ndarray:
    """The border's values, sorted."""
    edge = max(1, min(values.shape) // 16)
    inside = np.zeros(values.shape, bool)
    inside[edge:-edge, edge:-edge] = True
    return np.sort(values[~inside])
