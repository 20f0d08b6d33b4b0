"""Hostile command lines and settings, generated from the options of every command and from the configuration's schema.

`cases(seed, count)` yields argument lists; `prepare(folder)` makes the files they name, `seams()` replaces what would
train, serve or download, and `attempt(arguments)` runs one in this process and returns what was wrong about it.
"""

from __future__ import annotations

import contextlib
import io
import json
import os
import random
import signal
import socket
import sys
import types
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Literal
from unittest import mock

import typer
from pydantic import BaseModel

import vitreous.cli
from attacks.command_line_files import prepare
from vitreous.config import Config
from vitreous.data.folders import files_below
from vitreous.errors import VitreousError

SECONDS = 60  # for one command line; the slowest builds 1,000 layers, in about 5 seconds of CPU time
LONGEST_LINE = 4100  # characters on stderr
FREE_BYTES = 2**28  # what the memory bound sees: enough for small models, and large ones are refused at once

LONG = "a" * 5000
NAMES = (
    "", " ", ".", "..", "/", "-", "--", "~", "~nosuchuser", "~nosuchuser/x.npz", "a\nb", "a\tb\x1b[31m", "caf\udce9",
    "\ufeff", "图像", "🙂", "%s%n{}", "$(id)", "a" * 255, LONG, f"{LONG}.npz", f"x/{LONG}/y.png", "C:\\x", "//x",
    "bundled:", "bundled:nosuch", "bundled:../vit", "vit", "mnist", "digits", "none", "null",
)  # fmt: skip
FILES = (
    "fifo", "fifo.png", "fifo.npz", "fifo.toml", "fifo.safetensors", "socket.png", "socket.npz", "loop.png", "loop",
    "/dev/zero", "/dev/null", "/dev/full", "/dev/stdin", "/dev/tty", "empty.png", "empty.npz", "empty.toml",
    "empty.safetensors", "folder", "folder.png", "folder.npz", "folder.toml", "deep.toml", "digits.toml", "latin.toml",
    "null.toml", "tables.toml", "bomb.npz", "lying.npz", "twice.npz", "surrogate.npz", "good.npz", "latin-classes",
    "fifo-classes", "run-deep", "run-latin", "run-fifo", "run-list", "run-empty", "run", "run/config.json", "ok.png",
    "nosuch", "nosuch/nosuch.png", "ok.png/x", "/proc/self/mem",
)  # fmt: skip
NUMBERS = (
    "0", "-0", "-1", "1", "2", "3", "7", "0.5", "1e-320", "1e308", "-1e308", "1e400", "nan", "inf", "-inf", "NaN",
    "Infinity", "100000", str(2**31 - 1), str(2**31), str(2**32), str(2**53 + 1), str(2**63 - 1), str(2**63),
    str(2**64), str(10**30), "9" * 4299, "9" * 4301, "9" * 5000, "-" + "9" * 5000, "1" + "0" * 400 + ".5", "0x10",
    "0x" + "f" * 5000, "0b" + "1" * 20000, "1_000", "٣", "²", "1e", "1,2", "1;2", "true", "0.1.2",
)  # fmt: skip
INTEGERS = (
    "1", "2", "3", "4", "8", "12", "17", "64", "500", "1000", "1001", "65536", "1000000", "2147483647", "0", "-1",
)  # fmt: skip
FLOATS = (
    "0", "1e-320", "1e-30", "0.001", "0.3", "0.5", "0.999999999999", "1", "2", "37.5", "1000", "1e9", "1e30", "1e300",
)  # fmt: skip
SIZES = (
    "1", "2", "3", "7", "14", "28", "29", "56", "[7, 4]", "[1, 28]", "[28, 1]", "[]", "[4]", "[8, 8]", "[16, 8, 8]",
    "500", "[1000000, 1]", "100000", "[0.5, 0.9]", "[0, 0]", "['attention']", "['head', 'pre-norm']",
)  # fmt: skip
NESTED = (
    "[" * 20000, "[" * 200 + "]" * 200, "[" * 3000 + "1" + "]" * 3000, "{a={b={c=1}}}", "{", "[1, 2", "[1, 2]",
    "[[1, 2], [3]]", "[1, 2, 3]", "[]", "[nan, inf]", f"[{'1,' * 20000}]", "[0, 0]", "[-1, 1]", "[1, 1000000000]",
    "[100000, 100000]", "[true, false]", "[1.5, 2.5]", "['a', 'b']", "[2147483647, 2147483647]",
)  # fmt: skip
TEXTS = (
    '""', '"\\u0000"', '"a\\u0000b"', '"\\n"', '"' + "é" * 3000 + '"', "'''x'''", '"""', "1979-05-27", "07:32:00",
    "true", "false", "none", "None", "null", "#", "= 1", "1\nseed = 3", "\\", "'", "\udcff", "../../x",
)  # fmt: skip
WORDS = (
    "cls", "mean", "seq", "learned", "learned-2d", "sincos-2d", "relative", "mlp", "linear", "pad", "resize", "exact",
    "sgd", "muon", "adamw", "float64", "bfloat16", "nll", "backbone", "post-vit", "post-cnn", "post-design", "cnn",
    "per-index", "paper", "tanh", "constant",
)  # fmt: skip

