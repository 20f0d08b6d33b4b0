"""Errors that a user can correct, each one sentence: what is wrong, what was expected, what to do.

A `VitreousError` is a user's mistake or an outside failure (no network, a full disk); the command line prints it as one
line and exits with 2. Our own bugs are `assert`s and ordinary exceptions.

Messages are written once, for the command line (`--set model.fit=pad`, `-o`); outside of it they are read in Python,
and `in_python` says the same there (`model={'fit': 'pad'}`, `out=…`).
"""

import contextlib
import importlib.util
import re
import tomllib
from collections.abc import Iterator

_LONGEST_VALUE = 120  # characters of a user's value in a message
_on_command_line = False


@contextlib.contextmanager
def on_command_line() -> Iterator[None]:
    """Let messages speak of flags and commands, as `vitreous.cli` does, instead of Python."""
    global _on_command_line
    before, _on_command_line = _on_command_line, True
    try:
        yield
    finally:
        _on_command_line = before


class VitreousError(Exception):
    """Something the user can correct; the message says how."""

    def __str__(self) -> str:
        return for_reader(super().__str__())


class ConfigError(VitreousError):
    """A configuration value that does not fit."""


class DataError(VitreousError):
    """Data that cannot be fetched, read or trusted."""


class RunError(VitreousError):
    """A run folder that cannot be created, opened or resumed."""


class CheckpointError(VitreousError):
    """Weights that cannot be loaded or written in the layout asked for."""


class ExportError(VitreousError):
    """A model that cannot be written as ONNX, or whose ONNX file computes something else."""


class MissingExtraError(VitreousError):
    """An optional dependency is not installed."""


def quoted(value: object) -> str:
    """Return a user's value for a message: as Python writes it, shortened, whatever the value is."""
    try:
        text = repr(value)
    except (ValueError, RecursionError):  # Python refuses to write integers of 4,300 digits
        return f"<{type(value).__name__} too large to print>"
    return text if len(text) <= _LONGEST_VALUE else f"{text[: _LONGEST_VALUE // 2]}…{text[-_LONGEST_VALUE // 4 :]}"


def require_packages(*packages: str, extra: str, needed_for: str) -> None:
    """Raise if an optional dependency is not installed, naming the command that installs it."""
    for package in packages:
        if importlib.util.find_spec(package) is None:  # does not import it, which may take a second
            raise MissingExtraError(
                f"{needed_for} needs the package {package!r}: in the clone of vitreous, `make setup`, or"
                f" pip install -c constraints.txt -e '.[{extra}]'"
            )


# --- the same message in Python ----------------------------------------------------------------------------

#: flag → argument of the Python functions; a value after it is kept where it is a number or quoted
ARGUMENTS = {
    "--class": "target", "--data": "data", "--device": "device", "--epochs": "epochs", "--equal": "equal",
    "--from": "weights", "--jobs": "jobs", "--most": "most", "--num-classes": "num_classes",
    "--num-heads": "num_heads", "--per-class": "per_class", "--pool": "pool", "--run": "run", "--seeds": "seeds",
    "--seconds": "budget_seconds", "--split": "split", "--test": "test_index", "--threads": "threads", "--to": "to",
    "--trained-size": "trained_size",
}  # fmt: skip
SWITCHES = {
    "--approximate": "approximate", "--quick": "quick", "--resume": "resume", "--skip-corrupt": "skip_corrupt",
}  # fmt: skip
#: flags of what only the command line does
COMMAND_LINE_ONLY = {
    "--args", "--batch-size", "--find-lr", "--from-data", "--gpu-memory", "--gpu-tflops", "--host", "--input-shape",
    "--list", "--no-auth", "--port", "--preset", "--processes", "--shards", "--size", "--token-file", "--utilisation",
}  # fmt: skip

#: command → function
FUNCTIONS = {
    "calibrate": "calibrate", "compare": "compare", "evaluate": "evaluate", "look": "look", "predict": "predict",
    "presets": "preset", "train": "fit",
}  # fmt: skip

