"""Error messages: written once, with the command line's flags, and read in Python as arguments."""

from __future__ import annotations

import ast
import re
import sys
from pathlib import Path

import numpy as np
import pytest

import vitreous
import vitreous.cli
from vitreous.errors import (
    ARGUMENTS,
    COMMAND_LINE_ONLY,
    SWITCHES,
    ConfigError,
    VitreousError,
    in_python,
    on_command_line,
)

SOURCE = Path(vitreous.__file__).parent
FLAG = re.compile(r"(?<![\w-])--[a-z][a-z-]*")


@pytest.mark.parametrize(
    ("written", "in_code"),
    [
        ("exists already: add --resume to go on", "exists already: add resume=True to go on"),
        (
            "finish it with `vitreous train --resume -o /a b/run`",
            "finish it with vitreous.fit(resume=True, out='/a b/run')",
        ),
        (
            "go on with: vitreous train --resume --processes 2 -o 'a b'",
            "go on with: vitreous.fit(resume=True, out='a b')",
        ),
        ("`vitreous train PRESET -o RUN` makes one", "vitreous.fit(PRESET, out=RUN) makes one"),
        ("a run that `vitreous train` made", "a run that vitreous.fit made"),
        ("as in `vitreous train vit --from …`", "as in vitreous.fit('vit', weights=…)"),
        ("`vitreous presets NAME` prints all of them", "vitreous.preset(NAME) prints all of them"),
        ("run `vitreous calibrate --run runs/a`", "run vitreous.calibrate(run='runs/a')"),
        ("name some with --data (a folder, mnist, …)", "name some with data=… (a folder, mnist, …)"),
        ("--device 'tpu': choose from auto", "device='tpu': choose from auto"),
        ("--class 'ten': the classes are 0", "target='ten': the classes are 0"),
        ("--test 1000: the test set has", "test_index=1000: the test set has"),
        ("choose --set model.patch_size from 2, 4", "choose patch_size from 2, 4"),
        ("--set data.image_size=[40,48], or crop", "image_size=[40, 48], or crop"),
        ("--set model.fit=pad (zeros)", "model={'fit': 'pad'} (zeros)"),
        ("--set data.fit=crop", "settings={'data.fit': 'crop'}"),
        ("(--set train.precision=float32)", "(train={'precision': 'float32'})"),
        ("--set data.augment.flip=true", "augment={'flip': True}"),
        ("name another folder with -o", "name another folder with out=…"),
        ("name a file, as in -o model.onnx", "name a file, as in out='model.onnx'"),
        ("resume with --processes 2, or torchrun", "resume with 2 processes of torchrun"),
        ("the file '--data/x.png' and a--b.png, -other", "the file '--data/x.png' and a--b.png, -other"),
    ],
)
def test_a_message_in_both_languages(written, in_code):
    assert in_python(written) == in_code
    assert str(ConfigError(written)) == in_code
    with on_command_line():
        assert str(ConfigError(written)) == written
    assert str(ConfigError(written)) == in_code


def test_the_command_line_speaks_of_flags(capsys, monkeypatch, tmp_path):
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(sys, "argv", ["vitreous", "train", "vit", "--data", "digits", "--set", "model.patch_size=5"])
    with pytest.raises(SystemExit):
        vitreous.cli.main()
    assert (
        "choose --set model.patch_size from 2, 4, 7, 14, 28, or --set data.image_size=[30,30]"
        in capsys.readouterr().err
    )


def raised_texts(file: Path) -> list[str]:
    """Return the constant parts of the strings in every `raise` statement of a module."""
    raised = [node for node in ast.walk(ast.parse(file.read_text(encoding="utf-8"))) if isinstance(node, ast.Raise)]
    parts = [part for node in raised for part in ast.walk(node) if isinstance(part, ast.Constant)]
    return [part.value for part in parts if isinstance(part.value, str)]


