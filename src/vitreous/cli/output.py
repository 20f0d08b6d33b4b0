"""Printing: results on stdout, as text, tables or JSON; messages on stderr."""

import contextlib
import json
import os
import re
import sys
import unicodedata
from typing import Any, TextIO

_LONGEST_MESSAGE = 4000  # characters; a checkpoint's list of missing tensors is the longest


def print_result(*text: Any, value: Any = None, as_json: bool = False) -> None:
    """Print a result: its sentences and tables for a reader, or its `value` as JSON."""
    if as_json:
        # another encoding has no escape that JSON knows, so there every character beyond ASCII is escaped
        text = (json.dumps(value, indent=2, ensure_ascii=not _is_utf8(sys.stdout)),)
    from rich.console import Console

    console = Console() if sys.stdout.isatty() else Console(width=160, no_color=True)  # a pipe has no width
    for item in text:
        if isinstance(item, str):
            print(item)  # not by rich, which would take [brackets] in a path for markup
        else:
            console.print(item, highlight=False)


def log(message: str) -> None:
    print(message, file=sys.stderr)


def log_error(message: str) -> None:
    """Print one line, whatever names and values the message repeats."""
    message = re.sub(r"\S{300,}", lambda word: f"{word[0][:150]}…{word[0][-50:]}", message)
    line = "".join(_escaped(character) for character in message)
    log(f"vitreous: {line if len(line) <= _LONGEST_MESSAGE else line[:_LONGEST_MESSAGE] + '…'}")


def _escaped(character: str) -> str:
    """Return a control character (a line break, an escape sequence for the terminal) as Python would write it."""
    if unicodedata.category(character) in ("Cc", "Cf", "Cs", "Zl", "Zp"):
        return character.encode("unicode_escape").decode("ascii")
    return character


def prepare_streams() -> None:
    """Let every text be printed: names that are not UTF-8, symbols that a locale lacks, and streams that are closed."""
    for name in ("stdout", "stderr"):
        stream: TextIO | None = getattr(sys, name)
        if stream is None:  # closed by the caller: `vitreous … >&-`
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115
        elif hasattr(stream, "reconfigure"):
            # "?" for the "→" that a locale lacks; names that are not UTF-8 keep their bytes, as JSON writes them too
            stream.reconfigure(errors="backslashreplace" if _is_utf8(stream) or name == "stderr" else "replace")


def _is_utf8(stream: TextIO) -> bool:
    return (stream.encoding or "").lower().replace("-", "") == "utf8"


def flush_or_discard() -> OSError | None:
    """Write what is buffered; if the reader has gone or the disk is full, discard it and return the error.

    Python would report it when it exits, as "Exception ignored".
    """
    try:
        sys.stdout.flush()
    except OSError as error:
        with contextlib.suppress(OSError, ValueError):  # a stream without a descriptor
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return error
    return None
