"""Printing: results on stdout, as text, tables or JSON; messages on stderr."""

import json
import sys
from typing import Any


def print_result(*text: Any, value: Any = None, as_json: bool = False) -> None:
    """Print a result: its sentences and tables for a reader, or its `value` as JSON."""
    if as_json:
        text = (json.dumps(value, indent=2, ensure_ascii=False),)
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=160, no_color=True)  # a pipe has no width
    for item in text:
        if isinstance(item, str):
            print(item)  # not by rich, which would take [brackets] in a path for markup
        else:
            console.print(item, highlight=False)


def log(message: str) -> None:
    print(message, file=sys.stderr)
