"""`--processes N`: this very command N times on this machine, joined by torch's engine.

torchrun does the same, and does it for many machines; this one needs no second command, and stops as one process does.
"""

from __future__ import annotations

import contextlib
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from vitreous.errors import ConfigError

_GRACE_SECONDS = 10.0  # for the others to save or to notice, once one has ended


def is_launched(count: int) -> bool:
    """Whether this process is already one of several (ours or torchrun's); `count` is what --processes asks for."""
    launched = os.environ.get("WORLD_SIZE")
    if launched not in (None, str(count)):
        raise ConfigError(
            f"--processes {count} inside a job of {launched} (WORLD_SIZE={launched}, set by torchrun or a scheduler):"
            " leave --processes out there, or unset WORLD_SIZE"
        )
    return launched is not None


def run_in_processes(count: int, arguments: list[str]) -> int:
    """Run `vitreous ARGUMENTS` as ranks 0 to count - 1; returns 0, or the failing rank's exit code."""
    with contextlib.ExitStack() as stack:
        # what the other ranks say repeats rank 0's words, so it is only shown where one of them is the reason to stop
        words = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, count))]
        command, place = [sys.executable, "-m", "vitreous", *arguments], _environment(count)
        ranks = [
            subprocess.Popen(
                command, env={**place, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=words[rank],
                stdout=None if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(count)
        ]  # fmt: skip
        with _forwarding(ranks):
            failed = _wait(ranks)
        if failed is None:
            return 0
        said = words[failed]
        if said is not None:
            said.seek(0)
            sys.stderr.write(said.read().decode(errors="replace"))
    code = ranks[failed].returncode
    return code if code > 0 else 128 - code  # ended by a signal: as a shell counts


def _environment(count: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    meeting = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**os.environ, **meeting, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}


@contextlib.contextmanager
def _forwarding(ranks: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """SIGTERM goes on to all ranks; Ctrl-C reaches them from the terminal by itself. They save, and we wait."""

    def pass_on(number: int, _frame: object) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    # a rank that got Ctrl-C from the terminal takes a second one as "at once", so it is not sent again
    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, pass_on)}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int | None:
    """The rank whose failure explains the others', once all have ended; None where none failed."""
    deadline = float("inf")
    while any(rank.poll() is None for rank in ranks):
        if any(rank.poll() for rank in ranks):
            deadline = min(deadline, time.monotonic() + _GRACE_SECONDS)
        if time.monotonic() > deadline:
            for rank in ranks:
                rank.kill()
        time.sleep(0.05)
    failed = [number for number, rank in enumerate(ranks) if rank.returncode]
    # a rank that lost the others ends with a traceback (1) or is killed; the one they lost has a code of its own
    return min(failed, key=lambda number: (ranks[number].returncode in (1, -signal.SIGKILL), number), default=None)
