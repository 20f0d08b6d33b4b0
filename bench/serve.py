"""`vitreous serve` beside a plain FastAPI + uvicorn + PyTorch handler, in one run, on loopback.

    python bench/serve.py [--run RUN] [--quick] [--docs] [--json FILE] [--workers N]

Both serve RUN, by default the bundled ViT, and get the same requests (multipart) from wrk, or from the asyncio client
below where wrk is missing. There are three loads: one PNG of 28 pixels, which needs no resizing; one of 280 pixels,
which `vitreous serve` normalises as it does every drawing and the plain handler resizes; 64 files of 28 pixels in one
request. The client is a separate process, and the servers take turns, so that other load on the machine affects both.
The plain handler is the one most tutorials show: `async def predict(image: list[UploadFile])`, Pillow, a torch model,
one process, uvicorn[standard]'s fast loop and parser, no access log. It runs with one torch thread, not torch's default
of one per core: for one image that is slower, and it collapses beside other load (measured here: 1.1 → 346 ms per
image, because OpenMP threads spin while they wait for each other). `--plain-threads 2` shows it.

The plain handler needs uvicorn[standard] and python-multipart: `pip install -c constraints.txt …`.
"""

from __future__ import annotations

import argparse
import asyncio
import contextlib
import io
import json
import os
import shutil
import signal
import socket
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.request
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any

from common import Column, Report, Table
from common import parser as common_options

START_SECONDS = 180.0
BOUNDARY = "vitreous-bench"


@dataclass(frozen=True)
class Load:
    """The requests that every connection sends."""

    name: str
    side: int  # of the images, in pixels
    files: int = 1  # per request
    connections: tuple[int, ...] = (1, 8, 64, 256)

    @property
    def file_name(self) -> str:
        return f"{self.side}x{self.files}"


# eight connections with 64 files each are half of the images that `vitreous serve` lets wait
_STARTED = time.perf_counter()
COLUMNS = (
    Column("load", "load"),
    Column("connections", "connections"),
    Column("server", "server"),
    Column("requests_per_second", "requests/s", "{:,.0f}"),
    Column("images_per_second", "images/s", "{:,.0f}"),
    Column("p50_ms", "p50 ms", "{:.1f}"),
    Column("p99_ms", "p99 ms", "{:.1f}"),
    Column("errors", "errors"),
)
LOADS = (Load("28-px PNG", 28), Load("280-px PNG", 280), Load("64 files", 28, 64, (1, 8)))


@dataclass(frozen=True)
class Row:
    """One load on one server; times in milliseconds."""

    load: str
    server: str
    connections: int
    requests_per_second: float
    images_per_second: float
    p50_ms: float
    p99_ms: float
    errors: int
    requests: int


# --- the two servers -----------------------------------------------------------------------------------------------


def serve_ours(run_path: Path | None, port: int, workers: int | None) -> None:
    from vitreous.runs import Run
    from vitreous.serving.server import serve_runs

    serve_runs([Run.open(run_path)] if run_path else [], port=port, workers=workers)


def serve_plain(run_path: Path | None, port: int, threads: int | None) -> None:
    """Serve one model with one handler, as a tutorial would."""
    import numpy as np
    import torch
    import uvicorn
    from fastapi import FastAPI, UploadFile
    from PIL import Image

    from vitreous.runs import open_run

    if threads:
        torch.set_num_threads(threads)
    run = open_run(run_path)
    model = run.load_model()
    height, width = run.preprocessing.image_size
    app = FastAPI()

    async def predict(image: list[UploadFile]) -> list[dict[str, object]]:
        pictures = [Image.open(io.BytesIO(await one.read())).convert("L").resize((width, height)) for one in image]
        pixels = torch.from_numpy(np.stack([np.array(picture) for picture in pictures])).float()[:, None] / 255
        with torch.no_grad():
            logits = model((pixels - run.preprocessing.mean[0]) / run.preprocessing.std[0])
            rows = logits.softmax(dim=1)
        return [{"label": run.class_names[int(row.argmax())], "probabilities": row.tolist()} for row in rows]

    # postponed annotations name locals
    predict.__annotations__ = {"image": list[UploadFile], "return": list[dict[str, object]]}
    app.post("/v1/predict")(predict)
    app.get("/healthz")(lambda: {"status": "alive"})
    uvicorn.run(app, port=port, log_level="warning", access_log=False)


@contextlib.contextmanager
def running(
    kind: str, run_path: Path | None, workers: int | None, plain_threads: int | None = None
) -> Iterator[tuple[int, int]]:
    """Run a server in its own process group; yield its process id and port."""
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        port = probe.getsockname()[1]
    command = [sys.executable, __file__, "--serve", kind, "--port", str(port)]
    if workers:
        command += ["--workers", str(workers)]
    if run_path is not None:
        command += ["--run", str(run_path)]
    if plain_threads:
        command += ["--plain-threads", str(plain_threads)]
    process = subprocess.Popen(command, start_new_session=True, stdout=subprocess.DEVNULL)
    try:
        _await_health(process, port)
        yield process.pid, port
    finally:
        process.send_signal(signal.SIGTERM)
        try:
            process.wait(30)
        except subprocess.TimeoutExpired:
            os.killpg(process.pid, signal.SIGKILL)
            process.wait()


