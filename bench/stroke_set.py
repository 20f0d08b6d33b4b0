"""Digits as people draw them, as strokes: several shapes of each, in several sizes, widths and slants.

MNIST's digits are American: a 1 is a bare stroke and few sevens have a bar. Elsewhere a 1 has a flag and often a foot,
a 7 a bar, a 4 is open, a 9 has a straight stem. Each shape is written down here once, in a unit square (x to the right,
y down) as lines and arcs, and varied by a seeded generator. Used by bench/handwriting.py.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterator
from dataclasses import dataclass

import numpy as np

SHEET = 224  # raster.js
MARGIN = 8
Point = tuple[float, float]
Stroke = list[Point]


def line(*points: Point) -> Stroke:
    """Return points along straight lines, close enough to stay straight when the page smooths them."""
    found = [points[0]]
    for (x0, y0), (x1, y1) in itertools.pairwise(points):
        steps = max(2, round(math.hypot(x1 - x0, y1 - y0) * 12))
        found += [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(1, steps + 1)]
    return found


def arc(x: float, y: float, rx: float, ry: float, start: float, end: float) -> Stroke:
    """Return points of an ellipse's arc; angles in degrees, clockwise from the right as y points down."""
    steps = max(4, round(abs(end - start) / 15))
    angles = [math.radians(start + (end - start) * i / steps) for i in range(steps + 1)]
    return [(x + rx * math.cos(angle), y + ry * math.sin(angle)) for angle in angles]


#: digit → name of the shape → strokes
SHAPES: dict[int, dict[str, list[Stroke]]] = {
    0: {
        "round": [arc(0.5, 0.5, 0.4, 0.5, -90, 270)],
        "narrow": [arc(0.5, 0.5, 0.25, 0.5, -90, 270)],
        "open at the top": [arc(0.5, 0.5, 0.36, 0.5, -70, 255)],
    },
    1: {
        "bare": [line((0.5, 0), (0.5, 1))],
        "short flag": [line((0.32, 0.22), (0.52, 0), (0.52, 1))],
        "long flag": [line((0.15, 0.42), (0.55, 0), (0.55, 1))],
        "flag and foot": [line((0.25, 0.25), (0.52, 0), (0.52, 1)), line((0.22, 1), (0.82, 1))],
        "long flag and foot": [line((0.1, 0.4), (0.52, 0), (0.52, 1)), line((0.2, 1), (0.85, 1))],
    },
    2: {
        "angular": [arc(0.48, 0.28, 0.36, 0.28, -165, 20) + line((0.8, 0.4), (0.1, 1), (0.9, 1))],
        "with a loop": [
            arc(0.48, 0.28, 0.36, 0.28, -165, 30)
            + arc(0.3, 0.87, 0.15, 0.1, -20, -340)
            + arc(0.7, 0.85, 0.3, 0.13, 150, 40)
        ],
    },
    3: {
        "round": [arc(0.42, 0.25, 0.36, 0.25, -150, 95) + arc(0.42, 0.74, 0.42, 0.26, -90, 150)],
        "flat top": [line((0.12, 0), (0.8, 0), (0.42, 0.4)) + arc(0.42, 0.7, 0.4, 0.3, -85, 150)],
    },
    4: {
        "open": [line((0.2, 0), (0.12, 0.58), (0.88, 0.58)), line((0.68, 0.1), (0.68, 1))],
        "closed": [line((0.62, 1), (0.62, 0), (0.08, 0.66), (0.92, 0.66))],
        "like a lightning": [line((0.5, 0), (0.12, 0.62), (0.9, 0.62)), line((0.6, 0.35), (0.5, 1))],
    },
    5: {
        "two strokes": [
            line((0.2, 0), (0.17, 0.42)) + arc(0.42, 0.68, 0.4, 0.31, -120, 140),
            line((0.2, 0), (0.85, 0)),
        ],
        "one stroke": [line((0.85, 0), (0.22, 0), (0.17, 0.42)) + arc(0.42, 0.68, 0.4, 0.31, -120, 140)],
    },
    6: {
        "curved": [arc(0.75, 0.65, 0.62, 0.65, -95, -180) + arc(0.48, 0.7, 0.35, 0.29, 180, -175)],
        "straight": [line((0.62, 0), (0.18, 0.6)) + arc(0.48, 0.7, 0.33, 0.29, 195, -160)],
    },
    7: {
        "plain": [line((0.1, 0), (0.88, 0), (0.35, 1))],
        "with a bar": [line((0.1, 0), (0.88, 0), (0.4, 1)), line((0.3, 0.5), (0.85, 0.5))],
        "with a serif": [line((0.1, 0.14), (0.1, 0), (0.88, 0), (0.38, 1))],
        "serif and bar": [line((0.08, 0.15), (0.08, 0.01), (0.9, 0.01), (0.42, 1)), line((0.28, 0.52), (0.88, 0.52))],
    },
    8: {
        "two circles": [arc(0.5, 0.24, 0.3, 0.24, 90, 450), arc(0.5, 0.74, 0.38, 0.26, -90, 270)],
        "one stroke": [
            arc(0.5, 0.25, 0.3, 0.25, -30, -270)
            + arc(0.5, 0.75, 0.36, 0.25, -90, 270)
            + arc(0.5, 0.25, 0.3, 0.25, 90, -30)
        ],
    },
    9: {
        "straight stem": [arc(0.45, 0.28, 0.33, 0.28, 0, -360), line((0.78, 0.1), (0.78, 1))],
        "curved stem": [
            arc(0.45, 0.28, 0.35, 0.28, 0, -360) + line((0.8, 0.3), (0.8, 0.62)) + arc(0.4, 0.64, 0.4, 0.34, 0, 130)
        ],
        "slanted stem": [arc(0.45, 0.28, 0.33, 0.28, 0, -360) + line((0.78, 0.25), (0.5, 1))],
    },
}  # fmt: skip

