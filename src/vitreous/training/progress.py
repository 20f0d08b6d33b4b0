"""What a person sees while training: a live bar on a terminal, plain lines in a pipe or a log file."""

from __future__ import annotations

import sys
import time
from typing import Protocol


class Reporter(Protocol):
    """How the loop tells of its progress."""

    def __enter__(self) -> object: ...
    def __exit__(self, *_: object) -> None: ...
    def step(self, step: int, total: int, loss: float, accuracy: float, images_per_second: float) -> None: ...
    def say(self, line: str) -> None: ...


class Silent:
    def __enter__(self) -> Silent:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self, step: int, total: int, loss: float, accuracy: float, images_per_second: float) -> None:
        pass

    def say(self, line: str) -> None:
        pass


class Lines(Silent):
    """One plain line every few seconds, on standard error so that a pipe carries only results."""

    def __init__(self, title: str, every_seconds: float = 5.0):
        self.title, self.every_seconds = title, every_seconds
        self.last = time.monotonic()
        self.first: tuple[float, int] | None = None  # when this process first told of a step, and which

    def __enter__(self) -> Lines:
        return self

    def step(self, step: int, total: int, loss: float, accuracy: float, images_per_second: float) -> None:
        now = time.monotonic()
        self.first = self.first or (now, step)  # a resumed training begins far from step 0
        if now - self.last < self.every_seconds:
            return
        self.last = now
        since, begun = self.first
        left = f"  {(now - since) / (step - begun) * (total - step):.0f} s left" if step > begun else ""
        self.say(
            f"step {step}/{total}  loss {loss:.3f}  accuracy {accuracy:.1%}  {images_per_second:,.0f} images/s{left}"
        )

    def say(self, line: str) -> None:
        print(f"{self.title}: {line}", file=sys.stderr, flush=True)


class Bar:
    """A rich progress bar."""

    def __init__(self, title: str):
        from rich.console import Console
        from rich.progress import BarColumn, Progress, TextColumn, TimeElapsedColumn, TimeRemainingColumn

        self.progress = Progress(
            TextColumn("{task.description}", style="bold", markup=False),
            BarColumn(bar_width=24),
            TextColumn("{task.percentage:>3.0f}%"),
            TextColumn("{task.fields[state]}"),
            TimeElapsedColumn(),
            TextColumn("·"),
            TimeRemainingColumn(),
            console=Console(stderr=True),
        )
        self.task = self.progress.add_task(title, total=None, state="")

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def step(self, step: int, total: int, loss: float, accuracy: float, images_per_second: float) -> None:
        state = f"loss {loss:.3f}  accuracy {accuracy:.1%}  {images_per_second:,.0f} images/s"
        self.progress.update(self.task, completed=step, total=total, state=state)

    def say(self, line: str) -> None:
        self.progress.console.print(line, highlight=False)


def reporter(title: str) -> Reporter:
    return Bar(title) if sys.stderr.isatty() else Lines(title)
