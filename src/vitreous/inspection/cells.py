"""Cells: the rectangles that maps are drawn on. The cells of a ViT are its patches; other models get a plain grid.

Shapes: an image of `height` × `width` pixels, a grid of `rows` × `columns` cells, P = rows · columns, row by row.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from vitreous.config import ViTConfig
from vitreous.reports.formats import by

Array = NDArray[np.floating]


@dataclass(frozen=True)
class Cells:
    """The position of each cell in the image; `exact` is False where a token sees more pixels than its cell."""

    image_size: tuple[int, int]
    row_edges: tuple[float, ...]  # rows + 1 of them, in pixels from the top
    column_edges: tuple[float, ...]
    exact: bool = True
    note: str = ""
    skipped: tuple[int, ...] = ()  # numbers of blank patches that are no tokens for this image

    @property
    def grid(self) -> tuple[int, int]:
        return len(self.row_edges) - 1, len(self.column_edges) - 1

    @property
    def count(self) -> int:
        return self.grid[0] * self.grid[1]

    @property
    def centres(self) -> Array:
        """(P, 2): row and column of the centre of each cell, in pixels."""
        rows, columns = (np.asarray(edges) for edges in (self.row_edges, self.column_edges))
        down, across = np.meshgrid((rows[1:] + rows[:-1]) / 2, (columns[1:] + columns[:-1]) / 2, indexing="ij")
        return np.stack([down.ravel(), across.ravel()], axis=1)

    def of_pixels(self, density: int = 1) -> NDArray[np.int64]:
        """(height · density, width · density): the cell that the centre of each (sub-)pixel lies in."""
        row, column = (
            np.searchsorted(edges[1:-1], (np.arange(size * density) + 0.5) / density, side="right")
            for edges, size in zip((self.row_edges, self.column_edges), self.image_size, strict=True)
        )
        return row[:, None] * self.grid[1] + column

    def masks(self) -> NDArray[np.bool_]:
        """(P, height, width): True where a pixel belongs to the cell."""
        return self.of_pixels() == np.arange(self.count)[:, None, None]

    def total(self, pixels: Array) -> Array:
        """Sum an image (height, width) over each cell: (rows, columns)."""
        sums = np.bincount(self.of_pixels().ravel(), weights=pixels.ravel(), minlength=self.count)
        return sums.astype(np.float64).reshape(self.grid)

    def scaled_to(self, image_size: tuple[int, int], note: str) -> Cells:
        """Return the same grid over an image of another size."""
        rows, columns = (
            tuple(edge * new / old for edge in edges)
            for edges, new, old in zip((self.row_edges, self.column_edges), image_size, self.image_size, strict=True)
        )
        return Cells(image_size, rows, columns, note=note)

    def without(self, skipped: tuple[int, ...]) -> Cells:
        """Return the cells of an image whose blank patches are skipped; these are crossed out where they are drawn."""
        crossed = "The crossed-out patches are blank or nearly so: the model skips them, no token sees them."
        return replace(self, skipped=skipped, note=f"{self.note} {crossed}".strip()) if skipped else self

    @property
    def crosses(self) -> list[tuple[float, float, float, float]]:
        """x and y of both ends of the diagonals of skipped cells, in pixels."""
        lines = []
        for row, column in (divmod(cell, self.grid[1]) for cell in self.skipped):
            left, right = self.column_edges[column : column + 2]
            top, bottom = self.row_edges[row : row + 2]
            lines += [(left, top, right, bottom), (left, bottom, right, top)]
        return lines


def patch_cells(config: ViTConfig) -> Cells:
    """Return the patches of a ViT in pixels of its input image.

    Feature f of a stem of k stages of 3×3 convolutions (padding 1) is centred on pixel f · 2ᵏ; without a stem this is
    the plain grid. `fit=pad` truncates the last cells at the image edge, `fit=resize` shrinks all of them.
    """
    stride = 2 ** len(config.stem_channels)
    edges = []
    for axis in (0, 1):
        feature, fitted = config.feature_size[axis], config.fitted_size[axis]
        shrink = feature / fitted if config.fit == "resize" else 1.0
        starts = np.arange(config.grid[axis] + 1) * config.patch_size[axis] * shrink * stride + 0.5 - stride / 2
        starts = np.clip(starts, 0, config.image_size[axis])
        starts[0], starts[-1] = 0, config.image_size[axis]
        edges.append(tuple(starts.tolist()))
    fitted_by = "" if config.fitted_size == config.feature_size else config.fit
    notes = []
    if config.stem_channels:
        reach = 1 + 2 * sum(2**stage * (1 + 2 * (config.stem_depth - 1)) for stage in range(len(config.stem_channels)))
        notes.append(
            f"Each token sees {reach} × {reach} pixels or more through the convolutional stem, more than its cell: the"
            " cells are approximate."
        )
    if fitted_by == "resize":
        notes.append("The image is resized before it is split into patches, so the cell borders are approximate.")
    if fitted_by == "pad":
        notes.append("The last patches extend beyond the image edge; the part outside is filled with zeros.")
    if config.window is not None:
        notes.append(f"Each token sees a window of {by(*config.window)} pixels around its cell.")
    exact = not config.stem_channels and config.window is None and fitted_by != "resize"
    return Cells(config.image_size, edges[0], edges[1], exact, " ".join(notes))


def plain_cells(image_size: tuple[int, int]) -> Cells:
    """Return a grid of about seven cells per side, for models without patches."""
    edges = []
    for size in image_size:
        dividing = [count for count in range(4, 9) if size % count == 0]
        count = min(dividing, key=lambda count: abs(count - 7)) if dividing else min(7, size)
        edges.append(tuple(float(round(size * i / count)) for i in range(count + 1)))
    return Cells(image_size, edges[0], edges[1], note="This model has no patches: the cells are a plain grid.")
