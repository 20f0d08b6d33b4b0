"""Whatever the command line is given: exit code 0 or 2, one sentence, no traceback, bounded time and memory."""

from __future__ import annotations

import errno
import io
import itertools
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

import vitreous.cli
from attacks import command_lines
from attacks.command_line_files import prepare
from attacks.command_lines import COMMANDS, SETTINGS, attempt, cases, judge
from vitreous.config import Config
from vitreous.errors import VitreousError, quoted

COUNT = int(os.environ.get("VITREOUS_COMMAND_LINES", "250"))  # `make attacks` takes more
SEED = int(os.environ.get("VITREOUS_COMMAND_LINES_SEED", "0"))


@pytest.fixture(scope="module")
def hostile_folder(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A folder with everything that the command lines name; it is the current one."""
    before = Path.cwd()
    folder = tmp_path_factory.mktemp("hostile")
    prepare(folder)
    try:
        with command_lines.seams():
            yield folder
    finally:
        os.chdir(before)


def test_every_command_line_ends_in_success_or_one_sentence(hostile_folder: Path) -> None:
    problems = {" ".join(line)[:300]: problem for line in cases(SEED, COUNT) if (problem := attempt(line))}
    assert not problems, json.dumps(problems, indent=1)


def test_the_generator_reaches_every_command_and_setting() -> None:
    lines = list(cases(1, 3000))
    assert {tuple(line[:2]) for line in lines} | {tuple(line[:1]) for line in lines} >= set(COMMANDS)
    text = "\0".join(argument for line in lines for argument in line)
    for name, _, _ in SETTINGS:
        assert f"{name}=" in text, name
    assert {name.partition(".")[0] for name, _, _ in SETTINGS} == set(Config.model_fields)
    outputs = [value for line in lines for flag, value in itertools.pairwise(line) if flag in ("--out", "-o")]
    assert len(outputs) > 300
    assert all(not value.startswith(("/", "~")) and ".." not in Path(value).parts for value in outputs), "run by root"
    assert list(cases(1, 50)) == lines[:50], "the same seed gives the same command lines"


def test_the_judge_notices_what_it_is_for() -> None:
    assert judge(["train"], 2, "vitreous: there is no preset 'vitt'\n") is None
    assert judge(["train"], 0, "") is None
    for code, errors in [(1, "vitreous: something\n"), (2, ""), (2, "Traceback (most recent call last):\n"),
                         (2, "vitreous: a sentence of some length\nand another\n"), (2, "vitreous: x\n"),
                         (2, f"vitreous: {'a ' * 5000}\n"), (139, "")]:  # fmt: skip
        assert judge(["train"], code, errors), (code, errors)


#: Faults that were found, kept: arguments, and what the sentence says.
FOUND = [
    (["train", "vit", "--set", f"model.depth={'9' * 5000}"], "model.depth='9999"),
    (["train", "vit", "--set", f"model.depth=0x{'f' * 5000}"], "model.depth="),
    (["train", "vit", "--set", f"model.depth={'[' * 20000}"], "model.depth='[[["),
    (["train", "vit", "--set", f"model.kind=0x{'f' * 5000}"], "does not match any of the expected tags"),
    (["train", "vit", "--epochs", "1e-320"], "train.epochs=0.0: input should be greater than 0"),
    (["train", "vit", "--set", "model.norm_eps=1e-320"], "model.norm_eps=0.0: input should be greater than 0"),
    (["train", "vit", "--set", "model.depth=3\nseed=4"], "unable to parse string as an integer"),
    (["train", "vit", "--set", 'data.name="a\\u0000b"'], "null byte"),
    (["train", "vit", "--config", "deep.toml"], "cannot read the configuration 'deep.toml'"),
    (["train", "vit", "--config", "digits.toml"], "cannot read the configuration 'digits.toml'"),
    (["train", "vit", "--config", "fifo.toml"], "a pipe, socket or device"),
    (["train", "vit", "--data", "~nosuchuser/x.npz"], "there is no file or folder '~nosuchuser/x.npz'"),
    (["train", "vit", "--data", "a" * 5000], "there is no data set 'aaaa"),
    (["train", "vit", "--data", "digits", "-o", "a" * 5000], "File name too long"),
    (["train", "vit", "--data", "digits", "--from", "a" * 5000], "File name too long"),
    (["train", "vit", "--data", "fifo.npz"], "a pipe, socket or device"),
    (["train", "vit", "--data", "fifo-classes"], "a pipe, socket or device"),
    (["train", "vit", "--data", "latin-classes"], "not UTF-8; rename the folder"),
    (["train", "vit", "--data", "surrogate.npz"], "not Unicode text"),
    (["train", "vit", "--data", "bomb.npz"], "would unpack to 536,"),
    (["train", "vit", "--data", "lying.npz"], "declares the shape"),
    (["train", "vit", "--data", "twice.npz"], "repeats a name"),
    (["train", "vit", "--data", "digits", "--epochs", "1e308"], "train.epochs=1e+308"),
    (["train", "vit", "--data", "digits", "--epochs", "nan"], "finite number"),
    (["train", "vit", "--data", "digits", "--seconds", "inf"], "finite number"),
    (["train", "vit", "--data", "digits", "--threads", "99999"], "99,999 threads are more than"),
    (["train", "vit", "--data", "digits", "--set", "data.image_size=100000"], "lower data.image_size"),
    (["train", "vit", "--data", "digits", "--set", "model.dim=1000000"], "of memory, and 0.27 GB are free"),
    (["train", "vit", "--data", "digits", "--set", f"model.dim={2**63}"], "less than 2147483648"),
    (["train", "vit", "--data", "digits", "--set", f"data.split_seed={10**30}"], "data.split_seed="),
    (["train", "vit", "--data", "digits", "--set", "model.depth=100000000"], "less than or equal to 1000"),
    (["train", "post-vit", "--data", "digits", "--set", "model.dim=3"], "must be a multiple of model.num_heads=4"),
    (["train", "cnn", "--data", "digits", "--set", "data.image_size=2000"], "of memory, and"),
    (["shapes", "vit", "--set", "model.image_size=2147483647"], "does not divide the images"),
    (["predict", "fifo.png"], "a pipe, socket or device"),
    (["predict", "/dev/zero"], "a pipe, socket or device"),
    (["predict", "a" * 5000], "File name too long"),
    (["predict", "--run", "run", "folder.png"], "the folder 'folder.png' has no PNG"),
    (["predict", "--run", "caf\udce9", "ok.png"], r"there is no run folder 'caf\udce9'"),
    (["evaluate", "--run", "run-deep"], "cannot be read"),
    (["evaluate", "--run", "run-fifo"], "a pipe, socket or device"),
    (["evaluate", "--run", "run-latin"], "cannot be read"),
    (["convert", "fifo.safetensors", "out", "--to", "hf"], "not a plain file"),
    (["serve", "--token-file", "fifo"], "a pipe, socket or device"),
    (["data", "show", "caf\udce9"], "there is no data set"),
    (["data", "show", "digits", "-o", "fifo"], "sheet fifo: it is a pipe, socket or device"),
    (["data", "show", "digits", "-o", "."], "sheet .: it is a folder"),
    (["compare", "vit", "cnn", "--data", "digits", "--set", "name=../../x"], "cannot be a path"),
    (["doctor", "vit", "--seed", str(2**64)], "invalid value for '--seed'"),
    (["doctor", "vit", "--input-shape", "9" * 5000], "expected positive numbers"),
    (["doctor", "vit", "--input-shape", "1,100000,100000"], "name a smaller --input-shape"),
    (["serve", "--no-auth", "--host", "a" * 5000], "cannot listen on aaaa"),
    (["serve", "--workers", str(2**64)], "invalid value for '--workers'"),
    (["train", "vit", "--nosuch"], "no such option: --nosuch"),
]  # fmt: skip


@pytest.mark.parametrize(
    ("arguments", "sentence"), FOUND, ids=lambda value: " ".join(value)[:60] if isinstance(value, list) else ""
)
def test_faults_that_were_found(hostile_folder: Path, monkeypatch, arguments: list[str], sentence: str) -> None:
    errors = io.StringIO()
    monkeypatch.setattr(sys, "stderr", errors)
    monkeypatch.setattr(sys, "argv", ["vitreous", *arguments])
    with pytest.raises(SystemExit) as stop:
        vitreous.cli.main()
    assert stop.value.code == 2
    assert judge(arguments, 2, errors.getvalue()) is None, errors.getvalue()
    assert sentence in errors.getvalue()


def test_a_file_that_may_not_be_read(hostile_folder: Path, monkeypatch, capsys) -> None:
    """Simulated: whoever runs the tests may be root."""
    plain_open = os.open

    def refuse(path, *arguments, **options):
        if str(path).endswith(("ok.png", "good.toml", "run/config.json")):
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return plain_open(path, *arguments, **options)

    monkeypatch.setattr(os, "open", refuse)
    for line in (["predict", "ok.png"], ["train", "vit", "--config", "good.toml"], ["evaluate", "--run", "run"]):
        monkeypatch.setattr(sys, "argv", ["vitreous", *line])
        with pytest.raises(SystemExit) as stop:
            vitreous.cli.main()
        errors = capsys.readouterr().err
        assert stop.value.code == 2
        assert judge(line, 2, errors) is None
        assert "Permission denied" in errors


def test_a_huge_batch_size_is_all_images(hostile_folder: Path) -> None:
    assert attempt(["evaluate", "--run", "run", "--batch-size", str(2**63)]) is None


# --- the last resort ------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    ("error", "sentence"),
    [
        (MemoryError(), "the memory is full: make the images smaller"),
        (
            RuntimeError("[enforce fail at alloc_cpu.cpp] DefaultCPUAllocator: can't allocate memory"),
            "the memory is full",
        ),
        (RuntimeError("DefaultCPUAllocator: not enough memory: you tried to allocate 9 bytes"), "the memory is full"),
        (RecursionError("maximum recursion depth exceeded"), "nested too deeply"),
        (UnicodeDecodeError("utf-8", b"\xe9", 0, 1, "invalid"), "not UTF-8 text"),
        (PermissionError(13, "Permission denied", "/data/x.png"), "'/data/x.png': Permission denied"),
        (OSError(28, "No space left on device"), "refused to read or write: No space left on device"),
        (VitreousError("two\nlines \x1b[31m"), "two\\nlines \\x1b[31m"),
    ],
)
def test_outside_failures_are_one_sentence(monkeypatch, capsys, error: Exception, sentence: str) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("vitreous.hardware.describe_environment", fail)
    monkeypatch.setattr(sys, "argv", ["vitreous", "env"])
    with pytest.raises(SystemExit) as stop:
        vitreous.cli.main()
    line = capsys.readouterr().err
    assert stop.value.code == 2
    assert sentence in line
    assert line.count("\n") == 1


@pytest.mark.parametrize("error", [AssertionError("no"), RuntimeError("shapes differ"), KeyError("x"), TypeError("y")])
def test_our_own_mistakes_stay_tracebacks(monkeypatch, error: Exception) -> None:
    def fail() -> None:
        raise error

    monkeypatch.setattr("vitreous.hardware.describe_environment", fail)
    monkeypatch.setattr(sys, "argv", ["vitreous", "env"])
    with pytest.raises(type(error)) as raised:
        vitreous.cli.main()
    assert "please report it" in raised.value.__notes__[0]


def test_values_in_messages_are_short_whatever_they_are() -> None:
    assert quoted("a") == "'a'"
    assert len(quoted("a" * 10**6)) < 150
    assert quoted(1 << 20000) == "<int too large to print>"
    nested: list = []
    for _ in range(100_000):
        nested = [nested]
    assert "too large to print" in quoted(nested)


# --- streams --------------------------------------------------------------------------------------------------------


def _in_a_shell(script: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    return subprocess.run(
        ["bash", "-c", script.replace("VITREOUS", f"{sys.executable} -m vitreous")],
        capture_output=True, timeout=120, env={**os.environ, **environment}, check=False,
    )  # fmt: skip


def test_streams_that_are_closed_full_or_of_another_encoding() -> None:
    """One shell for all: each start of Python takes half a second."""
    done = _in_a_shell(
        "VITREOUS presets | true; echo ${PIPESTATUS[0]}; VITREOUS presets >&-; echo $?; VITREOUS presets >/dev/full;"
        " echo $?; PYTHONIOENCODING=ascii VITREOUS presets | wc -l"
    )
    codes = done.stdout.split()
    assert codes[:3] == [b"1", b"0", b"2"]
    assert int(codes[3]) > 10
    lines = done.stderr.decode().splitlines()
    assert lines == [
        "vitreous: the system refused to read or write: No space left on device; correct that, and try again"
    ]


def test_json_is_valid_in_every_encoding(monkeypatch) -> None:
    from vitreous.cli.output import prepare_streams, print_result

    value = {"×": "caf\udce9 图"}
    for encoding in ("utf-8", "ascii", "latin-1"):
        stream = io.TextIOWrapper(io.BytesIO(), encoding)
        monkeypatch.setattr(sys, "stdout", stream)
        prepare_streams()
        print_result(value=value, as_json=True)
        stream.flush()
        assert json.loads(stream.buffer.getvalue().decode(encoding)) == value  # type: ignore[attr-defined]
