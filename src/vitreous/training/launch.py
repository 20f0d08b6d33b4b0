"""`--processes N`: run this command N times on this machine, joined by torch's engine.

torchrun does the same for many machines; this needs no second command, and stops like a single process.
"""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator

from torch.distributed import TCPStore  # type: ignore[attr-defined]

from vitreous import hardware
from vitreous.errors import ConfigError
from vitreous.training.distributed import RESUME_COMMAND, of_this_start
from vitreous.training.lost_ranks import EXIT_CODE, GRACE_SECONDS, LAUNCHER, RankLost, how_to_go_on

_COMMAND = (sys.executable, "-P", "-m", "vitreous")  # -P: no modules from the current folder
_PROCESSES_PER_CORE = 4  # more only take turns
_PROCESS_BYTES = 350e6  # before the data


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
    """Run `vitreous ARGUMENTS` as ranks 0 to count - 1; return 0, or the exit code of one that reported its reason.

    Raise RankLost if one ended without a reason of its own.
    """
    _check_count(count)
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    environment = {
        **os.environ, LAUNCHER: str(os.getpid()), "WORLD_SIZE": str(count), "LOCAL_WORLD_SIZE": str(count),
        "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(store.port),
        "TORCHELASTIC_USE_AGENT_STORE": "True",  # the ranks meet here instead of at rank 0, which may be lost
    }  # fmt: skip
    with contextlib.ExitStack() as stack:
        # the other ranks repeat rank 0's messages, so theirs are only shown where one of them is the reason to stop
        messages = [None, *(stack.enter_context(tempfile.TemporaryFile()) for _ in range(1, count))]
        ranks = [
            subprocess.Popen(
                [*_COMMAND, *arguments], env={**environment, "RANK": str(rank), "LOCAL_RANK": str(rank)},
                stderr=messages[rank], stdout=None if rank == 0 else subprocess.DEVNULL,
            )
            for rank in range(count)
        ]  # fmt: skip
        with _forwarding(ranks):
            killed = _wait(ranks)
        failed = {rank: process.returncode for rank, process in enumerate(ranks) if process.returncode}
        if not failed:
            return 0
        # not one that only noticed that another was lost (EXIT_CODE), or was killed for not noticing
        reason = min(failed, key=lambda rank: (failed[rank] == EXIT_CODE, rank in killed, rank))
        if (message := messages[reason]) is not None:
            message.seek(0)
            sys.stderr.write(message.read().decode(errors="replace"))
    code = failed[reason]
    if code not in (1, EXIT_CODE) and code > 0:  # 1: a traceback, which does not say how to go on
        return code
    what = f"rank {reason} of {count} {_how_it_ended(code)}"
    if code == EXIT_CODE or reason in killed:
        lost, code = f"rank {reason}" if reason in killed else "each other", EXIT_CODE
        what = f"the {count} processes waited for {lost} longer than train.timeout_seconds"
    notes = of_this_start(store)
    command = notes.get(RESUME_COMMAND).decode() if notes.check([RESUME_COMMAND]) else ""
    exit_code = code if code > 0 else 128 - code  # ended by a signal: as shells report it
    raise RankLost(f"{what}, so the training stopped; {how_to_go_on(command)}", exit_code=exit_code)


def _how_it_ended(code: int) -> str:
    if code > 0:
        return f"ended with exit code {code}"
    if -code not in set(signal.Signals):
        return f"was ended by signal {-code}"
    memory = " (often the system, short of memory)" if -code == signal.SIGKILL else ""
    return f"was ended by {signal.Signals(-code).name}{memory}"


def _check_count(count: int) -> None:
    """Refuse more processes than this machine can run, before they use up its memory."""
    cores, memory = hardware.available_cores(), hardware.free_memory() or float("inf")
    most = int(min(_PROCESSES_PER_CORE * cores, memory // _PROCESS_BYTES))
    if count > most:
        raise ConfigError(
            f"--processes {count} is more than this machine can run: at most {max(1, most)} on {cores} cores and"
            f" {memory / 1e9:.1f} GB of free memory (each takes {_PROCESS_BYTES / 1e6:.0f} MB before the data);"
            f" --processes {cores} uses every core, and torchrun several machines"
        )


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


def _wait(ranks: list[subprocess.Popen[bytes]]) -> set[int]:
    """Wait for all ranks; return those that were killed, because they went on long after another had failed."""
    killed: set[int] = set()
    deadline = float("inf")
    while running := {number for number, rank in enumerate(ranks) if rank.poll() is None}:
        if any(rank.returncode for rank in ranks):
            deadline = min(deadline, time.monotonic() + GRACE_SECONDS)
        if time.monotonic() > deadline:
            killed |= running
            for number in running:
                ranks[number].kill()
        time.sleep(0.05)
    return killed
