"""How time and memory of the ViT grow with image side, tokens, depth, width, batch and the amount of data.

    python bench/scaling.py [--quick] [--figure FOLDER] [--json FILE] [--docs]

One quantity grows at a time; the others stay at 28×28, patch 4, dim 64, depth 6, 4 heads, MLP 128, batch 64. Each point
has its own process; the points of an axis take turns. Time is that of a training step (forward, loss, backward, AdamW);
memory is the peak of the process above what it had before its first step. Data size is the whole command `vitreous
train`: one epoch on that many images, and the command's peak memory. The exponent is the slope of a straight line
through the logarithms; the last one, of the two largest points alone, shows the trend.
"""

from __future__ import annotations

import contextlib
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
from common import Column, Report, Row, Table, interleave, median, parser, spread
from peers import SMALL
from worker import Candidate, Worker

from vitreous import hardware
from vitreous.config import ViTConfig
from vitreous.reports.colors import light
from vitreous.reports.figures import figure_style, finish_figure
from vitreous.runs import Run

BATCH = 64
FIGURE = "scaling"

COLUMNS = (
    Column("axis", "what grows"),
    Column("value", "to"),
    Column("tokens", "tokens"),
    Column("milliseconds", "ms per step", "{:.1f}"),
    Column("spread", "±", "{:.0%}"),
    Column("memory_mb", "memory MB", "{:.0f}"),
)
EXPONENTS = (
    Column("axis", "what grows"),
    Column("time_exponent", "time ∝ ^", "{:.2f}"),
    Column("time_exponent_last", "at the end", "{:.2f}"),
    Column("memory_exponent", "memory ∝ ^", "{:.2f}"),
    Column("memory_exponent_last", "at the end", "{:.2f}"),
)


@dataclass(frozen=True)
class Axis:
    """One quantity that grows, with the model and the batch size at each value."""

    key: str
    name: str
    values: Sequence[int]
    config: Callable[[int], ViTConfig]
    batch: Callable[[int], int] = lambda _: BATCH


