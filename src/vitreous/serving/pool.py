"""Threads for slow work, which stops when nobody waits for its result any more."""

from __future__ import annotations

import asyncio
import contextlib
import threading
from collections.abc import AsyncIterator, Callable
from concurrent.futures import ThreadPoolExecutor
from typing import Any, TypeVar

from vitreous.serving.reading import Receive
from vitreous.serving.responses import Problem, busy

Result = TypeVar("Result")
Check = Callable[[], None]


class Abandoned(Exception):
    """Raised in a thread whose request has timed out or whose client has left."""


class Pool:
    """Threads with a bounded number of requests that wait for them; only the event loop uses it."""

    def __init__(self, threads: int, most: int, work: str):
        self._executor = ThreadPoolExecutor(threads, thread_name_prefix=f"vitreous-{work}")
        self._free = asyncio.Semaphore(threads)
        self._requests, self._most, self._work = 0, most, work

    async def run(self, function: Callable[..., Result], *arguments: Any) -> Result:
        """Run a function in a thread; if cancelled before it starts, drop it and what it would have worked on."""
        if self._requests >= self._most:
            raise busy(429, f"{self._requests} requests are already waiting for {self._work}; try again")
        self._requests += 1
        try:
            await self._free.acquire()
            loop = asyncio.get_running_loop()

            def release(_: object) -> None:  # when the thread is free, which may be after the request was cancelled
                with contextlib.suppress(RuntimeError):  # the loop has stopped
                    loop.call_soon_threadsafe(self._free.release)

            work = self._executor.submit(function, *arguments)
            work.add_done_callback(release)
            return await asyncio.wrap_future(work)
        finally:
            self._requests -= 1

    def stop(self) -> None:
        self._executor.shutdown(wait=False, cancel_futures=True)


@contextlib.asynccontextmanager
async def while_connected(receive: Receive) -> AsyncIterator[Check]:
    """Cancel the block when the client closes the connection.

    Yield a check for the block's threads to call between long steps: once the block has ended, it raises `Abandoned`.
    """
    request = asyncio.current_task()
    assert request is not None
    ended, has_left = threading.Event(), False

    async def watch() -> None:
        nonlocal has_left
        if (await receive())["type"] == "http.disconnect":
            has_left = True
            request.cancel()

    def check() -> None:
        if ended.is_set():
            raise Abandoned

    watching = asyncio.create_task(watch())
    try:
        yield check
    except asyncio.CancelledError:
        if not has_left:
            raise
        request.uncancel()
        raise Problem(400, "the client closed the connection before the response") from None
    finally:
        ended.set()
        watching.cancel()
