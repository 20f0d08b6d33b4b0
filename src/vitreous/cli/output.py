"""Printing: results on stdout, as text, tables or JSON; messages on stderr."""

import contextlib
import json
import os
import re
import sys
import unicodedata
from typing import Any, TextIO

_LONGEST_MESSAGE = 4000  # characters; a checkpoint's list of missing tensors is the longest
_PIPE_COLUMNS = 160  # of a table in a pipe, or more where it needs them


def print_result(*text: Any, value: Any = None, as_json: bool = False) -> None:
    """Print a result: its sentences and tables for a reader, or its `value` as JSON."""
    if as_json:
        # another encoding has no escape that JSON knows, so there every character beyond ASCII is escaped
        print(json.dumps(value, indent=2, ensure_ascii=not _is_utf8(sys.stdout)))
        return
    for item in text:
        if isinstance(item, str):
            print(_fitted(item, sys.stdout))  # not by rich, which would take [brackets] in a path for markup
        else:
            _print_table(item)


def _print_table(table: Any) -> None:
    from rich.console import Console

    from vitreous.reports.tables import natural_width

    console = Console()
    if not sys.stdout.isatty():  # a pipe has no width, so nothing needs to be truncated
        console = Console(width=max(_PIPE_COLUMNS, natural_width(table, console)), no_color=True)
    console.print(table, highlight=False)


def _fitted(text: str, stream: TextIO) -> str:
    """Return text wrapped between words for a terminal; a pipe gets its lines whole."""
    if not stream.isatty():
        return text
    from rich.console import Console

    from vitreous.reports.tables import wrap

    columns = Console(file=stream).width
    return "\n".join(wrap(line, columns) for line in text.split("\n"))


def log(message: str) -> None:
    print(_fitted(message, sys.stderr), file=sys.stderr)


def log_error(message: str) -> None:
    """Print one line (in a terminal, wrapped between words), whatever names and values the message repeats."""
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