AXES = (
    Axis("side", "image side, patch 4", (16, 28, 56, 84, 112), lambda side: SMALL.replace(image_size=side)),
    Axis("tokens", "tokens, side 48", (16, 36, 64, 144, 256, 576), lambda n: _by_tokens(n)),
    Axis("depth", "depth", (2, 4, 8, 16, 32), lambda depth: SMALL.replace(depth=depth)),
    Axis(
        "width",
        "width",
        (32, 64, 128, 256, 512),
        lambda dim: SMALL.replace(dim=dim, num_heads=dim // 16, mlp_dim=2 * dim),
    ),
    Axis("batch", "batch", (1, 4, 16, 64, 256, 1024), lambda _: SMALL, lambda batch: batch),
)
DATA_SIZES = (2_000, 8_000, 32_000, 128_000)


def _by_tokens(count: int) -> ViTConfig:
    """Split the same image into smaller patches; no class token, so that the tokens are a square number."""
    return SMALL.replace(image_size=48, patch_size=48 // math.isqrt(count), pool="mean")


# --- measuring -----------------------------------------------------------------------------------------------------


def measure_axis(axis: Axis, values: Sequence[int], rounds: int, seconds: float, report: Report) -> list[Row]:
    rows: list[Row] = []
    with contextlib.ExitStack() as stack:
        turns: dict[str, Callable[[], float]] = {}
        for value in values:
            config = axis.config(value)
            worker = stack.enter_context(Worker(Candidate("vitreous", config.model_dump(), "")))
            worker.ask("load_libraries")
            before = worker.ask("peak_memory")
            step = partial(worker.ask, "train", batch=axis.batch(value))
            step(steps=1)
            count = max(1, min(200, round(seconds / step(steps=2))))
            memory = worker.ask("peak_memory") - before
            rows.append(
                {"key": axis.key, "axis": axis.name, "value": value, "tokens": config.num_tokens, "memory_mb": memory}
            )
            turns[str(value)] = partial(step, steps=count)
        times = interleave({**turns, "peak": report.measure_peak}, rounds)
    for row in rows:
        taken = times[str(row["value"])]
        row |= {"milliseconds": median(taken) * 1e3, "spread": spread(taken)}
    return rows


def measure_data(sizes: Sequence[int], report: Report) -> list[Row]:
    """`vitreous train vit` for one epoch on random images: its own seconds, and the command's peak memory."""
    rows: list[Row] = []
    for size in sizes:
        with tempfile.TemporaryDirectory() as folder:
            data, out = Path(folder) / "random.npz", Path(folder) / "run"
            images = np.random.default_rng(0).integers(0, 256, (size, 28, 28), dtype=np.uint8)
            labels = np.arange(size) % 10
            np.savez(data, images=images, labels=labels, test_images=images[:100] // 2, test_labels=labels[:100])
            command = [sys.executable, "-m", "vitreous", "train", "vit", "--data", str(data), "--epochs", "1"]
            process = subprocess.Popen([*command, "-o", str(out)], stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL)
            _, status, usage = os.wait4(process.pid, 0)
            process.returncode = os.waitstatus_to_exitcode(status)
            assert process.returncode == 0, f"vitreous train ended with {process.returncode}"
            results = Run.open(out).test_results
        report.measure_peak()
        rows.append(
            {"key": "images", "axis": "images (one epoch)", "value": size, "tokens": 17,
             "milliseconds": results.train_seconds * 1e3, "spread": None, "memory_mb": usage.ru_maxrss * 1024 / 1e6}
        )  # fmt: skip
    return rows


# --- exponents and the figure --------------------------------------------------------------------------------------


def exponent(values: Sequence[float], amounts: Sequence[float]) -> float:
    """Return the slope of log(amount) over log(value), by least squares."""
    return float(np.polyfit(np.log(values), np.log(np.maximum(amounts, 1e-9)), 1)[0])


def exponents_of(rows: Sequence[Row]) -> Row:
    values = [row["value"] for row in rows]
    found: Row = {"key": rows[0]["key"], "axis": rows[0]["axis"]}
    for name, key in (("time", "milliseconds"), ("memory", "memory_mb")):
        amounts = [row[key] for row in rows]
        found[f"{name}_exponent"] = exponent(values, amounts)
        found[f"{name}_exponent_last"] = exponent(values[-2:], amounts[-2:])
    return found


def draw(groups: Sequence[Sequence[Row]], fits: Sequence[Row], folder: Path) -> None:
    from matplotlib.ticker import FuncFormatter, NullFormatter

    folder.mkdir(parents=True, exist_ok=True)
    with figure_style(FIGURE, 240 * len(groups), 440) as figure:
        grid = figure.subplots(2, len(groups), squeeze=False)
        for column, (rows, fit) in enumerate(zip(groups, fits, strict=True)):
            values = [row["value"] for row in rows]
            for axes, name, key, color in (
                (grid[0][column], "time", "milliseconds", light("vit")),
                (grid[1][column], "memory", "memory_mb", light("cnn")),
            ):
                axes.loglog(values, [row[key] for row in rows], marker="o", color=color)
                axes.set_title(f"{name} ∝ ^{fit[f'{name}_exponent']:.2f}")
                axes.xaxis.set_minor_formatter(NullFormatter())
                axes.yaxis.set_minor_formatter(NullFormatter())
                axes.yaxis.set_major_formatter(FuncFormatter(lambda value, _: f"{value:,g}"))
                axes.set_xticks(values, [f"{value:,}" for value in values], rotation=45 if max(values) > 999 else 0)
                axes.set_xlabel(rows[0]["axis"])
            whole = rows[0]["axis"].startswith("images")
            grid[0][column].set_ylabel("ms per epoch" if whole else "ms per step")
            grid[1][column].set_ylabel("MB, whole command" if whole else "MB above the start")
        finish_figure(figure, FIGURE).write(folder)


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--figure", type=Path, help="draw scaling.svg and scaling.png into this folder")
    args = options.parse_args()
    rounds, seconds, sizes = (3, 0.2, DATA_SIZES[:3]) if args.quick else (7, 1.0, DATA_SIZES)
    if args.smoke:
        rounds, seconds, sizes = 1, 0.01, (500, 1000)
    if args.docs and not args.figure:
        args.figure = args.docs.parent / "benchmarks"
    hardware.prepare()
    report = Report("scaling", "How time and memory grow")
    report.measure_peak()
    groups: list[list[Row]] = []
    for axis in AXES[:1] if args.smoke else AXES:
        values = axis.values[:2] if args.smoke else axis.values[:-1] if args.quick else axis.values
        groups.append(measure_axis(axis, values, rounds, seconds, report))
    groups.append(measure_data(sizes, report))
    fits = [exponents_of(rows) for rows in groups]
    report.tables.append(Table("Points", COLUMNS, [row for rows in groups for row in rows]))
    report.tables.append(Table("Exponents", EXPONENTS, fits))
    for fit in fits:
        report.ratios |= {f"{name}_exponent_{fit['key']}": fit[f"{name}_exponent"] for name in ("time", "memory")}
    if args.figure:
        draw(groups, fits, args.figure)
        if args.docs:
            link = os.path.relpath(args.figure / f"{FIGURE}.svg", args.docs.parent)
            report.notes.append(f"![Time and memory over each quantity, both axes logarithmic]({link})")
    report.finish(args)


if __name__ == "__main__":
    main()
