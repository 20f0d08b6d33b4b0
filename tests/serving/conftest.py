"""Two tiny models, exported once for all tests here (and for all pytest-xdist workers), and clients for them."""

from __future__ import annotations

import fcntl
import io
import json
import os
import re
import signal
import socket
import subprocess
import sys
import threading
import urllib.request
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
from hypothesis import settings
from PIL import Image
from starlette.testclient import TestClient

from vitreous.config import CNNConfig, Config, DataConfig, ViTConfig
from vitreous.data.datasets import load_dataset
from vitreous.data.preprocessing import Preprocessing
from vitreous.export.catalog import samples_for
from vitreous.export.served_graphs import export_for_serving
from vitreous.models import build
from vitreous.runs import Run
from vitreous.serving.app import create_app
from vitreous.serving.limits import Limits
from vitreous.serving.metrics import Metrics
from vitreous.serving.models import load_models
from vitreous.serving.security import Gate
from vitreous.serving.service import Service

# The same examples each time, and no deadline: a busy machine is not a failure.
settings.register_profile("vitreous", deadline=None, derandomize=True, database=None)
settings.load_profile("vitreous")

MODELS = {
    "tiny-vit": ViTConfig(dim=16, depth=2, num_heads=2, mlp_dim=24, zero_head=False),
    "tiny-cnn": CNNConfig(conv_channels=(4, 8), hidden=16),
}
START_SECONDS = 120.0


@pytest.fixture(scope="session")
def runs(tmp_path_factory: pytest.TempPathFactory, randomise: Any) -> Iterator[list[Run]]:
    shared = tmp_path_factory.getbasetemp()
    if os.environ.get("PYTEST_XDIST_WORKER"):
        shared = shared.parent
    folder = shared / "served"
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv("VITREOUS_CACHE", str(shared / "cache"))
        with (shared / "served.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            if not folder.exists():
                _make(folder, randomise)
        yield [Run.open(folder / name) for name in MODELS]


def _make(folder: Path, randomise: Any) -> None:
    dataset = load_dataset(DataConfig(name="digits"))
    for name, model in MODELS.items():
        config = Config(name=name, model=model, data=DataConfig(name="digits"))
        run = Run.create(folder / name, config, dataset, Preprocessing.for_dataset(dataset))
        run.finish(randomise(build(model)), None)
    export_for_serving([Run.open(folder / name) for name in MODELS])


@pytest.fixture(scope="session")
def _samples_once(runs: list[Run]) -> Iterator[None]:
    """Reading the digits takes half a second: once is enough."""
    samples = samples_for(runs[0])
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("vitreous.serving.service.samples_for", lambda run: samples)
        yield


@pytest.fixture(scope="session")
def make_client(runs: list[Run], _samples_once: None) -> Iterator[Callable[..., TestClient]]:
    """Return a factory of clients: one application each, with these limits and this gate, open until the tests end."""
    with ExitStack() as clients:

        def make(gate: Gate | None = None, **limits: Any) -> TestClient:
            metrics = Metrics()
            bounds = Limits(**limits)
            service = Service(load_models(runs, bounds, metrics, show_paths=False), bounds, metrics)
            app = create_app(service, gate or Gate())
            client = TestClient(app, base_url="http://127.0.0.1:8000", raise_server_exceptions=False)
            return clients.enter_context(client)

        yield make


@pytest.fixture(scope="session")
def client(make_client: Callable[..., TestClient]) -> TestClient:
    """One application for all tests that neither change its limits nor count its requests."""
    return make_client()


@pytest.fixture(scope="session")
def digits() -> np.ndarray:
    """uint8 (n, 28, 28)"""
    return load_dataset(DataConfig(name="digits")).test.images[:, 0].numpy()


@pytest.fixture(scope="session")
def png() -> Callable[..., bytes]:
    def encode(pixels: np.ndarray, kind: str = "PNG") -> bytes:
        stream = io.BytesIO()
        Image.fromarray(pixels).save(stream, kind)
        return stream.getvalue()

    return encode


# --- a server process ------------------------------------------------------------------------------------------------

_SERVE = """
import json, sys
from pathlib import Path
from vitreous.runs import Run
from vitreous.serving.limits import Limits
from vitreous.serving.server import serve_runs
options = json.loads(sys.argv[1])
serve_runs([Run.open(path) for path in options.pop("runs")], limits=Limits(**options.pop("limits")), **options)
"""


class Server:
    def __init__(self, process: subprocess.Popen[str], port: int):
        self.process, self.port = process, port
        self.base = f"http://127.0.0.1:{port}"

    def get(self, path: str, timeout: float = 10.0) -> int:
        with urllib.request.urlopen(self.base + path, timeout=timeout) as response:
            return int(response.status)

    def connect(self, timeout: float = 15.0) -> socket.socket:
        return socket.create_connection(("127.0.0.1", self.port), timeout)

    def exchange(self, raw: bytes) -> bytes:
        """Send bytes as they are, and read one response, or until the server closes."""
        with self.connect() as connection:
            connection.sendall(raw)
            return read_response(connection)


def read_response(connection: socket.socket) -> bytes:
    response = b""
    while b"\r\n\r\n" not in response or len(response) < _length(response):
        chunk = connection.recv(65536)
        if not chunk:
            break
        response += chunk
    return response


def _length(response: bytes) -> int:
    head, _, _ = response.partition(b"\r\n\r\n")
    declared = head.lower().partition(b"content-length:")[2].split(b"\r\n")[0]
    return len(head) + 4 + int(declared or 0)


@pytest.fixture(scope="session")
def serving(runs: list[Run]) -> Callable[..., Any]:
    @contextmanager
    def start(limits: dict[str, Any] | None = None, **more: Any) -> Iterator[Server]:
        options = {"runs": [str(run.path) for run in runs], "port": 0, "limits": limits or {}, "workers": 1, **more}
        process = subprocess.Popen(
            [sys.executable, "-c", _SERVE, json.dumps(options)],
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
            env={**os.environ, "OMP_NUM_THREADS": "1"},
            start_new_session=True,
        )
        try:
            yield Server(process, _await(process))
        finally:
            if process.poll() is None:
                process.send_signal(signal.SIGTERM)
                try:
                    process.wait(30)
                except subprocess.TimeoutExpired:
                    os.killpg(process.pid, signal.SIGKILL)
            if process.stdout and not process.stdout.closed:
                process.communicate()

    return start


def _await(process: subprocess.Popen[str]) -> int:
    """Return the port in the address that the server prints when it is ready: nothing here tries again."""
    assert process.stdout
    deadline = threading.Timer(START_SECONDS, process.kill)
    deadline.start()
    printed = ""
    for line in process.stdout:
        printed += line
        if found := re.match(r"serving on http://127\.0\.0\.1:(\d+)/", line):
            deadline.cancel()
            return int(found[1])
    deadline.cancel()
    pytest.fail(f"the server ended: {printed}")
