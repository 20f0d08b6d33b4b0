"""A server process on loopback: slow clients, wrong lengths, SIGTERM, workers, exposure."""

from __future__ import annotations

import contextlib
import json
import os
import re
import signal
import socket
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import requests
import schemathesis
import torch
from hypothesis import HealthCheck, given, settings

LIMITS = {"header_seconds": 1.5, "body_seconds": 1.5, "body_bytes": 200_000}


@pytest.fixture(scope="module")
def server(serving: Callable[..., Any]) -> Iterator[Any]:
    with serving(LIMITS) as server:
        yield server


def multipart(data: bytes) -> bytes:
    head = b'--b\r\nContent-Disposition: form-data; name="image"; filename="d.png"\r\n\r\n'
    return head + data + b"\r\n--b--\r\n"


def request(body: bytes, length: int | None = None, extra: bytes = b"") -> bytes:
    declared = len(body) if length is None else length
    head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: multipart/form-data; boundary=b\r\n"
    return head + b"Content-Length: %d\r\n" % declared + extra + b"\r\n" + body


@pytest.fixture(scope="module")
def digit(digits: np.ndarray, png: Callable[..., bytes]) -> bytes:
    return png(digits[0])


def test_responses(server: Any, digit: bytes) -> None:
    response = server.exchange(request(multipart(digit)))
    assert response.startswith(b"HTTP/1.1 200")
    assert json.loads(response.partition(b"\r\n\r\n")[2])["model"] == "tiny-vit"
    assert server.get("/") == server.get("/docs") == server.get("/openapi.json") == 200
    with urllib.request.urlopen(server.base + "/docs") as response:  # its example can be pasted
        assert f"{server.base}/v1/predict" in response.read().decode()


def test_hosts(server: Any) -> None:
    """As the sockets bring them: two Host headers, none, and another site's page."""
    once = b"Host: 127.0.0.1\r\n"
    for version, headers, status in (
        (b"1.1", once, b"200"), (b"1.1", once + once, b"400"), (b"1.1", b"", b"400"), (b"1.0", b"", b"200"),
        (b"1.1", once + b"Origin: http://evil.example\r\n", b"403"),
    ):  # fmt: skip
        response = server.exchange(b"GET /v1/models HTTP/" + version + b"\r\n" + headers + b"\r\n")
        assert response.split()[1] == status, headers


def wait_closed(connection: socket.socket, seconds: float) -> bytes:
    """Return what the server sends until it closes the connection, which it must do in time."""
    connection.settimeout(seconds)
    received = b""
    with contextlib.suppress(ConnectionResetError):
        while chunk := connection.recv(4096):
            received += chunk
    return received


def test_slow_heads_time_out_and_health_checks_respond(server: Any) -> None:
    connections = [server.connect() for _ in range(100)]
    start = time.monotonic()
    for connection in connections:
        connection.sendall(b"GET /healthz HTTP/1.1\r\nHost: 127.0.0.1\r\nX-Slow: ")
    for _ in range(5):
        sent = time.monotonic()
        assert server.get("/healthz", timeout=5) == 200
        assert time.monotonic() - sent < 1
        for connection in connections:
            with contextlib.suppress(OSError):
                connection.sendall(b"x")
        time.sleep(0.2)
    for connection in connections:
        wait_closed(connection, 10)
        connection.close()
    assert time.monotonic() - start < 15


def test_slow_bodies_time_out(server: Any) -> None:
    with server.connect() as connection:
        connection.sendall(request(b"", length=1000))
        for _ in range(3):
            connection.sendall(b"x" * 10)
            time.sleep(0.2)
        response = wait_closed(connection, 10)
    assert b" 408 " in response.splitlines()[0]
    assert b"did not arrive within 1.5 s" in response


def test_wrong_lengths(server: Any, digit: bytes) -> None:
    assert b" 413 " in server.exchange(request(b"", length=10**12)).splitlines()[0]
    assert server.exchange(request(b"", length=-5)).startswith(b"HTTP/1.1 400")
    body = multipart(digit)
    with server.connect() as connection:  # shorter than declared, then closed
        connection.sendall(request(body, length=len(body) + 100))
    assert server.get("/healthz") == 200


def test_chunks_without_end(server: Any) -> None:
    head = b"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Type: application/json\r\n"
    with server.connect() as connection:
        connection.sendall(head + b"Transfer-Encoding: chunked\r\n\r\n")
        with contextlib.suppress(OSError):
            for _ in range(100):
                connection.sendall(b"10000\r\n" + bytes(0x10000) + b"\r\n")
        response = b""
        with contextlib.suppress(OSError):
            response = connection.recv(4096)
    assert response == b"" or b" 413 " in response.splitlines()[0]
    assert server.get("/healthz") == 200


@pytest.mark.parametrize("path", [b"/../../etc/passwd", b"/%2e%2e/%2e%2e/etc/passwd", b"//etc/passwd", b"/..\\..\\x"])
def test_raw_paths_reach_nothing(server: Any, path: bytes) -> None:
    response = server.exchange(b"GET " + path + b" HTTP/1.1\r\nHost: 127.0.0.1\r\n\r\n")
    assert response.split()[1] in (b"404", b"400")
    assert b"root:" not in response


def test_garbage(server: Any) -> None:
    for raw in (b"\x16\x03\x01\x02\x00\x01", b"GET\r\n\r\n", b"PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n", b"\r\n" * 100):
        with server.connect() as connection:
            connection.sendall(raw)
            wait_closed(connection, 10)
    assert server.get("/healthz") == 200


