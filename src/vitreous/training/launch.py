"""`--processes N`: run this command N times on this machine, joined by torch's engine.

torchrun does the same for many machines; this needs no second command, and stops like a single process.
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
    """Return whether this process is already one of several (ours or torchrun's); `count` is --processes."""
    launched = os.environ.get("WORLD_SIZE")
    if launched not in (None, str(count)):
        raise ConfigError(
            f"--processes {count} inside a job of {launched} (WORLD_SIZE={launched}, set by torchrun or a scheduler):"
            " leave --processes out there, or unset WORLD_SIZE"
        )
    return launched is not None


def run_in_processes(count: int, arguments: list[str]) -> int:
    """Run `vitreous ARGUMENTS` as ranks 0 to count - 1; return 0, or the failing rank's exit code."""
    with contextlib.ExitStack() as stack:
        # the other ranks repeat rank 0's messages, so theirs are only shown where one of them is the reason to stop
        messages = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, count))]
        command, environment = [sys.executable, "-m", "vitreous", *arguments], _environment(count)
        ranks = [
            subprocess.Popen(
                command, env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)}, stderr=messages[rank],
                stdout=None if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(count)
        ]  # fmt: skip
        with _forwarding(ranks):
            failed = _wait(ranks)
        if failed is None:
            return 0
        if (message := messages[failed]) is not None:
            message.seek(0)
            sys.stderr.write(message.read().decode(errors="replace"))
    code = ranks[failed].returncode
    return code if code > 0 else 128 - code  # ended by a signal: as shells report it


def _environment(count: int) -> dict[str, str]:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    rendezvous = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(port)}
    return {**os.environ, **rendezvous, "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count)}


@contextlib.contextmanager
def _forwarding(ranks: list[subprocess.Popen[bytes]]) -> Iterator[None]:
    """Forward SIGTERM to all ranks, which save and end; Ctrl-C reaches them from the terminal."""

    def forward(number: int, _frame: object) -> None:
        for rank in ranks:
            if rank.poll() is None:
                rank.send_signal(number)

    # a second Ctrl-C means "at once" to a rank, so it is not sent again
    previous = {signal.SIGTERM: signal.signal(signal.SIGTERM, forward)}
    previous[signal.SIGINT] = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        yield
    finally:
        for number, handler in previous.items():
            signal.signal(number, handler)


def _wait(ranks: list[subprocess.Popen[bytes]]) -> int | None:
    """Wait for all ranks; return the one whose failure explains the others', or None."""
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
