"""What skipping blank patches, windows and a hidden layer in the embedding give: training speed and accuracy.

    python bench/tokens.py [--quick] [--seeds N] [--docs docs/tokens.md] [--json FILE]

Small ViTs on MNIST with equal settings, trained for two epochs each; accuracy is that of the validation split. Speed is
measured apart from that: a few training steps of every model in turn, several rounds; `ratio` is to the first row of
the same patch size, the median of the rounds' own.
"""

from __future__ import annotations

import itertools
import statistics
import tempfile
import time
from collections.abc import Callable
from functools import partial
from pathlib import Path

from common import Column, Report, Row, Table, interleave, median, parser, ratio, spread

from vitreous import hardware
from vitreous.config import Config, ViTConfig, configure
from vitreous.data.sampler import BatchSampler
from vitreous.training import setup
from vitreous.training.distributed import Group
from vitreous.training.loop import fit
from vitreous.training.step import Stepper

#: name → settings besides BASE; the first of each patch size has all tokens
MODELS = {
    "7×7, all 16 patches": ("model.patch_size=7",),
    "7×7, K by the data": ("model.patch_size=7", "model.tokens=auto"),
    "4×4, all 49 patches": ("model.patch_size=4",),
    "4×4, K by the data": ("model.patch_size=4", "model.tokens=auto"),
    "4×4, K = 16": ("model.patch_size=4", "model.tokens=16"),
    "4×4, K = 16, 12×12 windows": ("model.patch_size=4", "model.tokens=16", "model.window=12"),
    "4×4, K = 16, 12×12 windows, hidden layer of 128": (
        "model.patch_size=4", "model.tokens=16", "model.window=12", "model.embed_hidden=128",
    ),
    "2×2, all 196 patches": ("model.patch_size=2",),
    "2×2, K by the data": ("model.patch_size=2", "model.tokens=auto"),
}  # fmt: skip
BASE = ("model.depth=3", "train.epochs=2")
SLOW = ("2×2, all 196 patches",)  # not trained with --quick
COLUMNS = (
    Column("model", "model"),
    Column("tokens", "patches"),
    Column("rate", "training images/s", "{:,.0f}"),
    Column("spread", "±", "{:.0%}"),
    Column("ratio", "ratio", "{:.2f}"),
    Column("accuracy", "validation accuracy"),
    Column("seeds", "seeds"),
)


class Steps:
    """Training steps of one model, again and again."""

    def __init__(self, config: Config):
        self.config, dataset, preprocessing, resolved, _ = setup.prepare(config, "cpu", Group())
        self.stepper = Stepper(self.config, dataset, preprocessing, resolved, Group())
        self.batch_size = resolved.batch_size
        self.steps = BatchSampler.of(dataset.train, self.batch_size, seed=0).steps(0, 10**9)

    def seconds(self, clock: Callable[[], float] = time.perf_counter) -> float:
        """Return how long a step takes, the mean of four."""
        start = clock()
        for step, epoch, indices in itertools.islice(self.steps, 4):
            self.stepper.step(step % 100, epoch, indices)
        return (clock() - start) / 4


def accuracies(config: Config, seeds: int) -> list[float]:
    """Train, and return the accuracy on the validation split for each seed."""
    found = []
    with tempfile.TemporaryDirectory() as folder:
        for seed in range(seeds):
            run = fit(config.replace(seed=seed), Path(folder) / str(seed), progress=False)
            found.append([line["accuracy"] for line in run.metrics() if line["event"] == "val"][-1])
    return found


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--seeds", type=int, default=1)
    args = options.parse_args()
    hardware.prepare()
    report = Report("tokens", "Speed and accuracy with fewer tokens")
    configs = {name: configure("vit", settings=[*BASE, *settings]) for name, settings in MODELS.items()}
    models = {name: Steps(config) for name, config in configs.items()}
    rounds = 1 if args.smoke else 5 if args.quick else 9
    for model in models.values():
        model.seconds()  # warm up
    candidates = {name: model.seconds for name, model in models.items()}
    times = interleave({**candidates, "peak": partial(report.measure_peak, 0.1)}, rounds)
    rows: list[Row] = []
    for name, model in models.items():
        config = model.config.model
        assert isinstance(config, ViTConfig)
        first = next(other for other in MODELS if other.split(",")[0] == name.split(",")[0])
        skipped = args.smoke or (args.quick and name in SLOW)
        found = [] if skipped else accuracies(configs[name], args.seeds)
        deviation = f" ± {statistics.stdev(found):.2%}" if len(found) > 1 else ""
        rows.append({
            "model": name,
            "tokens": f"{config.kept_patches} of {config.num_patches}",
            "rate": model.batch_size / median(times[name]),
            "spread": spread(times[name]),
            "ratio": ratio(times, first, name),
            "accuracy": f"{statistics.mean(found):.2%}{deviation}" if found else None,
            "seeds": len(found),
        })  # fmt: skip
    report.tables.append(Table("two epochs on MNIST, width 64, depth 3, batch 128", COLUMNS, rows))
    report.finish(args)


if __name__ == "__main__":
    main()
