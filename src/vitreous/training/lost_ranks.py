"""When a rank is lost: the others notice and end; one of them, or the launcher, says which it was and how to go on.

A rank that ends closes its connections, so the others notice in their next exchange. One that is silent (stopped, or
behind an interrupted network) is given up after `train.timeout_seconds`.
"""

from __future__ import annotations

import contextlib
import os
import signal
import threading
import time
from collections.abc import Iterator
from dataclasses import dataclass

from torch.distributed import DistError, PrefixStore, Store  # type: ignore[attr-defined]

from vitreous.errors import VitreousError

LAUNCHER = "VITREOUS_LAUNCHER"  # the environment variable with the process id of `--processes`, which reports for all
GRACE_SECONDS = 10.0  # for a rank to save or to notice, once it has to end
_LISTEN_SECONDS = 3.0  # for the other ranks to say that they noticed
EXIT_CODE = 75  # "temporary failure, try again" in Unix's sysexits.h


class RankLost(VitreousError):
    """Another rank ended or cannot be reached; `is_reported` if the launcher or another rank says so."""

    def __init__(self, message: str, *, is_reported: bool = False, exit_code: int = EXIT_CODE):
        super().__init__(message)
        self.is_reported = is_reported
        self.exit_code = exit_code


def is_loss(error: BaseException | None) -> bool:
    """Return whether an exchange failed: gloo raises a plain RuntimeError, and a SIGTERM may follow it."""
    while isinstance(error, RuntimeError | SystemExit):
        if isinstance(error, DistError) or "/gloo/" in str(error):
            return True
        error = error.__context__
    return False


def report_loss(store: Store, rank: int, world_size: int, how: str, resume_command: str) -> RankLost:
    """Return the sentence about the ranks that do not respond; the lowest that does is to print it."""
    endings = {} if LAUNCHER in os.environ else exchange_endings(store, rank, world_size, "lost", _LISTEN_SECONDS)
    if endings:
        noticed = min(other for other, word in endings.items() if word == "lost")
        # a rank that failed for a reason of its own has printed that
        is_reported = noticed < rank or "failed" in endings.values()
    else:
        is_reported = is_reported_elsewhere()
    lost = [str(other) for other in range(world_size) if endings and other not in endings]
    who = f"rank{'s' * (len(lost) > 1)} {', '.join(lost)} of {world_size}" if lost else f"one of {world_size} ranks"
    return RankLost(f"{who} {how}, so the training stopped; {how_to_go_on(resume_command)}", is_reported=is_reported)


def is_reported_elsewhere() -> bool:
    """Return whether the launcher, or torchrun's local rank 0, is to report what the ranks cannot agree on."""
    return LAUNCHER in os.environ or ("TORCHELASTIC_RUN_ID" in os.environ and os.environ["LOCAL_RANK"] != "0")


def how_to_go_on(resume_command: str) -> str:
    restarts, allowed = (int(os.environ.get(f"TORCHELASTIC_{name}", "0")) for name in ("RESTART_COUNT", "MAX_RESTARTS"))
    if restarts < allowed:
        return f"torchrun starts it again (restart {restarts + 1} of {allowed})"
    return f"go on with: {resume_command}" if resume_command else "nothing was trained yet: start it again"


def exchange_endings(
    store: Store, rank: int, world_size: int, word: str, listen_seconds: float = 0.0
) -> dict[int, str]:
    """Tell the other ranks how this one ends; return what those say that end within some seconds, by rank.

    In a thread, because the store may be beyond the interrupted network: then nothing is returned.
    """
    store = PrefixStore("endings", store)
    endings: dict[int, str] = {}

    def exchange() -> None:
        deadline = time.monotonic() + listen_seconds
        with contextlib.suppress(RuntimeError):
            store.set(str(rank), word)
            while len(endings) < world_size and time.monotonic() < deadline:
                for other in set(range(world_size)) - set(endings):
                    if store.check([str(other)]):
                        endings[other] = store.get(str(other)).decode()
                time.sleep(0.05)

    thread = threading.Thread(target=exchange, daemon=True)
    thread.start()
    thread.join(listen_seconds + 1)
    return dict(endings)


@dataclass
class Sigterm:
    is_ignored: bool = False


@contextlib.contextmanager
def sigterm_as_exit() -> Iterator[Sigterm]:
    """Have SIGTERM raise SystemExit wherever the training loop does not handle it.

    torchrun sends it to the ranks that are left, which have something to say first: they set `is_ignored`.
    """
    state = Sigterm()
    if threading.current_thread() is not threading.main_thread():
        yield state
        return

    def receive(number: int, _frame: object) -> None:
        if not state.is_ignored:
            raise SystemExit(128 + number)

    previous = signal.signal(signal.SIGTERM, receive)
    try:
        yield state
    finally:
        signal.signal(signal.SIGTERM, previous)


def end_with_launcher() -> None:
    """Start a thread that ends this rank as SIGTERM does, once its launcher is no longer its parent (POSIX only).

    A rank that something else started may outlive that: a shell script, for example.
    """
    if os.name != "posix" or not {LAUNCHER, "TORCHELASTIC_RUN_ID"} & set(os.environ):
        return
    launcher = int(os.environ.get(LAUNCHER, os.getppid()))

    def watch() -> None:
        while os.getppid() == launcher:
            time.sleep(0.5)
        os.kill(os.getpid(), signal.SIGTERM)  # the training loop saves
        time.sleep(GRACE_SECONDS)
        os._exit(128 + signal.SIGTERM)  # files are written whole or not at all, so nothing is damaged

    threading.Thread(target=watch, name="launcher-watch", daemon=True).start()