@pytest.fixture
def _with_denormals() -> Iterator[None]:
    """hypothesis generates denormal floats, which a test that ran earlier may have disabled."""
    torch.set_flush_denormal(False)
    yield
    torch.set_flush_denormal(True)


@pytest.mark.usefixtures("_with_denormals")
def test_the_whole_api(server: Any) -> None:
    """schemathesis makes valid and invalid requests from the OpenAPI document: none may be a 5xx."""
    schema = schemathesis.openapi.from_url(f"{server.base}/openapi.json")
    operations = [operation.ok() for operation in schema.get_all_operations()]
    assert len(operations) == 8
    with requests.Session() as session:
        for operation in operations:

            @given(case=operation.as_strategy())
            @settings(max_examples=25, suppress_health_check=list(HealthCheck))
            def call(case: schemathesis.Case) -> None:
                response = case.call(session=session, timeout=20)
                assert response.status_code < 500, response.text
                assert response.status_code != 404, response.text
                kind = response.headers["content-type"][0]
                assert (kind == "application/problem+json") == (response.status_code >= 400)

            call()
    assert server.get("/readyz") == 200


def resident_megabytes(pid: int) -> float:
    """Return the resident memory of a process and its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6 + sum(resident_megabytes(int(child)) for child in children)


@pytest.mark.skipif(not Path("/proc/self/statm").exists(), reason="memory is read from /proc")
def test_damaged_images_do_not_leak_memory(server: Any, digits: np.ndarray, png: Callable[..., bytes]) -> None:
    """The server's memory does not grow with the number of damaged files."""
    random = np.random.default_rng(0)
    seeds = [np.frombuffer(png(digits[0], kind), np.uint8) for kind in ("PNG", "JPEG", "WEBP", "BMP")]

    def send(count: int) -> None:
        with requests.Session() as session:
            for number in range(count):
                data = seeds[number % len(seeds)].copy()
                data[random.integers(0, len(data), size=3)] = random.integers(0, 256, size=3)
                size = int(random.integers(1, len(data) + 1)) if number % 2 else len(data)
                response = session.post(
                    f"{server.base}/v1/predict", files={"image": ("d.png", data[:size].tobytes())}, timeout=20
                )
                assert response.status_code in (200, 422), response.text

    send(300)  # caches fill, thread stacks appear
    before = resident_megabytes(server.process.pid)
    send(1500)
    assert resident_megabytes(server.process.pid) - before < 15


def test_a_huge_head_is_refused(server: Any) -> None:
    with server.connect() as connection:
        with contextlib.suppress(OSError):
            connection.sendall(b"GET / HTTP/1.1\r\nHost: 127.0.0.1\r\nX: " + b"a" * 500_000 + b"\r\n\r\n")
        response = wait_closed(connection, 10)
    assert response == b"" or response.split()[1] in (b"400", b"431")
    assert server.get("/healthz") == 200


def test_sigterm_drains_and_workers_add_up(serving: Callable[..., Any], digit: bytes, tmp_path: Path) -> None:
    """Two workers and a token; requests under way when the server is stopped are finished first."""
    token = "a-token-for-this-test"
    (tmp_path / "token").write_text(token)
    with serving(workers=2, token_file=str(tmp_path / "token")) as server:
        with pytest.raises(urllib.error.HTTPError, match="401") as refused:
            server.get("/v1/models")
        refused.value.close()
        extra = b"Authorization: Bearer " + token.encode() + b"\r\n"
        for _ in range(6):
            assert server.exchange(request(multipart(digit), extra=extra)).startswith(b"HTTP/1.1 200")
        scrape = urllib.request.Request(server.base + "/metrics", headers={"Authorization": f"Bearer {token}"})
        counts = []
        for _ in range(4):
            time.sleep(0.4)
            with urllib.request.urlopen(scrape, timeout=5) as response:
                found = re.search(r'route="/v1/predict",status="200"} (\d+)', response.read().decode())
                counts.append(int(found[1]) if found else 0)
        assert counts == sorted(counts)  # whichever worker responds
        assert counts[-1] == 6
        body = multipart(digit)
        whole = request(body, extra=extra)
        responses: list[bytes] = []

        def slow_client(connection: socket.socket) -> None:
            time.sleep(0.8)
            connection.sendall(whole[-50:])
            responses.append(wait_closed(connection, 15))

        connection = server.connect()
        connection.sendall(whole[:-50])  # under way: its body is not complete yet
        time.sleep(0.3)
        thread = threading.Thread(target=slow_client, args=(connection,))
        thread.start()
        server.process.send_signal(signal.SIGTERM)
        thread.join(60)
        connection.close()
        assert responses
        assert responses[0].startswith(b"HTTP/1.1 200")
        assert server.process.wait(60) == 0
        with pytest.raises(ConnectionRefusedError):
            server.connect(1).close()


def test_a_port_that_is_taken(runs: Any) -> None:
    from vitreous.errors import ConfigError
    from vitreous.serving.server import serve_runs

    with socket.socket() as taken:
        taken.bind(("127.0.0.1", 0))
        taken.listen()
        with pytest.raises(ConfigError, match="cannot listen on"):
            serve_runs(runs, port=taken.getsockname()[1])
    with pytest.raises(ConfigError, match="--token-file"):
        serve_runs(runs, host="0.0.0.0")
