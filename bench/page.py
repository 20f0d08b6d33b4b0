"""How heavy and how quick is the page: bytes and time until it predicts, bytes and latency of a stroke, both engines.

    python bench/page.py [--quick] [--json FILE]

The bundled models, exported as a static page and behind `vitreous serve`, on loopback in Chromium. `interactive` is the
first prediction shown; bytes are what the network carries, headers included. The static host compresses nothing, as the
plainest hosts do. A stroke's latency is the page's own: from the pointer's event to the painted prediction. Seconds
depend on what else the machine does, so the CPU time of all of Chromium until the page is interactive is given as well.
"""

from __future__ import annotations

import contextlib
import functools
import http.server
import os
import re
import shutil
import statistics
import subprocess
import sys
import tempfile
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from common import Column, Report, Row, Table, median, parser
from serve_start import cpu_seconds, family

from vitreous.runs import Run
from vitreous.serving.static_page import export_page

CHROMIUM = ("chromium", "chromium-browser", "google-chrome")
FLAGS = ("--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking")
RECORD = """
  window.found = { interactive: 0, strokes: [] };
  document.addEventListener("vitreous:predicted", ({ detail }) => {
    window.found.interactive ||= performance.now();
    window.found.strokes.push(detail.milliseconds);
  });
"""
NEEDED = """() => performance.getEntriesByType("resource")
  .filter(({ responseEnd }) => responseEnd <= window.found.interactive).map(({ name }) => name)"""
LOADING = (
    Column("engine", "engine"),
    Column("interactive_bytes", "bytes until interactive", "{:,}"),
    Column("all_bytes", "all bytes", "{:,}"),
    Column("seconds", "s until interactive", "{:.2f}"),
    Column("fastest_seconds", "fastest", "{:.2f}"),
    Column("cpu_seconds", "CPU s of Chromium", "{:.2f}"),
    Column("rounds", "n"),
)
DRAWING = (
    Column("engine", "engine"),
    Column("bytes", "bytes per stroke", "{:,}"),
    Column("most_bytes", "at most", "{:,}"),
    Column("median_ms", "latency, median ms", "{:.0f}"),
    Column("p95_ms", "p95 ms", "{:.0f}"),
    Column("strokes", "n"),
)


class _Host(http.server.SimpleHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    extensions_map = {**http.server.SimpleHTTPRequestHandler.extensions_map, ".mjs": "text/javascript"}  # noqa: RUF012

    def log_message(self, *_: Any) -> None:
        pass


@contextlib.contextmanager
def static_page(folder: Path) -> Iterator[str]:
    site = export_page([Run.open(name) for name in ("bundled:vit", "bundled:cnn")], folder / "page").folder
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), functools.partial(_Host, directory=site))
    threading.Thread(target=server.serve_forever, daemon=True).start()
    yield f"http://127.0.0.1:{server.server_address[1]}/"
    server.shutdown()
    server.server_close()


@contextlib.contextmanager
def served_page() -> Iterator[str]:
    command = [sys.executable, "-m", "vitreous", "serve", "--port", "0"]
    server = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env={**os.environ, "OMP_NUM_THREADS": "1"})
    assert server.stdout is not None
    try:
        printed = (re.match(r"serving on (http://127\.0\.0\.1:\d+/)", text) for text in server.stdout)
        found = next((match for match in printed if match), None)
        if found is None:
            raise SystemExit("the server ended before it was ready")
        yield found[1]
    finally:
        server.terminate()
        server.wait()


def percentile_95(values: list[float]) -> float:
    """Return the value that 95 % of the others do not exceed, interpolated."""
    return statistics.quantiles(values, n=20, method="inclusive")[-1] if len(values) > 1 else values[0]


def chromium_cpu() -> float:
    """Return the CPU seconds of the Chromium that this process started."""
    total = 0.0
    for pid in family(os.getpid()):
        with contextlib.suppress(OSError):  # it has just ended; its parent has its time
            if Path(f"/proc/{pid}/comm").read_text().startswith(("chrom", "google-chrome")):
                total += cpu_seconds(pid)
    return total


