"""Shell completion, by really running the scripts: bash's function, and TAB in a terminal."""

from __future__ import annotations

import json
import os
import pty
import select
import subprocess
import sys
import time
from pathlib import Path

import pytest

import vitreous.cli
from vitreous.cli.completers import COMPLETERS, complete_setting, load_words
from vitreous.cli.completion import SCRIPTS, with_completers
from vitreous.config import Config, ViTConfig
from vitreous.config.presets import PRESETS
from vitreous.data.specs import DATASETS


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with a `vitreous` command, two runs, images and data."""
    folder = tmp_path_factory.mktemp("completion")
    command = folder / "bin" / "vitreous"
    command.parent.mkdir()
    command.write_text(f'#!/bin/sh\nexec {sys.executable} -m vitreous "$@"\n')
    command.chmod(0o755)
    for run in ("runs/first", "runs/second"):
        (folder / run).mkdir(parents=True)
        (folder / run / "config.json").write_text("{}")
    (folder / "photos of mine").mkdir()
    (folder / "mine.npz").touch()
    (folder / "mine.png").touch()
    return folder


def environment(home: Path) -> dict[str, str]:
    return {**os.environ, "PATH": f"{home / 'bin'}:{os.environ['PATH']}", "VITREOUS_CACHE": str(home / "cache")}


# what readline would split the line into, with its word breaks
_ASK_BASH = r"""
ask() {
    COMP_LINE="$1" COMP_POINT=${#1} COMP_WORDS=(vitreous) COMP_CWORD=1
    _vitreous vitreous
    printf '%s' "${#COMPREPLY[@]}"; printf '\t%s' "${COMPREPLY[@]}"; printf '\n'
}
"""


def complete_in_bash(home: Path, lines: list[str]) -> list[list[str]]:
    script = "".join([SCRIPTS["bash"], _ASK_BASH, *(f"ask {json.dumps(line)}\n" for line in lines)])
    done = subprocess.run(
        ["bash", "--norc", "-c", script], cwd=home, env=environment(home), capture_output=True, text=True, check=True
    )
    assert done.stderr == ""
    replies = [line.split("\t") for line in done.stdout.splitlines()]
    return [values if int(count) else [] for count, *values in replies]


CASES = {
    "vitreous tra": ["train", "transfer"],
    "vitreous data ve": ["verify"],
    "vitreous predict --js": ["--json"],
    "vitreous train mnist-": [name for name in PRESETS if name.startswith("mnist-")],
    "vitreous data fetch ": list(DATASETS),
    "vitreous train vit --data m": ["mnist", "mine.npz"],
    "vitreous data show ph": ["photos\\ of\\ mine/"],
    "vitreous evaluate --run bundled:v": ["vit"],  # readline has split the word at the colon
    "vitreous evaluate --run=bundled:v": ["vit"],
    "vitreous evaluate --run runs/f": ["runs/first"],
    "vitreous evaluate --run ru": ["runs/"],
    "vitreous train vit --set train.optim": ["train.optimizer="],
    "vitreous train vit --set train.optimizer=": ["adamw", "sgd", "muon"],
    "vitreous train vit --set=train.optimizer=m": ["muon"],
    "vitreous export --to p": ["page"],
    "vitreous study pos": ["positions"],
    "vitreous completion ": ["bash", "zsh", "fish"],
    "vitreous predict mi": [],  # files: bash's own completion
    "vitreous train vit --epochs ": [],
}


def test_bash_completes_commands_options_and_values(home: Path) -> None:
    for (line, expected), found in zip(CASES.items(), complete_in_bash(home, list(CASES)), strict=True):
        assert found == expected, line


def test_tab_in_a_terminal(home: Path) -> None:
    """readline puts the whole together: the words it split are joined again, and a run is followed by a space."""
    (home / "bashrc").write_text(SCRIPTS["bash"] + "PS1='> '\n")
    main, child = pty.openpty()
    shell = subprocess.Popen(
        ["bash", "--rcfile", str(home / "bashrc"), "-i"],
        stdin=child, stdout=child, stderr=child, cwd=home, env={**environment(home), "TERM": "dumb"},
    )  # fmt: skip
    os.close(child)
    typed = {"evalu\t": "evaluate ", "--run bundled:c\t": "--run bundled:cnn ", "--sp\tte\t": "--split test "}
    try:
        shown = _read_until(main, "> ")
        os.write(main, b"vitreous ")
        for keys, expected in typed.items():
            os.write(main, keys.encode())
            shown += _read_until(main, expected)
        assert "vitreous evaluate --run bundled:cnn --split test " in shown
    finally:
        shell.kill()
        shell.wait()
        os.close(main)


def _read_until(terminal: int, words: str, seconds: float = 30.0) -> str:
    shown, end = "", time.monotonic() + seconds
    while words not in shown and time.monotonic() < end:
        if select.select([terminal], [], [], 0.2)[0]:
            shown += os.read(terminal, 4096).decode()
    assert words in shown, shown
    return shown


def test_a_tab_imports_no_heavy_library(home: Path) -> None:
    script = (
        "import os, sys; os.environ['VITREOUS_COMPLETE'] = 'vitreous train vit --set model.de'\n"
        "from vitreous.cli import main; main()\n"
        "print(sorted({'torch', 'numpy', 'PIL', 'scipy', 'sklearn', 'matplotlib'} & set(sys.modules)))"
    )
    for _ in range(2):  # the first one collects the names, the second reads them from the cache
        done = subprocess.run(
            [sys.executable, "-c", script], env=environment(home), capture_output=True, text=True, check=True
        )
    assert done.stdout.splitlines() == ["model.depth=\t", "[]"]


def test_the_names_are_those_of_the_library(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    words = load_words()
    assert list(words["presets"]) == list(PRESETS)
    assert list(words["datasets"]) == list(DATASETS)
    assert {key.partition(".")[0] for key in words["settings"]} == set(Config.model_fields)
    assert {f"model.{name}" for name in ViTConfig.model_fields} <= set(words["settings"])
    assert words["settings"]["data.augment.flip"] == ["true", "false"]
    assert ("model.positions=relative", "") in complete_setting("model.positions=")


def test_names_are_collected_again_when_their_source_changes(monkeypatch, tmp_path) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path))
    file = tmp_path / "completion.json"
    for damaged in ("", "[]", '{"stamps": [0]}', json.dumps({**load_words(), "stamps": [1, 2], "presets": {}})):
        file.write_text(damaged)
        assert list(load_words()["presets"]) == list(PRESETS), damaged
        assert json.loads(file.read_text())["presets"], "kept for the next TAB"
    file.unlink()
    tmp_path.chmod(0o500)
    assert list(load_words()["presets"]) == list(PRESETS), "a cache that cannot be written is only slower"


def test_every_completer_has_a_parameter() -> None:
    root = with_completers(vitreous.cli.app)
    commands = {**root.commands, **root.commands["data"].commands}
    named = {parameter.name for command in commands.values() for parameter in command.params}
    named |= {f"{name} {parameter.name}" for name, command in commands.items() for parameter in command.params}
    assert set(COMPLETERS) <= named


@pytest.mark.parametrize("shell", SCRIPTS)
def test_completion_prints_the_script(shell: str, monkeypatch, capsys) -> None:
    monkeypatch.setattr(sys, "argv", ["vitreous", "completion", shell])
    with pytest.raises(SystemExit, match=r"^0$"):
        vitreous.cli.main()
    assert capsys.readouterr().out == SCRIPTS[shell]
