"""The repository uses the field's words (docs/vocabulary.md): none of the private words that it once used."""

from __future__ import annotations

import re
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
_PER = r"(?:class|epoch|image|step|second|head|layer|row|side|rank|file|seed|batch|channel|patch|token|index|run|model)"

#: pattern → what to write instead. Case matters only where the pattern has capitals.
PRIVATE_WORDS = {
    r"\banswer(?:s|ed|ing)?\b": "prediction, logits, output; the server responds",
    r"\brightly\b": "correctly",
    r"\b(?:the|a|our) box\b|\bin the box\b": "the bundled models",
    r"\bbox:": "bundled:",
    r"\bhalves\b|\bHalves\b": "two-thread split, SplitBatch",
    r"\binsides\b|\binternals\b": "intermediates, activations",
    r"\bmend(?:s|ed|ing)?\b": "fix",
    r"\bevidence\b": "log-odds",
    r"\breally better\b|\bnot real\b|\bno real difference\b": "significant, with p or the interval",
    rf"\b(?:one|two|\d+|images|one name|one vector|one row|lines|steps|sub-folder|numbers|seconds) an? {_PER}\b": "per",
    r"\bstands? (?:twice|in both)\b|\btwins?\b": "duplicate",
    r"\bstir(?:red|ring|s)?\b": "randomise the parameters",
    r"\bCalm\b|\bOtherDice\b": "deterministic, reseeded",
    r"\bPatient\b|\bconsultations?\b|\bconsult(?:s|ed)?\b": "model under test, check, diagnosis",
    r"\bKnown\b(?= *[\[(:])|\bLoaded\b(?= *[\[(:])|\bPlan\b(?= *[\[(:])": "DatasetSpec, RawDataset, BatchSampler",
    r"\bcut(?:s|ting)?\b": "split, hold out, crop, truncate",
    r"\bheld\b(?![- ]out)": "locked",
    r"\byardsticks?\b": "reference throughput",
    r"\bthe posts?\b|\bblog posts?\b|\bposts'": "the article",
    r"\btold\b|\bsaid\b": "logged, reported, stated",
    r"\bsettl(?:e|es|ed|ing)\b": "configure, decide, tune",
    r"\bpays\b": "is faster",
}
SUFFIXES = {".py", ".js", ".mjs", ".html", ".jinja", ".css", ".md", ".toml", ".yaml", ".yml", ".cff", ".json"}
#: Files that must name the old words: the changelog, this test, the alias of `bundled:` and its tests, old runs.
EXEMPT = {"CHANGELOG.md", "tests/test_vocabulary.py", "docs/vocabulary.md"}


def _files() -> list[Path]:
    listed = subprocess.run(["git", "ls-files"], cwd=ROOT, capture_output=True, text=True, check=True).stdout
    names = [name for name in listed.splitlines() if name not in EXEMPT and not name.startswith("tests/fixtures/")]
    files = [ROOT / name for name in names if Path(name).suffix in SUFFIXES or Path(name).name in ("Makefile", "run")]
    return [file for file in files if file.is_file() and file.name != "package-lock.json"]


def _find(pattern: str, line: str) -> re.Match[str] | None:
    """Search a line; names are read as words, so that `test_it_is_told` has the word told."""
    flags = re.RegexFlag(0) if re.search("[A-Z]", pattern) else re.IGNORECASE
    return re.search(pattern, line.replace("_", " "), flags)


@pytest.mark.parametrize("pattern", PRIVATE_WORDS)
def test_private_words_are_gone(pattern):
    found = [
        f"{file.relative_to(ROOT)}:{number}: {line.strip()[:100]}"
        for file in _files()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), start=1)
        if "vocabulary: ok" not in line and _find(pattern, line)
    ]
    assert not found, f"write {PRIVATE_WORDS[pattern]!r} instead:\n" + "\n".join(found)


def test_the_patterns_find_what_they_are_for():
    for text in (
        "it is answered",
        "in the box",
        "one vector a token",
        "stands twice",
        "No real difference",
        "test_it_is_told",
    ):
        assert any(_find(pattern, text) for pattern in PRIVATE_WORDS), text
    for text in ("bounding box", "held-out images", "an image", "a step of the loop", "realistic"):
        assert not any(_find(pattern, text) for pattern in PRIVATE_WORDS), text
