"""The memory of each rank when a ViT is fine-tuned: DDP, sharded, and with recomputed blocks.

    python bench/sharding.py [--preset vit-b16] [--steps 3] [--quick] [--json FILE] [--docs docs/scale.md]

Every way has processes of its own: random images, AdamW, batches of 2 images per rank. Memory is the peak of the
resident set of a rank above what it had before the model was built (`VmHWM` and `VmRSS` of Linux): on a CPU everything
that a GPU would keep is there. "Planned" is `vitreous plan` for the same settings. The losses of the ways with as many
ranks must be equal within rounding: the script fails otherwise. With more than 10 steps only the ways of two ranks run.
"""

from __future__ import annotations

import importlib
import json
import os
import socket
import subprocess
import sys
import time
from pathlib import Path

import torch
from common import Column, Report, Row, Table, parser

from vitreous import hardware
from vitreous.config import Config, configure
from vitreous.data.datasets import Dataset, Split
from vitreous.data.preprocessing import Preprocessing
from vitreous.planning import Cluster, make_plan
from vitreous.runs import Resolved
from vitreous.training import distributed
from vitreous.training.step import Stepper

SHARD, RECOMPUTE = "train.shard=true", "train.activation_checkpointing=true"
WAYS: dict[str, tuple[int, tuple[str, ...]]] = {
    "one process": (1, ()),
    "one process, blocks recomputed": (1, (RECOMPUTE,)),
    "DDP": (2, ()),
    "sharded": (2, (SHARD,)),
    "sharded, blocks recomputed": (2, (SHARD, RECOMPUTE)),
}
PER_RANK = 2

COLUMNS = (
    Column("way", "way"),
    Column("ranks", "ranks"),
    Column("memory_mb", "memory of a rank, MB", "{:,.0f}"),
    Column("planned_mb", "planned, MB", "{:,.0f}"),
    Column("largest_difference", "loss differs by", "{:.1e}"),
    Column("cpu_seconds", "CPU s per step", "{:.1f}"),
)


def config_of(preset: str, settings: tuple[str, ...], ranks: int) -> Config:
    # a rate at which AdamW is stable: at ten times as much, rounding decides the losses after twenty steps
    common = ("train.optimizer=adamw", "train.lr=0.001", "model.num_classes=10", f"train.batch_size={PER_RANK * ranks}")
    return configure(preset, settings=[*common, *settings])


# --- one rank ------------------------------------------------------------------------------------------------------


def _status(name: str) -> float:
    """Return a line of /proc/self/status in MB."""
    lines = Path("/proc/self/status").read_text().splitlines()
    return next(int(line.split()[1]) * 1024 / 1e6 for line in lines if line.startswith(name))


def run_rank(preset: str, steps: int, settings: tuple[str, ...]) -> None:
    """Train some steps; print memory and losses, on rank 0 those of all ranks."""
    hardware.prepare(1)
    with distributed.group(600) as group:
        config = config_of(preset, settings, group.world_size)
        model = config.model
        generator = torch.Generator().manual_seed(0)
        count = PER_RANK * 4  # the same images however many ranks there are
        images = torch.randint(0, 256, (count, model.channels, *model.image_size), generator=generator).byte()
        split = Split(images, torch.arange(count) % model.num_classes)
        names, levels = tuple(map(str, range(model.num_classes))), (0.5,) * model.channels
        dataset = Dataset(
            name="random", train=split, val=split, test=split, class_names=names, mean=levels, std=levels,
            polarity="as-is", checksums={}, notes=(),
        )  # fmt: skip
        batch = PER_RANK * group.world_size
        resolved = Resolved(
            device="cpu", threads=1, world_size=group.world_size, batch_size=batch, steps=steps, steps_per_epoch=steps
        )
        if group.world_size > 1:  # gloo's buffers, and what torch imports for sharding, are not the model's
            importlib.import_module("torch.distributed.fsdp")
            group.barrier()
        before = _status("VmRSS")
        stepper = Stepper(config, dataset, Preprocessing.for_dataset(dataset), resolved, group)
        losses, start = [], time.process_time()
        for step in range(steps):
            indices = (torch.arange(batch) + batch * step) % count
            loss, _ = stepper.step(step, 0, indices.chunk(group.world_size)[group.rank], factor=0.1)
            losses.append(group.sum([loss])[0] / group.world_size)
        seconds = (time.process_time() - start) / steps
        memory = group.gather(torch.tensor([_status("VmHWM") - before])).tolist()
        if group.is_main:
            print(json.dumps({"memory": memory, "losses": losses, "seconds": seconds}), flush=True)


# --- all of them -----------------------------------------------------------------------------------------------------


def measure(preset: str, way: str, steps: int) -> Row:
    ranks, settings = WAYS[way]
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        port = str(free.getsockname()[1])
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "MALLOC_ARENA_MAX": "1"}
    environment |= {"WORLD_SIZE": str(ranks), "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": port}
    command = [sys.executable, __file__, "--rank", preset, str(steps), *settings]
    started = [
        subprocess.Popen(command, env={**environment, "RANK": str(rank)}, stdout=subprocess.PIPE, text=True)
        for rank in range(ranks)
    ]
    out = [process.communicate()[0] for process in started]
    assert [process.returncode for process in started] == [0] * ranks, f"{way} failed"
    found = json.loads(out[0])
    config = config_of(preset, settings, ranks)
    return {
        "way": way,
        "ranks": ranks,
        "memory_mb": max(found["memory"]),
        "planned_mb": make_plan(config, 1000, Cluster(gpus=ranks)).memory.total / 1e6,
        "cpu_seconds": found["seconds"],
        "losses": found["losses"],
    }


def main() -> None:
    if sys.argv[1:2] == ["--rank"]:
        run_rank(sys.argv[2], int(sys.argv[3]), tuple(sys.argv[4:]))
        return
    options = parser(__doc__ or "")
    options.add_argument("--preset", default="vit-b16")
    options.add_argument("--steps", type=int, default=3)
    args = options.parse_args()
    preset = "vit-ti16" if args.quick or args.smoke else args.preset
    is_long = args.steps > 10
    title = f"The first {args.steps} steps, each way" if is_long else f"Memory of each rank, measured ({preset})"
    report = Report("sharding-steps" if is_long else "sharding", title, threads=1)
    report.measure_peak()
    ways = [way for way, (ranks, _) in WAYS.items() if ranks > 1] if is_long else list(WAYS)
    rows = [measure(preset, way, args.steps) for way in (ways[::4] if args.smoke else ways)]
    report.measure_peak()
    for row in rows:  # the same batches: those of one process, or of DDP
        reference = next(other for other in rows if other["ranks"] == row["ranks"])
        pairs = zip(row["losses"], reference["losses"], strict=True)
        row["largest_difference"] = max(abs(ours - theirs) for ours, theirs in pairs)
        assert row["largest_difference"] < 1e-3, f"{row['way']} computes something else: {row['losses']}"
    report.tables.append(
        Table(f"{preset}, AdamW, float32, {PER_RANK} images per rank, {args.steps} steps", COLUMNS, rows)
    )
    by_way = {row["way"]: row["memory_mb"] for row in rows}
    if "DDP" in by_way:
        report.ratios = {
            "sharded_over_ddp": by_way["sharded"] / by_way["DDP"],
            "sharded_recomputed_over_ddp": by_way["sharded, blocks recomputed"] / by_way["DDP"],
        }
    report.finish(args)


if __name__ == "__main__":
    main()
