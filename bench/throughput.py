"""The same ViT in vitreous and in its peers: training, inference and latency, in one run, taking turns.

    python bench/throughput.py [--quick] [--sizes small b16] [--json FILE] [--docs]

small: 28×28, patch 4, dim 64, depth 6, 4 heads, MLP 128, batch 256. b16: ViT-B/16 at 224 pixels, batch 8. Every
candidate has a process of its own and all cores; one set of random weights is loaded into all, and the logits are
compared before anything is timed. Peers run in a process with torch's defaults; vitreous configures its own, as its
commands do (denormals flushed, freed memory kept), and the "tuned" rows do the same for a peer. A training step is
forward, loss, backward and the AdamW that each library's user gets, on a prepared batch (without the peers'
DataLoader); vitreous splits the batch where its training would (models/fast/split_batch.py). `vitreous train` is the
whole command on data of that size, with its own defaults, batches and metrics. Inference is in `torch.inference_mode`,
eager for all.

Ratios, to the best peer: train_small, infer_small and train_b16 are how many times faster vitreous is;
train_small_tuned is to the best tuned peer, the gain of the model's own code; train_small_compiled is uncompiled
vitreous to the best peer under torch.compile (its compilation not counted); latency_small is vitreous's latency as a
share of the best peer's.
"""

from __future__ import annotations

import argparse
import contextlib
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path

import numpy as np
from common import Column, Report, Row, Table, Times, fastest, interleave, median, parser, ratio, spread
from peers import B16, PEERS, SAME_FUNCTION, SMALL, write_weights
from worker import Candidate, Worker, WorkerError

from vitreous.config import ViTConfig
from vitreous.models.summary import count_flops
from vitreous.runs import Run

OURS, LOOP = "vitreous", "vitreous train (whole command)"
TUNED, COMPILED, ONNX = ", tuned", ", compiled", ", ONNX Runtime"
MAX_LOGIT_DIFFERENCE = 1e-4
TRAINING_FLOPS = 3  # times the forward pass: the backward pass has two products for each of its products

COLUMNS = (
    Column("candidate", "candidate"),
    Column("train_images_per_second", "training images/s", "{:.4g}"),
    Column("train_spread", "±", "{:.0%}"),
    Column("train_peak_fraction", "of fp32 peak", "{:.0%}"),
    Column("compile_seconds", "compilation s", "{:.0f}"),
    Column("infer_images_per_second", "inference images/s", "{:.4g}"),
    Column("infer_spread", "±", "{:.0%}"),
    Column("latency_ms", "latency ms (1 image)", "{:.2f}"),
    Column("latency_spread", "±", "{:.0%}"),
    Column("peak_memory_mb", "peak memory MB", "{:.0f}"),
    Column("trouble", "trouble"),
)


@dataclass(frozen=True)
class Workload:
    """What is measured for one size of the model, and how often."""

    name: str
    config: ViTConfig
    batch: int
    eager: Sequence[str]
    tuned: Sequence[str]
    compiled: Sequence[str]
    onnx: Sequence[str]
    rounds: int
    train_steps: int  # per turn
    infer_calls: int
    latency_calls: int
    loop_steps: int = 0  # of the whole command; 0: not measured
    budget_seconds: float | None = None  # for each of training, inference, latency

    def candidates(self, folder: Path) -> dict[str, Candidate]:
        """Return the candidates by the names of their rows."""
        base = Candidate("", self.config.model_dump(), str(folder))
        candidates = {peer: replace(base, peer=peer) for peer in (OURS, *self.eager)}
        candidates |= {peer + TUNED: replace(base, peer=peer, mode="tuned") for peer in self.tuned}
        candidates |= {peer + COMPILED: replace(base, peer=peer, mode="compiled") for peer in self.compiled}
        return candidates | {peer + ONNX: replace(base, peer=peer, mode="onnx") for peer in self.onnx}


def workloads(args: argparse.Namespace) -> list[Workload]:
    small = Workload(
        "small", SMALL, 256, eager=PEERS, tuned=("timm", "Hugging Face"), compiled=(OURS, *PEERS),
        onnx=(OURS, *PEERS), rounds=9, train_steps=8, infer_calls=10, latency_calls=200, loop_steps=150,
    )  # fmt: skip
    b16 = Workload(
        "b16", B16, 8, eager=PEERS, tuned=(), compiled=(), onnx=(), rounds=5, train_steps=1, infer_calls=1,
        latency_calls=3,
    )  # fmt: skip
    if args.quick:
        small = replace(
            small, tuned=(), compiled=("timm",), onnx=(OURS, "timm"), rounds=4, train_steps=3, infer_calls=4,
            latency_calls=50, loop_steps=30, budget_seconds=7,
        )  # fmt: skip
        b16 = replace(b16, eager=("timm",), rounds=2, latency_calls=1)
    if args.smoke:
        small = replace(
            small, eager=("timm",), tuned=("timm",), compiled=(), onnx=(OURS,), rounds=1, train_steps=1,
            infer_calls=1, latency_calls=2, loop_steps=4, batch=32,
        )  # fmt: skip
        b16 = replace(b16, config=B16.replace(depth=1), eager=("timm",), rounds=1, batch=1, latency_calls=1)
    if args.compile_b16:
        b16 = replace(b16, compiled=(OURS, *b16.eager))
    return [workload for workload in (small, b16) if workload.name in args.sizes]


