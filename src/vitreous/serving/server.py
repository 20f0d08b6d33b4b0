"""Run the application with granian, which times out slow request heads, in one or more worker processes.

`serve_runs` blocks until SIGINT or SIGTERM, and then finishes the requests under way.
"""

from __future__ import annotations

import functools
import http.client
import multiprocessing
import os
import socket
import sys
import tempfile
import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ProcessPoolExecutor
from concurrent.futures.process import BrokenProcessPool
from pathlib import Path
from typing import TYPE_CHECKING

from vitreous.errors import ConfigError, ExportError, require_packages
from vitreous.export.catalog import check_images
from vitreous.export.served_graphs import export_for_serving, has_graphs
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
    """Serve the runs (none: the bundled models) until stopped; port 0 is any free one.

    `workers` defaults to one on loopback, where one person uses the page, and otherwise to one per core, at most two.
    """
    packages = ("onnxruntime", "fastapi", "granian", "orjson", "prometheus_client")
    require_packages(*packages, extra="serve", needed_for="serving")
    from vitreous.serving.metrics import MULTIPROCESS_VARIABLE

    token = read_token(Path(token_file)) if token_file is not None else None
    check_exposure(host, token, no_auth)
    ip_address, port = _resolve(host, port)
    chosen = list(runs) or [Run.open(name) for name in ("bundled:vit", "bundled:cnn")]
    check_images(chosen)
    local = is_loopback(host)
    workers = workers or (1 if local else min(2, available_cores()))  # each takes 150 MB; limits are per worker
    _export_missing(chosen)
    print(f"starting with {', '.join(run.path.name for run in chosen)} …", flush=True)
    address = _address(_own_host(host), port)
    loader = functools.partial(load_app, [run.path for run in chosen], Gate(token, local), limits, address)
    with tempfile.TemporaryDirectory(prefix="vitreous-serve-") as folder:
        os.environ[MULTIPROCESS_VARIABLE] = folder  # the workers inherit it
        os.environ["OMP_NUM_THREADS"] = "1"  # likewise: for numpy's BLAS and, once it is imported, torch
        stopped = threading.Event()
        threading.Thread(target=_announce, args=(host, port, stopped), daemon=True).start()
        try:
            _run_granian(loader, ip_address, port, workers, limits)
        finally:
            stopped.set()
            os.environ.pop(MULTIPROCESS_VARIABLE, None)


def _resolve(host: str, port: int) -> tuple[str, int]:
    """Return the IP address of a host and the port, or a free one for 0; raise a ConfigError if it cannot be used."""
    try:
        family, kind, protocol, _, address = socket.getaddrinfo(host, port, type=socket.SOCK_STREAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
            probe.bind(address)
            return probe.getsockname()[:2]
    except (OSError, ValueError) as error:  # ValueError: no host can have this name
        reason = getattr(error, "strerror", None) or error
        raise ConfigError(f"cannot listen on {host}:{port}: {reason}; choose another --port or --host") from None


def _export_missing(runs: Sequence[Run]) -> None:
    """Export the graphs that are not there yet, in a child process: it needs torch and 800 MB, and ends."""
    missing = [run for run in runs if not has_graphs(run)]
    if not missing:
        return
    print(f"exporting {', '.join(run.path.name for run in missing)} to ONNX, the first time only …", flush=True)
    try:
        with ProcessPoolExecutor(1, mp_context=multiprocessing.get_context("spawn")) as child:
            child.submit(export_for_serving, missing).result()
    except BrokenProcessPool:
        raise ExportError("the process that exports to ONNX was killed: is there 1 GB of memory for it?") from None


# --- the address, printed once it can be opened --------------------------------------------------------------------


def _announce(host: str, port: int, stopped: threading.Event) -> None:
    """Print the address as soon as /readyz responds; the main thread runs the server meanwhile."""
    own = _own_host(host)
    while not _is_ready(own, port):
        if stopped.wait(0.05):
            return
    address = _address(own, port)
    others = f"; from other machines: {_address(socket.gethostname(), port)}/" if own != host else ""
    print(f"serving on {address}/ (the API: {address}/docs{others}); stop with Ctrl-C", flush=True)


def _is_ready(host: str, port: int) -> bool:
    connection = http.client.HTTPConnection(host, port, timeout=60)  # queued until a worker accepts it
    try:
        connection.request("GET", "/readyz")
        return connection.getresponse().status == 200
    except (OSError, http.client.HTTPException):
        return False
    finally:
        connection.close()


def _own_host(host: str) -> str:
    """Return a host to open on this machine: 0.0.0.0 and :: stand for all of its addresses and are none."""
    return {"0.0.0.0": "127.0.0.1", "::": "::1"}.get(host, host)


def _address(host: str, port: int) -> str:
    return f"http://[{host}]:{port}" if ":" in host else f"http://{host}:{port}"


# --- the processes -------------------------------------------------------------------------------------------------


def _run_granian(loader: Callable[[], Application], ip_address: str, port: int, workers: int, limits: Limits) -> None:
    from granian.constants import HTTPModes, Interfaces, Loops, RuntimeModes
    from granian.http import HTTP1Settings
    from granian.log import LogLevels
    from granian.server import Server

    # threads, such as those of `_announce` and of ONNX Runtime, do not survive a fork
    multiprocessing.set_start_method("spawn", force=True)
    os.environ["PYTHONSAFEPATH"] = "1"  # or a worker imports from the current folder before it takes over our sys.path
    server = Server(
        "vitreous.serving.server",  # not imported: the loader below makes the application
        address=ip_address,
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
    """Open the runs, load the graphs and build the application, in a worker.

    torch is imported when it is first needed: for relevance, or to resize an image for a model that is not of digits.
    """
    from vitreous.serving.app import create_app
    from vitreous.serving.metrics import Metrics
    from vitreous.serving.models import load_models
    from vitreous.serving.service import Service

    sys.setswitchinterval(SWITCH_SECONDS)
    metrics = Metrics()
    runs = [Run.open(path) for path in run_paths]
    models = load_models(runs, limits, metrics, show_paths=gate.loopback_only)
    return create_app(Service(models, limits, metrics), gate, address)
