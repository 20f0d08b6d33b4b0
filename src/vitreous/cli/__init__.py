"""The command line: `vitreous VERB SUBJECT`. Results go to stdout, progress and messages to stderr.

Every verb has a module here with its name, whose docstring names the package it calls. A command parses, calls and
prints; it imports that package only when it runs, so that `--help` is quick.
"""

import logging
import os
import signal
import sys
from importlib import import_module
from typing import Annotated

from typer import Exit, Option, Typer

from vitreous import __version__
from vitreous.cli import data
from vitreous.cli.completion import VARIABLE, print_completions
from vitreous.cli.output import flush_or_discard, log_error, prepare_streams
from vitreous.errors import VitreousError, on_command_line, quoted

app = Typer(
    name="vitreous",
    help="A Vision Transformer you can see through: train, compare, look inside, diagnose. Small images, no GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS = (
    "presets", "shapes", "paper", "plan", "train", "compare", "demo", "study", "transfer", "evaluate", "calibrate",
    "predict", "look", "mistakes", "doctor", "env", "convert", "export", "serve", "completion",
)  # fmt: skip
for verb in VERBS:
    app.command(verb)(getattr(import_module(f"vitreous.cli.{verb}"), verb))
app.add_typer(data.app, name="data")


def _version(show: bool) -> None:
    if show:
        print(f"vitreous {__version__}")
        raise Exit


@app.callback()
def _root(
    version: Annotated[bool, Option("--version", callback=_version, is_eager=True, help="Print the version.")] = False,
) -> None:
    pass


def main() -> None:
    """Run the command line; a user's mistake is one line on stderr and exit code 2, never a traceback."""
    with on_command_line():
        _main()


def _main() -> None:
    interrupts: list[int] = []
    stopped = "stopped"
    logging.getLogger("matplotlib").setLevel(logging.ERROR)  # where HOME is read-only: its own cache is of no interest

    def on_interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # leave a caller's own handler alone
        signal.signal(signal.SIGINT, on_interrupt)  # training installs another one
    prepare_streams()
    if VARIABLE in os.environ:  # a shell asks, because TAB was pressed
        return print_completions(app)
    try:
        code = app(standalone_mode=False)
        failed = flush_or_discard()
        if failed is not None:
            raise failed
    except BaseException as error:
        if interrupts:  # an interrupted import may raise anything, not KeyboardInterrupt
            code = 130
            if isinstance(error, VitreousError) and getattr(error, "exit_code", None) == code:  # how to go on
                stopped = str(error)
        elif isinstance(error, BrokenPipeError):  # as in `vitreous presets | head -1`
            flush_or_discard()
            code = 1  # click's
        elif (sentence := _explain(error)) is not None:
            flush_or_discard()
            log_error(sentence)
            code = getattr(error, "exit_code", 2)
        else:
            if isinstance(error, Exception):
                error.add_note(_BUG)
            raise
    if interrupts:
        log_error(stopped)
    sys.exit(code or 0)


_BUG = "This is a mistake in vitreous: please report it, with the lines above and the output of `vitreous env`."


def _explain(error: BaseException) -> str | None:
    """Return one sentence for what an input or the machine caused, None for a mistake of ours.

    Most are VitreousErrors, raised where the mistake is noticed; the others are the last resort.
    """
    if isinstance(error, VitreousError):
        return str(error)
    if hasattr(error, "format_message"):  # click's usage errors, of whichever click typer brings
        return _usage_sentence(error)
    if isinstance(error, MemoryError) or (isinstance(error, RuntimeError) and _is_out_of_memory(str(error))):
        return (
            "the memory is full: make the images smaller (--set data.image_size), the patches larger (model.patch_size)"
            " or the model smaller, or take fewer images at once (train.micro_batch, train.batch_size,"
            " train.eval_batch_size)"
        )
    if isinstance(error, RecursionError):
        return "a setting or a file is nested too deeply to be read; make it flatter"
    if isinstance(error, UnicodeError):
        return f"a name or a file is not UTF-8 text ({error}); rename it, or save it as UTF-8"
    if isinstance(error, OSError) and isinstance(error.filename, str | bytes):
        return (
            f"cannot read or write {quoted(os.fsdecode(error.filename))}: {error.strerror}; name another file or folder"
        )
    if isinstance(error, OSError):
        return f"the system refused to read or write: {error.strerror or error}; correct that, and try again"
    return None


def _is_out_of_memory(message: str) -> bool:
    """Recognise torch's reports: of the CPU's allocator on Linux and Windows, and of CUDA and MPS."""
    return any(part in message for part in ("can't allocate memory", "not enough memory", "out of memory"))


def _usage_sentence(error: BaseException) -> str:
    message = " ".join(error.format_message().split()).rstrip(".")  # type: ignore[attr-defined]
    message = message or "name a command"  # the help has been printed
    context = getattr(error, "ctx", None)
    command = context.command_path if context is not None else "vitreous"
    return f"{message[:1].lower() + message[1:]}; `{command} --help` lists what it takes"