SIZES = {"small": 42.0, "medium": 100.0, "large": 190.0}  # the height, of 224
WIDTHS = {"narrow": 0.38, "usual": 0.68, "wide": 0.95}  # of the height
SLANTS = (-0.12, 0.0, 0.25)  # to the right at the top, of the height


@dataclass(frozen=True)
class Drawing:
    digit: int
    shape: str
    size: str
    width: str
    strokes: list[list[list[int]]]  # x, y on the sheet, as the page's pointer gives them


def drawings(seed: int = 0) -> Iterator[Drawing]:
    """Yield every shape in every size, width and slant, with an unsteady hand and somewhere on the sheet."""
    rng = np.random.default_rng(seed)
    for digit, shapes in SHAPES.items():
        for name, strokes in shapes.items():
            for size, height in SIZES.items():
                for width, aspect in WIDTHS.items():
                    for slant in SLANTS:
                        drawn = _drawn(strokes, height, height * aspect, slant, rng)
                        yield Drawing(digit, name, size, width, drawn)


def _drawn(
    strokes: list[Stroke], height: float, width: float, slant: float, rng: np.random.Generator
) -> list[list[list[int]]]:
    bend = rng.normal(0, 0.02, (2, 2, 3))  # a slow wave along each axis: hands are unsteady, not noisy
    placed = []
    for stroke in strokes:
        points = np.array(stroke)
        waves = np.stack([np.sin(math.pi * (k + 1) * points) for k in range(3)])  # (3, points, 2)
        moved = points + np.einsum("axk,kpx->pa", bend, waves)
        x = (moved[:, 0] + slant * (0.5 - moved[:, 1])) * width
        placed.append(np.stack([x, moved[:, 1] * height], axis=1))
    every = np.concatenate(placed)
    low, extent = every.min(axis=0), np.ptp(every, axis=0)
    corner = MARGIN + rng.random(2) * np.maximum(SHEET - 2 * MARGIN - extent, 0)
    return [_thinned(np.rint(points - low + corner).clip(0, SHEET).astype(int).tolist()) for points in placed]


def _thinned(points: list[list[int]]) -> list[list[int]]:
    """Leave out points closer than three pixels, as draw.js does."""
    kept = [points[0]]
    for point in points[1:]:
        if math.hypot(point[0] - kept[-1][0], point[1] - kept[-1][1]) >= 3:
            kept.append(point)
    return kept
