"""A process that has imported a family once and forks for every case: `python -m attacks.child MODULE`.

Importing torch takes seconds, a fork milliseconds. A forked process has its own limits and its own peak of memory, can
be killed without losing the imports, and leaves nothing behind: its whole process group ends with it.

Requests and replies are JSON lines on the standard streams.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import resource
import select
import signal
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path
from typing import Any

from attacks.cases import MEBIBYTE, Case, Finding, Verdict

ADDRESS_SPACE = 4 * 2**30  # of a case's process; torch maps about 1 GB
_OUT_OF_MEMORY = ("alloc", "not enough memory", "out of memory")


def call(function: Callable[[Case, Path], Finding | None], case: Case, folder: Path) -> Finding | None:
    """Call one function of a family in this process; a traceback is a finding, too."""
    try:
        os.chdir(folder)
        return function(case, folder)
    except BaseException as error:
        last = traceback.extract_tb(error.__traceback__)[-1]
        detail = f"{type(error).__name__}: {str(error)[:200]} ({Path(last.filename).name}:{last.lineno})"
        full = isinstance(error, MemoryError) or any(word in str(error).lower() for word in _OUT_OF_MEMORY)
        return Finding(Verdict.MEMORY if full else Verdict.CRASH, detail)


def fork(
    function: Callable[[Case, Path], Finding | None], case: Case, folder: Path, seconds: float, limited: bool = True
) -> dict[str, Any] | None:
    """Call one function of a family in a forked process; return its finding, with peak memory and time."""
    reader, writer = os.pipe()
    idle = _resident_bytes()
    start = time.monotonic()
    pid = os.fork()
    if pid == 0:
        os.close(reader)
        os.setsid()
        resource.setrlimit(resource.RLIMIT_CORE, (0, 0))
        if limited:
            resource.setrlimit(resource.RLIMIT_AS, (ADDRESS_SPACE, ADDRESS_SPACE))
        idle = _resident_bytes()  # less than the parent's: files are mapped again when they are first used
        finding = call(function, case, folder)
        with contextlib.suppress(OSError), os.fdopen(writer, "w") as stream:
            json.dump(finding and [finding.verdict, finding.detail[:600], finding.megabytes, idle], stream)
        os._exit(0)
    os.close(writer)
    reply = _read(reader, start + seconds)
    with contextlib.suppress(ProcessLookupError, PermissionError):
        os.killpg(pid, signal.SIGKILL)  # what a case started ends with it
    _, status, usage = os.wait4(pid, 0)
    found: list[Any] | None = [Verdict.CRASH, f"the process ended with status {status}", None, idle]
    if reply is None:
        found = [Verdict.HANG, f"no result within {seconds:.0f} s", None, idle]
    elif reply:
        found = json.loads(reply)
    if found is None:
        return None
    verdict, detail, megabytes, idle = found
    if megabytes is None:
        megabytes = max(0.0, usage.ru_maxrss * 1024 - idle) / MEBIBYTE
    return {"verdict": verdict, "detail": detail, "megabytes": megabytes, "seconds": time.monotonic() - start}


def attack(family: Any, case: Case, folder: Path, prepared: bool, seconds: float) -> dict[str, Any]:
    """Prepare and run one case, each in a forked process, so that making the input does not count."""
    if not prepared and (failed := fork(family.prepare, case, folder, seconds, limited=False)):
        return {**failed, "verdict": Verdict.CRASH, "detail": f"the attack itself failed: {failed['detail']}"}
    result = fork(family.attack, case, folder, seconds)
    assert result is not None, "an attack returns a finding"
    return result


def _read(descriptor: int, deadline: float) -> bytes | None:
    """Read to the end; None when the deadline passes first."""
    parts: list[bytes] = []
    with os.fdopen(descriptor, "rb", buffering=0) as stream:
        while True:
            ready, _, _ = select.select([stream], [], [], max(0.0, deadline - time.monotonic()))
            if not ready:
                return None
            part = stream.read(65536)
            if not part:
                return b"".join(parts)
            parts.append(part)


def _resident_bytes() -> int:
    try:
        return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")
    except OSError:  # not Linux
        return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def main() -> None:
    requests, replies = os.fdopen(os.dup(0)), os.fdopen(os.dup(1), "w")
    silence = os.open(os.devnull, os.O_RDWR)
    for descriptor in (0, 1, 2) if "ATTACKS_DEBUG" not in os.environ else (0, 1):
        os.dup2(silence, descriptor)  # what the attacked code prints is not the protocol
    family: Any = importlib.import_module(sys.argv[1])
    try:
        family.warm_up()
        print(json.dumps({"ready": True}), file=replies, flush=True)
    except BaseException:
        print(json.dumps({"ready": False, "error": traceback.format_exc()}), file=replies, flush=True)
        raise
    for line in requests:
        job = json.loads(line)
        reply = attack(family, Case(**job["case"]), Path(job["folder"]), job["prepared"], job["seconds"])
        print(json.dumps(reply), file=replies, flush=True)


if __name__ == "__main__":
    main()
