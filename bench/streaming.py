"""Training from shards on a disk: memory as the data grow tenfold, and images/s against images in memory.

    python bench/streaming.py [--quick] [--docs] [--json FILE]

The shards are made in a temporary folder. *Memory* is the peak resident memory of a process that trains a tiny ViT for
one epoch on them, with validation, calibration and test; it includes the pages of mapped files, and what Python and
torch take (the row `imports`). *Images/s* are of CPU time in one process of one thread, since other work on the machine
slows both sides: candidates take turns, batch by batch, on the same images of 28×28 from shards and in memory. `train`
is a step of the preset `vit`, `read` the reading of a batch alone. Linux.
"""

from __future__ import annotations

import json
import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import torch
from common import Column, Report, Row, Table, Times, interleave, median, parser, ratio, spread

from vitreous.config import DataConfig, configure
from vitreous.data.datasets import Dataset, load_dataset
from vitreous.data.prepared import Content, Manifest
from vitreous.data.preprocessing import Preprocessing
from vitreous.data.sampler import BatchSampler
from vitreous.data.shard_writer import write_manifest, writing_shard
from vitreous.data.splits import Split
from vitreous.runs import Resolved
from vitreous.training.distributed import Group
from vitreous.training.setup import fit_to_data
from vitreous.training.step import Stepper

SIDE, CLASSES, BATCH = 28, 10, 128
MEMORY_COLUMNS = (
    Column("images", "images", "{:,}"),
    Column("pixels", "pixels MB", "{:.0f}"),
    Column("peak", "peak MB", "{:.0f}"),
    Column("files", "of it mapped files MB", "{:.0f}"),
    Column("cpu_seconds", "CPU s", "{:.1f}"),
)
RATE_COLUMNS = (
    Column("work", "work"),
    Column("shards", "from shards, images/s", "{:,.0f}"),
    Column("memory", "in memory, images/s", "{:,.0f}"),
    Column("ratio", "ratio", "{:.2f}"),
    Column("spread", "±", "{:.0%}"),
    Column("rounds", "n"),
)

CHILD = """
import json, sys, time
import vitreous.training.loop
from vitreous.config import configure
def status(key):
    return next(int(line.split()[1]) / 1000 for line in open("/proc/self/status") if line.startswith(key))
imports, started = status("VmHWM"), time.process_time()
files = 0.0
if len(sys.argv) > 1:
    from vitreous.data.mapped import MappedRows
    read = MappedRows.read
    def watched(self, rows):
        global files
        found = read(self, rows)
        files = max(files, status("RssFile"))
        return found
    before = status("RssFile")
    MappedRows.read = watched
    settings = ["model.depth=1", "model.dim=16", "model.mlp_dim=16", "train.epochs=1", "train.threads=1"]
    vitreous.training.loop.fit(configure("vit", settings=settings, data=sys.argv[1]), sys.argv[2], progress=False)
    files -= before
print(json.dumps({"peak": status("VmHWM"), "files": files, "cpu_seconds": time.process_time() - started}))
"""