# --- one size ------------------------------------------------------------------------------------------------------


class Measurement:
    """All candidates of one workload, running and taking turns."""

    def __init__(self, workload: Workload, report: Report, folder: Path, stack: contextlib.ExitStack):
        self.workload, self.report, self.folder = workload, report, folder
        self.rows: dict[str, Row] = {}
        write_weights(workload.config, folder)
        self.workers: dict[str, Worker] = {}
        for name, candidate in workload.candidates(folder).items():
            self.rows[name] = {"size": workload.name, "candidate": name, "mode": candidate.mode}
            self.workers[name] = stack.enter_context(Worker(candidate))

    def run(self) -> None:
        self._compare_logits()
        self._warm_up()
        trained = [name for name, row in self.rows.items() if row["mode"] != "onnx" and "trouble" not in row]
        workload = self.workload
        train = self._take_turns(trained, "train", batch=workload.batch, steps=workload.train_steps)
        inferring = [name for name, row in self.rows.items() if row["mode"] != "compiled" and "trouble" not in row]
        infer = self._take_turns(inferring, "infer", batch=workload.batch, calls=workload.infer_calls)
        latency = self._take_turns(inferring, "infer", batch=1, calls=workload.latency_calls)
        self._fill_rows(train, infer, latency)
        self._ratios(train, infer, latency)

    def _compare_logits(self) -> None:
        """Check that the same functions give the same logits; note why a candidate cannot run."""
        logits: dict[str, np.ndarray] = {}
        for name, worker in self.workers.items():
            if self.rows[name]["mode"] == "compiled":
                continue  # it is compiled in training, below; its logits are those of its eager candidate
            try:
                logits[name] = np.array(worker.ask("logits", batch=2))
            except WorkerError as error:
                self.rows[name]["trouble"] = str(error)
        for name, theirs in logits.items():
            if worker_peer(name) in SAME_FUNCTION:
                difference = float(np.abs(theirs - logits[OURS]).max())
                self.rows[name]["max_logit_difference"] = difference
                assert difference < MAX_LOGIT_DIFFERENCE, f"{name} computes something else: {difference}"

    def _warm_up(self) -> None:
        """Run the first steps and time the compilation; read the memory after training, before the rest."""
        for name, worker in self.workers.items():
            row = self.rows[name]
            if "trouble" in row or row["mode"] == "onnx":
                continue
            try:
                first = worker.ask("train", batch=self.workload.batch, steps=1)
                if row["mode"] == "compiled":
                    row["compile_seconds"] = first - worker.ask("train", batch=self.workload.batch, steps=1)
                row["peak_memory_mb"] = worker.ask("peak_memory")
            except WorkerError as error:
                row["trouble"] = str(error)

    def _take_turns(self, names: Sequence[str], request: str, **arguments: int) -> Times:
        turns: dict[str, Callable[[], float]] = {
            name: partial(self.workers[name].ask, request, **arguments) for name in names
        }
        if request == "train" and self.workload.loop_steps:
            turns[LOOP] = partial(whole_command, self.workload, self.folder)
        turns["peak"] = self.report.measure_peak
        for name in names:
            self.workers[name].ask(request, **{**arguments, "steps" if request == "train" else "calls": 1})
        return interleave(turns, self.workload.rounds, self.workload.budget_seconds)

    def _fill_rows(self, train: Times, infer: Times, latency: Times) -> None:
        if LOOP in train:
            self.rows[LOOP] = {"size": self.workload.name, "candidate": LOOP, "mode": "whole command"}
        peak = median(self.report.gflops) * 1e9
        whole, ours = count_flops(self.workload.config), self.workers[OURS].ask("flops")
        for name, row in self.rows.items():
            flops = ours if worker_peer(name) in (OURS, LOOP) else whole
            if name in train:
                rate = self.workload.batch / median(train[name])
                row |= {"train_images_per_second": rate, "train_spread": spread(train[name]),
                        "train_peak_fraction": rate * TRAINING_FLOPS * flops / peak}  # fmt: skip
            if name in infer:
                rate = self.workload.batch / median(infer[name])
                row |= {"infer_images_per_second": rate, "infer_spread": spread(infer[name]),
                        "infer_peak_fraction": rate * flops / peak,
                        "latency_ms": median(latency[name]) * 1e3, "latency_spread": spread(latency[name])}  # fmt: skip

    def _ratios(self, train: Times, infer: Times, latency: Times) -> None:
        size, ratios = self.workload.name, self.report.ratios
        peers = [peer for peer in self.workload.eager if peer in train]
        tuned = [peer + TUNED for peer in self.workload.tuned if peer + TUNED in train]
        compiled = [peer + COMPILED for peer in self.workload.eager if peer + COMPILED in train]
        exported = [peer + ONNX for peer in self.workload.eager if peer + ONNX in infer]
        if peers:
            ratios[f"train_{size}"] = ratio(train, fastest(train, peers), OURS)
            ratios[f"infer_{size}"] = ratio(infer, fastest(infer, peers), OURS)
            ratios[f"latency_{size}"] = ratio(latency, OURS, fastest(latency, peers))
            if LOOP in train:
                ratios[f"train_{size}_whole_command"] = ratio(train, fastest(train, peers), LOOP)
        if tuned:
            ratios[f"train_{size}_tuned"] = ratio(train, fastest(train, tuned), OURS)
        if compiled:
            ratios[f"train_{size}_compiled"] = ratio(train, fastest(train, compiled), OURS)
            if OURS + COMPILED in train:
                ratios[f"train_{size}_both_compiled"] = ratio(train, fastest(train, compiled), OURS + COMPILED)
        if exported and OURS + ONNX in infer:
            ratios[f"onnx_infer_{size}"] = ratio(infer, fastest(infer, exported), OURS + ONNX)
            ratios[f"onnx_latency_{size}"] = ratio(latency, OURS + ONNX, fastest(latency, exported))


