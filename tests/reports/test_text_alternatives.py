"""Every picture of every HTML report, notebook result and document has a text alternative."""

from __future__ import annotations

import re
from html.parser import HTMLParser
from pathlib import Path

import numpy as np
import pytest

import vitreous
from vitreous.comparison.mistakes import find_mistakes, write_mistakes
from vitreous.runs import Run
from vitreous.studies.compare import compare
from vitreous.studies.study import run_study

ROOT = Path(__file__).parents[2]
TINY = ["train.epochs=0.2", "train.min_steps_per_epoch=4", "model.depth=1", "train.threads=1"]


class Pictures(HTMLParser):
    """The pictures of a page that have no text alternative, and how many have one."""

    def __init__(self, text: str):
        super().__init__()
        self.described, self.silent, self.bare = 0, 0, list[str]()
        self._open: list[dict[str, str | None]] = []  # elements around the current one
        self.feed(text)

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        attributes = dict(attrs)
        if tag in ("img", "svg", "canvas", "object", "embed", "iframe"):
            self._judge(tag, attributes)
        if tag not in ("img", "br", "meta", "link", "input", "hr", "path", "use", "rect", "circle", "image", "line"):
            self._open.append({"tag": tag, **attributes})

    def handle_endtag(self, tag: str) -> None:
        while self._open and self._open.pop()["tag"] != tag:
            pass

    def _judge(self, tag: str, attributes: dict[str, str | None]) -> None:
        if any(each["tag"] == "svg" for each in self._open):
            return  # part of a picture that was judged
        text = attributes.get("alt") if tag == "img" else attributes.get("aria-label")
        # what a neighbouring text states already: marks before names, and colour bars between their two ends
        decorates = attributes.get("aria-hidden") == "true" or any(
            each.get("class") == "scale" or each.get("aria-hidden") == "true" for each in self._open
        )
        if text and len(text) > 3 and "/" not in text.split()[0]:
            self.described += 1
        elif decorates and text in (None, ""):
            self.silent += 1
        else:
            self.bare.append(f"<{tag} {attributes}"[:200])


@pytest.fixture(scope="module")
def folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return tmp_path_factory.mktemp("reports")


@pytest.fixture(scope="module")
def compared(folder: Path) -> Path:
    """`vitreous compare`, which `vitreous demo` calls with its two presets."""
    return compare(("mnist-vit", "cnn"), data="digits", out=folder / "compare", settings=TINY, progress=False).report


@pytest.fixture(scope="module")
def run(compared: Path) -> Run:
    return Run.open(next(path.parent for path in sorted(compared.parent.rglob("config.json")) if "vit" in str(path)))


def report(name: str, folder: Path, compared: Path, run: Run) -> str:
    match name:
        case "compare and demo":
            return compared.read_text(encoding="utf-8")
        case "look":
            looked = vitreous.look(test_index=3, run=run.path, against=run.path.with_name("cnn"), out=folder / "look")
            return looked.report.read_text(encoding="utf-8") + looked._repr_html_()
        case "mistakes":
            return write_mistakes(find_mistakes(run, most=6), folder / "mistakes").read_text(encoding="utf-8")
        case "study":
            run_study("token-or-mean", quick=True, data="digits", out=folder / "study", seeds=1, jobs=1, settings=TINY,
                      progress=False)  # fmt: skip
            return (folder / "study" / "report.html").read_text(encoding="utf-8")
        case "notebooks":
            opened = vitreous.Run.open(run.path)
            shown = [opened, opened.history, opened.evaluate(), opened.predict(np.eye(28))]
            return "".join(each._repr_html_() for each in shown)
    raise AssertionError(name)


@pytest.mark.parametrize("name", ["compare and demo", "look", "mistakes", "study", "notebooks"])
def test_reports(name: str, folder: Path, compared: Path, run: Run) -> None:
    pictures = Pictures(report(name, folder, compared, run))
    assert pictures.described > 0
    assert pictures.bare == []


def test_a_picture_without_one_is_noticed() -> None:
    bare = '<img src="a.png"><img alt="" src="b"><svg></svg><p><svg aria-label="A digit and its map"></svg></p>'
    found = Pictures(bare + '<div class="scale"><img alt=""></div><svg aria-hidden="true"><svg></svg></svg>')
    assert (len(found.bare), found.described, found.silent) == (3, 1, 2)


def test_documents() -> None:
    for page in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md")):
        if "reference" not in page.parts:
            for alt, target in re.findall(r"!\[([^\]]*)\]\(([^)]+)\)", page.read_text(encoding="utf-8")):
                assert len(alt) > 20, f"{page.name}: {target}"
    for page in ROOT.glob("docs/*.md"):
        text = page.read_text(encoding="utf-8")
        assert text.count("```{image}") == len(re.findall(r"^:alt: .{20,}", text, re.MULTILINE)), page.name
