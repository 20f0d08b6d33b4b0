"""Maps rendered as images: colours over the grey image, which stays visible. In NumPy, because there are many.

Shapes: `height` × `width` pixels, cells in `rows` × `columns`; pictures are (h, w), (h, w, 3) or (h, w, 4) bytes.
"""

from __future__ import annotations

import base64
import io

import numpy as np
from markupsafe import Markup, escape
from numpy.typing import NDArray
from PIL import Image

from vitreous.inspection.cells import Array, Cells
from vitreous.inspection.examination import Map
from vitreous.reports.colors import diverging_map, sequential_map

Picture = NDArray[np.uint8]

_COLOR_SHARE = 0.66  # of the colour in a blend of unsigned maps; the rest is the image
_INK = np.array([0.09, 0.11, 0.13])  # the ink colour of the theme, for strokes under signed maps
_INK_SHARE = 0.6
_FAINT_INK_SHARE = 0.22


def grey(pixels: NDArray[np.uint8]) -> Array:
    """Return the brightness (height, width), 0 … 1; colours under a map would be mistaken for the map's."""
    values = pixels.astype(np.float64) / 255
    return np.tensordot([0.299, 0.587, 0.114], values, 1) if len(values) == 3 else values.mean(axis=0)


def strokes(brightness: Array) -> Array:
    """Return the darkness to draw, 0 … 1: bright strokes on a flat dark background become dark strokes on white."""
    border = np.concatenate([brightness[0], brightness[-1], brightness[:, 0], brightness[:, -1]])
    on_dark = np.median(border) < 0.5 and border.std() < 0.15
    return brightness if on_dark else 1 - brightness


def spread(values: Array, cells: Cells) -> Array:
    """Return cells (…, rows, columns) as pixels (…, h, w), or half pixels where a border runs through a pixel."""
    whole = all(edge == round(edge) for edge in (*cells.row_edges, *cells.column_edges))
    return values.reshape(*values.shape[:-2], -1)[..., cells.of_pixels(density=1 if whole else 2)]


def map_picture(drawn: Map, brightness: Array, cells: Cells, *, by_pixel: bool = False) -> Picture:
    """Render a map on the cells or at every pixel."""
    values = drawn.pixels if by_pixel and drawn.pixels is not None else spread(drawn.cells, cells)
    # single pixels stick out, so the scale of a pixel map ends at the 99th percentile
    high = float(np.quantile(np.abs(values), 0.99)) if by_pixel else float(np.abs(values).max())
    if drawn.signed:
        return signed_picture(brightness, values, high, faint=by_pixel)
    return amount_picture(brightness, values, high)


def amount_picture(brightness: Array, values: Array, high: float) -> Picture:
    """Render amounts (…, h, w) from 0 to `high` in cividis over the image."""
    color = sequential_map()(np.clip(values / (high or 1), 0, 1))[..., :3]
    return _bytes(_COLOR_SHARE * color + (1 - _COLOR_SHARE) * _like(brightness, values)[..., None])


def signed_picture(brightness: Array, values: Array, high: float, *, faint: bool = False) -> Picture:
    """Render signed values (h, w) from −high (blue) over 0 (white) to high (orange), with the image drawn in ink.

    `faint` ink is for pixel maps, which lie on the strokes themselves and would be hidden.
    """
    color = diverging_map()(np.clip(0.5 + 0.5 * values / (high or 1), 0, 1))[..., :3]
    ink = (_FAINT_INK_SHARE if faint else _INK_SHARE) * _like(strokes(brightness), values)[..., None]
    return _bytes(color * (1 - ink) + _INK * ink)


def scale_bar(signed: bool) -> Picture:
    """Render a colour scale; for amounts, the upper half is blended with black and the lower with white."""
    steps = np.linspace(0, 1, 64)
    if signed:
        return color_values(2 * steps[None] - 1, signed=True)
    color = sequential_map()(steps)[None, :, :3]
    return _bytes(np.concatenate([_COLOR_SHARE * color, _COLOR_SHARE * color + 1 - _COLOR_SHARE]))


def filter_picture(component: Array) -> Picture:
    """Render a filter (C, h, w): in colour for three channels, otherwise signed."""
    if len(component) == 3:
        return _bytes((0.5 + 0.5 * component / (np.abs(component).max() or 1.0)).transpose(1, 2, 0))
    flat = component.mean(axis=0)
    return color_values(flat / (np.abs(flat).max() or 1.0), signed=True)


def color_values(values: Array, *, signed: bool) -> Picture:
    """Render values from −1 to 1, or from 0 to 1, as plain colours."""
    return _bytes((diverging_map()(0.5 + 0.5 * values) if signed else sequential_map()(values))[..., :3])


def positions_picture(similarity: Array) -> Picture:
    """Render (rows, columns, rows, columns) as a grid of grids, white between."""
    whole = mosaic(color_values(similarity, signed=True), gap=1)
    whole[whole[..., 3] == 0] = 255
    return whole[..., :3]


def mosaic(tiles: Picture, gap: int) -> Picture:
    """Join tiles (rows, columns, h, w, 3) into one picture with transparent gaps, (…, …, 4)."""
    rows, columns, height, width, _ = tiles.shape
    padded = np.zeros((rows, columns, height + gap, width + gap, 4), dtype=np.uint8)
    padded[:, :, :height, :width, :3] = tiles
    padded[:, :, :height, :width, 3] = 255
    return padded.swapaxes(1, 2).reshape(rows * (height + gap), columns * (width + gap), 4)[:-gap, :-gap]


def data_uri(picture: Picture) -> str:
    """Return a PNG as a `data:` address."""
    buffer = io.BytesIO()
    Image.fromarray(picture).save(buffer, format="PNG", compress_level=9)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def border_path(cells: Cells) -> str:
    """Return the borders between cells, and the crosses of skipped ones, as an SVG path in pixels of the image."""
    height, width = cells.image_size
    across = [f"M0 {edge:g}H{width}" for edge in cells.row_edges[1:-1]]
    down = [f"M{edge:g} 0V{height}" for edge in cells.column_edges[1:-1]]
    crosses = [f"M{x:g} {y:g}L{right:g} {bottom:g}" for x, y, right, bottom in cells.crosses]
    return "".join(across + down + crosses)


def map_svg(picture: Picture, cells: Cells, alt: str, *, on_white: bool = False) -> Markup:
    """Return a picture with cell borders as inline SVG, sharp at any size."""
    height, width = cells.image_size
    return Markup(
        f'<svg class="map" viewBox="0 0 {width} {height}" role="img" aria-label="{escape(alt)}">'
        f'<image href="{data_uri(picture)}" width="{width}" height="{height}" preserveAspectRatio="none"/>'
        f'<path class="{"borders on-white" if on_white else "borders"}" d="{border_path(cells)}"/></svg>'
    )


def _like(brightness: Array, values: Array) -> Array:
    """Return the image at the size of `values`, a whole multiple of its own."""
    density = values.shape[-1] // brightness.shape[-1]
    return brightness.repeat(density, axis=0).repeat(density, axis=1)


def _bytes(values: Array) -> Picture:
    return (np.clip(values, 0, 1) * 255).round().astype(np.uint8)