def worker_peer(name: str) -> str:
    return name.removesuffix(TUNED).removesuffix(COMPILED).removesuffix(ONNX)


# --- the whole command ---------------------------------------------------------------------------------------------


def whole_command(workload: Workload, folder: Path) -> float:
    """Return the seconds per step of `vitreous train`, as its run records them: without start-up and test set."""
    out = Path(tempfile.mkdtemp(dir=folder))
    data, settings = folder / "random.npz", folder / "train.toml"
    if not data.is_file():
        _write_data(workload, data, settings)
    command = [sys.executable, "-m", "vitreous", "train", "vit", "--config", str(settings), "--data", str(data)]
    command += ["-o", str(out / "run")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr[-2000:]
    results = Run.open(out / "run").test_results
    return workload.batch / results.images_per_second


def _write_data(workload: Workload, data: Path, settings: Path) -> None:
    config, random = workload.config, np.random.default_rng(0)
    shape = (workload.loop_steps * workload.batch, *config.image_size, config.channels)
    images, test = (random.integers(0, 256, (n, *shape[1:]), dtype=np.uint8) for n in (shape[0], 100))
    labels = np.arange(shape[0]) % config.num_classes
    np.savez(data, images=images, labels=labels, test_images=test, test_labels=labels[:100])
    model = {name: getattr(config, name) for name in ("dim", "depth", "num_heads", "mlp_dim")}
    lines = [
        "[model]",
        f"patch_size = {list(config.patch_size)}",
        *(f"{key} = {value}" for key, value in model.items()),
    ]
    lines += ["[data]", "val_fraction = 0", "[data.augment]", "shift = 0", "rotate = 0", "scale = 0"]
    lines += ["[train]", f"batch_size = {workload.batch}", "epochs = 1", 'optimizer = "adamw"', "ema_decay = 0"]
    settings.write_text("\n".join(lines) + "\n")


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("--sizes", nargs="+", choices=("small", "b16"), default=("small", "b16"))
    options.add_argument("--compile-b16", action="store_true", help="torch.compile ViT-B/16 as well (minutes each)")
    args = options.parse_args()
    report = Report("throughput", "The same ViT in vitreous and its peers")
    for workload in workloads(args):
        with tempfile.TemporaryDirectory() as name, contextlib.ExitStack() as stack:
            measurement = Measurement(workload, report, Path(name), stack)
            start = time.perf_counter()
            measurement.run()
            rows = list(measurement.rows.values())
            title = f"{workload.name}, batch {workload.batch} ({time.perf_counter() - start:.0f} s)"
            report.tables.append(Table(title, COLUMNS, rows))
    report.notes.append(
        "Ratios are to the fastest peer: `train_…` and `infer_…` are how many times faster vitreous is, `latency_…` is"
        " the share of the peer's time that it takes; `_compiled`: uncompiled vitreous to compiled peers."
    )
    report.notes.append(
        "“Of fp32 peak”: three times the forward pass's FLOPs (`vitreous shapes`) per image, over the machine's rate;"
        " for vitreous the FLOPs it executes, since its last block computes the class token's row alone."
        " Peak memory is that of the whole process, libraries included, after training. ViT-B/16 is compiled only with"
        " `--compile-b16`."
    )
    report.finish(args)


if __name__ == "__main__":
    main()
