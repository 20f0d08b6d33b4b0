"""The progress of a count: a bar on a terminal, plain lines in a pipe, nothing for what is quick."""

from __future__ import annotations

import contextlib
import sys
import time
from collections.abc import Callable, Iterator

QUICK = 2.0  # seconds: what takes less is not shown
EVERY = 5.0  # seconds between two plain lines


@contextlib.contextmanager
def counting(title: str, total: int | None, unit: str = "images") -> Iterator[Callable[[int], None]]:
    """Yield a function that is called with the number done so far; it shows it on standard error."""
    with contextlib.ExitStack() as stack:
        show = _bar(stack, title, total, unit) if sys.stderr.isatty() else _lines(title, total, unit)
        started = time.monotonic()

        def update(done: int) -> None:
            if time.monotonic() - started >= QUICK:
                show(done, time.monotonic() - started)

        yield update


def _lines(title: str, total: int | None, unit: str) -> Callable[[int, float], None]:
    last = 0.0

    def show(done: int, elapsed: float) -> None:
        nonlocal last
        if elapsed - last >= EVERY:
            last = elapsed
            left = f" of {total:,}, {elapsed / done * (total - done):.0f} s left" if total and done else ""
            print(f"{title}: {done:,}{left}, {done / elapsed:,.0f} {unit}/s", file=sys.stderr, flush=True)

    return show


def _bar(stack: contextlib.ExitStack, title: str, total: int | None, unit: str) -> Callable[[int, float], None]:
    from rich import progress
    from rich.console import Console

    bar = progress.Progress(
        progress.TextColumn("{task.description}", style="bold", markup=False),
        progress.BarColumn(bar_width=24),
        progress.TextColumn("{task.percentage:>3.0f}%" if total else "{task.completed:,.0f}"),
        progress.TextColumn("{task.fields[state]}"),
        progress.TimeRemainingColumn(),
        console=Console(stderr=True),
        transient=True,
    )
    task = bar.add_task(title, total=total, state="")
    is_started = False

    def show(done: int, elapsed: float) -> None:
        nonlocal is_started
        if not is_started:
            stack.enter_context(bar)
            is_started = True
        bar.update(task, completed=done, state=f"{done / elapsed:,.0f} {unit}/s")

    return show
