"""Text measured in the font of the figures: a layout that counts letters breaks on names of wide ones."""

from __future__ import annotations

import unicodedata
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.reports.formats import shorten

if TYPE_CHECKING:
    from PIL.ImageFont import FreeTypeFont

_LONGEST = 120  # letters: none of our lines has room for more
_MEASURED = 100  # pixels: the size at which a letter is measured


@cache
def figure_font(pixels: int, bold: bool = False) -> FreeTypeFont:
    """Return DejaVu Sans. It comes with matplotlib and has −, ≥ and most scripts; Pillow's own font does not."""
    import matplotlib
    from PIL import ImageFont

    name = "DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf"
    path = Path(matplotlib.get_data_path()) / "fonts" / "ttf" / name
    return ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)


def text_width(text: str, points: float, bold: bool = False) -> float:
    """Return the width of one line in CSS pixels."""
    return sum(_letter_width(letter, bold) for letter in text) * points * 96 / 72


@cache
def _letter_width(letter: str, bold: bool) -> float:
    """Return the width of a letter as a share of the font size."""
    if unicodedata.east_asian_width(letter) in "WF":
        return 1.0  # DejaVu lacks most of these: blank squares in the PNG, the reader's font in a page
    return figure_font(_MEASURED, bold).getlength(letter) / _MEASURED


def shorten_to(text: str, pixels: float, points: float, bold: bool = False) -> str:
    """Return the text on one line of at most `pixels` CSS pixels, without its middle where it is longer."""
    line = "".join(" " if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") else letter for letter in text)
    for most in range(min(len(line), _LONGEST), 1, -1):
        if text_width(shortened := shorten(line, most), points, bold) <= pixels:
            return shortened
    return line[:1]
