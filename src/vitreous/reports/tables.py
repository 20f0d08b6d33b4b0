"""Tables and sentences in a terminal of any width."""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from rich.console import Console, ConsoleOptions, RenderResult
    from rich.measure import Measurement
    from rich.table import Table


class FirstThatFits:
    """The first of several layouts of the same content that needs no more columns than there are, else the last."""

    def __init__(self, *tables: Table):
        self.tables = tables

    def __rich_console__(self, console: Console, options: ConsoleOptions) -> RenderResult:
        fitting = (table for table in self.tables if natural_width(table, console) <= options.max_width)
        yield next(fitting, self.tables[-1])

    def __rich_measure__(self, console: Console, options: ConsoleOptions) -> Measurement:
        from rich.measure import Measurement

        return Measurement(0, natural_width(self.tables[0], console))


def natural_width(content: object, console: Console) -> int:
    """Return how many columns a table needs without breaking a line."""
    from rich.measure import Measurement

    return Measurement.get(console, console.options.update(width=100_000), content).maximum  # type: ignore[arg-type]


def wrap(line: str, width: int) -> str:
    """Return a line broken between words, indented as it begins; a longer word, such as a path, stays whole."""
    from rich.cells import cell_len  # CJK characters take two columns

    words = line.split(" ")
    indent = " " * (len(line) - len(line.lstrip(" ")))
    lines, current = [], words[0]
    for word in words[1:]:
        if current.strip() and cell_len(f"{current} {word}") > width:
            lines.append(current.rstrip())
            current = f"{indent}  {word}" if indent else word
        else:
            current = f"{current} {word}"
    return "\n".join([*lines, current])