#: Values with which a command could succeed, by the name of the option or argument.
PLAUSIBLE = {
    "preset": ("vit", "cnn", "post-vit", "mnist-tiny"), "name": ("vit", "digits", "good.npz"),
    "data": ("digits", "good.npz"), "run": ("run", "bundled:vit"), "runs": ("run", "bundled:cnn"),
    "images": ("ok.png",), "image": ("ok.png",), "subjects": ("vit", "cnn", "run", "bundled:vit"),
    "target": ("vit", "out-convert", "digits"), "source": ("run",), "to": ("hf", "onnx", "page", "vitreous", "digits"),
    "split": ("test", "val"), "equal": ("epochs", "seconds"), "epochs": ("1", "0.5"), "seconds": ("3",),
    "seeds": ("2",), "threads": ("1",), "processes": ("1", "2"), "seed": ("3",), "device": ("cpu", "auto"),
    "per_class": ("2,3",), "heads": ("1-1",), "patches": ("1",), "host": ("127.0.0.1", "::1"), "port": ("8000",),
    "token_file": ("token",), "config_file": ("good.toml",), "weights": ("run",), "teacher": ("run", "bundled:cnn"),
    "against": ("run",), "input_shape": ("1,28,28",), "test": ("0",), "patch": ("1",), "top": ("1",),
    "shell": ("bash",),
}  # fmt: skip


# --- settings, from the schema --------------------------------------------------------------------------------


def settings_of(model: type[BaseModel] = Config, prefix: str = "", kind: str = "") -> list[tuple[str, Any, str]]:
    """Return (`section.field`, its type, the kind of model it is for) of every field of a configuration."""
    found: list[tuple[str, Any, str]] = []
    for name, field in model.model_fields.items():
        sections = _models_in(field.annotation)
        for section in sections:
            inner = section.model_fields["kind"].default if "kind" in section.model_fields else kind
            found += settings_of(section, f"{prefix}{name}.", inner)
        if not sections:
            found.append((prefix + name, field.annotation, kind))
    return found


def _models_in(annotation: Any) -> list[type[BaseModel]]:
    if typing.get_origin(annotation) in (typing.Annotated, typing.Union, types.UnionType):
        return [model for part in typing.get_args(annotation) for model in _models_in(part)]
    return [annotation] if isinstance(annotation, type) and issubclass(annotation, BaseModel) else []


def _values_of(annotation: Any) -> tuple[str, ...]:
    """Return values of the right type, extreme ones among them."""
    origin, inner = typing.get_origin(annotation), typing.get_args(annotation)
    if origin is Literal:
        return tuple(map(str, inner))
    if origin is tuple:
        return SIZES
    if inner:
        return tuple(
            value for part in inner for value in _values_of(part) if origin is not typing.Annotated or part is inner[0]
        )
    return {bool: ("true", "false"), int: INTEGERS, float: FLOATS, str: (*FILES, *NAMES), Path: (*FILES, *NAMES)}.get(
        annotation, ("null",)
    )


def _settings(choose: random.Random) -> list[str]:
    """Return one hostile setting, often after the kind of model that has it."""
    name, annotation, kind = choose.choice(SETTINGS)
    anything = choose.choice((NUMBERS, NUMBERS, NESTED, TEXTS, WORDS, NAMES, FILES))
    value = choose.choice(_values_of(annotation) if choose.random() < 0.6 else anything)
    setting = f"{name}={value}"
    if choose.random() < 0.08:
        section = name.partition(".")[0]
        setting = choose.choice((
            name, f" {name} = {value} ", f"{name}.x={value}", f"{section}={value}", f".{name}={value}",
            f"{LONG}={value}", "=", "." * 3000, f"{name}=={value}", f"{name.upper()}={value}", value,
        ))  # fmt: skip
    return [f"model.kind={kind}", setting] if kind and choose.random() < 0.7 else [setting]


