"""How to use two cores: threads, data-parallel processes, compilation; what the defaults of `vitreous train` rest on.

    python bench/engines.py [PRESET …] [--quick] [--json FILE] [--docs]

Each way trains the preset by the real command for a few hundred steps; the ways take turns. The rate is read from the
run's own log, its first window left out (threads start there, and the compiler works); the seconds of that window over
what the rate would need are the start-up's cost, and how many seconds of training repay it is given beside it.
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
class Way:
    processes: int
    threads: int
    compile: bool = False

    @property
    def name(self) -> str:
        many = "1 process" if self.processes == 1 else f"{self.processes} processes"
        wide = "1 thread" if self.threads == 1 else f"{self.threads} threads"
        return f"{many} × {wide}{', compiled' * self.compile}"

    @property
    def flags(self) -> list[str]:
        flags = ["--threads", str(self.threads), "--processes", str(self.processes)]
        return flags + ["--compile"] * self.compile


DEFAULT = Way(1, 2)
WAYS = (DEFAULT, Way(1, 1), Way(2, 1), Way(1, 2, compile=True), Way(2, 1, compile=True))

COLUMNS = (
    Column("preset", "preset"),
    Column("way", "way"),
    Column("images_per_second", "images/s", "{:.0f}"),
    Column("spread", "±", "{:.0%}"),
    Column("ratio", "to the default", "{:.2f} ×"),
    Column("start_seconds", "start-up s", "{:.1f}"),
    Column("repaid_after", "repaid after s of training", "{:.0f}"),
)


def rate(preset: str, way: Way, steps: int, start_up: list[float]) -> float:
    """Images a second, once under way."""
    with tempfile.TemporaryDirectory() as folder:
        epochs = steps * 128 / 54_000  # the presets' batch; another one only changes how long this takes
        settings = ["--set", f"train.log_every={WINDOW}", "--set", "data.val_fraction=0.1"]
        command = [sys.executable, "-m", "vitreous", "train", preset, "--epochs", str(epochs), "-o", f"{folder}/run"]
        done = subprocess.run([*command, *settings, *way.flags], capture_output=True, text=True, check=False)
        if done.returncode:
            raise SystemExit(f"{preset}, {way.name}: ended with {done.returncode}\n{done.stderr[-2000:]}")
        first, *rest = [line for line in Run.open(f"{folder}/run").metrics() if line["event"] == "train"]
        rate = median([line["images_per_second"] for line in rest])
        batch = Run.open(f"{folder}/run").resolved.batch_size
    start_up.append(max(0.0, first["elapsed_seconds"] - WINDOW * batch / rate))
    return rate


def main() -> None:
    made = parser(__doc__ or "")
    made.add_argument("presets", nargs="*", default=["mnist-fast", "mnist-vit", "cnn"])
    told = made.parse_args()
    rounds, steps = (1, 60) if told.quick or told.smoke else (3, 160)
    presets = told.presets[:1] if told.quick or told.smoke else told.presets
    ways = WAYS[:2] if told.smoke else WAYS
    hardware.prepare()
    report = Report("engines", "Threads, processes and compilation")
    report.measure_peak()
    rows: list[dict[str, Any]] = []
    for preset in presets:
        start_up: dict[Way, list[float]] = {way: [] for way in ways}
        turns = {
            way.name: lambda way=way, preset=preset, start_up=start_up: rate(preset, way, steps, start_up[way])
            for way in ways
        }
        rates = interleave(turns, rounds)
        report.measure_peak()
        for way in ways:
            mine, default = rates[way.name], rates[DEFAULT.name]
            gain = median([a / b for a, b in zip(mine, default, strict=True)])
            extra = median(start_up[way]) - median(start_up[DEFAULT])
            rows.append({
                "preset": preset, "way": way.name, "images_per_second": median(mine), "spread": spread(mine),
                "ratio": gain, "start_seconds": median(start_up[way]),
                "repaid_after": max(0.0, extra) * gain / (gain - 1) if gain > 1.01 and way != DEFAULT else None,
            })  # fmt: skip
            report.ratios[f"{preset}: {way.name}"] = gain
    report.tables.append(Table(f"{rounds} rounds of {steps} steps of 128", COLUMNS, rows))
    report.finish(told)


if __name__ == "__main__":
    main()
