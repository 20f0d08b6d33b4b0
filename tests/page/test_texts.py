"""Every sentence of the page is in one table per language, and every table has every sentence."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest

from vitreous.serving.pages import PAGE

TEXTS = PAGE / "texts"
KEY = re.compile(r'^  "([\w.]+)":', re.MULTILINE)
ENGLISH = KEY.findall((TEXTS / "en.js").read_text(encoding="utf-8"))
SOURCES = {path: path.read_text(encoding="utf-8") for path in [*PAGE.glob("*.js"), PAGE / "index.html"]}


def _used() -> tuple[set[str], set[str]]:
    """Return the keys that are written out, and the beginnings of those that are put together."""
    everything = "\n".join(SOURCES.values())
    whole = set(re.findall(r'["\'`]([\w]+(?:\.[\w]+)*)["\'`]', everything))
    return whole, set(re.findall(r"`([\w.]+\.)\$\{", everything))


def test_no_key_is_unused() -> None:
    whole, beginnings = _used()
    assert [key for key in ENGLISH if key not in whole and not key.startswith(tuple(beginnings))] == []
    assert len(ENGLISH) == len(set(ENGLISH)) > 200


def test_no_key_is_missing() -> None:
    """Keys in index.html; `tsc` checks those in JavaScript (make check-page), and this those it can read."""
    html = SOURCES[PAGE / "index.html"]
    named = re.findall(r'data-(?:text|label)="([^"]+)"', html)
    assert len(named) > 60
    named += [key for source in SOURCES.values() for key in re.findall(r'\btext\("([\w.]+)"', source)]
    assert [key for key in named if key not in ENGLISH] == []


@pytest.mark.parametrize("table", sorted(TEXTS.glob("*.js")), ids=lambda path: path.stem)
def test_every_language_has_every_sentence(table: Path) -> None:
    keys = KEY.findall(table.read_text(encoding="utf-8"))
    assert sorted(keys) == sorted(ENGLISH)
    assert f'"{table.stem}"' in re.search(r"LANGUAGES = .*", SOURCES[PAGE / "texts.js"])[0]


def test_index_html_has_no_sentence_of_its_own() -> None:
    body = SOURCES[PAGE / "index.html"].partition("<body>")[2]
    body = re.sub(r"<(math|svg|noscript|h1)\b.*?</\1>", "", body, flags=re.DOTALL)
    words = re.findall(r">\s*([A-Za-z][^<]*[a-z]{2})\s*<", body)
    assert words == ["drawing.png"]  # a file's name


def test_an_unknown_language_is_english(open_page: Any, served_site: str) -> None:
    page = open_page(served_site, "?lang=xx").page
    assert page.locator("#start-tour").inner_text() == "Show me how it works"
    assert page.locator("html").get_attribute("lang") == "en"


def test_another_language(open_page: Any, served_site: str) -> None:
    """The page, the tour and the arithmetic are German; nothing is missing in a text made of numbers."""
    tab = open_page(served_site, "?lang=de#test=3&step=1")
    page = tab.page
    assert page.locator("html").get_attribute("lang") == "de"
    words = page.locator("article.shown").inner_text()
    assert "Deine Zeichnung besteht jetzt aus 28 × 28 Zahlen" in words
    page.keyboard.press("Escape")
    page.locator("#open-arithmetic").click()
    tab.wait_until_idle()
    everything = page.locator("body").inner_text()
    assert "Wie gut passen sie?" in everything
    assert not re.search(r"undefined|NaN|\[object", everything)
