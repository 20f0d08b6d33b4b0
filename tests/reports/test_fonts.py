"""Letters that DejaVu Sans lacks: from an installed font, or as boxes with their code points; none is lost."""

from __future__ import annotations

import io
import logging
import warnings
from collections.abc import Iterator
from pathlib import Path

import numpy as np
import pytest
from fontTools.fontBuilder import FontBuilder
from fontTools.pens.ttGlyphPen import TTGlyphPen
from matplotlib import font_manager
from PIL import Image, ImageDraw

from vitreous.reports import fonts
from vitreous.reports.figures import figure_style, save_figure
from vitreous.reports.text_width import draw_line, shorten_to, text_width

FOX, DOG, NUMBER = "🦊", "犬", "数"


@pytest.fixture(autouse=True)
def bare(monkeypatch: pytest.MonkeyPatch) -> Iterator[list[str]]:
    """No fonts but DejaVu Sans; a test may add some. matplotlib's list is restored."""
    installed: list[str] = []
    monkeypatch.setattr(fonts, "_installed", lambda: installed)
    monkeypatch.setattr(font_manager.fontManager, "ttflist", list(font_manager.fontManager.ttflist))
    fonts.fallback_fonts.cache_clear()
    yield installed
    fonts.fallback_fonts.cache_clear()


def make_font(path: Path, letters: str) -> str:
    """Write a font in which these letters are filled squares."""
    pen = TTGlyphPen(None)
    pen.moveTo((0, -100))
    pen.lineTo((0, 900))
    pen.lineTo((1000, 900))
    pen.lineTo((1000, -100))
    pen.closePath()
    names = {ord(letter): f"u{ord(letter):X}" for letter in letters}
    builder = FontBuilder(1000, isTTF=True)
    builder.setupGlyphOrder([".notdef", *names.values()])
    builder.setupCharacterMap(names)
    builder.setupGlyf(dict.fromkeys([".notdef", *names.values()], pen.glyph()))
    builder.setupHorizontalMetrics(dict.fromkeys([".notdef", *names.values()], (1000, 0)))
    builder.setupHorizontalHeader(ascent=900, descent=-100)
    builder.setupNameTable({"familyName": path.stem, "styleName": "Regular"})
    builder.setupOS2()
    builder.setupPost()
    builder.save(path)
    return str(path)


def drawn(text: str, weight: str = "normal") -> np.ndarray:
    buffer = io.BytesIO()
    with figure_style("test", 200, 50) as figure:
        figure.set_layout_engine("none")
        figure.text(0.05, 0.3, text, size=20, weight=weight)
        save_figure(figure, buffer, format="png")
    return np.asarray(Image.open(buffer).convert("L"))


def drawn_by_pillow(text: str) -> np.ndarray:
    image = Image.new("L", (200, 50), 255)
    draw_line(ImageDraw.Draw(image), 5, 5, text, 30, "black")
    return np.asarray(image)


@pytest.mark.parametrize("draw", [drawn, drawn_by_pillow])
def test_different_letters_look_different_without_any_font(draw, caplog: pytest.LogCaptureFixture) -> None:
    letters = [FOX, "🦁", DOG, NUMBER, "한", "ก", "न"]
    pictures = [draw(letter) for letter in letters]
    for index, picture in enumerate(pictures):
        assert (picture < 128).sum() > 30, "a frame with digits in it"
        for other in pictures[index + 1 :]:
            assert (picture != other).any()
    drawn("a " + FOX, weight="bold")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_an_installed_font_is_used(bare: list[str], tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    boxes = drawn(DOG), drawn_by_pillow(DOG)
    fonts.fallback_fonts.cache_clear()
    bare.append(make_font(tmp_path / "Dogs.ttf", DOG + NUMBER))
    (only,) = fonts.fallback_fonts(fonts.missing_letters([DOG]))
    assert only == tmp_path / "Dogs.ttf"
    first, second = fonts.fallback_fonts(fonts.missing_letters([DOG + FOX]))
    assert (first, fonts.family_of(second)[: len(fonts.BOXES)]) == (only, fonts.BOXES)
    for before, after in zip(boxes, (drawn(DOG), drawn_by_pillow(DOG)), strict=True):
        assert (after < 128).sum() > 1.3 * (before < 128).sum(), "a filled square, not a frame"
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        drawn(f"plain {DOG} {FOX}", weight="bold")
    assert not [record for record in caplog.records if record.levelno >= logging.WARNING]


def test_a_font_that_cannot_be_drawn_is_passed_over(bare: list[str], tmp_path: Path) -> None:
    (tmp_path / "broken.ttf").write_bytes(b"no font")
    bare += [str(tmp_path / "broken.ttf"), str(tmp_path / "absent.ttf")]
    (only,) = fonts.fallback_fonts(fonts.missing_letters([DOG]))
    assert fonts.family_of(only).startswith(fonts.BOXES)


def test_nothing_changes_for_letters_that_dejavu_has() -> None:
    for text in ("plain", "é", "العربية", "Ελλάδα", "−≥×", "$x_{", "\x07"):
        assert not fonts.missing_letters([text])
    assert fonts.fallback_fonts(frozenset()) == ()


def test_widths_do_not_depend_on_installed_fonts(bare: list[str], tmp_path: Path) -> None:
    before = text_width(f"{DOG}{FOX} a", 9)
    bare.append(make_font(tmp_path / "Dogs.ttf", DOG))
    assert text_width(f"{DOG}{FOX} a", 9) == before


def test_accents_are_composed_and_emoji_have_no_joiners() -> None:
    assert shorten_to("e\u0301cole", 500, 9) == "école"
    assert shorten_to("👨\u200d👩\u200d👧\ufe0f", 500, 9) == "👨👩👧"
