"""Prometheus' text format, by hand: a few counters and two histograms are all there is to tell.

Several workers share one folder: each keeps its numbers there, and whoever is asked adds all of them up. A worker
writes its own before it answers, so that what one of them has told never goes back when another is asked.
"""

from __future__ import annotations

import bisect
import json
import os
import threading
from collections import Counter
from collections.abc import Callable
from pathlib import Path
from typing import Any

from vitreous.downloads.files import atomic_write_text

_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)
SAVE_SECONDS = 1.0  # how often a worker keeps its numbers for the others


class Histogram:
    def __init__(self, bounds: tuple[float, ...]):
        self.bounds = bounds
        self.counts = [0] * (len(bounds) + 1)
        self.total = 0.0

    def observe(self, value: float) -> None:
        self.counts[bisect.bisect_left(self.bounds, value)] += 1
        self.total += value

    def add(self, counts: list[int], total: float) -> None:
        self.counts = [mine + other for mine, other in zip(self.counts, counts, strict=True)]
        self.total += total

    def lines(self, name: str, help_text: str) -> list[str]:
        lines, below = [f"# HELP {name} {help_text}", f"# TYPE {name} histogram"], 0
        for bound, count in zip((*self.bounds, "+Inf"), self.counts, strict=True):
            below += count
            lines.append(f'{name}_bucket{{le="{bound}"}} {below}')
        return [*lines, f"{name}_sum {self.total:.6f}", f"{name}_count {below}"]


class Metrics:
    """Only numbers; nothing about who asked or what was drawn is kept anywhere."""

    def __init__(self, folder: Path | None = None) -> None:
        self.folder = folder
        self.requests: Counter[tuple[str, int]] = Counter()  # (route, status)
        self.images: Counter[tuple[str, str]] = Counter()  # (model, "answered" or "refused")
        self.seconds, self.batch = Histogram(_SECONDS), Histogram(_IMAGES)
        self.gauges: dict[str, Callable[[], float]] = {"vitreous_resident_bytes": resident_bytes}
        self.lock = threading.Lock()  # batches may be counted by an engine's thread

    def count_batch(self, images: int) -> None:
        with self.lock:
            self.batch.observe(images)

    def state(self) -> dict[str, Any]:
        with self.lock:
            return {
                "requests": [[*key, count] for key, count in self.requests.items()],
                "images": [[*key, count] for key, count in self.images.items()],
                "seconds": [self.seconds.counts, self.seconds.total],
                "batch": [list(self.batch.counts), self.batch.total],
                "gauges": {name: value() for name, value in self.gauges.items()},
            }

    def save(self) -> None:
        if self.folder is not None:
            atomic_write_text(self.folder / f"{os.getpid()}.json", json.dumps(self.state()))

    def text(self) -> bytes:
        self.save()
        states = [self.state()] if self.folder is None else _states(self.folder)
        return _text(states)


def _states(folder: Path) -> list[dict[str, Any]]:
    """Of all workers there have been; of one that is gone, only what it counted."""
    states = []
    for file in sorted(folder.glob("*.json")):
        state = json.loads(file.read_text(encoding="utf-8"))
        if not Path(f"/proc/{file.stem}").exists() and Path("/proc/self").exists():
            state["gauges"] = {}
        states.append(state)
    return states


def _text(states: list[dict[str, Any]]) -> bytes:
    requests: Counter[tuple[str, int]] = Counter()
    images: Counter[tuple[str, str]] = Counter()
    gauges: Counter[str] = Counter()
    seconds, batch = Histogram(_SECONDS), Histogram(_IMAGES)
    for state in states:
        requests.update({(route, status): count for route, status, count in state["requests"]})
        images.update({(model, outcome): count for model, outcome, count in state["images"]})
        gauges.update(state["gauges"])
        seconds.add(*state["seconds"])
        batch.add(*state["batch"])
    lines = ["# HELP vitreous_requests_total Requests answered.", "# TYPE vitreous_requests_total counter"]
    for (route, status), count in sorted(requests.items()):
        lines.append(f'vitreous_requests_total{{route="{route}",status="{status}"}} {count}')
    lines += ["# HELP vitreous_images_total Images sent to a model.", "# TYPE vitreous_images_total counter"]
    for (model, outcome), count in sorted(images.items()):
        lines.append(f'vitreous_images_total{{model="{model}",outcome="{outcome}"}} {count}')
    lines += seconds.lines("vitreous_request_seconds", "Time from a request's head to its answer.")
    lines += batch.lines("vitreous_batch_images", "Images in one run of a model.")
    for name, value in gauges.items():
        lines += [f"# TYPE {name} gauge", f"{name} {value:.0f}"]
    return ("\n".join(lines) + "\n").encode()


def resident_bytes() -> float:
    try:
        return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0.0
