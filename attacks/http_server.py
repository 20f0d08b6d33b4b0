"""The server under attack: started once per child process, and talked to in raw bytes."""

from __future__ import annotations

import contextlib
import json
import socket
import subprocess
import sys
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from attacks.cases import MEBIBYTE
from attacks.http_requests import digit_png, multipart, request

START_SECONDS = 240.0
_ADDRESS_SPACE = 6 * 2**30  # a fault must not take the machine down
_LIMITED = (
    f"import resource; resource.setrlimit(resource.RLIMIT_AS, ({_ADDRESS_SPACE}, {_ADDRESS_SPACE}));"
    " from vitreous.cli import main; main()"
)


@dataclass(frozen=True)
class Server:
    """A `vitreous serve` process with one worker."""

    pid: int
    port: int
    expected: Any  # the predictions for a good request
    idle_megabytes: float

    # --- talking to it -----------------------------------------------------------------------------------------------

    def connect(self, seconds: float) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), seconds)

    def exchange(self, raw: bytes, seconds: float = 40.0) -> bytes:
        """Send bytes as they are; return one response, or what came until the server closed."""
        with self.connect(seconds) as connection:
            deadline = time.monotonic() + seconds
            with contextlib.suppress(BrokenPipeError, ConnectionResetError):  # it may refuse before it has read all
                connection.sendall(raw)
            return receive(connection, deadline)

    def predict_good(self, seconds: float) -> Any:
        """Return the predictions for a good request; None if it is refused or takes longer."""
        try:
            response = self.exchange(GOOD, seconds)
        except OSError:
            return None
        return json.loads(body_of(response))["predictions"] if status_of(response) == 200 else None

    # --- watching it -------------------------------------------------------------------------------------------------

    def processes(self) -> frozenset[int]:
        return frozenset(_descendants(self.pid))

    def forget_peak(self) -> None:
        for pid in self.processes():
            with contextlib.suppress(OSError):
                Path(f"/proc/{pid}/clear_refs").write_text("5")

    def megabytes(self, key: str = "VmHWM") -> float:
        """Return the memory (VmHWM: its peak) of the largest process, which is the worker."""
        return max((_status(pid, key) for pid in self.processes()), default=0.0)


def start() -> Server:
    """Start `vitreous serve` with the bundled models, and keep its response to a good request."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    process = subprocess.Popen(
        [sys.executable, "-c", _LIMITED, "serve", "--port", str(port), "--workers", "1"],
        stdin=subprocess.DEVNULL, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL,
    )  # fmt: skip
    server = Server(process.pid, port, None, 0.0)
    deadline = time.monotonic() + START_SECONDS
    while (expected := server.predict_good(10.0)) is None:
        if process.poll() is not None or time.monotonic() > deadline:
            raise RuntimeError("the server did not start")
        time.sleep(0.2)
    for _ in range(20):  # caches fill
        server.predict_good(10.0)
    return Server(process.pid, port, expected, server.megabytes("VmRSS"))


GOOD = request(multipart(digit_png()))


def _descendants(pid: int) -> Iterator[int]:
    with contextlib.suppress(OSError):  # it ended meanwhile
        for child in Path(f"/proc/{pid}/task/{pid}/children").read_text().split():
            yield int(child)
            yield from _descendants(int(child))


def _status(pid: int, key: str) -> float:
    with contextlib.suppress(OSError):
        for line in Path(f"/proc/{pid}/status").read_text().splitlines():
            if line.startswith(f"{key}:"):
                return int(line.split()[1]) * 1024 / MEBIBYTE
    return 0.0


# --- responses -------------------------------------------------------------------------------------------------------


def receive(connection: socket.socket, deadline: float) -> bytes:
    response = b""
    while not _is_complete(response):
        connection.settimeout(max(0.01, deadline - time.monotonic()))
        try:
            part = connection.recv(65536)
        except ConnectionResetError:
            break
        if not part:
            break
        response += part
    return response[: _length(response)]  # without further responses, to what was left of a damaged request


def _is_complete(response: bytes) -> bool:
    return b"\r\n\r\n" in response and len(response) >= _length(response)


def _length(response: bytes) -> int:
    """Return the length of the first response, by its own account."""
    head, end, _ = response.partition(b"\r\n\r\n")
    declared = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0].strip()
    return len(head) + len(end) + int(declared or 0)


def status_of(response: bytes) -> int:
    """Return the status; 0 where the connection was closed without a response."""
    parts = response.split(maxsplit=2)
    return int(parts[1]) if len(parts) > 1 and parts[0].startswith(b"HTTP/1.") and parts[1].isdigit() else 0


def body_of(response: bytes) -> bytes:
    return response.partition(b"\r\n\r\n")[2]
