"""Seconds until 99.0 % on validation: the presets, the CNN, and a standard recipe as a user of timm would write it.

    python bench/time_to_accuracy.py [PRESET …] [--seeds 1] [--standard-epochs N] [--quick] [--json FILE] [--docs]

A preset is trained by `vitreous train` with its own settings. The schedules of the fast recipes end where 99.0 % of the
*test* set is safe. The validation images, held out from the training set, are harder, so their schedules are longer
here (SCHEDULES, in the table). The first of a run's own evaluations on the validation split that reaches the target
counts, with the seconds its run recorded (loading not counted, evaluating counted, for all recipes). The standard
recipe (bench/standard_recipe.py) stops at the target and is given the best of three learning rates, chosen by those
seconds. The test set is read once, at the end, by the model that validation chose.

Where the standard recipe ends its schedule below the target, the ratio is to the seconds of that schedule: a lower
bound. It did so with every learning rate in the complete run that docs/log.md records. `--standard-epochs 1` trains one
epoch of its 20 and counts 20 times the seconds of that.

Finished trainings are kept in runs/ (FINISHED), so that the script can be stopped and started again; one whose settings
have changed since is repeated. `--quick`: 30 seconds each instead, schedules fitted to that, and the accuracy reached.
"""

from __future__ import annotations

import hashlib
import json
import subprocess
import sys
import tempfile
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from common import REFERENCE_GFLOPS, Column, Report, Row, Table, interleave, median, parser, spread
from standard_recipe import BATCH_SIZE as STANDARD_BATCH_SIZE

from vitreous import hardware
from vitreous.config import Config, ViTConfig, configure
from vitreous.config.presets import PRESETS
from vitreous.runs import Run

STANDARD = "standard recipe (timm)"
STANDARD_EPOCHS = 20.0
LEARNING_RATES = (1e-3, 2e-3, 5e-4)  # the most promising first: a later one stops when it can no longer win
QUICK_SECONDS = 30.0
#: Enough for the target on validation; the last epochs of a schedule, with small learning rates, gain the most. In
#: bfloat16 an image of a batch of 256 takes two thirds of the time of one of 128 (docs/log.md). All evaluate after each
#: epoch, as the standard recipe does.
SCHEDULES = {
    "mnist-fast": ("train.epochs=9", "train.batch_size=256", "train.muon_lr=0.03", "train.lr=0.015"),
    "mnist-vit": ("train.epochs=11",),
    "cnn": ("train.epochs=3",),
}
EVERY_EPOCH = "train.validate_every=1"
FINISHED = Path(__file__).parents[1] / "runs" / "time_to_accuracy.json"

COLUMNS = (
    Column("recipe", "recipe"),
    Column("epochs", "epochs of the schedule", "{:g}"),
    Column("batch_size", "batch"),
    Column("seconds_to_target", "s to the target", "{:.0f}"),
    Column("seconds_spread", "±", "{:.0%}"),
    Column("scaled_seconds", f"… at {REFERENCE_GFLOPS:.0f} GFLOP/s", "{:.0f}"),
    Column("reached", "seeds that reached it"),
    Column("val_accuracy", "last validation", "{:.2%}"),
    Column("test_accuracy", "test", "{:.2%}"),
    Column("train_seconds", "s of training", "{:.0f}"),
    Column("images_per_second", "images/s", "{:.0f}"),
)


@dataclass(frozen=True)
class Outcome:
    """One training; `seconds_to_target` is None if it never reached the target."""

    seconds_to_target: float | None
    val_accuracy: float
    train_seconds: float
    images_per_second: float
    test_accuracy: float | None
    gflops: float | None = None  # of the machine, before and after


@dataclass(frozen=True)
class Setting:
    data: str
    target: float
    seconds: float | None  # a budget each; None: until the target, or the schedule's end
    learning_rates: tuple[float, ...]
    standard_epochs: int | None = None  # that are trained of the standard schedule; None: all


