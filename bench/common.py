"""Shared by the benchmarks: interleaved repeats, medians and ratios, the machine's throughput, and the report.

Machines are noisy, so candidates take turns (A B C, A B C, …): a busy moment affects all of them. A figure is the
median over the rounds, its spread the interquartile range; a ratio is the median of the rounds' own ratios. The
fp32 matrix-product rate is measured in the same rounds, so that a reader can scale the seconds to another machine.
"""

from __future__ import annotations

import argparse
import json
import platform
import statistics
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from importlib import metadata
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table as RichTable

from vitreous import hardware

DOCS = Path(__file__).parents[1] / "docs" / "benchmarks.md"
_DOCS_HEAD = """# Benchmarks

Written by the scripts in `bench/` (`--docs`), never by hand. What each measures is in `bench/README.md`. Candidates
take turns within one run; figures are medians, ± the interquartile range, unless a column states otherwise; a
ratio is the median of the rounds' own ratios. GFLOP/s is the fp32 matrix-product rate of the machine, measured in the
same run.
"""
_PACKAGES = ("torch", "timm", "transformers", "torchvision", "vit-pytorch", "onnxruntime")

REFERENCE_GFLOPS = 220.0  # of the machine that seconds are scaled to

#: candidate → its seconds in each round, all in the same order
Times = dict[str, list[float]]
Row = dict[str, Any]


# --- measuring -----------------------------------------------------------------------------------------------------


def interleave(
    candidates: Mapping[str, Callable[[], float]], rounds: int, budget_seconds: float | None = None
) -> Times:
    """Let the candidates take turns, `rounds` times, or fewer (but at least two) once the budget is spent."""
    times: Times = {name: [] for name in candidates}
    start = time.perf_counter()
    for done in range(rounds):
        for name, measure in candidates.items():
            times[name].append(measure())
        if done >= 1 and budget_seconds is not None and time.perf_counter() - start > budget_seconds:
            break
    return times


def seconds_per_call(function: Callable[[], Any], calls: int) -> float:
    start = time.perf_counter()
    for _ in range(calls):
        function()
    return (time.perf_counter() - start) / calls


def calls_for(function: Callable[[], Any], seconds: float) -> int:
    """Return how many calls take about `seconds`; this also warms the function up."""
    function()
    return max(1, round(seconds / max(seconds_per_call(function, 2), 1e-7)))


def median(values: Sequence[float]) -> float:
    return statistics.median(values)


def spread(values: Sequence[float]) -> float:
    """Return the interquartile range as a share of the median."""
    if len(values) < 2:
        return 0.0
    low, middle, high = statistics.quantiles(values, n=4, method="inclusive")
    return (high - low) / middle


def ratio(times: Times, numerator: str, denominator: str) -> float:
    """Return the median of the quotients of each round: what disturbs a whole round cancels."""
    return median([a / b for a, b in zip(times[numerator], times[denominator], strict=True)])


def fastest(times: Times, among: Sequence[str]) -> str:
    return min((name for name in among if name in times), key=lambda name: median(times[name]))


# --- the report ----------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Column:
    key: str
    heading: str
    form: str = "{}"

    def show(self, row: Row) -> str:
        value = row.get(self.key)
        return "–" if value is None else self.form.format(value)


@dataclass(frozen=True)
class Table:
    title: str
    columns: Sequence[Column]
    rows: Sequence[Row]


