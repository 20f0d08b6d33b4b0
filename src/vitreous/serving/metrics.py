"""Counters, histograms and gauges for Prometheus; nothing about who sent a request or what was drawn is recorded.

Workers share a folder of memory-mapped files (prometheus_client's multiprocess mode), so that any of them reports the
sum. server.py sets PROMETHEUS_MULTIPROC_DIR for them: it must be set before prometheus_client is imported.
"""

from __future__ import annotations

import asyncio
import os
from collections.abc import Callable
from functools import cache
from pathlib import Path

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram, disable_created_metrics, generate_latest
from prometheus_client.multiprocess import MultiProcessCollector, mark_process_dead

MULTIPROCESS_VARIABLE = "PROMETHEUS_MULTIPROC_DIR"
REFRESH_SECONDS = 1.0  # how often a worker writes its gauges
_SECONDS = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5, 5.0, 10.0)
_IMAGES = (1, 2, 4, 8, 16, 32, 64)

disable_created_metrics()  # a timestamp series beside every counter, which multiprocess mode does not have either


class Metrics:
    def __init__(self) -> None:
        own = self._own = self._reported = CollectorRegistry()
        self._gauges: list[tuple[Gauge, Callable[[], float]]] = []
        requests = Counter("vitreous_requests", "Requests responded to.", ["route", "status"], registry=own)
        images = Counter("vitreous_images", "Images sent to a model.", ["model", "outcome"], registry=own)
        # cached: looking up labels costs as much as counting
        self.requests, self.images = cache(requests.labels), cache(images.labels)
        self.seconds = Histogram("vitreous_request_seconds", "Seconds per request.", buckets=_SECONDS, registry=own)
        self.batch_images = Histogram("vitreous_batch_images", "Images per batch.", buckets=_IMAGES, registry=own)
        self.add_gauge("vitreous_resident_bytes", "Resident memory.", resident_bytes)
        if folder := os.environ.get(MULTIPROCESS_VARIABLE):
            _forget_dead_workers(Path(folder))
            self._reported = CollectorRegistry()
            MultiProcessCollector(self._reported, folder)

    def add_gauge(self, name: str, description: str, read: Callable[[], float]) -> None:
        """Add a gauge that reports the sum of `read()` over the live workers."""
        self._gauges.append((Gauge(name, description, registry=self._own, multiprocess_mode="livesum"), read))

    async def refresh_gauges(self) -> None:
        """Keep the gauges up to date for the other workers, until cancelled."""
        while True:
            self._set_gauges()
            await asyncio.sleep(REFRESH_SECONDS)

    def _set_gauges(self) -> None:
        for gauge, read in self._gauges:
            gauge.set(read())

    def text(self) -> bytes:
        self._set_gauges()
        return generate_latest(self._reported)


def _forget_dead_workers(folder: Path) -> None:
    """Drop the gauges of workers that died: the server starts a new worker for each, which calls this."""
    for file in folder.glob("gauge_live*_*.db"):
        pid = int(file.stem.rpartition("_")[2])
        if Path("/proc/self").exists() and not Path(f"/proc/{pid}").exists():
            mark_process_dead(pid, str(folder))


def resident_bytes() -> float:
    try:
        return float(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except (OSError, ValueError, IndexError):
        return 0.0
