"""Run the README: its `vitreous` commands and its Python, on digits and for one epoch."""

import contextlib
import re
import shlex
import sys
from pathlib import Path

import pytest

import vitreous.cli

ROOT = Path(__file__).parents[1]
README = (ROOT / "README.md").read_text(encoding="utf-8")
DOCUMENTS = [str(path.relative_to(ROOT)) for path in (*ROOT.glob("*.md"), *ROOT.glob("docs/**/*.md"))]
TRAINING = {"train", "compare", "demo"}


def blocks(language: str) -> list[str]:
    return re.findall(rf"```{language}\n(.*?)```", README, flags=re.DOTALL)


def commands() -> list[list[str]]:
    lines = [line for block in blocks("sh") for line in block.splitlines() if line.startswith("vitreous ")]
    split = [shlex.split(line, comments=True)[1:] for line in lines]
    return [_on_digits(words) for words in split if words != ["serve"]]  # tests/test_wheel.py and tests/serving do


def _on_digits(words: list[str]) -> list[str]:
    words = ["digits" if word == "mnist" else word for word in words]
    if words[0] not in TRAINING:
        return words
    words += [] if "--epochs" in words else ["--epochs", "1"]
    before = ["", *words]
    words = ["1" if name in ("--seeds", "--epochs") else word for name, word in zip(before, words, strict=False)]
    return [*words, "--set", "train.threads=1"]


def run(words: list[str], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["vitreous", *words])
    with contextlib.suppress(SystemExit):  # typer exits after every command; mistakes go to stderr
        vitreous.cli.main()


def test_every_command_in_order(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert len(commands()) >= 8, "the README lost its commands"
    for words in commands():
        run(words, monkeypatch)
        assert not capsys.readouterr().err.startswith("vitreous:"), words
    assert (tmp_path / "runs" / "mine" / "model.safetensors").exists()


def test_every_python_snippet(tmp_path, monkeypatch, capsys):
    monkeypatch.chdir(tmp_path)
    assert blocks("python")
    for snippet in blocks("python"):
        exec(compile(snippet.replace("train.epochs=20", "train.epochs=1"), "README.md", "exec"), {})
    assert "on the test set" in capsys.readouterr().out


def test_it_is_short_and_begins_with_the_page():
    assert len(README.splitlines()) < 120
    assert re.findall(r"\]\(([^)]+)\)", README)[0] == "docs/serve.md#the-static-page"
    assert len(re.findall(r"^!\[.{40,}\]\(docs/pictures/", README, re.MULTILINE)) == 2, "two pictures, described"


def test_no_figure_is_left_open():
    assert not re.findall(r"\b(DEMO|POST)_[A-Z_]+\b", README)


@pytest.mark.parametrize("file", DOCUMENTS)
def test_links_have_targets(file):
    text = (ROOT / file).read_text(encoding="utf-8")
    for target in re.findall(r"\]\(([^)#]+)\)", text):
        if not target.startswith("http"):
            assert ((ROOT / file).parent / target).exists(), f"{file} links to {target}"