@dataclass
class Report:
    """The results of one script: on the screen, as JSON, and as a section of docs/benchmarks.md."""

    name: str  # of the section
    title: str
    tables: list[Table] = field(default_factory=list)
    ratios: dict[str, float] = field(default_factory=dict)
    notes: list[str] = field(default_factory=list)
    gflops: list[float] = field(default_factory=list)
    threads: int = field(default_factory=hardware.default_threads)
    started: float = field(default_factory=time.perf_counter)

    def measure_peak(self, seconds: float = 0.3) -> float:
        """Measure the machine's GFLOP/s; return the seconds it took, as the candidates of `interleave` do."""
        self.gflops.append(hardware.matmul_gflops(seconds))
        return seconds

    def conditions(self) -> str:
        low, middle, high = min(self.gflops), median(self.gflops), max(self.gflops)
        return (
            f"{hardware.describe()}, {self.threads} thread{'s' * (self.threads != 1)}, {date.today().isoformat()};"
            f" fp32 matrix products {middle:.0f} GFLOP/s (median of {len(self.gflops)} beside the work, {low:.0f} to"
            f" {high:.0f}); {versions()}; {time.perf_counter() - self.started:.0f} s for this report"
        )

    def as_json(self) -> dict[str, Any]:
        return {
            "benchmark": self.name,
            "ratios": self.ratios,
            "rows": [{"table": table.title, **row} for table in self.tables for row in table.rows],
            "notes": self.notes,
            "gflops": self.gflops,
            "conditions": self.conditions(),
            "date": date.today().isoformat(),
            "command": command_line(),
        }

    def as_markdown(self) -> str:
        parts = [f"## {self.title}", f"`{command_line()}`\n\n{self.conditions()}."]
        for table in self.tables:
            head = "| " + " | ".join(column.heading for column in table.columns) + " |"
            rule = "|" + "---|" * len(table.columns)
            lines = ["| " + " | ".join(column.show(row) for column in table.columns) + " |" for row in table.rows]
            parts.append("\n".join([f"**{table.title}**", "", head, rule, *lines]))
        if self.ratios:
            parts.append("Ratios: " + ", ".join(f"`{name}` {value:.2f}" for name, value in self.ratios.items()) + ".")
        return "\n\n".join(parts + self.notes)

    def show(self) -> None:
        console = Console(width=None if sys.stdout.isatty() else 160)
        for table in self.tables:
            drawn = RichTable(title=table.title, title_justify="left")
            for column in table.columns:
                drawn.add_column(column.heading, justify="left" if column is table.columns[0] else "right")
            for row in table.rows:
                drawn.add_row(*(column.show(row) for column in table.columns))
            console.print(drawn)
        for name, value in self.ratios.items():
            console.print(f"{name:32} {value:6.2f} ×", highlight=False)
        for note in self.notes:
            console.print(note, highlight=False)
        console.print(self.conditions(), highlight=False)

    def finish(self, args: argparse.Namespace) -> None:
        """Show the report, and write it to the files that the command line names."""
        self.show()
        if args.json:
            args.json.write_text(json.dumps(self.as_json(), indent=2, ensure_ascii=False) + "\n")
        if args.docs:
            write_section(args.docs, self.name, self.as_markdown())


def versions() -> str:
    found = [f"Python {platform.python_version()}"]
    for package in _PACKAGES:
        try:
            found.append(f"{package} {metadata.version(package)}")
        except metadata.PackageNotFoundError:
            continue
    return ", ".join(found)


def command_line() -> str:
    """Return the command without the path of its JSON file, which is private."""
    arguments = sys.argv[1:]
    if "--json" in arguments:
        place = arguments.index("--json")
        arguments = arguments[:place] + arguments[place + 2 :]
    return " ".join(["python", f"bench/{Path(sys.argv[0]).name}", *arguments])


def write_section(path: Path, name: str, text: str) -> None:
    """Replace the named section of a Markdown file, between its markers; append it if there is none yet."""
    start, end = f"<!-- bench:{name} -->", f"<!-- /bench:{name} -->"
    section = f"{start}\n{text.strip()}\n{end}"
    old = path.read_text(encoding="utf-8") if path.is_file() else _DOCS_HEAD
    before, found, rest = old.partition(start)
    after = rest.partition(end)[2] if found else "\n"
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text((before if found else old.rstrip() + "\n\n") + section + after, encoding="utf-8")


def parser(description: str) -> argparse.ArgumentParser:
    """Return a parser with the options that every benchmark has."""
    options = argparse.ArgumentParser(description=description, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="at most three minutes on a quiet machine")
    options.add_argument("--json", type=Path, help="also write ratios and rows here")
    options.add_argument(
        "--docs", type=Path, nargs="?", const=DOCS, help=f"rewrite this script's section there ({DOCS.name})"
    )
    options.add_argument("--smoke", action="store_true", help=argparse.SUPPRESS)  # a few seconds: does it run at all?
    return options
