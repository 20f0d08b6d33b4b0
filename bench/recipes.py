"""Measure what the recipes reach: train each of them with `vitreous train`, over several seeds.

    python bench/recipes.py [RECIPE …] [--seeds N] [--runs runs/recipes] [--json FILE] [--docs]

Recipes and seeds take turns. A finished training in `--runs`, with the settings the preset has now, is reused; a
stopped one is continued, so this command may be stopped and started again at any time. The machine's fp32
matrix-product rate is measured before and after each training, with as many threads, and the seconds are also given for
a machine of 220 GFLOP/s. With `--threads 1`, seconds and rate are those of CPU time, the start of Python included, so
that two trainings may run side by side, and other work beside them. The test set is read once per training, with its
last averaged weights; docs/log.md states where a recipe was changed after such a figure had been seen. `--docs` keeps
the rows of recipes that are not named, from docs/benchmarks/recipes.json.
"""

from __future__ import annotations

import json
import resource
import statistics
import subprocess
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from common import REFERENCE_GFLOPS, Column, Report, Row, Table, parser

from vitreous import hardware
from vitreous.config import ModelConfig, ViTConfig
from vitreous.config.presets import preset
from vitreous.models.summary import count_flops, count_parameters_of
from vitreous.runs import Run
from vitreous.training.restart import same_training


@dataclass(frozen=True)
class Goal:
    """What a recipe must reach: the mean test accuracy over `seeds` trainings, and its limits."""

    seeds: int
    accuracy: float
    parameters: int | None = None
    seconds: float | None = None  # on a machine of REFERENCE_GFLOPS


GOALS = {
    "mnist-fast": Goal(5, 0.990, seconds=25),
    "mnist-vit": Goal(5, 0.990, parameters=200_000, seconds=35),
    "mnist-tiny": Goal(3, 0.990, parameters=50_000),
    "mnist-plain": Goal(3, 0.996, parameters=1_000_000, seconds=3300),
    "mnist-best": Goal(3, 0.997, parameters=1_000_000, seconds=3300),
    "fashion-best": Goal(2, 0.949, parameters=2_000_000),
    "cifar-fast": Goal(2, 0.900, parameters=1_000_000, seconds=1800),
    "cnn": Goal(3, 0.990),
    "mnist-cnn": Goal(3, 0.990),
}

COLUMNS = (
    Column("recipe", "recipe"),
    Column("parameters", "parameters", "{:,}"),
    Column("block_share", "FLOPs in the blocks", "{:.0%}"),
    Column("seeds", "seeds"),
    Column("accuracy", "test accuracy, mean", "{:.2%}"),
    Column("spread", "± std", "{:.2%}"),
    Column("goal", "must reach"),
    Column("threads", "threads"),
    Column("seconds", "s of training", "{:.0f}"),
    Column("gflops", "GFLOP/s", "{:.0f}"),
    Column("scaled_seconds", f"s at {REFERENCE_GFLOPS:.0f} GFLOP/s", "{:.0f}"),
    Column("dates", "trained on"),
)


def block_share(model: ModelConfig) -> float | None:
    """Return the share of the forward pass's FLOPs in the transformer blocks."""
    if not isinstance(model, ViTConfig):
        return None
    one = count_flops(model.replace(depth=2)) - count_flops(model.replace(depth=1))
    return model.depth * one / count_flops(model)


def train(recipe: str, seed: int, folder: Path, threads: int | None) -> Path:
    """Train the recipe, continue it, or find it finished; write GFLOP/s and CPU seconds beside its folder."""
    path, file = folder / f"{recipe}-seed{seed}", folder / f"{recipe}-seed{seed}.timing.json"
    command = [sys.executable, "-m", "vitreous", "train"]
    if path.exists():
        run = Run.open(path)
        config = run.config.replace(train=run.config.train.replace(threads=None))
        if not same_training(config, preset(recipe).replace(seed=seed)):
            raise SystemExit(f"{path} was trained with other settings than {recipe} has now: remove it, or name --runs")
        if run.is_done:
            return path
        command.append("--resume")
        threads = run.resolved.threads
    else:
        command += [recipe, "--seed", str(seed), *(["--threads", str(threads)] if threads else [])]
    threads = threads or hardware.default_threads()
    torch.set_num_threads(threads)
    folder.mkdir(parents=True, exist_ok=True)
    timing = json.loads(file.read_text()) if file.exists() else {"gflops": [], "cpu_seconds": 0.0}
    clock = time.process_time if threads == 1 else time.perf_counter

    def measure_gflops() -> None:
        timing["gflops"] += [hardware.matmul_gflops(clock=clock) for _ in range(3)]
        file.write_text(json.dumps(timing))

    measure_gflops()
    cpu_before = _children_cpu_seconds()
    failed = subprocess.run([*command, "-o", str(path)], check=False).returncode
    timing["cpu_seconds"] += _children_cpu_seconds() - cpu_before
    measure_gflops()
    if failed:
        raise SystemExit(f"{recipe}, seed {seed}, did not finish; run this command again to continue it")
    return path


