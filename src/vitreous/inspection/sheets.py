"""Sheets of labelled pictures and coloured tables as SVG and PNG. Milliseconds, where matplotlib takes seconds.

Shapes: pictures are (h, w) or (h, w, 3) bytes; sizes are in CSS pixels.
"""

from __future__ import annotations

import io
from collections.abc import Sequence
from math import ceil
from typing import NamedTuple

import numpy as np
from markupsafe import escape
from PIL import Image, ImageDraw

from vitreous.inspection.cells import Array, Cells
from vitreous.inspection.pictures import Picture, border_path, color_values, data_uri
from vitreous.reports.colors import light
from vitreous.reports.figures import DrawnFigure
from vitreous.reports.formats import number, percent
from vitreous.reports.text_width import draw_line, shorten_to, text_width

_GAP, _MARGIN, _LINE, _FONT = 16, 16, 16, 12
_POINTS = 9  # of _FONT
_LONGEST_TITLE, _LONGEST_ROW_NAME = 480, 176
_DENSITY = 2  # PNG pixels per CSS pixel
_CELL = (64, 26)  # size of a table cell


class Tile(NamedTuple):
    """One picture and the short lines under it."""

    picture: Picture
    lines: tuple[str, ...] = ()
    cells: Cells | None = None  # whose borders are drawn
    on_white: bool = False


class _Canvas:
    """Draws the same content into an SVG and a PNG."""

    def __init__(self, width: int, height: int, title: str):
        width = max(width, min(_LONGEST_TITLE, ceil(text_width(title, _POINTS))) + 2 * _MARGIN)
        self.svg = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
            f' font-family="DejaVu Sans, sans-serif" font-size="{_FONT}">'
            f'<rect width="100%" height="100%" fill="{light("paper")}"/>'
        ]
        self.png = Image.new("RGB", (width * _DENSITY, height * _DENSITY), light("paper"))
        self.draw = ImageDraw.Draw(self.png, "RGBA")
        self.text(_MARGIN, _MARGIN, title, "ink", width - 2 * _MARGIN)

    def text(self, x: int, y: int, text: str, color: str, width: int) -> None:
        """Write one line, shortened to `width`."""
        text = shorten_to(text, width, _POINTS)
        self.svg.append(f'<text x="{x}" y="{y + _FONT}" fill="{light(color)}">{escape(text)}</text>')
        draw_line(self.draw, x * _DENSITY, y * _DENSITY, text, 11 * _DENSITY, light(color))

    def rectangle(self, x: int, y: int, width: int, height: int, color: str) -> None:
        self.svg.append(f'<rect x="{x}" y="{y}" width="{width}" height="{height}" fill="{color}"/>')
        self.draw.rectangle([v * _DENSITY for v in (x, y, x + width, y + height)], fill=color)

    def picture(self, x: int, y: int, width: int, height: int, picture: Picture) -> None:
        self.svg.append(
            f'<image x="{x}" y="{y}" width="{width}" height="{height}" preserveAspectRatio="none"'
            f' style="image-rendering:pixelated" href="{data_uri(picture)}"/>'
        )
        scaled = Image.fromarray(picture).resize((width * _DENSITY, height * _DENSITY), Image.Resampling.NEAREST)
        self.png.paste(scaled, (x * _DENSITY, y * _DENSITY))

    def borders(self, x: int, y: int, width: int, height: int, cells: Cells, on_white: bool) -> None:
        across, down = width / cells.image_size[1], height / cells.image_size[0]
        self.svg.append(
            f'<path transform="translate({x} {y}) scale({across:.5g} {down:.5g})" d="{border_path(cells)}" fill="none"'
            f' stroke="{"#000" if on_white else "#fff"}" stroke-opacity=".22" vector-effect="non-scaling-stroke"/>'
        )
        rows = [(x, y + edge * down, x + width, y + edge * down) for edge in cells.row_edges[1:-1]]
        columns = [(x + edge * across, y, x + edge * across, y + height) for edge in cells.column_edges[1:-1]]
        crosses = [(x + a * across, y + b * down, x + c * across, y + d * down) for a, b, c, d in cells.crosses]
        for ends in (*rows, *columns, *crosses):
            fill = (0, 0, 0, 56) if on_white else (255, 255, 255, 56)
            self.draw.line([round(v * _DENSITY) for v in ends], fill=fill, width=_DENSITY)

    def finish(self, name: str) -> DrawnFigure:
        png = io.BytesIO()
        self.png.save(png, format="PNG")
        return DrawnFigure(name, "".join(self.svg) + "</svg>\n", png.getvalue())


def draw_sheet(name: str, title: str, tiles: Sequence[Tile], columns: int, width: int = 160) -> DrawnFigure:
    """Draw `tiles` row by row, `columns` per row, each `width` wide."""
    height = round(width * tiles[0].picture.shape[0] / tiles[0].picture.shape[1])
    step = height + _LINE * max(len(tile.lines) for tile in tiles) + _GAP
    rows = -(-len(tiles) // columns)
    canvas = _Canvas(2 * _MARGIN + columns * (width + _GAP) - _GAP, 2 * _MARGIN + _LINE + rows * step, title)
    for index, tile in enumerate(tiles):
        row, column = divmod(index, columns)
        x, y = _MARGIN + column * (width + _GAP), 2 * _MARGIN + _LINE // 2 + row * step
        canvas.picture(x, y, width, height, tile.picture)
        if tile.cells is not None:
            canvas.borders(x, y, width, height, tile.cells, tile.on_white)
        for i, line in enumerate(tile.lines):
            canvas.text(x, y + height + _LINE * i + 2, line, "ink-soft" if i else "ink", width + _GAP // 2)
    return canvas.finish(name)


def draw_table(
    name: str, title: str, values: Array, rows: Sequence[str], columns: Sequence[str], *, signed: bool
) -> DrawnFigure:
    """Draw numbers (rows, columns) on colours: signed values, or shares from 0 to 1."""
    colors = color_values(values / (np.abs(values).max() or 1.0) if signed else values, signed=signed)
    wide, tall = _CELL
    name_width = min(_LONGEST_ROW_NAME, ceil(max(text_width(row, _POINTS) for row in rows)))
    left = _MARGIN + name_width + _GAP
    top = _MARGIN + 3 * _LINE
    canvas = _Canvas(left + len(columns) * wide + _MARGIN, top + len(rows) * tall + _MARGIN, title)
    for c, column in enumerate(columns):
        canvas.text(left + 6 + c * wide, top - _LINE - 4, column, "ink-soft", wide - 6)
    for r, row in enumerate(rows):
        canvas.text(_MARGIN, top + 6 + r * tall, row, "ink", name_width)
    for (r, c), value in np.ndenumerate(values):
        x, y = left + c * wide, top + r * tall
        canvas.rectangle(x, y, wide - 2, tall - 2, "#" + bytes(colors[r, c]).hex())
        if signed or value >= 0.005:
            text = number(float(value), "+.2f") if signed else percent(float(value), 0)
            canvas.text(x + 6, y + 6, text, "ink" if signed or value >= 0.5 else "paper", wide - 6)
    return canvas.finish(name)
