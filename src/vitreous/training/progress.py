"""Training progress: a live bar on a terminal, plain lines in a pipe or a log file."""

from __future__ import annotations

import sys
import time

from vitreous.reports.formats import shorten


class Progress:
    """Show nothing; the base of the other two."""

    def __enter__(self) -> Progress:
        return self

    def __exit__(self, *_: object) -> None:
        pass

    def step(self, step: int, total: int, loss: float, accuracy: float, images_per_second: float) -> None:
        pass

    def log(self, line: str) -> None:
        pass


class Lines(Progress):
    """Print a plain line every few seconds, on standard error so that a pipe carries only results."""

    def __init__(self, title: str, every_seconds: float = 5.0):
        self.title, self.every_seconds = title, every_seconds
        self.last = time.monotonic()
        self.first: tuple[float, int] | None = None  # time and number of the first step of this process

    def step(self, step: int, total: int, loss: float, accuracy: float, images_per_second: float) -> None:
        now = time.monotonic()
        self.first = self.first or (now, step)  # a resumed training begins far from step 0
        if now - self.last < self.every_seconds:
            return
        self.last = now
        since, begun = self.first
        left = f"  {(now - since) / (step - begun) * (total - step):.0f} s left" if step > begun else ""
        self.log(f"step {step}/{total}  {_state(loss, accuracy, images_per_second)}{left}")

    def log(self, line: str) -> None:
        print(f"{self.title}: {line}", file=sys.stderr, flush=True)


class Bar(Progress):
    """A rich progress bar."""

    def __init__(self, title: str):
        from rich import progress
        from rich.console import Console

        console = Console(stderr=True)
        self.progress = progress.Progress(
            progress.TextColumn("{task.description}", style="bold", markup=False),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.percentage:>3.0f}%"),
            progress.TextColumn("{task.fields[state]}"),
            progress.TimeRemainingColumn(compact=True, elapsed_when_finished=True),
            console=console,
        )
        self.task = self.progress.add_task(shorten(title, console.width // 4), total=None, state="")
        self.is_narrow = console.width < 90

    def __enter__(self) -> Bar:
        self.progress.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.progress.stop()

    def step(self, step: int, total: int, loss: float, accuracy: float, images_per_second: float) -> None:
        state = _state(loss, accuracy, None if self.is_narrow else images_per_second)
        self.progress.update(self.task, completed=step, total=total, state=state)

    def log(self, line: str) -> None:
        self.progress.console.print(line, highlight=False)


def _state(loss: float, accuracy: float, images_per_second: float | None) -> str:
    speed = "" if images_per_second is None else f"  {images_per_second:,.0f} images/s"
    return f"loss {loss:.3f}  accuracy {accuracy:.1%}{speed}"


def make_progress(title: str) -> Progress:
    return Bar(title) if sys.stderr.isatty() else Lines(title)