def _await_health(process: subprocess.Popen[bytes], port: int) -> None:
    deadline = time.monotonic() + START_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            raise SystemExit(f"a server ended with {process.returncode} before it responded")
        with contextlib.suppress(OSError):
            if urllib.request.urlopen(f"http://127.0.0.1:{port}/healthz", timeout=2).status == 200:
                return
        time.sleep(0.2)
    raise SystemExit(f"a server did not respond within {START_SECONDS:.0f} s")


def resident_megabytes(pid: int) -> float:
    """Return the resident memory of a process and its children."""
    pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return pages * os.sysconf("SC_PAGE_SIZE") / 1e6 + sum(resident_megabytes(int(child)) for child in children)


# --- the load ------------------------------------------------------------------------------------------------------


def make_body(side: int = 28, files: int = 1) -> bytes:
    """Return a multipart body with one digit of the test set, so large, in so many files."""
    from PIL import Image

    from vitreous.data.digits import load_digits

    digit = load_digits().splits["test"].images[3, 0].numpy()
    png = io.BytesIO()
    Image.fromarray(digit).resize((side, side), Image.Resampling.BICUBIC).save(png, "PNG")
    head = f'--{BOUNDARY}\r\nContent-Disposition: form-data; name="image"; filename="digit.png"\r\n'
    part = (head + "Content-Type: image/png\r\n\r\n").encode() + png.getvalue() + b"\r\n"
    return part * files + f"--{BOUNDARY}--\r\n".encode()


_LUA = """
wrk.method = "POST"
wrk.headers["Content-Type"] = "multipart/form-data; boundary=%s"
local file = io.open("%s", "rb"); wrk.body = file:read("*a"); file:close()
function done(summary, latency)
  local e = summary.errors
  io.write(string.format('RESULT {"requests": %%d, "seconds": %%f, "p50_ms": %%f, "p99_ms": %%f, "errors": %%d}\\n',
    summary.requests, summary.duration / 1e6, latency:percentile(50) / 1e3, latency:percentile(99) / 1e3,
    e.connect + e.read + e.write + e.status + e.timeout))
end
"""


def measure(load: Load, server: str, port: int, connections: int, seconds: float, folder: Path) -> Row:
    body = folder / load.file_name
    if shutil.which("wrk"):
        script = folder / "post.lua"
        script.write_text(_LUA % (BOUNDARY, body))
        duration = f"-d{max(1, round(seconds))}s"  # wrk takes whole seconds
        command = ["wrk", "-t1", f"-c{connections}", duration, "--timeout", "10s", "-s", str(script)]
        command.append(f"http://127.0.0.1:{port}/v1/predict")
    else:
        command = [sys.executable, __file__, "--client", "--port", str(port), "--connections", str(connections)]
        command += ["--seconds", str(seconds), "--body", str(body)]
    out = subprocess.run(command, capture_output=True, text=True, timeout=seconds + 60, check=True).stdout
    found = json.loads(next(line for line in out.splitlines() if line.startswith("RESULT")).removeprefix("RESULT"))
    rate = found["requests"] / found["seconds"]
    times = found["p50_ms"], found["p99_ms"]
    return Row(load.name, server, connections, rate, rate * load.files, *times, found["errors"], found["requests"])


