"""The command line: `vitreous VERB SUBJECT`. Results go to stdout, progress and messages to stderr.

Every verb has a module here with its name, whose docstring names the package it calls. A command parses, calls and
prints; it imports that package only when it runs, so that `--help` is quick.
"""

import signal
import sys
from importlib import import_module
from typing import Annotated

from typer import Exit, Option, Typer

from vitreous import __version__
from vitreous.cli import data
from vitreous.errors import VitreousError

app = Typer(
    name="vitreous",
    help="A Vision Transformer you can see through: train, compare, look inside, diagnose. Small images, no GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
VERBS = (
    "presets", "shapes", "paper", "train", "compare", "demo", "transfer", "evaluate", "predict", "look", "mistakes",
    "doctor", "env", "convert", "export", "serve",
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
    interrupts: list[int] = []

    def on_interrupt(number: int, _frame: object) -> None:
        interrupts.append(number)
        raise KeyboardInterrupt

    if signal.getsignal(signal.SIGINT) is signal.default_int_handler:  # leave a caller's own handler alone
        signal.signal(signal.SIGINT, on_interrupt)  # training installs another one
    try:
        app()
    except VitreousError as error:
        print(f"vitreous: {error}", file=sys.stderr)
        sys.exit(getattr(error, "exit_code", 2))
    except BaseException:
        if not interrupts:
            raise
        print("vitreous: stopped", file=sys.stderr)  # an interrupted import may raise anything, not KeyboardInterrupt
        sys.exit(130)
