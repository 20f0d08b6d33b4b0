"""A real server on loopback: hostile requests, and after each of them a good one, which must be served at once."""

from __future__ import annotations

import contextlib
import json
import socket
import struct
import threading
import time
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from attacks import http_server
from attacks.cases import Case, Finding, Verdict, flip_bits, listed, numbered, take_turns
from attacks.http_requests import JSON, LISTED, as_json, bodies, heads, request
from attacks.http_server import GOOD, Server, body_of, status_of

TITLE = "HTTP requests"
SECONDS = 120.0
GOOD_SECONDS = 2.0  # for a good request after an attack
_COUNT = 400
#: What a worker may take on top of its idle memory: a body of 16 MiB in a few forms, or 16 million pixels at 40 bytes
#: each, which are decoded one image at a time.
_MEGABYTES = 768.0
CROWDS = ("100 slow heads", "100 slow bodies", "100 disconnects in the middle", "100 that never read",
          "100 at once, each hostile", "1,000 open connections")  # fmt: skip

_server: Server


def warm_up() -> None:
    global _server
    _server = http_server.start()


def cases(seed: int) -> Iterator[Case]:
    yield from take_turns(
        *(listed("http", kind, make(), seed, megabytes=_MEGABYTES) for kind, make in LISTED.items()),
        listed("http", "crowds", CROWDS, seed, megabytes=_MEGABYTES),
        numbered("http", "flipped bits in a request", _COUNT, seed, megabytes=_MEGABYTES),
        numbered("http", "truncated requests", _COUNT // 4, seed, megabytes=_MEGABYTES),
    )


def prepare(case: Case, folder: Path) -> None:
    if case.kind in LISTED:
        (folder / "request").write_bytes(LISTED[case.kind]()[case.name].raw())
    elif case.kind != "crowds":
        numbers = case.random()
        whole = request(as_json(np.eye(28).tolist()), kind=JSON) if numbers.random() < 0.3 else GOOD
        truncated = case.kind == "truncated requests"
        damaged = whole[: numbers.randrange(1, len(whole))] if truncated else flip_bits(whole, numbers)
        (folder / "request").write_bytes(damaged)


# --- the attack ------------------------------------------------------------------------------------------------------


def attack(case: Case, folder: Path) -> Finding:
    processes = _server.processes()
    _server.forget_peak()
    finding = _judge_server(_attack(case, folder), processes)
    return Finding(finding.verdict, finding.detail, max(0.0, _server.megabytes() - _server.idle_megabytes))


def _judge_server(finding: Finding, processes: frozenset[int]) -> Finding:
    """The same worker serves a good request, correctly and at once."""
    start, found = time.monotonic(), None
    for _ in range(3):  # a busy machine may be late once
        found = found or _server.predict_good(GOOD_SECONDS)
    if _server.processes() != processes:
        return Finding(Verdict.CRASH, f"the worker ended ({finding.detail})")
    if found is None:
        late = _server.predict_good(20.0) is not None
        waited = f"after {time.monotonic() - start:.0f} s" if late else "not at all"
        return Finding(Verdict.HANG, f"a good request was not served within {GOOD_SECONDS:g} s, but {waited}")
    if found != _server.expected:
        return Finding(Verdict.WRONG, f"a good request got other predictions: {found}")
    return finding


def _attack(case: Case, folder: Path) -> Finding:
    if case.kind == "crowds":
        return _crowd(case.name)
    raw = (folder / "request").read_bytes()
    if case.kind == "truncated requests":
        with _server.connect(20.0) as connection:
            connection.sendall(raw)
        return Finding(Verdict.HANDLED, "closed")
    try:
        response = _server.exchange(raw)
    except TimeoutError:
        return Finding(Verdict.HANG, "no response within 40 s")
    statuses = LISTED[case.kind]()[case.name].statuses if case.kind in LISTED else None
    return judge_response(response, statuses)


def judge_response(response: bytes, statuses: frozenset[int] | None) -> Finding:
    """The status is one of the expected ones (None: any but 5xx), and a refusal is a problem document."""
    status = status_of(response)
    expected = statuses is None and status < 500
    if not expected and (statuses is None or status not in statuses):
        wrong = Verdict.WRONG if status < 500 else Verdict.CRASH
        return Finding(wrong, f"status {status}: {body_of(response)[:200]!r}")
    if status in (0, 200, 304):
        return Finding(Verdict.HANDLED if status else Verdict.REFUSED, f"status {status}")
    head, _, body = response.partition(b"\r\n\r\n")
    if b"application/problem+json" not in head.lower():
        if not body and status in (400, 413, 414, 431, 501, 505):  # refused by the HTTP parser, before the application
            return Finding(Verdict.REFUSED, f"status {status}, by the parser")
        return Finding(Verdict.CRASH, f"status {status} without a problem document: {body[:200]!r}")
    problem = json.loads(body)
    if problem.get("status") != status or not problem.get("detail") or "\n" in problem["detail"]:
        return Finding(Verdict.CRASH, f"no sentence: {problem}")
    if len(problem["detail"]) > 500:
        return Finding(Verdict.CRASH, f"a detail of {len(problem['detail'])} characters")
    return Finding(Verdict.REFUSED, problem["detail"])


# --- many at once ----------------------------------------------------------------------------------------------------


def _crowd(name: str) -> Finding:
    count = 1000 if name.startswith("1,000") else 100
    errors: list[str] = []
    over = threading.Event()

    def poll() -> None:
        """Others are served meanwhile."""
        while not over.wait(0.5):
            if _server.predict_good(10.0) != _server.expected:
                errors.append("a good request was not served within 10 s beside it")

    polling = threading.Thread(target=poll)
    polling.start()
    try:
        finding = _run_crowd(name, count)
    finally:
        over.set()
        polling.join()
    return Finding(Verdict.HANG, errors[0]) if errors else finding


def _run_crowd(name: str, count: int) -> Finding:
    if name == "100 at once, each hostile":
        return _all_at_once(count)
    with contextlib.ExitStack() as stack:
        connections = [stack.enter_context(_server.connect(60.0)) for _ in range(count)]
        whole = GOOD
        if name == "1,000 open connections":
            time.sleep(3)
            return Finding(Verdict.HANDLED)
        if name == "100 that never read":
            for connection in connections:
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_RCVBUF, 1024)
                connection.sendall(request(path=b"/", method=b"GET") * 20)
            time.sleep(5)
            return Finding(Verdict.HANDLED)
        sent = len(b"POST /v1/predict HTTP/1.1\r\nHost") if "heads" in name else whole.index(b"\r\n\r\n") + 20
        for connection in connections:
            connection.sendall(whole[:sent])
        if "disconnects" in name:
            for connection in connections:  # with a reset, not a goodbye
                connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
            return Finding(Verdict.HANDLED)
        deadline = time.monotonic() + 45  # the server's own limits are 10 s for a head and 15 s for a body
        for turn in range(4):
            time.sleep(1)
            for connection in connections:
                with contextlib.suppress(OSError):
                    connection.sendall(whole[sent + turn : sent + turn + 1])
        still_open = sum(not _is_closed(connection, deadline) for connection in connections)
    if still_open:
        return Finding(Verdict.HANG, f"{still_open} of {count} slow connections are still open")
    return Finding(Verdict.REFUSED, "every slow connection was closed")


def _is_closed(connection: socket.socket, deadline: float) -> bool:
    with contextlib.suppress(OSError):
        while True:
            connection.settimeout(max(0.01, deadline - time.monotonic()))
            try:
                if not connection.recv(65536):
                    return True
            except TimeoutError:
                return False
    return True  # reset


def _all_at_once(count: int) -> Finding:
    raws = [attack.raw() for attack in (*heads().values(), *list(bodies().values())[12:])]
    responses: list[bytes] = []

    def send(raw: bytes) -> None:
        with contextlib.suppress(OSError):
            responses.append(_server.exchange(raw))

    threads = [threading.Thread(target=send, args=(raws[number % len(raws)],)) for number in range(count)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    failed = [status for status in map(status_of, responses) if status >= 500 and status not in (501, 503, 504, 505)]
    if failed:
        return Finding(Verdict.CRASH, f"statuses {sorted(set(failed))}")
    return Finding(Verdict.HANDLED, f"{len(responses)} responses")