async def client(port: int, connections: int, seconds: float, body: bytes) -> None:
    """Replace wrk: keep-alive connections, each with one request at a time."""
    head = f"POST /v1/predict HTTP/1.1\r\nHost: 127.0.0.1:{port}\r\nContent-Length: {len(body)}\r\n"
    request = f"{head}Content-Type: multipart/form-data; boundary={BOUNDARY}\r\n\r\n".encode() + body
    times: list[float] = []
    errors = 0
    end = time.perf_counter() + seconds

    async def one() -> None:
        nonlocal errors
        try:
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            while (start := time.perf_counter()) < end:
                writer.write(request)
                async with asyncio.timeout(10):
                    head = await reader.readuntil(b"\r\n\r\n")
                    length = int(head.lower().partition(b"content-length:")[2].split(b"\r\n")[0])
                    await reader.readexactly(length)
                times.append(time.perf_counter() - start)
                errors += not head.startswith(b"HTTP/1.1 200")
            writer.close()
        except (OSError, EOFError, TimeoutError, ValueError, asyncio.IncompleteReadError):
            errors += 1

    start = time.perf_counter()
    await asyncio.gather(*(one() for _ in range(connections)))
    ordered = sorted(times) or [float("nan")]
    result = {
        "requests": len(times),
        "seconds": time.perf_counter() - start,
        "p50_ms": ordered[len(ordered) // 2] * 1e3,
        "p99_ms": ordered[min(len(ordered) - 1, len(ordered) * 99 // 100)] * 1e3,
        "errors": errors,
    }
    print("RESULT", json.dumps(result))


# --- the comparison ------------------------------------------------------------------------------------------------


def compare(
    run_path: Path | None,
    workers: int | None,
    plain_threads: int | None,
    seconds: float,
    rounds: int,
    memory_requests: int,
) -> dict[str, Any]:
    with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        for load in LOADS:
            (folder / load.file_name).write_bytes(make_body(load.side, load.files))
        servers = {
            kind: stack.enter_context(running(kind, run_path, workers, plain_threads)) for kind in ("ours", "plain")
        }
        rows: list[Row] = []
        for load in LOADS:
            for kind, (_, port) in servers.items():
                measure(load, kind, port, 8, 2, folder)  # warm
            for _ in range(rounds):
                for level in load.connections:
                    for kind, (_, port) in servers.items():
                        rows.append(measure(load, kind, port, level, seconds, folder))
        memory = _memory_growth(*servers["ours"], memory_requests, folder)
    best = summarise(rows)
    client_name = "wrk" if shutil.which("wrk") else "asyncio client"
    return {
        "model": describe_model(run_path),
        "ratios": ratios(best),
        "rows": [asdict(row) for row in best],
        "memory": memory,
        "client": client_name,
    }


def describe_model(run_path: Path | None) -> str:
    from vitreous.runs import open_run

    run = open_run(run_path)
    parameters = sum(parameter.numel() for parameter in run.load_model().parameters())
    return f"{run_path or 'bundled:' + run.path.name}, {parameters:,} parameters"


def summarise(rows: list[Row]) -> list[Row]:
    """Return the round with the median throughput for each load, level and server, with the errors of all rounds."""
    groups: dict[tuple[str, int, str], list[Row]] = {}
    for row in rows:
        groups.setdefault((row.load, row.connections, row.server), []).append(row)
    best = []
    for some in groups.values():
        middle = statistics.median_low([row.requests_per_second for row in some])
        chosen = next(row for row in some if row.requests_per_second == middle)
        best.append(replace(chosen, errors=sum(row.errors for row in some)))
    return best


def ratios(best: list[Row]) -> dict[str, float]:
    found = {(row.load, row.connections, row.server): row for row in best}
    compared: dict[str, float] = {}
    for (load, level, server), plain in found.items():
        if server == "plain":
            ours = found[load, level, "ours"]
            compared[f"{load}: throughput at {level}"] = ours.requests_per_second / max(plain.requests_per_second, 1e-9)
            compared[f"{load}: p99 at {level}"] = ours.p99_ms / plain.p99_ms if plain.p99_ms else 0.0
    return compared


def _memory_growth(pid: int, port: int, requests: int, folder: Path) -> dict[str, float]:
    before, done, errors = resident_megabytes(pid), 0, 0
    while done < requests:
        row = measure(LOADS[0], "ours", port, 64, 10 if requests > 20_000 else 4, folder)
        done, errors = done + row.requests, errors + row.errors
    after = resident_megabytes(pid)
    return {"requests": done, "before_mb": before, "after_mb": after, "growth_mb": after - before, "errors": errors}


def main() -> None:
    parser = common_options(__doc__ or "")
    parser.add_argument("--run", type=Path)
    parser.add_argument("--workers", type=int, help="of `vitreous serve`; left out: its own choice")
    parser.add_argument("--plain-threads", type=int, default=1, help="of torch in the plain handler (1: see above)")
    for hidden in ("--serve", "--body"):
        parser.add_argument(hidden, help=argparse.SUPPRESS)
    for hidden in ("--port", "--connections"):
        parser.add_argument(hidden, type=int, help=argparse.SUPPRESS)
    parser.add_argument("--seconds", type=float, help=argparse.SUPPRESS)
    parser.add_argument("--client", action="store_true", help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve == "ours":
        serve_ours(options.run, options.port, options.workers)
    elif options.serve == "plain":
        serve_plain(options.run, options.port, options.plain_threads)
    elif options.client:
        asyncio.run(client(options.port, options.connections, options.seconds, Path(options.body).read_bytes()))
    else:
        seconds, rounds, requests = (2.0, 2, 5_000) if options.quick else (10.0, 3, 100_000)
        seconds = options.seconds or seconds
        report(compare(options.run, options.workers, options.plain_threads, seconds, rounds, requests), options)


def report(found: dict[str, Any], options: argparse.Namespace) -> None:
    result = Report(
        "serve", "`vitreous serve` beside a plain FastAPI handler", ratios=found["ratios"], started=_STARTED
    )
    result.measure_peak()
    result.tables.append(Table(f"{found['model']}; client: {found['client']}", COLUMNS, found["rows"]))
    result.notes.append("Memory of `vitreous serve`: {before_mb:.0f} MB before and {after_mb:.0f} MB after {requests:,}"
                        " requests, {errors} errors.".format(**found["memory"]))  # fmt: skip
    result.finish(options)


if __name__ == "__main__":
    main()
