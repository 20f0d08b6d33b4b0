"""How far a grid of runs is: a line per finished run, and the time that is left."""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence

from vitreous.reports.formats import plural
from vitreous.studies.jobs import Job

_EVERY = 15.0  # seconds between two plain lines


class GridProgress:
    """Show nothing; count the work that is done."""

    def __init__(self, title: str, jobs: Sequence[Job]):
        self.title, self.total = title, len(jobs)
        self.work = {job.path: job.work for job in jobs}
        self.share = dict.fromkeys(self.work, 0.0)
        self.finished = 0
        self.started = time.monotonic()

    def __enter__(self) -> GridProgress:
        self.started = time.monotonic()
        return self

    def __exit__(self, *_: object) -> None:
        pass

    @property
    def done_share(self) -> float:
        """The share of the work, by an estimate in FLOPs, that is done."""
        return sum(self.work[path] * share for path, share in self.share.items()) / sum(self.work.values())

    @property
    def left(self) -> str:
        """In words, how long the rest takes at the rate so far."""
        done, elapsed = self.done_share, time.monotonic() - self.started
        if done < 0.01 or elapsed < 2:
            return ""
        seconds = elapsed * (1 - done) / done
        return f"about {seconds / 60:.0f} min left" if seconds >= 90 else f"about {seconds:.0f} s left"

    def update(self, job: Job, share: float) -> None:
        self.share[job.path] = min(share, 0.99)
        self.show()

    def finish(self, job: Job) -> None:
        self.share[job.path] = 1.0
        self.finished += 1
        self.log(f"{self.finished} of {plural(self.total, 'run')}: {job.label}")
        self.show()

    def show(self) -> None:
        pass

    def log(self, line: str) -> None:
        pass


class GridLines(GridProgress):
    """Plain lines on standard error, for pipes and log files."""

    last = 0.0

    def show(self) -> None:
        now = time.monotonic()
        if now - self.last >= _EVERY and (left := self.left):
            self.last = now
            print(f"{self.title}: {self.done_share:.0%} done, {left}", file=sys.stderr, flush=True)

    def log(self, line: str) -> None:
        print(f"{self.title}: {line}", file=sys.stderr, flush=True)


class GridBar(GridProgress):
    """A rich bar under the lines."""

    def __enter__(self) -> GridBar:
        from rich import progress
        from rich.console import Console

        super().__enter__()
        self.bar = progress.Progress(
            progress.TextColumn("{task.description}", style="bold", markup=False),
            progress.BarColumn(bar_width=24),
            progress.TextColumn("{task.percentage:>3.0f}%"),
            progress.TextColumn("{task.fields[state]}"),
            console=Console(stderr=True),
        )
        self.task = self.bar.add_task(self.title, total=1.0, state=f"0 of {plural(self.total, 'run')}")
        self.bar.start()
        return self

    def __exit__(self, *_: object) -> None:
        self.bar.stop()

    def show(self) -> None:
        state = ", ".join(filter(None, (f"{self.finished} of {plural(self.total, 'run')}", self.left)))
        self.bar.update(self.task, completed=self.done_share, state=state)

    def log(self, line: str) -> None:
        self.bar.console.print(line, highlight=False, markup=False)


def make_grid_progress(title: str, jobs: Sequence[Job], shown: bool) -> GridProgress:
    if not shown or not jobs:
        return GridProgress(title, jobs)
    return GridBar(title, jobs) if sys.stderr.isatty() else GridLines(title, jobs)