def train_preset(name: str, seed: int, setting: Setting) -> Outcome:
    with tempfile.TemporaryDirectory() as folder:
        command = [sys.executable, "-m", "vitreous", "train", name, "--data", setting.data, "--seed", str(seed)]
        command += ["-o", f"{folder}/run"]
        if setting.seconds:
            command += ["--seconds", str(setting.seconds)]
        else:
            command += [word for changed in schedule(name) for word in ("--set", changed)]
        _run(command)
        run = Run.open(Path(folder) / "run")
        evaluations = [line for line in run.metrics() if line["event"] == "val"]
    results = run.test_results
    reached = [line["elapsed_seconds"] for line in evaluations if line["accuracy"] >= setting.target]
    return Outcome(
        reached[0] if reached else None, evaluations[-1]["accuracy"], results.train_seconds,
        results.images_per_second, results.accuracy,
    )  # fmt: skip


def train_standard(seed: int, setting: Setting) -> Outcome:
    script = str(Path(__file__).with_name("standard_recipe.py"))
    command = [sys.executable, script, "--data", setting.data, "--target", str(setting.target), "--seed", str(seed)]
    command += ["--lr", *map(str, setting.learning_rates)]
    command += ["--seconds", str(setting.seconds)] if setting.seconds else ["--epochs", str(STANDARD_EPOCHS)]
    if setting.standard_epochs:
        command += ["--stop-after", str(setting.standard_epochs)]
    found = json.loads(_run(command).splitlines()[-1])
    if setting.standard_epochs:
        found["train_seconds"] *= STANDARD_EPOCHS / setting.standard_epochs
    return Outcome(**{name: found[name] for name in Outcome.__dataclass_fields__ if name in found})


def _run(command: list[str]) -> str:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode:
        raise SystemExit(f"{' '.join(command)} ended with {done.returncode}:\n{done.stderr[-2000:]}")
    return done.stdout


def settings_of(recipe: str) -> str:
    """Return a fingerprint of the recipe's settings: a finished training with another one is not reused."""
    written = (
        Path(__file__).with_name("standard_recipe.py").read_text()
        if recipe == STANDARD
        else schedule_of(recipe).model_dump_json()
    )
    return hashlib.sha256(written.encode()).hexdigest()[:12]


def schedule(recipe: str) -> list[str]:
    """Return what is changed of a preset."""
    return [*SCHEDULES.get(recipe, ()), EVERY_EPOCH]


def schedule_of(recipe: str) -> Config:
    return configure(recipe, settings=schedule(recipe))


def epochs_of(recipe: str) -> float:
    return STANDARD_EPOCHS if recipe == STANDARD else schedule_of(recipe).train.epochs


def row_of(recipe: str, outcomes: list[Outcome], timed: bool) -> Row:
    seconds = [one.seconds_to_target for one in outcomes if one.seconds_to_target is not None]
    tests = [one.test_accuracy for one in outcomes if one.test_accuracy is not None]
    all_reached = len(seconds) == len(outcomes)  # a median over the seeds that reached it alone would be too good
    scaled = [one.seconds_to_target * one.gflops / REFERENCE_GFLOPS
              for one in outcomes if one.seconds_to_target is not None and one.gflops is not None]  # fmt: skip
    return {
        "recipe": recipe,
        "epochs": None if timed else epochs_of(recipe),
        "batch_size": STANDARD_BATCH_SIZE if recipe == STANDARD else schedule_of(recipe).train.batch_size,
        "seconds_to_target": median(seconds) if all_reached else None,
        "seconds_spread": spread(seconds) if all_reached and len(seconds) > 1 else None,
        "scaled_seconds": median(scaled) if all_reached else None,
        "reached": f"{len(seconds)} of {len(outcomes)}",
        "val_accuracy": median([one.val_accuracy for one in outcomes]),
        "test_accuracy": sum(tests) / len(tests) if tests else None,
        "train_seconds": median([one.train_seconds for one in outcomes]),
        "images_per_second": median([one.images_per_second for one in outcomes]),
    }


