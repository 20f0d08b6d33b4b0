"""How much CPU time and memory `vitreous serve` takes until it is ready, on an empty cache.

    python bench/serve_start.py [--quick] [--docs] [--json FILE]

Both are sums over all its processes, read from /proc (Linux) when it prints its address, which it does once /readyz
responds. CPU time hardly depends on what else the machine does.
"""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from pathlib import Path

from common import Column, Report, Row, Table, median, parser

COLUMNS = (
    Column("workers", "workers"),
    Column("cpu_seconds", "CPU s until ready", "{:.2f}"),
    Column("cpu_most", "at most", "{:.2f}"),
    Column("seconds", "s until ready", "{:.2f}"),
    Column("megabytes", "memory MB", "{:.0f}"),
    Column("rounds", "n"),
)


def family(pid: int) -> list[int]:
    """Return a process and all its descendants."""
    children = Path(f"/proc/{pid}/task/{pid}/children").read_text().split()
    return [pid, *(one for child in children for one in family(int(child)))]


def cpu_seconds(pid: int) -> float:
    """Return the user and system time of a process and of the children that it has waited for."""
    fields = Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) / os.sysconf("SC_CLK_TCK")


def megabytes(pid: int) -> float:
    return int(Path(f"/proc/{pid}/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE") / 1e6


def start_once(workers: int) -> tuple[float, float, float]:
    """Return the CPU seconds, the seconds and the megabytes of one server with an empty cache."""
    with tempfile.TemporaryDirectory() as cache:
        command = [sys.executable, "-m", "vitreous", "serve", "--port", "0", "--workers", str(workers)]
        environment = {**os.environ, "VITREOUS_CACHE": cache}
        started = time.perf_counter()
        server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=environment)
        assert server.stdout is not None
        try:
            if not any(line.startswith("serving on ") for line in server.stdout):
                raise SystemExit("the server ended before it was ready")
            elapsed, processes = time.perf_counter() - started, family(server.pid)
            return sum(map(cpu_seconds, processes)), elapsed, sum(map(megabytes, processes))
        finally:
            server.terminate()
            server.wait(30)


def measure(workers: int, rounds: int) -> Row:
    cpu, elapsed, memory = zip(*(start_once(workers) for _ in range(rounds)), strict=True)
    return {
        "workers": workers,
        "cpu_seconds": median(cpu),
        "cpu_most": max(cpu),
        "seconds": median(elapsed),
        "megabytes": median(memory),
        "rounds": rounds,
    }


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    rounds = 1 if args.smoke else 3 if args.quick else 9
    report = Report("serve_start", "Starting `vitreous serve`")
    report.measure_peak()
    rows = [measure(workers, rounds) for workers in ((1,) if args.smoke else (1, 2))]
    report.tables.append(Table("The bundled models, an empty cache", COLUMNS, rows))
    report.finish(args)


if __name__ == "__main__":
    main()