# --- command lines, from the commands ---------------------------------------------------------------------------


def commands() -> dict[tuple[str, ...], list[tuple[Any, Any]]]:
    """Return the parameters of every command, each with its type, by the command's words."""
    group: Any = typer.main.get_command(vitreous.cli.app)
    found: dict[tuple[str, ...], list[tuple[Any, Any]]] = {}
    for name, command in group.commands.items():
        inner = getattr(command, "commands", None)
        for words, one in {(name, sub): each for sub, each in inner.items()}.items() if inner else [((name,), command)]:
            hints = typing.get_type_hints(one.callback)
            found[words] = [(parameter, hints[parameter.name]) for parameter in one.params if parameter.name != "help"]
    return found


SETTINGS = settings_of()
COMMANDS = commands()


def cases(seed: int, count: int) -> Iterator[list[str]]:
    """Yield argument lists; each command in turn gets one or two hostile values among plausible ones."""
    choose = random.Random(seed)
    names = [words for words in COMMANDS for _ in range(3 if "settings" in [p.name for p, _ in COMMANDS[words]] else 1)]
    for number in range(count):
        yield _command_line(choose, names[number % len(names)])


def _command_line(choose: random.Random, words: tuple[str, ...]) -> list[str]:
    if choose.random() < 0.03:
        return [choose.choice((*NAMES, *NUMBERS, *WORDS)) for _ in range(choose.randrange(4))]
    parameters = COMMANDS[words]
    hostile = set(choose.sample(range(len(parameters)), min(len(parameters), choose.choice((1, 1, 2)))))
    line = list(words)
    # a run has its own settings, so a hostile --run is given without them
    alone = any(parameters[number][0].name == "run" for number in hostile)
    for number, (parameter, annotation) in enumerate(parameters):
        flags = [flag for flag in parameter.opts if flag.startswith("-")]
        # without --data, a training needs a download; a run has its own settings
        usual = {"data": 0.9, "settings": 0.9, "preset": 0.95, "run": 0.1, "resume": 0.05}.get(parameter.name, 0.15)
        wanted = number in hostile or parameter.required or choose.random() < usual
        if not wanted or (alone and parameter.name in ("preset", "settings")):
            continue
        if getattr(parameter, "is_flag", False):
            line.append(flags[0])
            continue
        several = parameter.nargs == -1 or getattr(parameter, "multiple", False)
        for _ in range(choose.choice((1, 1, 2)) if several else 1):
            for value in _values(choose, parameter.name, annotation, number in hostile):
                if parameter.name not in ("out", "target") or _is_inside(value):
                    line += [flags[0], value] if flags else [value]
    if choose.random() < 0.02:
        line.append(choose.choice(("--nosuch", "-x", "--", "--set", "-o", LONG, "--epochs=", "@ok.png")))
    return line


def _values(choose: random.Random, name: str, annotation: Any, hostile: bool) -> list[str]:
    if name == "settings":
        plain = (
            "model.depth=1",
            "train.batch_size=8",
            "data.image_size=14",
            "model.fit=pad",
            "train.precision=float32",
        )
        return _settings(choose) if hostile or choose.random() < 0.5 else [choose.choice(plain)]
    if not hostile and name == "subjects":
        return choose.sample(("vit", "cnn", "mnist-tiny", "run"), 2)
    if not hostile and name == "out":
        return [f"out-{choose.randrange(10**6)}"]
    if not hostile and name in PLAUSIBLE:
        return [choose.choice(PLAUSIBLE[name])]
    if choose.random() < 0.5 and (typed := [value for value in _values_of(annotation) if value != "null"]):
        return [choose.choice(typed)]
    return [choose.choice(choose.choice((NAMES, FILES, NUMBERS, TEXTS, NESTED, WORDS)))]


def _is_inside(name: str) -> bool:
    """Return whether writing there stays in the prepared folder: these command lines may be run by root."""
    return not (name.startswith(("/", "~")) or ".." in Path(name).parts)


# --- running them -------------------------------------------------------------------------------------------------


class _Stop(VitreousError):
    """Raised in place of a training."""


