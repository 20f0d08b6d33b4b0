"""Inference by ONNX Runtime in dynamic micro-batches: images that wait at the same time run together.

A fast model runs on the event loop itself, in batches of at most `FAST_SECONDS`: waking a thread and passing the
interpreter lock back and forth would cost a third of its throughput (bench/serve.py). A slower model has a thread, so
that the loop stays free for other requests. Each session has one intra-op thread: on two cores, two workers are faster
than one worker with two threads.
"""

from __future__ import annotations

import asyncio
import timeit
from collections import deque
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from typing import Any

import numpy as np

from vitreous.serving.limits import Limits
from vitreous.serving.responses import busy

FAST_SECONDS = 0.005  # the longest that one batch may block the event loop
Pixels = np.ndarray  # uint8 (B, C, height, width)


def open_session(graph: bytes) -> Any:
    """Open an ONNX Runtime session for a graph, with one thread that does not spin while it waits."""
    import onnxruntime as ort

    options = ort.SessionOptions()
    options.intra_op_num_threads = options.inter_op_num_threads = 1
    options.log_severity_level = 3
    options.add_session_config_entry("session.set_denormal_as_zero", "1")
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    ort.disable_telemetry_events()
    return ort.InferenceSession(graph, options, providers=["CPUExecutionProvider"])


@dataclass(eq=False)
class Job:
    pixels: Pixels
    future: asyncio.Future[np.ndarray]


Outcome = tuple[Job, np.ndarray | Exception]


class Engine:
    """One model's bounded queue. All state belongs to the event loop; only `_outcomes` may run in the thread."""

    def __init__(
        self, session: Any, limits: Limits, batch_images: int, count_batch: Callable[[int], None], *, in_thread: bool
    ):
        self.session, self.limits, self.batch_images, self._count_batch = session, limits, batch_images, count_batch
        self.in_thread, self._executor = in_thread, ThreadPoolExecutor(1, "vitreous-engine")
        self.has_novelty = any(output.name == "novelty" for output in session.get_outputs())
        self._outputs = ["probabilities", "novelty"] if self.has_novelty else ["probabilities"]
        self._jobs: deque[Job] = deque()
        self._is_running = False  # a batch is scheduled or running
        self.waiting = 0  # images submitted that have no result yet

    def check_room(self, images: int) -> None:
        if self.waiting + images > self.limits.queue_images:
            raise busy(429, f"{self.waiting} images are already waiting for this model; try again")

    async def predict(self, pixels: Pixels) -> np.ndarray:
        """Return the probabilities (B, classes), with the novelty as one more column where the graph has it.

        Raise a Problem 429 when too many images are waiting.
        """
        self.check_room(len(pixels))
        loop = asyncio.get_running_loop()
        job = Job(pixels, loop.create_future())
        self._jobs.append(job)
        self.waiting += len(pixels)
        if not self._is_running:
            self._is_running = True
            loop.call_soon(self._run_next, loop)  # jobs submitted in this iteration of the loop join the batch
        try:
            return await job.future
        finally:
            self.waiting -= len(pixels)

    def _run_next(self, loop: asyncio.AbstractEventLoop) -> None:
        jobs: list[Job] = []
        images = 0
        while self._jobs and (not jobs or images + len(self._jobs[0].pixels) <= self.batch_images):
            job = self._jobs.popleft()
            if not job.future.done():  # done: its request was cancelled
                jobs.append(job)
                images += len(job.pixels)
        if self.in_thread and jobs:
            running = loop.run_in_executor(self._executor, self._outcomes, jobs)
            running.add_done_callback(lambda done: self._finish(done.result(), loop))
        else:
            self._finish(self._outcomes(jobs) if jobs else [], loop)

    def _finish(self, outcomes: list[Outcome], loop: asyncio.AbstractEventLoop) -> None:
        for job, outcome in outcomes:
            if job.future.done():
                continue
            if isinstance(outcome, Exception):
                job.future.set_exception(outcome)
            else:
                job.future.set_result(outcome)
        self._is_running = bool(self._jobs)
        if self._jobs:
            loop.call_soon(self._run_next, loop)  # after whatever else the loop has to do

    def _outcomes(self, jobs: list[Job]) -> list[Outcome]:
        """Run jobs together; if that fails, run each alone, so that only the job at fault fails."""
        try:
            pixels = np.concatenate([job.pixels for job in jobs])
            together = self._run(pixels, lambda: all(job.future.done() for job in jobs))
            if len(jobs) == 1:  # np.split would cost 10 µs
                return [(jobs[0], together)]
            ends = np.cumsum([len(job.pixels) for job in jobs])[:-1]
            return list(zip(jobs, np.split(together, ends), strict=True))
        except Exception as error:
            if len(jobs) == 1:
                return [(jobs[0], error)]
            return [outcome for job in jobs for outcome in self._outcomes([job])]

    def _run(self, pixels: Pixels, is_abandoned: Callable[[], bool] = lambda: False) -> np.ndarray:
        outputs = []
        for start in range(0, len(pixels), self.batch_images):
            if start and is_abandoned():  # requests cancelled while they ran: nobody reads their outputs
                break
            batch = pixels[start : start + self.batch_images]
            self._count_batch(len(batch))
            scaled = batch.astype(np.float32) / np.float32(255)
            found = self.session.run(self._outputs, {"pixels": scaled})
            outputs.append(found[0] if len(found) == 1 else np.column_stack(found))
        return np.concatenate(outputs)


def make_engine(
    session: Any, shape: tuple[int, int, int], limits: Limits, count_batch: Callable[[int], None]
) -> Engine:
    """Choose the thread and the batch size by the time that one image (C, height, width) takes."""
    feeds = {"pixels": np.zeros((1, *shape), np.float32)}
    # the best of eight, which also warms up the session
    seconds = min(timeit.repeat(lambda: session.run(["probabilities"], feeds), number=1, repeat=8))
    is_slow = seconds > FAST_SECONDS
    batch_images = limits.batch_images if is_slow else min(limits.batch_images, int(FAST_SECONDS / seconds))
    return Engine(session, limits, batch_images, count_batch, in_thread=is_slow)
