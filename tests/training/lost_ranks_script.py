"""Ranks that are lost in every way, forked from one process, which has imported torch already. Prints JSON.

Forked here and not in pytest, whose threads would not survive it.
"""

from __future__ import annotations

import json
import os
import signal
import sys
import time
from collections.abc import Callable

import torch.distributed.nn.functional  # noqa: F401  # as `group` does, once for all
from torch.distributed import TCPStore

from vitreous.errors import ConfigError
from vitreous.training import distributed
from vitreous.training.lost_ranks import LAUNCHER, RankLost


def train(rank: int, timeout: float, at_step_3: dict[int, Callable[[], None]]) -> None:
    with distributed.group(timeout) as group:
        group.announce("the run")
        for step in range(10_000):
            if step == 3 and rank in at_step_3:
                at_step_3[rank]()
            group.sum([1.0])


def fork(act: Callable[[], None]) -> int:
    """Run `act` in a child; its exit code is 0, or that of a RankLost that was to be silent."""
    sys.stdout.flush()
    if child := os.fork():
        return child
    signal.alarm(60)  # no process stays behind, whatever is tested here
    code = 1
    try:
        act()
        code = 0
    except RankLost as lost:
        code = lost.exit_code
        if not lost.is_reported:
            print(json.dumps(str(lost)), flush=True)
    except ConfigError as error:
        code = 2
        print(json.dumps(str(error)), flush=True)
    finally:
        os._exit(code)


def job(size: int, at_step_3: dict[int, Callable[[], None]], timeout: float = 60, terminate: bool = False) -> None:
    """Run a job as torchrun does, and print how each rank ended; `terminate`: end the others once one has."""
    store = TCPStore("127.0.0.1", 0, is_master=True, wait_for_workers=False)
    os.environ.update(
        WORLD_SIZE=str(size), LOCAL_WORLD_SIZE=str(size), MASTER_ADDR="127.0.0.1", MASTER_PORT=str(store.port),
        TORCHELASTIC_USE_AGENT_STORE="True", TORCHELASTIC_RUN_ID="test",
    )  # fmt: skip
    ranks = {}
    for rank in range(size):
        os.environ.update(RANK=str(rank), LOCAL_RANK=str(rank))
        ranks[fork(lambda rank=rank: train(rank, timeout, at_step_3))] = rank
    codes = {}
    while len(codes) < size:
        child, status = os.wait()
        codes[ranks.pop(child)] = os.waitstatus_to_exitcode(status)
        if terminate:
            for other in ranks:
                os.kill(other, signal.SIGTERM)
        elif len(ranks) == 1 and timeout < 60:  # the silent one
            os.kill(*ranks, signal.SIGKILL)
    print(json.dumps(codes), flush=True)


def end_by(number: int) -> Callable[[], None]:
    return lambda: os.kill(os.getpid(), number)


def fail() -> None:
    raise ConfigError("a reason of its own")


def orphan() -> None:
    """Kill a launcher; its rank, which waits for something else, must end, which closes the pipe."""
    read, write = os.pipe()
    os.environ.update(WORLD_SIZE="1")

    def launch() -> None:
        os.environ[LAUNCHER] = str(os.getpid())

        def rank() -> None:
            distributed.lost_ranks.end_with_launcher()
            os.write(write, b"started")
            time.sleep(600)

        fork(rank)
        time.sleep(600)

    launcher = fork(launch)
    os.close(write)
    assert os.read(read, 7) == b"started"
    os.kill(launcher, signal.SIGKILL)
    os.waitpid(launcher, 0)
    start = time.monotonic()
    assert os.read(read, 1) == b""  # every copy of the other end is closed
    print(json.dumps(time.monotonic() - start < 10), flush=True)


CASES = {
    "killed": lambda: job(3, {1: end_by(signal.SIGKILL)}),
    "killed, and the others terminated": lambda: job(3, {0: end_by(signal.SIGKILL)}, terminate=True),
    "silent": lambda: job(3, {1: end_by(signal.SIGSTOP)}, timeout=1),
    "failed": lambda: job(2, {0: fail}),
    "orphan": orphan,
}

if __name__ == "__main__":
    for name, case in CASES.items():
        print(json.dumps(f"# {name}"), flush=True)
        case()
