"""Inference by ONNX Runtime in dynamic micro-batches: images that wait at the same time run together.

A fast model runs on the event loop itself, in batches of at most `FAST_SECONDS`: waking a thread and passing the
interpreter lock back and forth would cost a third of its throughput (bench/serve.py). A slower model has a thread, so
that the loop stays free for other requests. Each session has one intra-op thread: on two cores, two workers are faster
than one worker with two threads.
"""

from __future__ import annotations

import asyncio
import contextlib
import queue
import threading
import time
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from vitreous.errors import MissingExtraError
from vitreous.serving.limits import Limits
from vitreous.serving.responses import busy

FAST_SECONDS = 0.005  # the longest that one batch may block the event loop
Pixels = np.ndarray  # uint8 (B, C, height, width)


def open_session(path: Path) -> Any:
    """Open an ONNX Runtime session with one thread that does not spin while it waits."""
    try:
        import onnxruntime as ort
    except ImportError:
        raise MissingExtraError("onnxruntime", "serve", "serving") from None
    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    ort.disable_telemetry_events()
    return ort.InferenceSession(str(path), options, providers=["CPUExecutionProvider"])


def seconds_per_image(session: Any, shape: tuple[int, int, int]) -> float:
    """Measure one image (C, height, width), the best of eight runs, which also warms up the session."""
    pixels = np.zeros((1, *shape), np.float32)
    best = float("inf")
    for _ in range(8):
        start = time.perf_counter()
        session.run(["probabilities"], {"pixels": pixels})
        best = min(best, time.perf_counter() - start)
    return best


@dataclass(eq=False)
class Job:
    pixels: Pixels
    future: asyncio.Future[np.ndarray]


Outcome = tuple[Job, np.ndarray | Exception]


class Engine(ABC):
    """One model's bounded queue. `waiting` counts submitted images without a result; only the event loop changes it."""

    def __init__(self, session: Any, limits: Limits, batch_images: int, count_batch: Callable[[int], None]):
        self.session, self.limits, self.batch_images = session, limits, batch_images
        self._count_batch = count_batch
        self.waiting = 0

    def start(self) -> None:
        """Accept jobs from the running event loop."""
        self._loop = asyncio.get_running_loop()

    @abstractmethod
    def stop(self) -> None: ...

    @property
    @abstractmethod
    def is_alive(self) -> bool: ...

    @abstractmethod
    def _submit(self, job: Job) -> None: ...

    def check_room(self, images: int) -> None:
        if self.waiting + images > self.limits.queue_images:
            detail = f"{self.waiting} images are already waiting for this model; try again"
            raise busy(429, detail, self.limits.retry_seconds)

    async def predict(self, pixels: Pixels) -> np.ndarray:
        """Return the probabilities (B, classes); raise a Problem 429 when too many images are waiting."""
        self.check_room(len(pixels))
        job = Job(pixels, self._loop.create_future())
        self.waiting += len(pixels)
        try:
            self._submit(job)
            return await job.future
        finally:
            self.waiting -= len(pixels)

    def _outcomes(self, jobs: list[Job]) -> list[Outcome]:
        """Run jobs together; if that fails, run each alone, so that only the job at fault fails."""
        try:
            together = self._run(np.concatenate([job.pixels for job in jobs]) if len(jobs) > 1 else jobs[0].pixels)
            if len(jobs) == 1:
                return [(jobs[0], together)]
            ends = np.cumsum([len(job.pixels) for job in jobs])[:-1]
            return list(zip(jobs, np.split(together, ends), strict=True))
        except Exception as error:
            if len(jobs) == 1:
                return [(jobs[0], error)]
            return [outcome for job in jobs for outcome in self._outcomes([job])]

    def _run(self, pixels: Pixels) -> np.ndarray:
        outputs = []
        for start in range(0, len(pixels), self.batch_images):
            batch = pixels[start : start + self.batch_images]
            self._count_batch(len(batch))
            scaled = batch.astype(np.float32) / np.float32(255)
            outputs.append(self.session.run(["probabilities"], {"pixels": scaled})[0])
        return outputs[0] if len(outputs) == 1 else np.concatenate(outputs)


def make_engine(
    session: Any,
    shape: tuple[int, int, int],
    limits: Limits,
    count_batch: Callable[[int], None],
    *,
    one_at_a_time: bool = False,
) -> Engine:
    """Choose the engine by the measured speed of the model."""
    seconds = seconds_per_image(session, shape)
    most = 1 if one_at_a_time else limits.batch_images
    if seconds <= FAST_SECONDS:
        return LoopEngine(session, limits, max(1, min(most, int(FAST_SECONDS / seconds))), count_batch)
    return ThreadEngine(session, limits, most, count_batch)


class LoopEngine(Engine):
    """Runs on the event loop: the jobs submitted in one iteration of the loop are the next batch."""

    is_alive = False

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._jobs: deque[Job] = deque()

    def start(self) -> None:
        super().start()
        self.is_alive = True

    def stop(self) -> None:
        self.is_alive = False

    def _submit(self, job: Job) -> None:
        self._jobs.append(job)
        if len(self._jobs) > 1:  # _flush is scheduled already
            return
        if self.limits.gather_seconds:
            self._loop.call_later(self.limits.gather_seconds, self._flush)
        else:
            self._loop.call_soon(self._flush)

    def _flush(self) -> None:
        jobs: list[Job] = []
        images = 0
        while self._jobs and (not jobs or images + len(self._jobs[0].pixels) <= self.batch_images):
            job = self._jobs.popleft()
            if not job.future.done():  # done: its request was cancelled
                jobs.append(job)
                images += len(job.pixels)
        if jobs:
            _resolve(self._outcomes(jobs))
        if self._jobs:
            self._loop.call_soon(self._flush)  # after whatever else the loop has to do


class ThreadEngine(Engine):
    """Runs in its own thread: the next batch gathers while the model runs."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # bounded by `waiting`; None ends the thread
        self._thread = threading.Thread(target=self._work, name="vitreous-engine", daemon=True)

    def start(self) -> None:
        super().start()
        self._thread.start()

    def stop(self) -> None:
        """Finish the queued jobs, then end the thread."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(self.limits.response_seconds)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _submit(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        ended = False
        while not ended and (first := self._jobs.get()) is not None:
            jobs, ended = self._gather(first)
            wanted = [job for job in jobs if not job.future.done()]
            if wanted:
                outcomes = self._outcomes(wanted)
                with contextlib.suppress(RuntimeError):  # the loop was closed: no request is waiting
                    self._loop.call_soon_threadsafe(_resolve, outcomes)  # one wake-up per batch

    def _gather(self, first: Job) -> tuple[list[Job], bool]:
        """Return the next batch, and whether it is the last."""
        jobs, images = [first], len(first.pixels)
        deadline = time.monotonic() + self.limits.gather_seconds
        while images < self.batch_images:
            try:
                remaining = deadline - time.monotonic() if self.limits.gather_seconds else 0.0
                job = self._jobs.get(timeout=remaining) if remaining > 0 else self._jobs.get_nowait()
            except queue.Empty:
                break
            if job is None:
                return jobs, True
            jobs.append(job)
            images += len(job.pixels)
        return jobs, False


def _resolve(outcomes: list[Outcome]) -> None:
    for job, outcome in outcomes:
        if job.future.done():
            continue
        if isinstance(outcome, Exception):
            job.future.set_exception(outcome)
        else:
            job.future.set_result(outcome)