@contextlib.contextmanager
def seams() -> Iterator[None]:
    """Replace the work that a valid command line would start: training, serving, exporting, drawing, downloading."""

    def stop(*_: object, **__: object) -> typing.NoReturn:
        raise _Stop("the work would start here")

    def one_step(trainer: Any, *_: object) -> None:
        step, epoch, indices = next(trainer.sampler.steps(0, 1))
        trainer._guarded_step(step, epoch, indices[:4])
        stop()

    lookup = socket.getaddrinfo

    def numbers_only(host: Any, port: Any, **options: Any) -> Any:
        return lookup(host, port, **options, flags=socket.AI_NUMERICHOST)

    def files_inside(folder: Any) -> Iterator[str]:
        """Of folders outside the prepared one, which may be "/", nothing is predicted."""
        return files_below(folder) if Path.cwd() in (path := Path(folder).resolve(), *path.parents) else iter(())

    with contextlib.ExitStack() as stack:
        for target, replacement in {
            "vitreous.training.loop.Trainer.train": one_step,
            "vitreous.training.setup._seconds_per_step": lambda *_: 0.01,
            "torch.compile": lambda model, **_: model,
            "vitreous.training.launch.run_in_processes": lambda *_: 0,
            "vitreous.serving.server._export_missing": lambda _: None,
            "vitreous.serving.server._announce": lambda *_: None,
            "vitreous.serving.server._run_granian": stop,
            "socket.getaddrinfo": numbers_only,
            "vitreous.data.image_files.files_below": files_inside,
            "sys.stdin": io.StringIO("ok.png\nnosuch.png\n"),
            "vitreous.serving.static_page.export_page": stop,
            "vitreous.export.onnx_files.export_onnx": stop,
            "vitreous.inspection.from_run.write_look": stop,
            "vitreous.comparison.mistakes.write_mistakes": stop,
            "vitreous.doctor.target.diagnose": stop,
            "vitreous.hardware.describe_environment": lambda: {"python": "3"},
            "vitreous.hardware.free_memory": lambda: FREE_BYTES,
        }.items():
            stack.enter_context(mock.patch(target, replacement))
        stack.enter_context(mock.patch.dict(os.environ, VITREOUS_OFFLINE="1", VITREOUS_CACHE="cache"))
        yield


def attempt(arguments: list[str]) -> str | None:
    """Run `vitreous ARGUMENTS` in this process; return what is wrong with how it ended, None if nothing is."""

    def too_long(*_: object) -> typing.NoReturn:
        raise BaseException(f"still running after {SECONDS} seconds")

    out, errors = (io.TextIOWrapper(io.BytesIO(), "utf-8") for _ in range(2))
    code: Any = None
    previous = signal.signal(signal.SIGALRM, too_long)
    signal.alarm(SECONDS)
    try:
        with mock.patch.multiple(sys, argv=["vitreous", *arguments], stdout=out, stderr=errors):
            vitreous.cli.main()
    except SystemExit as stop:
        code = stop.code
    except BaseException as error:
        frame = error.__traceback__
        while frame is not None and frame.tb_next is not None:
            frame = frame.tb_next
        where = f"{Path(frame.tb_frame.f_code.co_filename).name}:{frame.tb_lineno}" if frame else ""
        return f"{type(error).__name__} at {where}: {str(error)[:200]}"
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, previous)
    errors.flush()
    return judge(arguments, code, errors.buffer.getvalue().decode("utf-8"))


def judge(arguments: list[str], code: Any, errors: str) -> str | None:
    """Return what is wrong with an exit code and the text on stderr: a mistake is one line, and the code is 2."""
    notes = ("note: ", "MNIST is out of reach")
    lines = [line for line in errors.splitlines() if not line.startswith(notes)]
    if code in (None, 0):
        return None
    if code == 1 and arguments[:1] in (["doctor"], ["data"], ["predict"]):  # findings, a damaged cache, a bad image
        return None
    if code != 2:
        return f"exit code {code}: {errors[-300:]}"
    if len(lines) != 1 or not lines[0].startswith("vitreous: ") or len(lines[0]) < 20:
        return f"{len(lines)} lines: {errors[-300:]}"
    if len(lines[0]) > LONGEST_LINE:
        return f"a line of {len(lines[0])} characters: {lines[0][:300]}"
    return None


def main() -> None:
    """`python -m attacks.command_lines [COUNT [SEED]]`: print the faults as JSON lines; exit code 1 if any."""
    import tempfile

    count, seed = (int(value) for value in (*sys.argv[1:], *("5000", "0")[len(sys.argv) - 1 :]))
    faults = 0
    with tempfile.TemporaryDirectory() as folder:
        prepare(Path(folder))
        with seams():
            for arguments in cases(seed, count):
                if problem := attempt(arguments):
                    faults += 1
                    shown = [argument if len(argument) < 200 else f"{argument[:60]}…" for argument in arguments]
                    print(json.dumps({"arguments": shown, "problem": problem}), flush=True)
        os.chdir("/")
    print(f"{count} command lines, {faults} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
