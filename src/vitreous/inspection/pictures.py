"""Maps as pictures: colours laid over the image, which stays visible underneath. NumPy draws them: there are many.

Shapes: `height` × `width` pixels, cells in `rows` × `columns`; pictures are (h, w, 3) or (h, w, 4) bytes.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from functools import cache

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray

from vitreous.inspection.cells import Array, Cells
from vitreous.reports.colors import diverging_map, sequential_map

Picture = NDArray[np.uint8]

_COLOR_SHARE = 0.66  # of an amount's colour in the blend; the rest is the image
_INK = np.array([0.09, 0.11, 0.13])  # the theme's ink: strokes under signed maps
_INK_SHARE = 0.6
_FAINT_INK_SHARE = 0.22


def grey(pixels: NDArray[np.uint8]) -> Array:
    """(C, height, width) bytes → (height, width) brightness, 0 … 1. Colour would be mistaken for the map's."""
    values = pixels.astype(np.float64) / 255
    return np.tensordot([0.299, 0.587, 0.114], values, 1) if len(values) == 3 else values.mean(axis=0)


def strokes(brightness: Array) -> Array:
    """How much ink to draw where, 0 … 1: bright things on a flat dark ground become dark strokes on white."""
    border = np.concatenate([brightness[0], brightness[-1], brightness[:, 0], brightness[:, -1]])
    on_dark = np.median(border) < 0.5 and border.std() < 0.15
    return brightness if on_dark else 1 - brightness


def spread(values: Array, cells: Cells) -> Array:
    """Cells (…, rows, columns) → (…, h, w): pixels, or half pixels where a cell's border cuts through one."""
    fineness = _fineness(cells)
    row, column = (
        np.clip(np.searchsorted(edges, (np.arange(size * fineness) + 0.5) / fineness, side="right") - 1, 0, count - 1)
        for edges, size, count in zip((cells.row_edges, cells.column_edges), cells.image_size, cells.grid, strict=True)
    )
    return values[..., row[:, None], column[None, :]]


def _fineness(cells: Cells) -> int:
    whole = all(edge == round(edge) for edge in (*cells.row_edges, *cells.column_edges))
    return 1 if whole else 2


def amount_picture(brightness: Array, values: Array, high: float) -> Picture:
    """Amounts (…, h, w) from 0 to `high` in cividis, over the image."""
    color = sequential_map()(np.clip(values / (high or 1), 0, 1))[..., :3]
    under = _like(brightness, values)[..., None]
    return _bytes(_COLOR_SHARE * color + (1 - _COLOR_SHARE) * under)


def signed_picture(brightness: Array, values: Array, high: float, *, faint: bool = False) -> Picture:
    """Signed values (h, w) from −high (blue) over 0 (white) to high (orange), the image drawn in ink.

    `faint` ink for maps that lie on the strokes themselves, which it would hide.
    """
    color = diverging_map()(np.clip(0.5 + 0.5 * values / (high or 1), 0, 1))[..., :3]
    ink = (_FAINT_INK_SHARE if faint else _INK_SHARE) * _like(strokes(brightness), values)[..., None]
    return _bytes(color * (1 - ink) + _INK * ink)


def plain_picture(pixels: NDArray[np.uint8]) -> Picture:
    """The image itself, in its own colours."""
    if len(pixels) == 3:
        return np.ascontiguousarray(pixels.transpose(1, 2, 0))
    return np.repeat(_bytes(grey(pixels))[..., None], 3, axis=-1)


def scale_bar(signed: bool) -> Picture:
    """A colour scale: the upper half over dark, the lower over bright, as the blends come out."""
    steps = np.linspace(0, 1, 64)
    if signed:
        return _bytes(diverging_map()(steps)[None, :, :3])
    color = sequential_map()(steps)[None, :, :3]
    return _bytes(np.concatenate([_COLOR_SHARE * color, _COLOR_SHARE * color + 1 - _COLOR_SHARE]))


def filter_picture(component: Array) -> Picture:
    """A filter (C, h, w): colour where it has three channels, else signed; zero is the middle of the scale."""
    size = np.abs(component).max() or 1.0
    if len(component) == 3:
        return _bytes((0.5 + 0.5 * component / size).transpose(1, 2, 0))
    flat = component.mean(axis=0)
    return signed_values(flat / (np.abs(flat).max() or 1.0))


def mosaic(tiles: Sequence[Sequence[Picture]], gap: int) -> Picture:
    """Rows of equal pictures as one, (h, w, 4), with transparent gaps."""
    height, width = tiles[0][0].shape[:2]
    rows, columns = len(tiles), len(tiles[0])
    whole = np.zeros((rows * (height + gap) - gap, columns * (width + gap) - gap, 4), dtype=np.uint8)
    for r, row in enumerate(tiles):
        for c, tile in enumerate(row):
            top, left = r * (height + gap), c * (width + gap)
            whole[top : top + height, left : left + width, :3] = tile
            whole[top : top + height, left : left + width, 3] = 255
    return whole


def data_uri(picture: Picture) -> str:
    """A PNG inside a `data:` address, at its own size."""
    from PIL import Image

    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG", compress_level=9)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


@cache
def border_path(cells: Cells) -> str:
    """The borders between cells as an SVG path in the image's pixels."""
    height, width = cells.image_size
    across = [f"M0 {edge:g}H{width}" for edge in cells.row_edges[1:-1]]
    down = [f"M{edge:g} 0V{height}" for edge in cells.column_edges[1:-1]]
    return "".join(across + down)


def cell_box(cells: Cells, cell: int) -> tuple[float, float, float, float]:
    """x, y, width, height of one cell in pixels."""
    row, column = divmod(cell, cells.grid[1])
    left, right = cells.column_edges[column : column + 2]
    top, bottom = cells.row_edges[row : row + 2]
    return left, top, right - left, bottom - top


def map_svg(picture: Picture, cells: Cells, alt: str, *, on_white: bool = False) -> Markup:
    """A picture with the cells' borders over it, as inline SVG that is sharp at any size."""
    height, width = cells.image_size
    tone = "borders on-white" if on_white else "borders"
    parts = [
        f'<svg class="map" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(alt)}">',
        f'<image href="{data_uri(picture)}" width="{width}" height="{height}" preserveAspectRatio="none"/>',
        f'<path class="{tone}" d="{border_path(cells)}"/>',
    ]
    return Markup("".join(parts) + "</svg>")


def _like(brightness: Array, values: Array) -> Array:
    """The image at the size of `values`, which is a whole multiple of its own."""
    fineness = values.shape[-1] // brightness.shape[-1]
    return brightness.repeat(fineness, axis=0).repeat(fineness, axis=1)


def _bytes(values: Array) -> Picture:
    return (np.clip(values, 0, 1) * 255).round().astype(np.uint8)


def signed_values(values: Array) -> Picture:
    """Values from −1 to 1 as colours alone, with nothing underneath."""
    return _bytes(diverging_map()(np.clip(0.5 + 0.5 * values, 0, 1))[..., :3])


def share_values(values: Array) -> Picture:
    """Values from 0 to 1 as colours alone."""
    return _bytes(sequential_map()(np.clip(values, 0, 1))[..., :3])


def positions_picture(similarity: Array) -> Picture:
    """(rows, columns, rows, columns) → the grid of grids as one picture, white between."""
    grids = [[signed_values(one) for one in row] for row in similarity]
    whole = mosaic(grids, 1)
    whole[whole[..., 3] == 0] = 255
    return whole[..., :3]
