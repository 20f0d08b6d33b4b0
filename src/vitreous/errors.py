"""Errors that a user can correct, each one sentence: what is wrong, what was expected, what to do.

A `VitreousError` is a user's mistake or an outside failure (no network, a full disk); the command line prints it as one
line and exits with 2. Our own bugs are `assert`s and ordinary exceptions.
"""

import importlib.util

_LONGEST_VALUE = 120  # characters of a user's value in a message


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
