"""A training step with all cores on every operation, or with half of the batch on each of two threads.

    python bench/split_batch.py [--quick] [--json FILE] [--docs]

Models and batch sizes from small to large, each in two processes that take turns: forward, loss, backward, AdamW, on a
prepared batch. Every row is then compared with `split_is_faster`, the static rule of models/fast/split_batch.py.
"""

from __future__ import annotations

import tempfile
from functools import partial

from common import Column, Report, Row, Table, interleave, median, parser, ratio, spread
from peers import SMALL
from worker import Candidate, Worker

from vitreous import hardware
from vitreous.config import ViTConfig
from vitreous.config.presets import preset
from vitreous.models.fast.split_batch import AT_LEAST, AT_MOST, split_is_faster
from vitreous.models.summary import count_flops

#: preset → batch sizes
CASES = {
    "vit": (32, 64, 128, 256, 512), "small": (32, 64, 128, 256), "mnist-fast": (64, 128, 256),
    "mnist-vit": (64, 128, 256), "mnist-tiny": (128,), "mnist-plain": (256,), "mnist-best": (256,),
    "fashion-best": (128,), "cifar-fast": (128,), "vit-ti16": (8, 32), "vit-b16": (8,),
}  # fmt: skip
SECONDS_PER_TURN = 0.5

COLUMNS = (
    Column("model", "model"),
    Column("batch", "batch"),
    Column("gflop", "GFLOP forward", "{:.2f}"),
    Column("whole_ms", "whole ms", "{:.1f}"),
    Column("split_ms", "split ms", "{:.1f}"),
    Column("split_over_whole", "split / whole", "{:.2f}"),
    Column("quotient_spread", "±", "{:.0%}"),
    Column("rule", "the rule chooses"),
)


def model_of(name: str) -> ViTConfig:
    model = SMALL if name == "small" else preset(name).model
    assert isinstance(model, ViTConfig)
    return model.replace(dropout=0.0, drop_path=0.0)


def measure(name: str, batch: int, rounds: int, threads: int) -> Row:
    config = model_of(name)
    with tempfile.TemporaryDirectory() as folder:
        modes = {mode: Candidate("vitreous", config.model_dump(), folder, mode) for mode in ("whole", "split")}
        with Worker(modes["whole"]) as whole, Worker(modes["split"]) as split:
            workers = {"whole": whole, "split": split}
            for worker in workers.values():
                worker.ask("train", batch=batch, steps=2)
            steps = max(1, round(SECONDS_PER_TURN / whole.ask("train", batch=batch, steps=2)))
            turns = {mode: partial(worker.ask, "train", batch=batch, steps=steps) for mode, worker in workers.items()}
            times = interleave(turns, rounds)
    quotients = [a / b for a, b in zip(times["split"], times["whole"], strict=True)]
    return {
        "model": name, "batch": batch, "gflop": batch * count_flops(config) / 1e9,
        "whole_ms": median(times["whole"]) * 1e3, "split_ms": median(times["split"]) * 1e3,
        "split_over_whole": ratio(times, "split", "whole"), "quotient_spread": spread(quotients),
        "rule": "split" if split_is_faster(config, batch, threads) else "whole",
    }  # fmt: skip


def main() -> None:
    args = parser(__doc__ or "").parse_args()
    threads = hardware.prepare()
    cases = [(name, batch) for name, batches in CASES.items() for batch in batches]
    rounds = 5 if args.quick else 15
    if args.smoke:
        cases, rounds = [("small", 4)], 1
    report = Report("split_batch", "A batch as a whole, or split over two threads")
    rows = []
    for name, batch in cases:
        report.measure_peak()
        rows.append(measure(name, batch, rounds, threads))
    rows.sort(key=lambda row: row["gflop"])
    report.tables.append(Table("One training step", COLUMNS, rows))
    for rule in ("split", "whole"):
        taken = [row["split_over_whole"] for row in rows if row["rule"] == rule]
        if taken:
            report.ratios[f"split_over_whole_where_{rule}"] = median(taken)
    report.notes.append(f"The rule: split from {AT_LEAST / 1e9:g} to {AT_MOST / 1e9:g} GFLOP of a forward pass.")
    report.finish(args)


if __name__ == "__main__":
    main()
