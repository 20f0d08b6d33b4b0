"""How to use two cores: threads, data-parallel processes, compilation; what the defaults of `vitreous train` rest on.

    python bench/engines.py [PRESET …] [--quick] [--json FILE] [--docs]

Each engine trains the preset with the `vitreous train` command for a few hundred steps; the engines take turns. The
rate comes from the run's own log without its first window, in which threads start and the compiler works. The start-up
cost is the time of that window beyond what the rate would need; the last column gives the seconds of training after
which it is repaid.
"""

from __future__ import annotations

import subprocess
import sys
import tempfile
from dataclasses import dataclass
from typing import Any

from common import Column, Report, Table, interleave, median, parser, spread

from vitreous import hardware
from vitreous.runs import Run

WINDOW = 20  # steps between two lines of the log


@dataclass(frozen=True)
class Engine:
    processes: int
    threads: int
    compile: bool = False

    @property
    def name(self) -> str:
        processes = "1 process" if self.processes == 1 else f"{self.processes} processes"
        threads = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{processes} × {threads}{', compiled' * self.compile}"

    @property
    def flags(self) -> list[str]:
        flags = ["--threads", str(self.threads), "--processes", str(self.processes)]
        return flags + ["--compile"] * self.compile


DEFAULT = Engine(1, 2)
ENGINES = (DEFAULT, Engine(1, 1), Engine(2, 1), Engine(1, 2, compile=True), Engine(2, 1, compile=True))

COLUMNS = (
    Column("preset", "preset"),
    Column("engine", "engine"),
    Column("images_per_second", "images/s", "{:.0f}"),
    Column("spread", "±", "{:.0%}"),
    Column("ratio", "to the default", "{:.2f} ×"),
    Column("start_seconds", "start-up s", "{:.1f}"),
    Column("repaid_after", "repaid after s of training", "{:.0f}"),
)


def rate(preset: str, engine: Engine, steps: int, start_up: list[float]) -> float:
    """Return images per second after the start-up."""
    with tempfile.TemporaryDirectory() as folder:
        epochs = steps * 128 / 54_000  # the presets' batch; another one only changes how long this takes
        settings = ["--set", f"train.log_every={WINDOW}", "--set", "data.val_fraction=0.1"]
        command = [sys.executable, "-m", "vitreous", "train", preset, "--epochs", str(epochs), "-o", f"{folder}/run"]
        done = subprocess.run([*command, *settings, *engine.flags], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{preset}, {engine.name}: ended with {done.returncode}\n{done.stderr[-2000:]}")
        first, *rest = [line for line in Run.open(f"{folder}/run").metrics() if line["event"] == "train"]
        rate = median([line["images_per_second"] for line in rest])
        batch = Run.open(f"{folder}/run").resolved.batch_size
    start_up.append(max(0.0, first["elapsed_seconds"] - WINDOW * batch / rate))
    return rate


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("presets", nargs="*", default=["mnist-fast", "mnist-vit", "cnn"])
    args = options.parse_args()
    rounds, steps = (1, 60) if args.quick or args.smoke else (3, 160)
    presets = args.presets[:1] if args.quick or args.smoke else args.presets
    engines = ENGINES[:2] if args.smoke else ENGINES
    hardware.prepare()
    report = Report("engines", "Threads, processes and compilation")
    report.measure_peak()
    rows: list[dict[str, Any]] = []
    for preset in presets:
        start_up: dict[Engine, list[float]] = {engine: [] for engine in engines}
        turns = {
            engine.name: lambda engine=engine, preset=preset, start_up=start_up: rate(
                preset, engine, steps, start_up[engine]
            )
            for engine in engines
        }
        rates = interleave(turns, rounds)
        report.measure_peak()
        for engine in engines:
            mine, default = rates[engine.name], rates[DEFAULT.name]
            gain = median([a / b for a, b in zip(mine, default, strict=True)])
            extra = median(start_up[engine]) - median(start_up[DEFAULT])
            rows.append({
                "preset": preset, "engine": engine.name, "images_per_second": median(mine), "spread": spread(mine),
                "ratio": gain, "start_seconds": median(start_up[engine]),
                "repaid_after": max(0.0, extra) * gain / (gain - 1) if gain > 1.01 and engine != DEFAULT else None,
            })  # fmt: skip
            report.ratios[f"{preset}: {engine.name}"] = gain
    report.tables.append(Table(f"{rounds} rounds of {steps} steps of 128", COLUMNS, rows))
    report.finish(args)


if __name__ == "__main__":
    main()