class Visit:
    """One tab in a Chromium of its own, so that nothing is cached and its CPU time is this page's alone."""

    def __init__(self, playwright: Any, chromium: str, site: str):
        self._browser = playwright.chromium.launch(executable_path=chromium, args=list(FLAGS))
        self.page = self._browser.new_page(viewport={"width": 1280, "height": 900})
        self.transfers: list[tuple[str, int]] = []  # address, bytes
        addresses: dict[str, str] = {}
        network = self.page.context.new_cdp_session(self.page)
        network.send("Network.enable")
        network.on("Network.requestWillBeSent", lambda e: addresses.__setitem__(e["requestId"], e["request"]["url"]))
        network.on(
            "Network.loadingFinished",
            lambda e: self.transfers.append((addresses.get(e["requestId"], ""), int(e["encodedDataLength"]))),
        )
        self.page.add_init_script(RECORD)
        before = chromium_cpu()
        self.page.goto(site)
        self.page.wait_for_function("() => window.found.interactive > 0", polling=10)
        self.cpu = chromium_cpu() - before
        self.seconds = self.page.evaluate("() => window.found.interactive") / 1000
        self.page.locator("html[data-status=idle]").wait_for(state="attached")
        needed = {site, *self.page.evaluate(NEEDED)}
        self.interactive_bytes = sum(size for address, size in self.transfers if address in needed)
        self.all_bytes = sum(size for _, size in self.transfers)

    def draw(self, strokes: int) -> tuple[list[float], list[int]]:
        """Draw points one after the other; return each one's latency and the bytes of its responses."""
        page, latencies, sizes = self.page, [], []
        box = page.locator("#pad").bounding_box()
        assert box is not None
        for i in range(strokes):
            if i % 10 == 0:
                page.mouse.up()
                page.mouse.move(box["x"] + box["width"] * 0.3, box["y"] + box["height"] * 0.2)
                page.mouse.down()
                self._idle()
            page.evaluate("() => { window.found.strokes.length = 0; }")
            self.transfers.clear()
            x = 0.3 + 0.4 * ((i % 10) + 1) / 10
            page.mouse.move(box["x"] + box["width"] * x, box["y"] + box["height"] * (0.2 + 0.06 * (i % 10)))
            page.wait_for_function("() => window.found.strokes.length > 0", polling=5)
            latencies.append(page.evaluate("() => window.found.strokes[0]"))
            page.wait_for_timeout(20)
            sizes.append(sum(size for address, size in self.transfers if address.endswith("/v1/look")))
            self._idle()
        page.mouse.up()
        return latencies, sizes

    def _idle(self) -> None:
        self.page.wait_for_timeout(30)
        self.page.locator("html[data-status=idle]").wait_for(state="attached")

    def close(self) -> None:
        self._browser.close()


def main() -> int:
    args = parser(__doc__ or "").parse_args()
    from playwright.sync_api import sync_playwright

    chromium = next((path for name in CHROMIUM if (path := shutil.which(name))), None)
    if chromium is None:
        sys.exit("bench/page.py opens the page in a browser: apt-get install chromium")
    report = Report("page", "The page: bytes, time until it predicts, latency of a stroke")
    rounds, strokes = (1, 3) if args.smoke else (3, 30) if args.quick else (7, 100)
    loads: dict[str, list[Visit]] = {}
    drawn: dict[str, tuple[list[float], list[int]]] = {}
    with tempfile.TemporaryDirectory() as folder, static_page(Path(folder)) as static, served_page() as served:
        sites = {"browser (static page)": static, "server (vitreous serve)": served}
        with sync_playwright() as playwright:
            for _ in range(rounds):
                for name, site in sites.items():
                    visit = Visit(playwright, chromium, site)
                    loads.setdefault(name, []).append(visit)
                    latencies, sizes = visit.draw(-(-strokes // rounds))
                    so_far = drawn.setdefault(name, ([], []))
                    so_far[0].extend(latencies)
                    so_far[1].extend(sizes)
                    visit.close()
                report.measure_peak(0.1)
    report.tables = [
        Table("Loading the page", LOADING, [_loading(name, visits) for name, visits in loads.items()]),
        Table("Drawing", DRAWING, [_drawing(name, *found) for name, found in drawn.items()]),
    ]
    report.finish(args)
    return 0


def _loading(name: str, visits: list[Visit]) -> Row:
    return {
        "engine": name,
        "interactive_bytes": max(visit.interactive_bytes for visit in visits),
        "all_bytes": max(visit.all_bytes for visit in visits),
        "seconds": median([visit.seconds for visit in visits]),
        "fastest_seconds": min(visit.seconds for visit in visits),
        "cpu_seconds": median([visit.cpu for visit in visits]),
        "rounds": len(visits),
    }


def _drawing(name: str, latencies: list[float], sizes: list[int]) -> Row:
    return {
        "engine": name,
        "bytes": round(median([float(size) for size in sizes])),
        "most_bytes": max(sizes),
        "median_ms": median(latencies),
        "p95_ms": percentile_95(latencies),
        "strokes": len(latencies),
    }


if __name__ == "__main__":
    sys.exit(main())
