"""Sheets of labelled pictures and tables on colour, as SVG and PNG without matplotlib: milliseconds, not seconds.

Shapes: pictures are (h, w, 3) bytes; sizes in CSS pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np
from markupsafe import escape

from vitreous.inspection.cells import Array, Cells
from vitreous.inspection.pictures import Picture, border_path, data_uri, share_values, signed_values
from vitreous.reports.colors import light

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

_GAP, _MARGIN, _LINE, _FONT = 16, 16, 16, 12
_DENSITY = 2  # PNG pixels a CSS pixel
_CELL = (64, 26)  # of a table

Spots = Sequence[tuple[int, int]]


@dataclass(frozen=True)
class Tile:
    """One picture and the short lines under it."""

    picture: Picture
    lines: tuple[str, ...] = ()
    cells: Cells | None = None  # whose borders to draw
    on_white: bool = False


def write_sheet(folder: Path, name: str, title: str, tiles: Sequence[Tile], columns: int, size: int = 160) -> None:
    """Write `name.svg` and `name.png`: `tiles` row by row, `columns` a row, each `size` wide."""
    tall = round(size * tiles[0].picture.shape[0] / tiles[0].picture.shape[1])
    step = tall + _LINE * max(len(tile.lines) for tile in tiles) + _GAP
    rows = -(-len(tiles) // columns)
    width = 2 * _MARGIN + columns * (size + _GAP) - _GAP
    height = 2 * _MARGIN + _LINE + rows * step
    spots = [
        (_MARGIN + (index % columns) * (size + _GAP), 2 * _MARGIN + _LINE // 2 + (index // columns) * step)
        for index in range(len(tiles))
    ]
    _write_svg(folder / f"{name}.svg", title, tiles, spots, (size, tall), (width, height))
    _write_png(folder / f"{name}.png", title, tiles, spots, (size, tall), (width, height))


def _write_svg(
    path: Path, title: str, tiles: Sequence[Tile], spots: Spots, tile_size: tuple[int, int], size: tuple[int, int]
) -> None:
    parts = [
        _svg_head(size),
        f'<text x="{_MARGIN}" y="{_MARGIN + _FONT}" font-weight="bold" fill="{light("ink")}">{escape(title)}</text>',
    ]
    for tile, (x, y) in zip(tiles, spots, strict=True):
        parts.append(
            f'<image x="{x}" y="{y}" width="{tile_size[0]}" height="{tile_size[1]}" preserveAspectRatio="none"'
            f' style="image-rendering:pixelated" href="{data_uri(tile.picture)}"/>'
        )
        if tile.cells is not None:
            across = tile_size[0] / tile.cells.image_size[1]
            down = tile_size[1] / tile.cells.image_size[0]
            tone = "#000" if tile.on_white else "#fff"
            parts.append(
                f'<path transform="translate({x} {y}) scale({across:.5g} {down:.5g})" d="{border_path(tile.cells)}"'
                f' fill="none" stroke="{tone}" stroke-opacity=".22" vector-effect="non-scaling-stroke"/>'
            )
        parts += [
            f'<text x="{x}" y="{y + tile_size[1] + _LINE * (i + 1) - 3}" fill="{light("ink-soft" if i else "ink")}">'
            f"{escape(line)}</text>"
            for i, line in enumerate(tile.lines)
        ]
    path.write_text("".join(parts) + "</svg>\n", encoding="utf-8")


def _write_png(
    path: Path, title: str, tiles: Sequence[Tile], spots: Spots, tile_size: tuple[int, int], size: tuple[int, int]
) -> None:
    from PIL import Image, ImageDraw

    sheet = Image.new("RGB", (size[0] * _DENSITY, size[1] * _DENSITY), light("paper"))
    draw = ImageDraw.Draw(sheet, "RGBA")
    font = _font()
    draw.text((_MARGIN * _DENSITY, _MARGIN * _DENSITY), title, font=font, fill=light("ink"))
    wide, tall = (side * _DENSITY for side in tile_size)
    for tile, (x, y) in zip(tiles, ((x * _DENSITY, y * _DENSITY) for x, y in spots), strict=True):
        sheet.paste(Image.fromarray(tile.picture).resize((wide, tall), Image.Resampling.NEAREST), (x, y))
        if tile.cells is not None:
            tone = (0, 0, 0, 56) if tile.on_white else (255, 255, 255, 56)
            for edge in tile.cells.row_edges[1:-1]:
                at = y + round(edge * tall / tile.cells.image_size[0])
                draw.line([(x, at), (x + wide - 1, at)], fill=tone, width=_DENSITY)
            for edge in tile.cells.column_edges[1:-1]:
                at = x + round(edge * wide / tile.cells.image_size[1])
                draw.line([(at, y), (at, y + tall - 1)], fill=tone, width=_DENSITY)
        for i, line in enumerate(tile.lines):
            below = y + tall + (_LINE * i + 2) * _DENSITY
            draw.text((x, below), line, font=font, fill=light("ink-soft" if i else "ink"))
    sheet.save(path)


def write_table(
    folder: Path, name: str, title: str, values: Array, rows: Sequence[str], columns: Sequence[str], *, signed: bool
) -> None:
    """Write `name.svg` and `name.png`: numbers (rows, columns) on their colours; signed, or shares from 0 to 1."""
    from PIL import Image, ImageDraw

    scaled = values / (np.abs(values).max() or 1.0) if signed else values
    colors = signed_values(scaled) if signed else share_values(scaled)
    left = _MARGIN + 16 + max(len(row) for row in rows) * _FONT * 6 // 10
    top = _MARGIN + 3 * _LINE
    size = (left + len(columns) * _CELL[0] + _MARGIN, top + len(rows) * _CELL[1] + _MARGIN)
    texts = [(_MARGIN, _MARGIN, "ink", title)]
    texts += [(left + 6 + c * _CELL[0], top - _LINE - 4, "ink-soft", column) for c, column in enumerate(columns)]
    texts += [(_MARGIN, top + 6 + r * _CELL[1], "ink", row) for r, row in enumerate(rows)]
    boxes = []
    for (r, c), value in np.ndenumerate(values):
        x, y = left + c * _CELL[0], top + r * _CELL[1]
        boxes.append((x, y, "#" + bytes(colors[r, c]).hex()))
        if signed or value >= 0.005:
            tone = "ink" if signed or value >= 0.5 else "paper"
            texts.append((x + 6, y + 6, tone, f"{value:+.2f}" if signed else f"{100 * value:.0f} %"))
    parts = [_svg_head(size)]
    sheet = Image.new("RGB", (size[0] * _DENSITY, size[1] * _DENSITY), light("paper"))
    draw, font = ImageDraw.Draw(sheet), _font()
    wide, tall = _CELL[0] - 2, _CELL[1] - 2
    for x, y, color in boxes:
        parts.append(f'<rect x="{x}" y="{y}" width="{wide}" height="{tall}" fill="{color}"/>')
        draw.rectangle([v * _DENSITY for v in (x, y, x + wide, y + tall)], fill=color)
    for x, y, tone, text in texts:
        parts.append(f'<text x="{x}" y="{y + _FONT}" fill="{light(tone)}">{escape(text)}</text>')
        draw.text((x * _DENSITY, y * _DENSITY), text, font=font, fill=light(tone))
    (folder / f"{name}.svg").write_text("".join(parts) + "</svg>\n", encoding="utf-8")
    sheet.save(folder / f"{name}.png")


def _svg_head(size: tuple[int, int]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {size[0]} {size[1]}" width="{size[0]}"'
        f' height="{size[1]}" font-family="Helvetica, Arial, sans-serif" font-size="{_FONT}">'
        f'<rect width="100%" height="100%" fill="{light("paper")}"/>'
    )


@cache
def _font() -> FreeTypeFont:
    """matplotlib brings DejaVu Sans along, which knows −, ≥ and most letters; Pillow's own font does not."""
    import matplotlib
    from PIL import ImageFont

    return ImageFont.truetype(Path(matplotlib.get_data_path()) / "fonts" / "ttf" / "DejaVuSans.ttf", 11 * _DENSITY)
