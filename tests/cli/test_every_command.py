"""Every command, found in the command line itself: JSON alone on stdout, and text that fits the terminal."""

from __future__ import annotations

import fcntl
import importlib
import json
import os
import pty
import re
import struct
import subprocess
import sys
import termios
import threading
import tty
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from PIL import Image
from rich.cells import cell_len
from typer.main import get_command

import vitreous.cli
from vitreous.config import DataConfig, override
from vitreous.config.presets import preset
from vitreous.data.datasets import load_dataset
from vitreous.training.loop import fit

TINY = {"vit": ["model.depth=1"], "cnn": ["model.conv_channels=[8, 8]"]}
SETTINGS = ["data.name=digits", "train.epochs=0.2", "train.threads=1"]
#: command → arguments with which it succeeds; the runs runs/vit and runs/cnn are there
COMMANDS: dict[str, list[str]] = {
    "train": ["vit", "-o", "trained", *(word for setting in (*SETTINGS, *TINY["vit"]) for word in ("--set", setting))],
    "presets": [],
    "shapes": ["vit-h14"],
    "paper": ["vit"],
    "plan": ["vit-h14", "--images", "303000000", "--gpus", "64"],
    "compare": ["runs/vit", "runs/cnn", "-o", "compared"],
    "demo": ["--data", "digits", "-o", "demonstrated"],
    "transfer": [
        "--from-data", "few.npz", "--to", "digits", "--per-class", "5", "--seeds", "2", "--pretrain-epochs", "0.1",
        "--epochs", "1", "--fewest-steps", "9", "--set", "model.depth=1", "--set", "train.threads=1",
        "-o", "transferred",
    ],
    "study": [
        "depth-width", "--quick", "--seeds", "1", "--jobs", "1", "--data", "digits", "-o", "studied",
        *(word for setting in (*SETTINGS[1:], "data.train_per_class=3") for word in ("--set", setting)),
    ],
    "study list": ["--list"],
    "evaluate": ["--run", "runs/vit"],
    "calibrate": ["--run", "runs/vit"],
    "predict": ["digits/3.png", "digits/7.png", "--run", "runs/vit"],
    "look": ["--test", "3", "--run", "runs/cnn", "-o", "looked"],
    "mistakes": ["--run", "runs/vit", "-o", "missed"],
    "doctor": ["vit"],
    "env": [],
    "convert": ["runs/vit", "converted", "--to", "hf"],
    "export": ["--to", "onnx", "--run", "runs/cnn", "-o", "model.onnx"],
    "export page": ["--to", "page", "--run", "runs/vit", "-o", "page"],
    "data list": [],
    "data fetch": ["digits"],
    "data verify": ["mnist"],
    "data show": ["digits", "-o", "sheet.png"],
    "data prepare": ["digits", "-o", "shards", "--shards", "3"],
    "data clean": [],
}  # fmt: skip
NO_RESULT = {
    "serve": "runs until it is stopped; its API speaks JSON",
    "completion": "prints a script for a shell",
}
#: What takes seconds is computed by the first test, and printed by all.
SLOW = (
    "vitreous.training.loop.fit", "vitreous.studies.compare.compare", "vitreous.studies.compare.demo",
    "vitreous.studies.transfer.transfer", "vitreous.studies.study.run_study",
    "vitreous.evaluation.prediction.evaluate_run", "vitreous.evaluation.calibration.calibrate_run",
    "vitreous.inspection.from_run.look_at_run", "vitreous.comparison.mistakes.find_mistakes",
    "vitreous.doctor.diagnose_target", "vitreous.hardware.describe_environment", "vitreous.checkpoints.convert.convert",
    "vitreous.export.onnx_files.export_onnx", "vitreous.serving.static_page.export_page",
    "vitreous.conformance.conformance",
)  # fmt: skip


