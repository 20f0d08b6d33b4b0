"""Every sentence of the pages is in one table per language, every table has every sentence, and ?hide= hides parts."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest

from vitreous.serving.pages import PAGE

TEXTS = PAGE / "texts"
KEY = re.compile(r'^  "([\w.]+)":', re.MULTILINE)
PARTS = ["", "play-", "train-"]  # the tables of a language
ENGLISH = {part: KEY.findall((TEXTS / f"{part}en.js").read_text(encoding="utf-8")) for part in PARTS}
ALL_ENGLISH = [key for keys in ENGLISH.values() for key in keys]
SCRIPTS = [path for path in PAGE.rglob("*.js") if path.parent != TEXTS]
SOURCES = {path: path.read_text(encoding="utf-8") for path in [*SCRIPTS, PAGE / "index.html", PAGE / "train.html"]}
NODE = shutil.which("node")
NUMBERS = """
globalThis.location = new URL("http://127.0.0.1/?" + process.argv[2]);
globalThis.document = { documentElement: { dataset: {} }, querySelectorAll: () => [] };
const { loadTexts, text } = await import(process.argv[1] + "/texts.js");
await loadTexts(process.argv[3]);
const { percent, signed, megabytes } = await import(process.argv[1] + "/words.js");
const { hideParts } = await import(process.argv[1] + "/hide.js");
const { disagreementSentence } = await import(process.argv[1] + "/disagreement.js");
const predictions = [{ name: "ViT", probabilities: [0.05, 0.95] }, { name: "CNN", probabilities: [0.9, 0.1] }];
console.log(JSON.stringify({
  numbers: [percent(0.9999), percent(0.0001), percent(0.256), signed(-0.125), megabytes(4_250_000)],
  title: text(process.argv[3] === "train" ? "train.title" : "fool.title"),
  lang: document.documentElement.lang,
  disagreement: disagreementSentence(predictions, ["1", "7"]),
  notice: hideParts(),
  hidden: document.documentElement.dataset.hide,
}));
"""


def _in_node(query: str, part: str = "play") -> dict[str, Any]:
    command = [str(NODE), "--input-type=module", "--eval", NUMBERS, PAGE.as_uri(), query, part]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    return json.loads(done.stdout)


def _used() -> tuple[set[str], set[str]]:
    """Return the keys that are written out, and the beginnings of those that are put together."""
    everything = "\n".join(SOURCES.values())
    whole = set(re.findall(r'["\'`]([\w]+(?:\.[\w]+)*)["\'`]', everything))
    return whole, set(re.findall(r"`([\w.]+\.)\$\{", everything))


def test_no_key_is_unused() -> None:
    whole, beginnings = _used()
    assert [key for key in ALL_ENGLISH if key not in whole and not key.startswith(tuple(beginnings))] == []
    assert len(ALL_ENGLISH) == len(set(ALL_ENGLISH)) > 300


def test_no_key_is_missing() -> None:
    """Each page loads two tables; `tsc` checks the keys in JavaScript (make check-page), and this those it can read."""
    named = {path: re.findall(r'data-(?:text|label)="([^"]+)"', source) for path, source in SOURCES.items()}
    assert len(named[PAGE / "index.html"]) > 60
    assert len(named[PAGE / "train.html"]) > 15
    for path, source in SOURCES.items():
        part = "train-" if path.parent.name == "train" or path.name == "train.html" else "play-"
        known = {*ENGLISH[""], *(ENGLISH[part] if path.parent.name == part[:-1] or path.suffix == ".html" else [])}
        keys = [*named[path], *re.findall(r'\btext\("([\w.]+)"', source)]
        assert [key for key in keys if key not in known] == [], path.name


@pytest.mark.parametrize("table", sorted(TEXTS.glob("*.js")), ids=lambda path: path.stem)
def test_every_language_has_every_sentence(table: Path) -> None:
    part, language = re.fullmatch(r"(|\w+-)(\w\w)", table.stem).groups()
    keys = KEY.findall(table.read_text(encoding="utf-8"))
    assert sorted(keys) == sorted(ENGLISH[part])
    assert f'"{language}"' in re.search(r"LANGUAGES = .*", SOURCES[PAGE / "texts.js"])[0]


def test_every_language_has_every_table() -> None:
    languages = re.findall(r'"(\w\w)"', re.search(r"LANGUAGES = .*", SOURCES[PAGE / "texts.js"])[0])
    assert len(languages) == 5
    assert {path.stem for path in TEXTS.glob("*.js")} == {part + language for part in PARTS for language in languages}


@pytest.mark.parametrize("name", ["index.html", "train.html"])
def test_the_documents_have_no_sentence_of_their_own(name: str) -> None:
    body = re.split(r"<body[^>]*>", SOURCES[PAGE / name])[1]
    body = re.sub(r"<(math|svg|noscript)\b.*?</\1>", "", body, flags=re.DOTALL)
    words = re.findall(r">\s*([A-Za-z][^<]*[a-z]{2})\s*<", body)
    assert words == (["vitreous", "drawing.png"] if name == "index.html" else [])  # names
    assert 'aria-label="' not in body


def test_scripts_have_no_sentence_of_their_own() -> None:
    """A sentence: two words or more, a capital first and a full stop or an ellipsis at the end."""
    sentence = re.compile(r'"[A-Z][a-z]+ [^"]*[a-z]{2}[^"]*[.…]"|`[A-Z][a-z]+ [^`]*[.…]`')
    found = [
        (path.name, line.strip())
        for path, source in SOURCES.items()
        for line in source.splitlines()
        if path.suffix == ".js" and sentence.search(line) and not line.lstrip().startswith(("*", "/*", "//"))
    ]
    assert found == []


@pytest.mark.skipif(NODE is None, reason="the page's arithmetic is run by node: `apt-get install nodejs`")
def test_numbers_follow_the_language() -> None:
    german = _in_node("lang=de", "train")
    assert german["numbers"] == [">99,9 %", "<0,1 %", "25,6 %", "−0,13", "4,3 MB"]
    assert german["title"] == "Trainiere einen Vision Transformer in diesem Tab"
    assert german["lang"] == "de"
    assert german["disagreement"].startswith("Die Modelle sind sich uneinig: ViT sagt 7 vorher (95,0 %), CNN sagt 1 ")
    unknown = _in_node("lang=../en")
    assert unknown["numbers"] == [">99.9 %", "<0.1 %", "25.6 %", "−0.13", "4.3 MB"]
    assert (unknown["title"], unknown["lang"]) == ("Fool it", "en")


@pytest.mark.skipif(NODE is None, reason="the page's arithmetic is run by node: `apt-get install nodejs`")
def test_hide_names_what_it_does_not_know() -> None:
    found = _in_node("hide=lens,%20play&hide=cnn")
    assert (found["hidden"], found["notice"]) == ("lens play cnn", "")
    found = _in_node("hide=lens,colour,map")
    assert found["hidden"] == "lens"
    assert found["notice"].startswith("?hide= has no part named colour, map. It knows: break, card, cnn, ")


def test_every_part_to_hide_is_hidden_and_documented() -> None:
    parts = re.findall(r'"(\w+)"', re.search(r"PARTS = .*?\]\)", SOURCES[PAGE / "hide.js"], re.DOTALL)[0])
    rules = set(re.findall(r'\[data-hide~="(\w+)"\]', (PAGE / "page.css").read_text(encoding="utf-8")))
    assert len(parts) > 10
    assert {*rules, "cnn"} == set(parts)
    documented = (Path(__file__).parents[2] / "docs" / "serve.md").read_text(encoding="utf-8")
    assert [part for part in parts if not re.search(rf"^\| .*`{part}`", documented, re.MULTILINE)] == []


def test_hidden_parts(open_page: Any, served_site: str) -> None:
    page = open_page(served_site, "?hide=cnn,lens,play,tour,whatif&lang=ko#test=3&step=2").page
    assert page.locator(".prediction").count() == 1
    for hidden in (".lens", "#play", "#start-tour", "#tour", ".whatif", "#choose-cnn"):
        assert page.locator(hidden).is_hidden(), hidden
    assert page.locator("#bars").is_visible()
    assert page.locator("#diagram").is_visible()
    assert page.locator("#train").get_attribute("href") == "train.html?hide=cnn,lens,play,tour,whatif&lang=ko"
    assert page.evaluate("document.documentElement.scrollWidth") <= 1280


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