def write_images(folder: Path, count: int, shards: int = 4) -> Path:
    """Write shards of noisy images of ten classes."""
    random = np.random.default_rng(0)
    means = random.integers(40, 216, (CLASSES, 1, SIDE, SIDE))
    folder.mkdir()
    finished, place = [], 0
    for number in range(shards):
        with writing_shard(folder, number, (SIDE, SIDE)) as writer:
            for label in random.integers(0, CLASSES, count // shards).tolist():
                pixels = np.clip(means[label] + random.integers(-60, 60, means.shape[1:]), 0, 255).astype(np.uint8)
                digest = place.to_bytes(16, "little")
                writer.append(pixels, f"{label}/{place:08}.png", label, "train", digest, place, is_gray=True)
                place += 1
            finished.append(writer.finish(1))
    content = Content(tuple(map(str, range(CLASSES))), source="bench/streaming.py")
    write_manifest(folder, Manifest(content, (SIDE, SIDE), tuple(finished), "", shards, is_shuffled=True))
    return folder


def train_once(*arguments: str) -> Row:
    """Return the peak memory of a process that trains, or without arguments only imports."""
    command = [sys.executable, "-c", CHILD, *arguments]
    environment = {**os.environ, "OMP_NUM_THREADS": "1"}
    return json.loads(subprocess.run(command, capture_output=True, text=True, check=True, env=environment).stdout)


def measure_memory(folder: Path, sizes: tuple[int, ...]) -> list[Row]:
    rows: list[Row] = [{"images": 0, "pixels": 0.0, **train_once()}]
    for size in sizes:
        data = write_images(folder / str(size), size)
        rows.append(
            {"images": size, "pixels": size * SIDE**2 / 1e6, **train_once(str(data), str(folder / f"run-{size}"))}
        )
    return rows


def in_memory(dataset: Dataset) -> Dataset:
    """Return the same images as tensors in memory, in the same order."""
    train = dataset.train
    return replace(dataset, train=Split(train.images.clone(), train.labels, block=train.block))


def workers(dataset: Dataset) -> dict[str, Callable[[], float]]:
    """Return work → a function that does it for the next batches, and returns CPU seconds per image."""
    config = fit_to_data(configure("vit", settings=["train.threads=1"]), dataset)
    resolved = Resolved(batch_size=BATCH, steps=10**6, steps_per_epoch=len(dataset.train) // BATCH)
    stepper = Stepper(config, dataset, Preprocessing.for_dataset(dataset), resolved, Group())

    def batches() -> Iterator[tuple[int, int, torch.Tensor]]:
        return BatchSampler.of(dataset.train, BATCH, seed=0).steps(0, 10**9)

    def timed(work: Callable[[int, int, torch.Tensor], object], count: int) -> Callable[[], float]:
        steps = batches()

        def measure() -> float:
            started = time.process_time()
            for _ in range(count):
                work(*next(steps))
            return (time.process_time() - started) / (count * BATCH)

        return measure

    return {"train": timed(stepper.step, 10), "read": timed(lambda _, __, chosen: dataset.train.batch(chosen), 100)}


def measure_rates(data: Path, rounds: int) -> tuple[list[Row], dict[str, float]]:
    """Return a row per kind of work, and the ratios of images/s."""
    torch.set_num_threads(1)
    shards = load_dataset(DataConfig(name=str(data)))
    of_shards, of_memory = workers(shards), workers(in_memory(shards))
    rows, ratios = [], {}
    for work in of_shards:
        candidates = {"shards": of_shards[work], "memory": of_memory[work]}
        interleave(candidates, 2)  # warm up
        times: Times = interleave(candidates, rounds)
        ratios[f"{work}_from_shards"] = ratio(times, "memory", "shards")
        quotients = [a / b for a, b in zip(times["memory"], times["shards"], strict=True)]
        rates = {name: 1 / median(values) for name, values in times.items()}
        rows.append({"work": work, **rates, "ratio": median(quotients), "spread": spread(quotients), "rounds": rounds})
    return rows, ratios


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    report = Report("streaming", "Training from shards on a disk")
    report.threads = 1
    report.measure_peak()
    small = 500 if args.smoke else 20_000 if args.quick else 50_000
    rounds = 3 if args.smoke else 15 if args.quick else 31
    with tempfile.TemporaryDirectory() as temporary:
        folder = Path(temporary)
        rows = measure_memory(folder, (small, 10 * small))
        report.tables.append(Table("Memory of a training", MEMORY_COLUMNS, rows))
        report.ratios["memory_tenfold_data"] = rows[2]["peak"] / rows[1]["peak"]
        rates, ratios = measure_rates(folder / str(10 * small), rounds)
    report.tables.append(Table("Images/s of CPU time, 28×28, one thread", RATE_COLUMNS, rates))
    report.ratios |= ratios
    report.measure_peak()
    report.finish(args)


if __name__ == "__main__":
    main()
