"""docs/sources.md: every example runs, and each source has the same images."""

from __future__ import annotations

import re
import shlex
import sys
from pathlib import Path
from typing import Any

import pytest

import vitreous.cli
from vitreous.config import DataConfig
from vitreous.data.datasets import load_dataset

PAGE = (Path(__file__).parents[2] / "docs" / "sources.md").read_text(encoding="utf-8")


def test_every_example(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    names: dict[str, Any] = {"__name__": "sources"}
    shown = []
    for language, block in re.findall(r"```(python|sh)\n(.*?)```", PAGE, flags=re.DOTALL):
        if language == "python":
            exec(compile(block, "docs/sources.md", "exec"), names)
            continue
        for line in block.splitlines():
            words = shlex.split(line)
            assert words[:2] == ["vitreous", "data"], line
            assert words[2] in ("show", "prepare", "verify"), line
            monkeypatch.setattr(sys, "argv", words)
            with pytest.raises(SystemExit) as ended:
                vitreous.cli.main()
            output = capsys.readouterr()
            assert (ended.value.code, output.err) == (0, ""), line
            if words[2] == "show":
                assert "images of 8×8×1, 10 classes" in output.out
                shown.append(words[3])
    assert shown == ["list.csv", "digits.npz", "X.npy", "hub/", "shard-{000..002}.tar", "shards"]
    digests = set()
    for name in (*shown, names["name"]):
        data = load_dataset(DataConfig(name=name))
        digests.add(frozenset(zip((*data.train.digests, *data.val.digests, *data.test.digests), strict=True)))
    assert len(digests) == 1