_FLAG = r"(?<![\w'\"/-])"  # the start of a flag, not a part of a name or of a user's value
_PHRASES = {
    r"--approximate \(in Python approximate=True\)": "approximate=True",
    r"--input-shape [\d,]+ \(or images=\.\.\.\)": "images=…",
    r"--processes (\d+), or torchrun": r"\1 processes of torchrun",
    r"--processes or torchrun": "torchrun",
}


def for_reader(message: str) -> str:
    """Return a message as it is on the command line, and in Python's words outside of it."""
    return message if _on_command_line else in_python(message)


def in_python(message: str) -> str:
    """Return a message that names flags and commands as a Python user would write them."""
    if "-" not in message and "`vitreous " not in message:
        return message
    for pattern, replacement in _PHRASES.items():
        message = re.sub(pattern, replacement, message)
    commands = "|".join(FUNCTIONS)
    message = re.sub(rf"`vitreous ({commands})\b([^`]*)`", _call, message)
    message = re.sub(r"\bvitreous (train)( --resume [^;]*)$", _call, message)  # how an interrupted training goes on
    setting = r"--set (?P<path>[a-z]+(?:\.[a-z_]+)+)(?:=(?P<value>\[[^]]*\]|[^\s,;)]+))?"
    message = re.sub(_FLAG + setting, _setting, message)
    message = re.sub(rf"{_FLAG}--set\b", "settings", message)
    message = re.sub(rf"{_FLAG}-o(?: (?P<path>[A-Z]+\b|[^\s;,]*[./][^\s;,]*))?(?![\w-])", _out, message)
    message = re.sub(rf"{_FLAG}({'|'.join(SWITCHES)})(?![\w-])", lambda found: f"{SWITCHES[found[1]]}=True", message)
    argument = rf"({'|'.join(ARGUMENTS)})(?![\w-])(?: (?P<value>-?\d+\b|'[^']*'|\[[^]]*\]))?"
    return re.sub(_FLAG + argument, lambda found: f"{ARGUMENTS[found[1]]}={found['value'] or '…'}", message)


def _call(found: re.Match[str]) -> str:
    """Return `vitreous train vit --data photos -o runs/mine` as vitreous.fit('vit', data='photos', out='runs/mine')."""
    words, _, out = found[2].partition(" -o ")
    arguments, rest = [], words.split()
    while rest:
        word = rest.pop(0)
        if word in SWITCHES:
            arguments.append(f"{SWITCHES[word]}=True")
        elif word in ARGUMENTS:
            arguments.append(f"{ARGUMENTS[word]}={_literal(rest.pop(0)) if rest else '…'}")
        elif word == "--processes":
            rest.pop(0)  # torchrun's matter
        else:
            arguments.append(_literal(word))
    if out:
        arguments.append(f"out={_literal(out.strip())}")
    return f"vitreous.{FUNCTIONS[found[1]]}" + (f"({', '.join(arguments)})" if arguments else "")


def _literal(word: str) -> str:
    """Return a word as Python writes it; PLACEHOLDERS stay."""
    word = word.strip("'\"")
    return word if word.isupper() or word == "…" else repr(word)


def _setting(found: re.Match[str]) -> str:
    """Return `--set model.fit=pad` as `model={'fit': 'pad'}`, and a setting of the data as a keyword."""
    *sections, field = found["path"].split(".")
    if found["value"] is None:
        return field
    try:
        value = tomllib.loads(f"value = {found['value']}")["value"]
    except tomllib.TOMLDecodeError:
        value = found["value"]
    section = sections[-1]
    if section != "data":
        return f"{section}={{{field!r}: {value!r}}}"
    return f"settings={{'data.fit': {value!r}}}" if field == "fit" else f"{field}={value!r}"  # models have a fit, too


def _out(found: re.Match[str]) -> str:
    return f"out={_literal(found['path'] or '…')}"
