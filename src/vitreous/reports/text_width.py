"""Text measured in the font of the figures: a layout that counts letters breaks on names of wide ones."""

from __future__ import annotations

import itertools
import unicodedata
from collections.abc import Sequence
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.reports.fonts import fallback_fonts, letters_of, missing_letters, own_font
from vitreous.reports.formats import shorten

if TYPE_CHECKING:
    from PIL.ImageDraw import ImageDraw
    from PIL.ImageFont import FreeTypeFont

_LONGEST = 120  # letters: none of our lines has room for more
_JOINERS = "\u200d\ufe0e\ufe0f"  # between the parts of an emoji; drawn they would be boxes
_MEASURED = 100  # pixels: the size at which a letter is measured


@cache
def figure_font(pixels: int, bold: bool = False) -> FreeTypeFont:
    """Return DejaVu Sans. It comes with matplotlib and has −, ≥ and many scripts; Pillow's own font does not."""
    return _font(own_font(bold), pixels)


@cache
def _font(path: Path, pixels: int) -> FreeTypeFont:
    from PIL import ImageFont

    return ImageFont.truetype(path, pixels, layout_engine=ImageFont.Layout.BASIC)


def draw_line(draw: ImageDraw, x: int, y: int, text: str, pixels: int, color: str) -> None:
    """Draw one line with Pillow, letters that DejaVu Sans lacks in other fonts; (x, y) is its upper left corner."""
    own = figure_font(pixels)
    others = [_font(path, pixels) for path in fallback_fonts(missing_letters([text]))]
    known = {letter: fonts_of_letter(letter, others) for letter in set(missing_letters([text]))}
    baseline = y + own.getmetrics()[0]
    for font, run in itertools.groupby(text, key=lambda letter: known.get(letter, own)):
        part = "".join(run)
        draw.text((x, baseline), part, font=font, fill=color, anchor="ls")
        x += round(font.getlength(part))


def fonts_of_letter(letter: str, fonts: Sequence[FreeTypeFont]) -> FreeTypeFont:
    """Return the first font that has a letter."""
    return next(font for font in fonts if ord(letter) in letters_of(str(font.path)))


def text_width(text: str, points: float, bold: bool = False) -> float:
    """Return the width of one line in CSS pixels."""
    return sum(_letter_width(letter, bold) for letter in text) * points * 96 / 72


@cache
def _letter_width(letter: str, bold: bool) -> float:
    """Return the width of a letter as a share of the font size."""
    if missing_letters([letter]):
        return 1.0  # as wide as high: most letters of other fonts, and boxes with code points
    return figure_font(_MEASURED, bold).getlength(letter) / _MEASURED


def shorten_to(text: str, pixels: float, points: float, bold: bool = False) -> str:
    """Return the text on one line of at most `pixels` CSS pixels, without its middle where it is longer."""
    composed = unicodedata.normalize("NFC", text)  # an accent and its letter as one, where there is one
    line = "".join(
        " " if unicodedata.category(letter) in ("Cc", "Cs", "Zl", "Zp") else letter
        for letter in composed
        if letter not in _JOINERS
    )
    for most in range(min(len(line), _LONGEST), 1, -1):
        if text_width(shortened := shorten(line, most), points, bold) <= pixels:
            return shortened
    return line[:1]
