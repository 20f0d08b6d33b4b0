"""The command line: `vitreous VERB SUBJECT`. Results go to stdout, progress and messages to stderr.

verb                          module here   calls
data list|fetch|verify|show   data.py       vitreous.data
presets, shapes, paper        model.py      vitreous.config, vitreous.models, vitreous.conformance
train, compare, demo,         train.py      vitreous.training, vitreous.studies
  transfer
evaluate, predict             evaluate.py   vitreous.evaluation
look, mistakes, doctor, env   diagnose.py   vitreous.inspection, .comparison, .doctor, .hardware
convert, export, serve        deploy.py     vitreous.checkpoints, vitreous.export, vitreous.serving

A command parses, calls one function and prints. It imports that function only when it runs, so that `--help` is quick.
"""

import signal
import sys
from typing import Annotated

from typer import Exit, Option, Typer

from vitreous import __version__
from vitreous.cli import data, deploy, diagnose, evaluate, model, train
from vitreous.errors import VitreousError

app = Typer(
    name="vitreous",
    help="A Vision Transformer you can see through: train, compare, look inside, diagnose. Small images, no GPU.",
    no_args_is_help=True,
    add_completion=False,
    pretty_exceptions_enable=False,
    context_settings={"help_option_names": ["-h", "--help"]},
)
for command in (
    model.presets, model.shapes, model.paper, train.train, train.compare, train.demo, train.transfer,
    evaluate.evaluate, evaluate.predict, diagnose.look, diagnose.mistakes, diagnose.doctor, diagnose.env,
    deploy.convert, deploy.export, deploy.serve,
):  # fmt: skip
    app.command()(command)
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