@pytest.fixture(scope="module")
def workshop(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """The current folder, with images and runs; slow functions remember their results."""
    folder, before = tmp_path_factory.mktemp("commands"), Path.cwd()
    digits = load_dataset(DataConfig(name="digits")).test
    np.savez(folder / "few.npz", images=digits.images[:200, 0].numpy(), labels=digits.labels[:200].numpy())
    (folder / "digits").mkdir()
    for label in (3, 7):
        pixels = digits.images[(digits.labels == label).nonzero()[0, 0], 0].numpy()
        Image.fromarray(pixels).save(folder / "digits" / f"{label}.png")
    for name, settings in TINY.items():
        fit(override(preset(name), [*SETTINGS, *settings]), folder / "runs" / name, progress=False)
    patch = pytest.MonkeyPatch()
    patch.setattr("vitreous.studies.compare._DIGITS_EPOCHS", 0.1)
    for target in SLOW:
        module, _, name = target.rpartition(".")
        patch.setattr(target, _once(getattr(importlib.import_module(module), name)))
    os.chdir(folder)
    yield folder
    os.chdir(before)
    patch.undo()


def _once(function: Callable[..., Any]) -> Callable[..., Any]:
    results: dict[str, Any] = {}

    def remembered(*arguments: Any, **options: Any) -> Any:
        key = " ".join(sys.argv[1:]).replace(" --json", "")
        if key not in results:
            results[key] = function(*arguments, **options)
        return results[key]

    return remembered


def run(monkeypatch: pytest.MonkeyPatch, *arguments: str) -> int:
    monkeypatch.setattr(sys, "argv", ["vitreous", *arguments])
    with pytest.raises(SystemExit) as stop:
        vitreous.cli.main()
    return int(stop.value.code or 0)


def arguments_of(command: str, *more: str) -> list[str]:
    words = command.split()
    return [*(words if words[0] == "data" else words[:1]), *COMMANDS[command], *more]


def test_every_command_is_here() -> None:
    root: Any = get_command(vitreous.cli.app)
    found = {**root.commands, **{f"data {name}": one for name, one in root.commands["data"].commands.items()}}
    del found["data"]
    tried = {command if command.startswith("data") else command.split()[0] for command in COMMANDS}
    assert set(found) == tried | set(NO_RESULT)
    takes_json = {name for name, command in found.items() if any("--json" in each.opts for each in command.params)}
    assert takes_json == tried


@pytest.mark.parametrize("command", COMMANDS)
def test_stdout_has_json_alone(command: str, workshop: Path, monkeypatch, capsys) -> None:
    code = run(monkeypatch, *arguments_of(command, "--json"))
    out, errors = capsys.readouterr()
    assert code == (1 if command == "doctor" and json.loads(out)["findings"] else 0), errors
    value = json.loads(out)
    assert value
    if command == "train":
        assert value["run"] == "trained"
        assert 0 <= value["accuracy"] <= 1
    elif command == "data show":
        assert sum(row["test"] for row in value["classes"]) == 359
    elif command == "export":
        assert value["outputs"][:2] == ["logits", "probabilities"]


class Terminal:
    """A terminal of so many columns in place of stdout; `shown` is what was printed, without colours."""

    def __init__(self, columns: int, monkeypatch: pytest.MonkeyPatch):
        self.main, child = pty.openpty()
        tty.setraw(child)
        self.shown = ""
        self._reader = threading.Thread(target=self._read)
        self._stream = os.fdopen(child, "w", encoding="utf-8")
        monkeypatch.setenv("COLUMNS", str(columns))  # the size of the window belongs to descriptor 1, which is pytest's
        monkeypatch.setenv("TERM", "xterm-256color")
        monkeypatch.setattr(sys, "stdout", self._stream)

    def _read(self) -> None:
        data = b""
        while chunk := self._more():
            data += chunk
        self.shown = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "", data.decode())

    def _more(self) -> bytes:
        try:
            return os.read(self.main, 65536)
        except OSError:  # the other end is closed
            return b""

    def __enter__(self) -> Terminal:
        self._reader.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stream.close()
        self._reader.join()
        os.close(self.main)


def too_wide(text: str, columns: int) -> list[str]:
    return [line for line in text.splitlines() if cell_len(line.rstrip()) > columns]


@pytest.mark.parametrize("columns", [80, 60])
@pytest.mark.parametrize("command", COMMANDS)
def test_text_fits_the_terminal(command: str, columns: int, workshop: Path, monkeypatch, capsys) -> None:
    with monkeypatch.context() as patch, Terminal(columns, patch) as terminal:
        run(patch, *arguments_of(command))
    run(monkeypatch, *arguments_of(command))
    piped = capsys.readouterr().out
    assert terminal.shown.strip()
    assert too_wide(terminal.shown, columns) == []
    assert terminal.shown.count("…") <= piped.count("…"), "wrapped, not truncated"
    letters = "".join(re.findall(r"[^\W\d_]", piped))
    assert [word for word in _words(terminal.shown) if word not in letters] == [], "the pipe has everything"


def _words(text: str) -> set[str]:
    """Return the words of at least three letters; a narrow table may abbreviate numbers and break long words."""
    return {word for word in re.findall(r"[^\W\d_]{3,}", text) if len(word) < 12}


def test_the_width_of_the_window_counts(workshop: Path) -> None:
    """With its own process and no COLUMNS; an error is wrapped between words, too."""
    main, child = pty.openpty()
    fcntl.ioctl(child, termios.TIOCSWINSZ, struct.pack("HHHH", 24, 50, 0, 0))
    environment = {key: value for key, value in os.environ.items() if key not in ("COLUMNS", "LINES")}
    process = subprocess.Popen(
        [sys.executable, "-m", "vitreous", "presets", "vitt"],
        stdin=child, stdout=child, stderr=child, env={**environment, "TERM": "xterm"}, cwd=workshop,
    )  # fmt: skip
    assert process.wait(timeout=120) == 2
    shown = os.read(main, 65536).decode()
    os.close(child)
    os.close(main)
    assert too_wide(shown, 50) == []
    assert shown.startswith("vitreous: there is no preset 'vitt'; did you mean")
    assert " ".join(shown.split()).endswith("vit-ti16, vit-s16")