def test_every_flag_in_a_message_has_a_python_form():
    """The command line's own messages (cli/) are never read in Python."""
    files = [file for file in SOURCE.rglob("*.py") if "cli" not in file.relative_to(SOURCE).parts]
    flags = {flag for file in files for text in raised_texts(file) for flag in FLAG.findall(text)}
    pip = {"--force-reinstall"}
    assert len(flags) > 10, "the search finds nothing"
    assert flags - pip <= {"--set", *ARGUMENTS, *SWITCHES, *COMMAND_LINE_ONLY}


@pytest.fixture(scope="module")
def half_trained(tmp_path_factory):
    """A run that was stopped."""

    class Stop(vitreous.Callback):
        def on_step(self, metrics):
            raise KeyboardInterrupt

    out = tmp_path_factory.mktemp("stopped") / "run"
    with pytest.raises(KeyboardInterrupt):
        vitreous.fit("vit", data="digits", out=out, depth=1, epochs=1, log_every=1, callbacks=[Stop()], progress=False)
    return out


IMAGES = np.random.default_rng(0).integers(0, 256, (20, 8, 8), dtype=np.uint8)
LABELS = np.arange(20) % 2


def mistakes(half_trained: Path) -> dict:
    fit = vitreous.fit
    return {
        "unknown setting": lambda: fit("vit", ephocs=5),
        "patch": lambda: fit("vit", data=(IMAGES, LABELS), patch_size=5, progress=False),
        "resume without out": lambda: fit(resume=True),
        "resume with settings": lambda: fit(out=half_trained, resume=True, lr=0.1),
        "taken": lambda: fit("vit", data="digits", out=half_trained, progress=False),
        "no data": lambda: fit("vit-b16"),
        "auto without data": lambda: fit(),
        "auto as preset": lambda: vitreous.preset("auto"),
        "device": lambda: fit("vit", data="digits", device="tpu"),
        "threads": lambda: fit("vit", data="digits", threads=10**6, out="never", progress=False),
        "weights": lambda: fit("cnn", data="digits", weights="bundled:vit", progress=False),
        "folder name": lambda: fit("vit", name="a/b"),
        "no run": lambda: vitreous.evaluate("nowhere"),
        "unfinished": lambda: vitreous.load(half_trained),
        "unfinished model": lambda: vitreous.Run.open(half_trained).model,
        "unfinished results": lambda: vitreous.Run.open(half_trained).accuracy,
        "split": lambda: vitreous.evaluate("bundled:vit", "tset", data="digits"),
        "other classes": lambda: vitreous.evaluate("bundled:vit", data=(IMAGES, LABELS)),
        "class": lambda: vitreous.look(test_index=0, run="bundled:vit", target="ten"),
        "test index": lambda: vitreous.look(test_index=10**7, run="bundled:vit"),
        "image and test": lambda: vitreous.look(IMAGES[0], run="bundled:vit", test_index=1),
        "one model": lambda: vitreous.compare("vit", data="digits"),
        "equal": lambda: vitreous.compare("vit", "cnn", equal="steps"),
        "seeds": lambda: vitreous.compare("vit", "cnn", seeds=0),
        "twice": lambda: vitreous.compare("vit", "vit", data="digits"),
        "unfinished run": lambda: vitreous.compare(half_trained, "cnn", data="digits"),
        "into a run": lambda: vitreous.look(test_index=0, run="bundled:vit", out=half_trained),
        "settings of runs": lambda: vitreous.compare("bundled:vit", "bundled:cnn", settings=["train.epochs=1"]),
        "no model": lambda: vitreous.diagnose("nothing"),
    }


@pytest.mark.parametrize("name", mistakes(Path("run")))
def test_no_error_of_the_public_functions_speaks_of_flags(name, half_trained, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    with pytest.raises((VitreousError, TypeError)) as caught:
        mistakes(half_trained)[name]()
    message = str(caught.value)
    assert not FLAG.search(message), message
    assert "`vitreous " not in message, message
    assert not re.search(r"(?<!\w)-o\b", message), message