def _children_cpu_seconds() -> float:
    usage = resource.getrusage(resource.RUSAGE_CHILDREN)
    return usage.ru_utime + usage.ru_stime


def timing_of(path: Path) -> dict[str, Any]:
    file = path.with_name(f"{path.name}.timing.json")
    if not file.is_file():
        raise SystemExit(f"{path} was not trained by this command ({file.name} is missing): remove it, or name --runs")
    return json.loads(file.read_text())


def row_of(recipe: str, paths: list[Path]) -> Row:
    runs = [Run.open(path) for path in paths]
    results = [run.test_results for run in runs]
    accuracies = [one.accuracy for one in results]
    timings = [timing_of(path) for path in paths]
    readings = [statistics.median(one["gflops"]) for one in timings]
    seconds = [
        timing["cpu_seconds"] if run.resolved.threads == 1 else result.train_seconds
        for run, result, timing in zip(runs, results, timings, strict=True)
    ]
    scaled = [one * reading / REFERENCE_GFLOPS for one, reading in zip(seconds, readings, strict=True)]
    dates = sorted({run.record.created[:10] for run in runs})
    model = runs[0].config.model
    return {
        "recipe": recipe, "parameters": count_parameters_of(model), "block_share": block_share(model),
        "seeds": len(runs), "accuracy": statistics.mean(accuracies), "accuracies": accuracies,
        "spread": statistics.stdev(accuracies) if len(runs) > 1 else None, "seconds": statistics.mean(seconds),
        "gflops": statistics.mean(readings), "scaled_seconds": statistics.mean(scaled),
        "threads": ", ".join(sorted({str(run.resolved.threads) for run in runs})),
        "dates": dates[0] if len(dates) == 1 else f"{dates[0]} to {dates[-1]}",
    }  # fmt: skip


def requirement(recipe: str) -> str:
    """Return what the recipe must reach, in words."""
    goal = GOALS.get(recipe)
    if goal is None:
        return "–"
    seconds = f" in {goal.seconds:.0f} s" if goal.seconds else ""
    return f"{goal.accuracy:.1%}{seconds}" + (f", {goal.parameters:,} parameters" if goal.parameters else "")


def with_earlier(rows: dict[str, Row], docs: Path | None) -> list[Row]:
    """Return all rows that the documentation has, those of this run in place of older ones; store them beside it."""
    if docs is None:
        return list(rows.values())
    file = docs.with_suffix("") / "recipes.json"
    known = json.loads(file.read_text(encoding="utf-8")) if file.is_file() else {}
    known |= rows
    file.parent.mkdir(parents=True, exist_ok=True)
    file.write_text(json.dumps(known, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return [known[name] for name in dict.fromkeys([*GOALS, *known]) if name in known]


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("recipes", nargs="*", help=f"default: {', '.join(GOALS)}")
    options.add_argument("--seeds", type=int, help="per recipe; default: as its goal states")
    options.add_argument("--runs", type=Path, default=Path("runs/recipes"), help="where the trainings are kept")
    options.add_argument("--threads", type=int, help="of a training, and of the GFLOP/s beside it; default: all cores")
    options.add_argument("--only-seed", type=int, help="train this seed alone, without a report")
    args = options.parse_args()
    if args.quick:
        options.error("a recipe cannot be shortened: name one, or use --seeds 1")
    recipes = args.recipes or list(GOALS)
    for recipe in recipes:
        preset(recipe)  # report a misspelled name before training anything
    hardware.prepare(args.threads)
    if args.only_seed is not None:
        for recipe in recipes:
            train(recipe, args.only_seed, args.runs, args.threads)
        return
    report = Report("recipes", "What the recipes reach")
    seeds = {recipe: args.seeds or GOALS.get(recipe, Goal(1, 0)).seeds for recipe in recipes}
    paths: dict[str, list[Path]] = {recipe: [] for recipe in recipes}
    for seed in range(max(seeds.values())):
        for recipe in recipes:
            if seed < seeds[recipe]:
                paths[recipe].append(train(recipe, seed, args.runs, args.threads))
    report.gflops = [reading for name in recipes for path in paths[name] for reading in timing_of(path)["gflops"]]
    rows = with_earlier({name: row_of(name, paths[name]) for name in recipes}, args.docs)
    rows = [{**row, "goal": requirement(row["recipe"])} for row in rows]
    report.tables.append(Table("test accuracy over seeds", COLUMNS, rows))
    report.notes.append(
        "Every test accuracy: "
        + "; ".join(f"{row['recipe']} {', '.join(f'{one:.2%}' for one in row['accuracies'])}"
                    for row in report.tables[0].rows) + "."
    )  # fmt: skip
    report.finish(args)


if __name__ == "__main__":
    main()
