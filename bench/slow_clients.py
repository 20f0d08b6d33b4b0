"""A thousand slow clients (slowhttptest, on loopback) against `vitreous serve`: does it stay healthy beside them?

    python bench/slow_clients.py [--connections 1000] [--seconds 30] [--json FILE]

slowhttptest (a Debian package) opens its connections and sends heads, then bodies, a few bytes at a time, then reads
responses slowly. Meanwhile /healthz and a prediction are requested every tenth of a second, each on its own connection,
as a load balancer and a user would; the slowest of these responses is reported.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import shutil
import subprocess
import threading
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path

from serve import BOUNDARY, make_body, resident_megabytes, running

ATTACKS = {
    "slow heads": ("-H",),
    "slow bodies": ("-B", "-t", "POST", "-s", "8192"),
    "slow reading": ("-X", "-w", "1", "-y", "8", "-n", "5", "-z", "4", "-k", "3"),
}


@contextlib.contextmanager
def polling(port: int) -> Iterator[dict[str, list[float]]]:
    """Collect the seconds of every response to a healthy client; infinity where there was none."""
    seconds: dict[str, list[float]] = {"healthz": [], "predict": []}
    over = threading.Event()
    kind = {"Content-Type": f"multipart/form-data; boundary={BOUNDARY}"}
    base = f"http://127.0.0.1:{port}"
    requests = {
        "healthz": urllib.request.Request(f"{base}/healthz"),
        "predict": urllib.request.Request(f"{base}/v1/predict", make_body(), kind),
    }

    def poll(name: str) -> None:
        while not over.is_set():
            start = time.perf_counter()
            try:
                with urllib.request.urlopen(requests[name], timeout=10) as response:
                    response.read()
                seconds[name].append(time.perf_counter() - start)
            except (OSError, urllib.error.HTTPError):
                seconds[name].append(float("inf"))
            over.wait(0.1)

    threads = [threading.Thread(target=poll, args=(name,)) for name in requests]
    for thread in threads:
        thread.start()
    try:
        yield seconds
    finally:
        over.set()
        for thread in threads:
            thread.join()


def attack(port: int, connections: int, seconds: int, flags: tuple[str, ...]) -> None:
    page = "/" if "-X" in flags else "/v1/predict"
    command = ["slowhttptest", *flags, "-c", str(connections), "-r", "500", "-i", "5", "-l", str(seconds)]
    command += ["-x", "24", "-p", "3", "-u", f"http://127.0.0.1:{port}{page}"]
    subprocess.run(command, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL, timeout=seconds + 60, check=False)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--connections", type=int, default=1000)
    parser.add_argument("--seconds", type=int, default=30, help="of each attack")
    parser.add_argument("--json", type=Path)
    options = parser.parse_args()
    if not shutil.which("slowhttptest"):
        raise SystemExit("slowhttptest is not installed: apt-get install slowhttptest")
    rows = []
    with running("ours", None, None) as (pid, port):
        before = resident_megabytes(pid)
        for name, flags in ATTACKS.items():
            with polling(port) as seconds:
                attack(port, options.connections, options.seconds, flags)
            row = {"attack": name, "connections": options.connections}
            for what, times in seconds.items():
                ordered = sorted(times)
                row |= {f"{what} requests": len(ordered), f"{what} median ms": ordered[len(ordered) // 2] * 1e3}
                row |= {f"{what} worst ms": ordered[-1] * 1e3}
            rows.append(row)
            print(", ".join(f"{key} {value:.1f}" if isinstance(value, float) else f"{key} {value}"
                            for key, value in row.items()))  # fmt: skip
        growth = resident_megabytes(pid) - before
    worst = max(row["healthz worst ms"] for row in rows)
    print(f"slowest response of /healthz: {worst:.0f} ms; memory grew by {growth:.1f} MB")
    if options.json:
        options.json.write_text(json.dumps({"ratios": {}, "rows": rows, "growth_mb": growth}, indent=2) + "\n")


if __name__ == "__main__":
    main()
