"""Decoding in several processes: images go in as items and come out, in order, as arrays.

Processes, because small images cost more Python than decoding, which threads cannot share. They are programs of their
own (`worker.py`), not `multiprocessing`, whose children import the user's script again. Pixels come back through the
pipe, so there is no file or shared memory to leave behind, and a process ends when its pipe does.
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import json
import os
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, TypeVar

from vitreous.data.decoding import Decoded, Measured, decode_item, measure_item, unpack_decoded, unpack_measured
from vitreous.data.items import Item
from vitreous.data.target import Target
from vitreous.errors import DataError
from vitreous.hardware import available_cores

FEWEST = 64  # images: fewer are decoded before a process has started (0.2 s)
FEWEST_HEADERS = 4096  # likewise
MOST_WORKERS = 16
CHUNK = 32  # images per request
SILENCE = 300.0  # seconds without any answer: 32 photographs of 50 megapixels take a minute on a slow disk

_START = "import json, sys; sys.path[:] = json.loads(sys.argv[1]); from vitreous.data.worker import main; main()"

Result = TypeVar("Result", Decoded, Measured)


def decode(items: Iterable[Item], target: Target) -> Iterator[Decoded]:
    """Yield the images of `items` in their order, converted to `target`; a bad file yields its error."""
    encoded = dataclasses.asdict(target)
    return _process(items, lambda item: decode_item(item, target), encoded, unpack_decoded, CHUNK, FEWEST)


def measure(items: Iterable[Item]) -> Iterator[Measured]:
    """Yield the extents of `items` in their order, from their headers alone."""
    return _process(items, measure_item, None, lambda rows, _: unpack_measured(rows), 8 * CHUNK, FEWEST_HEADERS)


def _process(
    items: Iterable[Item],
    here: Callable[[Item], Result],
    target: dict[str, Any] | None,
    unpack: Callable[[list[list[Any]], bytearray], list[Result]],
    chunk: int,
    fewest: int,
) -> Iterator[Result]:
    stream = iter(items)
    first = list(itertools.islice(stream, fewest))
    count = min(available_cores(), MOST_WORKERS)
    if len(first) < fewest or count < 2:
        yield from map(here, itertools.chain(first, stream))
        return
    chunks = _chunks(itertools.chain(first, stream), chunk)
    with contextlib.closing(_Pool(count, chunks, target)) as pool:
        for rows, pixels in pool.answers():
            yield from unpack(rows, pixels)


def _chunks(items: Iterator[Item], size: int) -> Iterator[list[Item]]:
    while chunk := list(itertools.islice(items, size)):
        yield chunk


class _Lost(Exception):
    """A process ended before it had answered."""


class _Worker:
    def __init__(self) -> None:
        paths = [os.path.abspath(path) for path in sys.path if path]  # not "": the current folder
        self.process = subprocess.Popen(
            [sys.executable, "-P", "-c", _START, json.dumps(paths)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.DEVNULL,
            env={**os.environ, "OMP_NUM_THREADS": "1", "OPENBLAS_NUM_THREADS": "1"},
        )

    def ask(self, request: bytes) -> tuple[list[list[Any]], bytearray]:
        assert self.process.stdin is not None
        assert self.process.stdout is not None
        try:
            self.process.stdin.write(request)
            self.process.stdin.flush()
            head = json.loads(self.process.stdout.readline())
            pixels = bytearray(head["bytes"])
            if self.process.stdout.readinto(pixels) != len(pixels):  # type: ignore[attr-defined]
                raise _Lost
        except (OSError, ValueError):
            raise _Lost from None
        return head["rows"], pixels

    def close(self) -> None:
        self.process.kill()
        for pipe in (self.process.stdin, self.process.stdout):
            if pipe is not None:
                with contextlib.suppress(OSError):
                    pipe.close()
        self.process.wait()


class _Pool:
    """Processes, each with a thread that talks to it; a chunk is sent only when few answers wait to be taken."""

    def __init__(self, count: int, chunks: Iterator[list[Item]], target: dict[str, Any] | None):
        self._chunks = enumerate(chunks)
        self._target = target
        self._taking = threading.Lock()  # of the next chunk
        self._room = threading.Semaphore(2 * count + 2)
        self._changed = threading.Condition()
        self._done: dict[int, tuple[list[list[Any]], bytearray]] = {}
        self._failure: BaseException | None = None
        self._running = count
        self._closed = False
        self._workers: list[_Worker] = []
        try:
            self._workers += (_Worker() for _ in range(count))
        except OSError as error:
            self.close()
            raise DataError(f"cannot start the processes that decode images: {error.strerror or error}") from None
        for worker in self._workers:
            threading.Thread(target=self._serve, args=(worker,), daemon=True).start()

    def answers(self) -> Iterator[tuple[list[list[Any]], bytearray]]:
        for number in itertools.count():
            with self._changed:
                heard, known = time.monotonic(), len(self._done)
                while number not in self._done and self._failure is None and self._running:
                    self._changed.wait(5.0)
                    if len(self._done) != known:
                        heard, known = time.monotonic(), len(self._done)
                    if time.monotonic() - heard > SILENCE:
                        raise DataError(
                            f"the processes that decode images have not answered for {SILENCE:.0f} s; is the disk"
                            " reachable? Try again"
                        )
                if self._failure is not None:
                    raise self._failure
                if number not in self._done:
                    return
                answer = self._done.pop(number)
            self._room.release()
            yield answer

    def _serve(self, worker: _Worker) -> None:
        """Let one process work on chunk after chunk."""
        failure: BaseException | None = None
        chunk: Sequence[Item] = ()
        try:
            while True:
                self._room.acquire()
                with self._taking:
                    number, chunk = next(self._chunks, (0, ()))
                if not chunk or self._closed:
                    break
                items = [[item.name, item.path, item.offset, item.size] for item in chunk]
                request = json.dumps({"target": self._target, "items": items}).encode("ascii") + b"\n"
                answer = worker.ask(request)
                with self._changed:
                    self._done[number] = answer
                    self._changed.notify_all()
        except _Lost:
            failure = self._explain(worker, chunk)
        except BaseException as error:  # of the caller's iterator: raised where the results are taken
            failure = error
        with self._changed:
            self._running -= 1
            if failure is not None and not self._closed:
                self._failure = self._failure or failure
            self._changed.notify_all()
        self._room.release()  # for the others, which may wait at the end

    def _explain(self, worker: _Worker, chunk: Sequence[Item]) -> DataError:
        with contextlib.suppress(subprocess.TimeoutExpired):
            worker.process.wait(5)
        code = worker.process.returncode
        how = f"was ended by signal {-code}" if code is not None and code < 0 else f"ended with code {code}"
        return DataError(
            f"a process that decodes images {how} at one of {len(chunk)} files, {chunk[0].name} to {chunk[-1].name}: is"
            " there enough memory? Try again, or leave these files out"
        )

    def close(self) -> None:
        """End all processes, whatever they are doing."""
        self._closed = True
        for worker in self._workers:
            worker.close()
        for _ in range(2 * len(self._workers)):
            self._room.release()