def add_ratios(report: Report, rows: list[Row], quick: bool, standard_epochs: int | None) -> None:
    """How many times faster than the standard recipe (or, in --quick, how many times fewer errors)."""
    standard = next(row for row in rows if row["recipe"] == STANDARD)
    standard_seconds = standard["seconds_to_target"] or standard["train_seconds"]
    if standard_epochs:
        report.notes.append(
            f"The standard recipe was trained for {standard_epochs} of its {STANDARD_EPOCHS:g} epochs, and its"
            f" seconds multiplied by {STANDARD_EPOCHS / standard_epochs:g}: the complete trainings of 2026-11-16 ended"
            " below the target with all three learning rates (docs/log.md), so the ratios are lower bounds."
        )
    elif not quick and not standard["seconds_to_target"]:
        report.notes.append(
            f"The standard recipe ended its {STANDARD_EPOCHS:g} epochs below the target with every learning rate, so"
            f" the ratios, to the {standard_seconds:.0f} s that the best of them took, are lower bounds."
        )
    speedups: dict[str, float] = {}
    for row in rows:
        if row is standard:
            continue
        if quick:
            errors = max(1 - row["val_accuracy"], 1e-9)
            report.ratios[f"errors_{row['recipe']}"] = (1 - standard["val_accuracy"]) / errors
        elif row["seconds_to_target"]:
            speedups[row["recipe"]] = standard_seconds / row["seconds_to_target"]
    report.ratios |= {f"time_to_accuracy_{name}": value for name, value in speedups.items()}
    vits = [value for name, value in speedups.items() if isinstance(PRESETS[name]().model, ViTConfig)]
    if vits:
        report.ratios["time_to_accuracy"] = max(vits)  # the best of our ViTs


def main() -> None:
    options = parser(__doc__ or "")
    options.add_argument("presets", nargs="*", help="default: mnist-fast, mnist-vit and cnn")
    options.add_argument("--data", default="mnist")
    options.add_argument("--target", type=float, default=0.99, help="validation accuracy (default 0.99)")
    options.add_argument("--seeds", type=int, default=1, help="trainings per recipe; they take turns")
    options.add_argument("--standard-epochs", type=int, help="of its 20 that are trained; default: all")
    args = options.parse_args()
    presets = args.presets or list(SCHEDULES)
    one_rate = args.quick or args.smoke or args.standard_epochs
    setting = Setting(args.data, args.target, QUICK_SECONDS if args.quick else None,
                      (1e-3,) if one_rate else LEARNING_RATES, args.standard_epochs)  # fmt: skip
    if args.smoke:
        setting = Setting("digits", 0.5, 3.0, (1e-3,))
    hardware.prepare()
    report = Report("time-to-accuracy", f"Seconds until {args.target:.1%} on the validation split of {args.data}")
    outcomes: dict[str, list[Outcome]] = {name: [] for name in (*presets, STANDARD)}

    timed = setting.seconds is not None
    finished: dict[str, Any] = json.loads(FINISHED.read_text()) if FINISHED.is_file() and not timed else {}
    at_start = len(finished)

    def turn(recipe: str) -> float:
        seed = len(outcomes[recipe])
        what = f"{recipe} {settings_of(recipe)}, {epochs_of(recipe):g} epochs, seed {seed}"
        key = f"{what}, {setting.data} to {setting.target}"
        if recipe == STANDARD and setting.standard_epochs:
            key += f", timed over {setting.standard_epochs}"
        if key not in finished:
            before = hardware.matmul_gflops()
            one = train_standard(seed, setting) if recipe == STANDARD else train_preset(recipe, seed, setting)
            finished[key] = {**asdict(one), "gflops": (before + hardware.matmul_gflops()) / 2}
            if not timed:
                FINISHED.parent.mkdir(exist_ok=True)
                FINISHED.write_text(json.dumps(finished, indent=2) + "\n")
        outcomes[recipe].append(Outcome(**finished[key]))
        report.gflops.append(finished[key]["gflops"])
        return outcomes[recipe][-1].train_seconds

    interleave({name: lambda name=name: turn(name) for name in outcomes}, args.seeds)
    if at_start:
        report.notes.append(
            "Trainings that finished in an earlier run of this script are reused; the seconds for this report do not"
            " include them."
        )
    rows: list[dict[str, Any]] = [row_of(name, some, timed) for name, some in outcomes.items()]
    title = f"{setting.seconds:.0f} s each" if setting.seconds else f"until {args.target:.1%} on validation"
    report.tables.append(Table(f"{title}; {args.seeds} seed{'s' * (args.seeds != 1)}", COLUMNS, rows))
    add_ratios(report, rows, timed, setting.standard_epochs)
    report.finish(args)


if __name__ == "__main__":
    main()
