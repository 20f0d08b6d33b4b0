"""Where in the user's own file an error was raised."""

from __future__ import annotations

import traceback
from pathlib import Path


def is_library(file: str) -> bool:
    return "site-packages" in file or "vitreous" in Path(file).parts or file.startswith("<")


def own_line(error: BaseException) -> str:
    """Return the last line of the user's own code: "vit.py, line 33"; empty if there is none."""
    own = [frame for frame in traceback.extract_tb(error.__traceback__) if not is_library(frame.filename)]
    return f"{Path(own[-1].filename).name}, line {own[-1].lineno}" if own else ""
