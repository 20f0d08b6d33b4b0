"""Train the runs of a study, several at once: one process of one thread per core.

Two runs of one thread each finish sooner than the same two, one after the other, on two threads: small models leave the
second thread waiting (docs/log.md). A process trains run after run, so that torch is imported once.
"""

from __future__ import annotations

import contextlib
import json
import os
import queue
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Sequence
from functools import partial
from typing import Any

from vitreous.errors import RunError
from vitreous.hardware import available_cores
from vitreous.studies.grid import train_and_evaluate
from vitreous.studies.jobs import Job
from vitreous.studies.progress import GridProgress
from vitreous.training.loop import TrainingInterrupted
from vitreous.training.signals import Signals, deferred_signals

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from vitreous.studies.worker import main; main()"
_POLL = 0.2  # seconds between two looks at the signals


def train_all(jobs: Sequence[Job], *, at_once: int | None, device: str, progress: GridProgress) -> None:
    """Train and evaluate every run; `at_once` of them in processes of their own, by default as many as there are cores.

    A signal stops them after their step, saved: the same call goes on.
    """
    count = min(len(jobs), at_once or available_cores())
    if count < 2:
        for job in jobs:
            with _named(job):
                train_and_evaluate(job.config, job.path, job.batch_sizes, device, partial(progress.update, job))
            progress.finish(job)
        return
    with deferred_signals() as signals, contextlib.closing(_Workers(count, device)) as workers:
        _train_in(workers, jobs, progress, signals)


def _train_in(workers: _Workers, jobs: Sequence[Job], progress: GridProgress, signals: Signals) -> None:
    waiting = list(reversed(jobs))
    for number in range(len(workers.processes)):
        workers.send(number, waiting.pop())
    failure, stopping = "", False
    while workers.busy:
        if (signals.received or failure) and not stopping:
            stopping = True  # what trains is saved; nothing new begins
            workers.stop()
        try:
            number, response = workers.responses.get(timeout=_POLL)
        except queue.Empty:
            continue
        job = workers.busy[number]
        if "fraction" in response:
            progress.update(job, response["fraction"])
            continue
        del workers.busy[number]
        if response.get("done"):
            progress.finish(job)
        elif "error" in response and not stopping:  # a process that is stopped while it evaluates just ends
            failure = failure or f"{job.label}: {response['error']}"
        if waiting and not stopping and not failure:
            workers.send(number, waiting.pop())
    if failure:
        raise RunError(failure)
    if signals.received:
        raise TrainingInterrupted("stopped and saved", signals.received)


@contextlib.contextmanager
def _named(job: Job) -> Iterator[None]:
    """Say of a mistake which run made it."""
    try:
        yield
    except RunError as error:
        raise RunError(f"{job.label}: {error}") from None


class _Workers:
    """Processes, each with a thread that reads what it reports."""

    def __init__(self, count: int, device: str):
        self.device = device
        self.responses: queue.Queue[tuple[int, dict[str, Any]]] = queue.Queue()
        self.busy: dict[int, Job] = {}
        self.processes: list[subprocess.Popen[str]] = []
        self.threads: list[threading.Thread] = []
        paths = [os.path.abspath(path) for path in sys.path if path]  # not "": the current folder
        for number in range(count):
            process = subprocess.Popen(
                [sys.executable, "-P", "-c", _START, json.dumps(paths)],
                stdin=subprocess.PIPE,
                stdout=subprocess.PIPE,
                text=True,
                env={**os.environ, "OMP_NUM_THREADS": "1"},
                start_new_session=True,  # Ctrl-C reaches this process alone, which then stops the others
            )
            self.processes.append(process)
            self.threads.append(threading.Thread(target=self._listen, args=(number, process), daemon=True))
            self.threads[-1].start()

    def send(self, number: int, job: Job) -> None:
        self.busy[number] = job
        request = {
            "config": job.config.model_dump(mode="json"),
            "path": str(job.path),
            "batch_sizes": job.batch_sizes,
            "device": self.device,
        }
        pipe = self.processes[number].stdin
        assert pipe is not None
        with contextlib.suppress(OSError):  # it ended: `_listen` reports that
            pipe.write(json.dumps(request) + "\n")
            pipe.flush()

    def _listen(self, number: int, process: subprocess.Popen[str]) -> None:
        assert process.stdout is not None
        for line in process.stdout:
            self.responses.put((number, json.loads(line)))
        code = process.wait()
        how = f"was ended by signal {-code}" if code < 0 else f"ended with code {code}"
        self.responses.put((number, {"error": f"its process {how}; is there enough memory? Try --jobs 1"}))

    def stop(self) -> None:
        for number in self.busy:
            with contextlib.suppress(OSError):
                self.processes[number].send_signal(signal.SIGTERM)

    def close(self) -> None:
        """End all processes: each as its input ends, or killed where it still trains (an unexpected error here)."""
        for number, process in enumerate(self.processes):
            if number in self.busy:
                process.kill()
            assert process.stdin is not None
            with contextlib.suppress(OSError):
                process.stdin.close()
        for process, thread in zip(self.processes, self.threads, strict=True):
            process.wait()
            thread.join()
            assert process.stdout is not None
            process.stdout.close()
