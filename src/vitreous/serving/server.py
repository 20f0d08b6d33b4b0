"""Run the application with granian, which times out slow request heads, in one or more worker processes.

`serve_runs` blocks until SIGINT or SIGTERM, and then finishes the requests under way.
"""

from __future__ import annotations

import functools
import multiprocessing
import os
import socket
import sys
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.errors import ConfigError, require_packages
from vitreous.hardware import available_cores
from vitreous.runs import Run
from vitreous.serving.limits import Limits
from vitreous.serving.security import Gate, check_exposure, is_loopback, read_token

if TYPE_CHECKING:
    from vitreous.serving.app import Application

SWITCH_SECONDS = 0.0005  # until a busy event loop yields the interpreter to an engine's thread (default 5 ms)


def serve_runs(
    runs: Sequence[Run] = (),
    *,
    host: str = "127.0.0.1",
    port: int = 8000,
    token_file: Path | None = None,
    no_auth: bool = False,
    workers: int | None = None,
    limits: Limits = Limits(),  # noqa: B008  # frozen
) -> None:
    """Serve the runs (none: the bundled models) until stopped; `workers` defaults to one per core, at most two."""
    packages = ("onnxruntime", "fastapi", "granian", "orjson", "prometheus_client")
    require_packages(*packages, extra="serve", needed_for="serving")
    from vitreous.serving.metrics import MULTIPROCESS_VARIABLE
    from vitreous.serving.models import export_for_serving

    token = read_token(Path(token_file)) if token_file is not None else None
    check_exposure(host, token, no_auth)
    _check_port(host, port)
    chosen = list(runs) or [Run.open(name) for name in ("bundled:vit", "bundled:cnn")]
    workers = workers or min(2, available_cores())  # each takes 300 MB; limits are per worker
    print(f"preparing {', '.join(run.path.name for run in chosen)} (exported and checked the first time only)")
    export_for_serving(chosen)
    address = f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"
    print(f"serving on {address}/ (the API: {address}/docs); stop with Ctrl-C")
    gate = Gate(token, loopback_only=is_loopback(host))
    loader = functools.partial(load_app, [run.path for run in chosen], gate, limits, address)
    with tempfile.TemporaryDirectory(prefix="vitreous-serve-") as folder:
        os.environ[MULTIPROCESS_VARIABLE] = folder  # the workers inherit it
        try:
            _run_granian(loader, host, port, workers, limits)
        finally:
            os.environ.pop(MULTIPROCESS_VARIABLE, None)


def _check_port(host: str, port: int) -> None:
    """Raise a ConfigError now rather than let a worker fail with a traceback."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
    except OSError as error:
        reason = error.strerror or error
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host") from None


def _run_granian(loader: Callable[[], Application], host: str, port: int, workers: int, limits: Limits) -> None:
    from granian.constants import HTTPModes, Interfaces, Loops, RuntimeModes
    from granian.http import HTTP1Settings
    from granian.log import LogLevels
    from granian.server import Server

    # the thread pools of torch and ONNX Runtime do not survive a fork
    multiprocessing.set_start_method("spawn", force=True)
    server = Server(
        "vitreous.serving.server",  # not imported: the loader below makes the application
        address=host,
        port=port,
        interface=Interfaces.ASGI,
        workers=workers,
        runtime_mode=RuntimeModes.st,
        runtime_threads=1,
        loop=Loops.auto,
        http=HTTPModes.http1,
        websockets=False,
        backlog=2048,
        backpressure=limits.connections,
        http1_settings=HTTP1Settings(header_read_timeout=int(limits.header_seconds * 1000), max_buffer_size=64 * 1024),
        workers_kill_timeout=limits.drain_seconds,
        log_level=LogLevels.warning,
        respawn_failed_workers=True,
    )
    server.serve(target_loader=loader, wrap_loader=False)


def load_app(run_paths: Sequence[Path], gate: Gate, limits: Limits, address: str) -> Application:
    """Open the runs, load the graphs and build the application, in a worker."""
    import torch

    from vitreous.serving.app import create_app
    from vitreous.serving.metrics import Metrics
    from vitreous.serving.models import load_models
    from vitreous.serving.service import Service

    torch.set_flush_denormal(True)
    torch.set_num_threads(1)
    sys.setswitchinterval(SWITCH_SECONDS)
    metrics = Metrics()
    runs = [Run.open(path) for path in run_paths]
    models = load_models(runs, limits, metrics, show_paths=gate.loopback_only)
    return create_app(Service(models, limits, metrics), gate, address)
