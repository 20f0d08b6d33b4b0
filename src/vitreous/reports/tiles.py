"""Images with lines of text under them: as `data:` addresses for a page, and as one figure for slides."""

from __future__ import annotations

import base64
import io
from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
from numpy.typing import NDArray

from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.text_width import shorten_to

if TYPE_CHECKING:
    from matplotlib.axes import Axes

Pixels = NDArray[np.uint8]  # (C, H, W)
#: Text and colour of each line under an image.
Lines = Sequence[tuple[str, str]]

#: An image in a page need not be larger than it is shown, at twice the density.
_LARGEST_SIDE = 256
#: CSS pixels.
_TILE_WIDTH, _IMAGE, _GAP, _LINE = 164, 144, 8, 15
_FONT_SIZE = 8  # points


def displayable(pixels: Pixels) -> Pixels:
    """Return (H, W, 3) for colour images (without alpha), (H, W) for any other number of channels: their mean."""
    if len(pixels) in (3, 4):
        return pixels[:3].transpose(1, 2, 0).copy()
    return pixels.mean(axis=0).round().astype(np.uint8)


def image_data_uri(pixels: Pixels) -> str:
    """Return an image as a PNG inside a `data:` address."""
    from PIL import Image

    picture = Image.fromarray(displayable(pixels))
    picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def draw_tiles(tiles: Sequence[tuple[Pixels, Lines]], name: str, columns: int) -> DrawnFigure:
    """Draw images in a grid; every tile has a fixed place, so that no text can push an image away."""
    rows = -(-len(tiles) // columns)
    tile_height = _IMAGE + _GAP + _LINE * (1 + max(len(lines) for _, lines in tiles))
    width, height = _TILE_WIDTH * columns, tile_height * rows
    with figure_style(name, width, height) as figure:
        figure.set_layout_engine("none")
        for position, (pixels, lines) in enumerate(tiles):
            row, column = divmod(position, columns)
            left = _TILE_WIDTH * column + (_TILE_WIDTH - _IMAGE) / 2
            bottom = height - tile_height * row - _GAP - _IMAGE
            place = (left / width, bottom / height, _IMAGE / width, _IMAGE / height)
            _draw_tile(figure.add_axes(place), pixels, lines)
        return finish_figure(figure, name)


def _draw_tile(axes: Axes, pixels: Pixels, lines: Lines) -> None:
    axes.imshow(displayable(pixels), cmap="gray", vmin=0, vmax=255)
    axes.set_axis_off()
    for position, (text, color) in enumerate(lines):
        below = (0, -12 - 11 * position)  # points
        axes.annotate(
            shorten_to(text, _IMAGE, _FONT_SIZE), (0.5, 0), below, "axes fraction", "offset points",
            ha="center", color=color, fontsize=_FONT_SIZE,
        )  # fmt: skip
