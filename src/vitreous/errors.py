"""Errors that a user can correct, each one sentence: what is wrong, what was expected, what to do.

A `VitreousError` is a user's mistake or an outside failure (no network, a full disk); the command line prints it as one
line and exits with 2. Our own bugs are `assert`s and ordinary exceptions.
"""

import importlib.util


class VitreousError(Exception):
    """Something the user can correct; the message says how."""


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


def require_packages(*packages: str, extra: str, needed_for: str) -> None:
    """Raise if an optional dependency is not installed, naming the command that installs it."""
    for package in packages:
        if importlib.util.find_spec(package) is None:  # does not import it, which may take a second
            raise MissingExtraError(
                f"{needed_for} needs the package {package!r}: in the clone of vitreous, `make setup`, or"
                f" pip install -c constraints.txt -e '.[{extra}]'"
            )
