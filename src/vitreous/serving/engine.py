"""Inference by ONNX Runtime with dynamic micro-batches: images that are there together go through the model together.

Requests hand over images and wait; a bounded number may wait. A model quick enough answers on the event loop itself, in
batches of at most `QUICK_SECONDS`: waking a thread and handing the interpreter back and forth would cost it a third of
its throughput (bench/serve.py). A slower model has a thread, so that the loop stays free to answer others.
One intra-op thread each: on two cores, two workers are faster than one with two threads.
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
from vitreous.serving.problems import busy

QUICK_SECONDS = 0.005  # the longest the event loop is held up by one batch
Pixels = np.ndarray  # uint8 (n, C, height, width)


def open_session(path: Path) -> Any:
    """An ONNX Runtime session of one thread that does not spin while it waits."""
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


def seconds_an_image(session: Any, shape: tuple[int, int, int]) -> float:
    """Measured, the best of several: what one image (C, height, width) costs; warms the session up, too."""
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
    loop: asyncio.AbstractEventLoop
    answer: asyncio.Future[np.ndarray]


Outcome = tuple[Job, np.ndarray | Exception]


class Engine(ABC):
    """One model's queue. `waiting` images, submitted and not yet answered, are counted on the event loop only."""

    def __init__(self, session: Any, limits: Limits, batch_images: int, count_batch: Callable[[int], None]):
        self.session, self.limits, self.batch_images = session, limits, batch_images
        self._count_batch = count_batch
        self.waiting = 0

    @abstractmethod
    def start(self) -> None: ...

    @abstractmethod
    def stop(self) -> None: ...

    @property
    @abstractmethod
    def is_alive(self) -> bool: ...

    @abstractmethod
    def _submit(self, job: Job) -> None: ...

    def check_room(self, images: int) -> None:
        if self.waiting + images > self.limits.queue_images:
            raise busy(429, f"{self.waiting} images wait for this model already; try again", self.limits.retry_seconds)

    async def answer(self, pixels: Pixels) -> np.ndarray:
        """Probabilities (n, classes); a Problem 429 where too many wait."""
        self.check_room(len(pixels))
        loop = asyncio.get_running_loop()
        job = Job(pixels, loop, loop.create_future())
        self.waiting += len(pixels)
        try:
            self._submit(job)
            return await job.answer
        finally:
            self.waiting -= len(pixels)

    def _outcomes(self, jobs: list[Job]) -> list[Outcome]:
        """Run jobs together; if that fails, each for itself: whatever it was, it is one job's matter."""
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
        answers = []
        for start in range(0, len(pixels), self.batch_images):
            part = pixels[start : start + self.batch_images]
            self._count_batch(len(part))
            scaled = part.astype(np.float32) / np.float32(255)
            answers.append(self.session.run(["probabilities"], {"pixels": scaled})[0])
        return answers[0] if len(answers) == 1 else np.concatenate(answers)


def make_engine(
    session: Any,
    shape: tuple[int, int, int],
    limits: Limits,
    count_batch: Callable[[int], None],
    *,
    one_at_a_time: bool = False,
) -> Engine:
    seconds = seconds_an_image(session, shape)
    most = 1 if one_at_a_time else limits.batch_images
    if seconds <= QUICK_SECONDS:
        return LoopEngine(session, limits, max(1, min(most, int(QUICK_SECONDS / seconds))), count_batch)
    return ThreadEngine(session, limits, most, count_batch)


class LoopEngine(Engine):
    """Answers on the event loop: all that was submitted in one turn of the loop is the next batch."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._jobs: deque[Job] = deque()
        self._stopped = False

    def start(self) -> None:
        self._stopped = False

    def stop(self) -> None:
        self._stopped = True

    @property
    def is_alive(self) -> bool:
        return not self._stopped

    def _submit(self, job: Job) -> None:
        self._jobs.append(job)
        if len(self._jobs) == 1:
            job.loop.call_later(self.limits.gather_seconds, self._flush) if self.limits.gather_seconds else (
                job.loop.call_soon(self._flush)
            )

    def _flush(self) -> None:
        jobs: list[Job] = []
        images = 0
        while self._jobs and (not jobs or images + len(self._jobs[0].pixels) <= self.batch_images):
            job = self._jobs.popleft()
            if not job.answer.done():  # done: its request gave up
                jobs.append(job)
                images += len(job.pixels)
        if jobs:
            _settle(self._outcomes(jobs))
        if self._jobs:
            self._jobs[0].loop.call_soon(self._flush)  # after whatever else the loop has to do


class ThreadEngine(Engine):
    """Answers in a thread of its own: while the model runs, the next batch gathers."""

    def __init__(self, *arguments: Any):
        super().__init__(*arguments)
        self._jobs: queue.SimpleQueue[Job | None] = queue.SimpleQueue()  # bounded by `waiting`
        self._thread = threading.Thread(target=self._work, name="vitreous-engine", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """After the jobs that are queued."""
        if self._thread.is_alive():
            self._jobs.put(None)
            self._thread.join(self.limits.answer_seconds)

    @property
    def is_alive(self) -> bool:
        return self._thread.is_alive()

    def _submit(self, job: Job) -> None:
        self._jobs.put(job)

    def _work(self) -> None:
        ended = False
        while not ended and (first := self._jobs.get()) is not None:
            jobs, ended = self._gather(first)
            wanted = [job for job in jobs if not job.answer.done()]
            if wanted:
                _deliver(self._outcomes(wanted))

    def _gather(self, first: Job) -> tuple[list[Job], bool]:
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


def _deliver(outcomes: list[Outcome]) -> None:
    by_loop: dict[asyncio.AbstractEventLoop, list[Outcome]] = {}
    for job, outcome in outcomes:
        by_loop.setdefault(job.loop, []).append((job, outcome))
    for loop, some in by_loop.items():
        with contextlib.suppress(RuntimeError):  # the loop was closed: nobody is waiting
            loop.call_soon_threadsafe(_settle, some)  # one wake-up a batch


def _settle(outcomes: list[Outcome]) -> None:
    for job, outcome in outcomes:
        if job.answer.done():
            continue
        if isinstance(outcome, Exception):
            job.answer.set_exception(outcome)
        else:
            job.answer.set_result(outcome)
