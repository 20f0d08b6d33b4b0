"""Cells: the rectangles of the picture that maps are drawn on. A ViT's are its patches; other models get a plain grid.

Shapes: a picture of `height` × `width` pixels, a grid of `rows` × `columns` cells, P = rows · columns, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from vitreous.config import ViTConfig

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Cells:
    """Where each cell lies in the picture; `exact` is False where a token sees more pixels than its cell."""

    image_size: tuple[int, int]
    row_edges: tuple[float, ...]  # rows + 1 of them, in pixels from the top
    column_edges: tuple[float, ...]
    exact: bool = True
    note: str = ""

    @property
    def grid(self) -> tuple[int, int]:
        return len(self.row_edges) - 1, len(self.column_edges) - 1

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def centres(self) -> Array:
        """(P, 2): row and column of each cell's middle, in pixels."""
        rows, columns = (np.asarray(edges) for edges in (self.row_edges, self.column_edges))
        down, across = np.meshgrid((rows[1:] + rows[:-1]) / 2, (columns[1:] + columns[:-1]) / 2, indexing="ij")
        return np.stack([down.ravel(), across.ravel()], axis=1)

    @property
    def of_pixels(self) -> NDArray[np.int64]:
        """(height, width): the cell each pixel's middle lies in."""
        row, column = (
            np.clip(np.searchsorted(edges, np.arange(size) + 0.5, side="right") - 1, 0, len(edges) - 2)
            for edges, size in zip((self.row_edges, self.column_edges), self.image_size, strict=True)
        )
        return row[:, None] * self.grid[1] + column[None, :]

    def masks(self) -> NDArray[np.bool_]:
        """(P, height, width): True where a pixel belongs to the cell."""
        return self.of_pixels[None] == np.arange(self.count)[:, None, None]

    def total(self, pixels: Array) -> Array:
        """Sum a picture (height, width) over each cell: (rows, columns)."""
        sums = np.zeros(self.count)
        np.add.at(sums, self.of_pixels.ravel(), pixels.ravel())
        return sums.reshape(self.grid)


def patch_cells(config: ViTConfig) -> Cells:
    """A ViT's patches in the pixels of its picture.

    Feature f of a stem of k stages of 3×3 convolutions (padding 1) is centred on pixel f · 2ᵏ; without a stem this is
    the plain grid. `fit=pad` cuts the last cells at the picture's edge, `fit=resize` squeezes all of them.
    """
    stride = 2 ** len(config.stem_channels)
    edges = []
    for axis in (0, 1):
        feature, fitted = config.feature_size[axis], config.fitted_size[axis]
        squeeze = feature / fitted if config.fit == "resize" else 1.0
        starts = np.arange(config.grid[axis] + 1) * config.patch_size[axis] * squeeze * stride + 0.5 - stride / 2
        starts = np.clip(starts, 0, config.image_size[axis])
        starts[0], starts[-1] = 0, config.image_size[axis]
        edges.append(tuple(float(start) for start in starts))
    resized = config.fit == "resize" and config.fitted_size != config.feature_size
    padded = config.fit == "pad" and config.fitted_size != config.feature_size
    notes = []
    if config.stem_channels:
        reach = 1 + 2 * sum(2**stage * (1 + 2 * (config.stem_depth - 1)) for stage in range(len(config.stem_channels)))
        notes.append(
            f"Each token sees {reach} × {reach} pixels or more through the convolutional stem, more than its cell: the"
            " cells are approximate."
        )
    if resized:
        notes.append("The picture is stretched before it is cut into patches, so the cells' borders are approximate.")
    if padded:
        notes.append("The last patches hang over the picture's edge; what hangs over is filled with zeros.")
    exact = not (config.stem_channels or resized)
    return Cells(config.image_size, edges[0], edges[1], exact, " ".join(notes))


def plain_cells(image_size: tuple[int, int]) -> Cells:
    """About seven cells a side, for models without patches."""
    edges = []
    for size in image_size:
        dividing = [count for count in range(4, 9) if size % count == 0]
        count = min(dividing, key=lambda count: abs(count - 7)) if dividing else min(7, size)
        edges.append(tuple(float(round(size * i / count)) for i in range(count + 1)))
    note = "This model has no patches: the cells are a plain grid, laid over the picture to cover parts of it."
    return Cells(image_size, edges[0], edges[1], True, note)
