"""Fonts for the letters that DejaVu Sans lacks: an installed one that has them, or else boxes with their code points.

Figures are drawn in DejaVu Sans, which comes with matplotlib, so that they look the same on every machine. A class that
is named in Chinese or by an emoji needs another font; where none is installed, each such letter becomes a box with its
hexadecimal code point, as in browsers. The text of an SVG stays text, in whatever font its reader has.
"""

from __future__ import annotations

import atexit
import contextlib
import dataclasses
import shutil
import tempfile
from collections.abc import Iterable, Sequence
from functools import cache
from pathlib import Path
from typing import Any

BOXES = "vitreous code points"  # the family of the boxes
_MOST_FONTS = 500  # searched for missing letters
#: Families that have many letters, before any others.
_PREFERRED = (
    "Noto Sans CJK", "Noto Sans KR", "Noto Sans JP", "Noto Sans SC", "Noto Sans TC", "Source Han Sans", "NanumGothic",
    "WenQuanYi", "IPAexGothic", "IPAGothic", "Droid Sans Fallback", "Noto Sans", "Noto Emoji", "Symbola", "FreeSans",
    "Arial Unicode", "PingFang", "Hiragino", "Apple SD Gothic", "Malgun Gothic", "Yu Gothic", "MS Gothic", "SimHei",
    "Microsoft YaHei", "Nirmala", "Segoe UI", "Unifont",
)  # fmt: skip


@cache
def own_font(bold: bool = False) -> Path:
    import matplotlib

    return Path(matplotlib.get_data_path()) / "fonts" / "ttf" / ("DejaVuSans-Bold.ttf" if bold else "DejaVuSans.ttf")


def missing_letters(texts: Iterable[str]) -> frozenset[str]:
    """Return the letters of these texts that DejaVu Sans does not have."""
    known = letters_of(str(own_font()))
    return frozenset(letter for text in texts for letter in text if ord(letter) not in known and letter.isprintable())


@cache
def fallback_fonts(letters: frozenset[str]) -> tuple[Path, ...]:
    """Return font files that have all these letters between them, the last with boxes for those that no other has."""
    found, rest = [], set(letters)
    for path in _installed() if rest else ():
        if rest and (has := {letter for letter in rest if ord(letter) in letters_of(path)}) and _draws(path, min(has)):
            found.append(Path(path))
            rest -= has
    if rest:
        found.append(_make_boxes(sorted(rest)))
    return tuple(found)


def family_of(path: Path) -> str:
    """Return the family name of a font file; matplotlib knows it from now on, also as bold, where it would warn."""
    from matplotlib.font_manager import fontManager

    if (known := next((entry for entry in fontManager.ttflist if entry.fname == str(path)), None)) is None:
        fontManager.addfont(path)
        known = fontManager.ttflist[-1]
    if not any(entry.name == known.name and entry.weight in (700, "bold") for entry in fontManager.ttflist):
        fontManager.ttflist.append(dataclasses.replace(known, weight=700))
    return known.name


def _installed() -> Sequence[str]:
    """Return the installed font files of normal weight, those with many letters first."""
    from matplotlib import font_manager

    entries = [
        entry
        for entry in font_manager.fontManager.ttflist
        if entry.style == "normal" and entry.weight in (400, "normal", "regular", "book")
        and not entry.name.startswith(("Last Resort", BOXES, "DejaVu"))
    ]  # fmt: skip
    ranks = {name: rank for rank, name in enumerate(_PREFERRED)}

    def rank(entry: Any) -> tuple[int, str]:
        return min((ranks[name] for name in _PREFERRED if entry.name.startswith(name)), default=len(ranks)), entry.fname

    return [entry.fname for entry in sorted(entries, key=rank)[:_MOST_FONTS]]


@cache
def letters_of(path: str) -> frozenset[int]:
    """Return the code points that a font file has."""
    from matplotlib.ft2font import FT2Font

    with contextlib.suppress(RuntimeError, OSError):
        return frozenset(FT2Font(path).get_charmap())
    return frozenset()


def _draws(path: str, letter: str) -> bool:
    """Return whether matplotlib and Pillow can draw with a font; colour emoji of fixed sizes they cannot."""
    from matplotlib.ft2font import FT2Font
    from PIL import ImageFont

    try:
        font = FT2Font(path)
        font.set_size(12, 96)
        font.set_text(letter)
        font.draw_glyphs_to_bitmap()
        ImageFont.truetype(path, 20).getmask(letter)
    except (RuntimeError, OSError):
        return False
    return True


# --- boxes with code points --------------------------------------------------------------------------------------


@cache
def _box_folder() -> Path:
    folder = tempfile.mkdtemp(prefix="vitreous-font-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    return Path(folder)


def _make_boxes(letters: Sequence[str]) -> Path:
    """Return a font in which each of these letters is a box, as wide as high, with its code point in two lines."""
    from fontTools.fontBuilder import FontBuilder
    from fontTools.pens.transformPen import TransformPen
    from fontTools.pens.ttGlyphPen import TTGlyphPen
    from fontTools.ttLib import TTFont

    digits = TTFont(own_font(bold=True)).getGlyphSet()
    digit_names = dict(zip("0123456789ABCDEF", [
        "zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", *"ABCDEF",
    ], strict=True))  # fmt: skip
    em, digit_em = 1000, 2048

    def box(code: str) -> Any:
        pen = TTGlyphPen(None)
        for inset, reverse in ((40, False), (90, True)):  # two rectangles, the inner one a hole
            low, high, left, right = -200 + inset, 800 - inset, inset, em - inset
            corners = [(left, low), (left, high), (right, high), (right, low)]
            first, *others = corners[::-1] if reverse else corners
            pen.moveTo(first)
            for corner in others:
                pen.lineTo(corner)
            pen.closePath()
        per_line = len(code) // 2
        scale = 0.44 * 4 / max(4, 2 * per_line) * em / digit_em
        advance = 0.72 * digit_em * scale
        for index, digit in enumerate(code):
            line, column = divmod(index, per_line)
            x = em / 2 + (column - per_line / 2) * advance
            y = 340 if line == 0 else -70
            digits[digit_names[digit]].draw(TransformPen(pen, (scale, 0, 0, scale, x, y)))
        return pen.glyph()

    codes = {letter: f"{ord(letter):04X}" if ord(letter) < 0x10000 else f"{ord(letter):06X}" for letter in letters}
    names = {letter: f"u{code}" for letter, code in codes.items()}
    builder = FontBuilder(em, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap({ord(letter): name for letter, name in names.items()})
    glyphs = {".notdef": box("FFFD"), **{names[letter]: box(code) for letter, code in codes.items()}}
    builder.setupGlyf(glyphs)
    builder.setupHorizontalMetrics(dict.fromkeys(glyphs, (em, 40)))
    builder.setupHorizontalHeader(ascent=800, descent=-200)
    number = len(list(_box_folder().iterdir()))
    builder.setupNameTable({"familyName": f"{BOXES} {number}", "styleName": "Regular"})
    builder.setupOS2(sTypoAscender=800, sTypoDescender=-200, usWinAscent=800, usWinDescent=200)
    builder.setupPost()
    path = _box_folder() / f"{number}.ttf"
    builder.save(path)
    return path
