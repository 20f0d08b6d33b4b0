"""Pre-train once, then train from scratch and from those weights at every number of labels and every seed.

Both arms get the same labelled images, the same number of steps, the same batches and the same grid of learning rates;
the rate is chosen on validation images, and the test set decides nothing. Every training is a run folder of its own:
what is finished is reused, so that the same command goes on where it was stopped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch

from vitreous import hardware
from vitreous.config import Config, ViTConfig, override
from vitreous.config.presets import preset as named_preset
from vitreous.data.datasets import Dataset, Split, load_dataset
from vitreous.data.sampler import BatchSampler
from vitreous.data.splits import keep_per_class
from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.prediction import Evaluation, evaluate_model
from vitreous.runs import Run, report_folder
from vitreous.studies.compare import train_or_reuse
from vitreous.studies.transfer.report import write_report
from vitreous.studies.transfer.results import (
    FINE_TUNED,
    HEAD_ONLY,
    SCRATCH,
    ArmResult,
    Row,
    Transfer,
    gains_over_scratch,
    verdict,
)

#: To choose a learning rate; taken from the images whose labels the study withholds from training anyway.
VALIDATION_PER_CLASS = 100
_FEWEST_VALIDATION_PER_CLASS = 10
FEWEST_STEPS = 300
#: On the target: few images are better spent on many steps than on large batches.
LARGEST_BATCH, _SMALLEST_BATCH, _STEPS_AN_EPOCH = 64, 16, 4


@dataclass(frozen=True)
class _Study:
    """What every training of the study shares."""

    base: Config  # on the target, without weights, labels or seed
    pretrained: Run
    folder: Path
    validation: Split  # of the first seed; none of its images is trained on, however many labels there are
    classes: int
    seeds: tuple[int, ...]
    lr_factors: tuple[float, ...]
    epochs: float
    fewest_steps: int
    device: str
    say: Callable[[str], None]


def transfer(
    source: str = "fashion-mnist",
    target: str = "mnist",
    per_class: Sequence[int] = (10, 100, 1000),
    seeds: int = 3,
    preset: str = "vit",
    *,
    pretrain_epochs: float = 5.0,
    epochs: float = 2.0,
    fewest_steps: int = FEWEST_STEPS,
    lr_factors: Sequence[float] = (0.3, 1.0, 3.0),
    head_only: bool = True,
    out: Path | str | None = None,
    settings: Sequence[str] = (),
    device: str = "auto",
    progress: bool = True,
) -> Transfer:
    """Pre-train `preset` on `source`, then learn `target` from `per_class` labelled images with and without it.

    `epochs` and `fewest_steps`: every training on the target takes so many epochs, but at least so many steps.
    `lr_factors`: what the preset's learning rates are multiplied by; each arm takes its best, by validation accuracy.
    """
    counts = _check(source, target, per_class, seeds, lr_factors)
    folder = report_folder(out, Path("runs") / f"transfer-{_stem(source)}-{_stem(target)}")
    config = override(named_preset(preset), settings)
    if not isinstance(config.model, ViTConfig):
        raise ConfigError(f"--preset {preset}: transfer is for ViTs, and this is a {config.model.kind}")
    before = config.replace(data=config.data.replace(name=source), train=config.train.replace(epochs=pretrain_epochs))
    _check_enough(load_dataset(config.data.replace(name=target, val_fraction=0)), counts[-1])
    pretrained = train_or_reuse(before, folder / "runs" / "pretrained", device, progress)
    base = _on_target(config, target, pretrained)
    dataset = load_dataset(base.data)
    study = _Study(
        base=base,
        pretrained=pretrained,
        validation=_validation_images(dataset.train, counts[-1], base.seed),
        folder=folder / "runs",
        classes=dataset.num_classes,
        seeds=tuple(range(config.seed, config.seed + seeds)),
        lr_factors=tuple(sorted(set(lr_factors))),
        epochs=epochs,
        fewest_steps=fewest_steps,
        device=device,
        say=(lambda line: print(line, file=sys.stderr, flush=True)) if progress else (lambda line: None),
    )
    arms = (SCRATCH, FINE_TUNED, HEAD_ONLY) if head_only else (SCRATCH, FINE_TUNED)
    tables = [{arm: _measure(study, arm, count) for arm in arms} for count in counts]
    rows = tuple(
        Row(count, count * study.classes, *_steps_and_batch(study, count), table, gains)
        for count, table, gains in zip(counts, tables, gains_over_scratch(tables), strict=True)
    )
    return write_report(_result(study, source, target, preset, rows, len(dataset.test), settings), folder)


# --- what is asked for ------------------------------------------------------------------------------------------


def _stem(data: str) -> str:
    return Path(data).stem or "data"


def _check(
    source: str, target: str, per_class: Sequence[int], seeds: int, lr_factors: Sequence[float]
) -> tuple[int, ...]:
    if source == target:
        raise ConfigError(
            f"--from-data and --to are both {source!r}: pre-train on other images than those to be learnt"
        )
    if seeds < 2:
        raise ConfigError(f"--seeds {seeds}: at least 2, since one training cannot tell a gain from luck")
    if not per_class or min(per_class) < 1:
        raise ConfigError(f"--per-class {list(per_class)}: expected numbers of images from 1, as in 10,100,1000")
    if not lr_factors or min(lr_factors) <= 0:
        raise ConfigError(f"lr_factors {list(lr_factors)}: expected positive numbers, as in (0.3, 1, 3)")
    return tuple(sorted(set(per_class)))


def _check_enough(dataset: Dataset, most: int) -> None:
    smallest = int(torch.bincount(dataset.train.labels, minlength=dataset.num_classes).min())
    left = smallest - _FEWEST_VALIDATION_PER_CLASS
    if most > left:
        raise DataError(
            f"--per-class {most}: the smallest class of {dataset.name} has {smallest} training images, and"
            f" {_FEWEST_VALIDATION_PER_CLASS} are kept for validation; ask for at most {max(left, 0)}"
        )


def _on_target(config: Config, target: str, pretrained: Run) -> Config:
    """The preset on the target. Images are brought to the size of the pre-training ones: a patch then covers as much
    of the picture as it did, and the weights need no new positions. All arms see the same pixels."""
    size = config.data.image_size or pretrained.preprocessing.image_size
    return config.replace(
        data=config.data.replace(name=target, image_size=size, val_fraction=0, split_seed=config.seed)
    )


def _validation_images(train: Split, most: int, seed: int) -> Split:
    """Labels nobody trains on with this seed: `keep_per_class` takes the first of a fixed order, these come after."""
    more = keep_per_class(train.labels, most + VALIDATION_PER_CLASS, seed)
    return train.take(np.setdiff1d(more, keep_per_class(train.labels, most, seed)))


# --- one arm at one number of labels ---------------------------------------------------------------------------------


def _steps_and_batch(study: _Study, count: int) -> tuple[int, int]:
    images = count * study.classes
    batch = min(LARGEST_BATCH, study.base.train.batch_size, max(_SMALLEST_BATCH, images // _STEPS_AN_EPOCH), images)
    return max(study.fewest_steps, round(study.epochs * images / batch)), batch


def _config(study: _Study, arm: str, count: int, seed: int, factor: float) -> Config:
    steps, batch = _steps_and_batch(study, count)
    base, train = study.base, study.base.train
    epochs = steps / BatchSampler(count * study.classes, batch, seed).steps_per_epoch
    changed = train.replace(
        lr=train.lr * factor, muon_lr=train.muon_lr * factor, batch_size=batch, epochs=epochs,
        freeze="backbone" if arm == HEAD_ONLY else "none",
    )  # fmt: skip
    weights = None if arm == SCRATCH else str(study.pretrained.path)
    return base.replace(
        # another seed draws other labelled images too: their choice matters more than anything else here
        data=base.data.replace(train_per_class=count, split_seed=seed),
        train=changed, start=base.start.replace(weights=weights), seed=seed,
    )  # fmt: skip


def _train(study: _Study, arm: str, count: int, seed: int, factor: float) -> Run:
    path = study.folder / f"{count}-a-class" / f"{arm.replace(' ', '-')}-lr{factor:g}-seed{seed}"
    before = time.perf_counter()
    run = train_or_reuse(_config(study, arm, count, seed, factor), path, study.device, progress=False)
    study.say(f"{count} a class, {arm}, learning rate ×{factor:g}, seed {seed}: {time.perf_counter() - before:.0f} s")
    return run


def _measure(study: _Study, arm: str, count: int) -> ArmResult:
    """The learning rate by the first seed's validation images, then the other seeds with it."""
    first, *others = study.seeds
    # the head alone takes the largest rate untried, which keeps this side arm cheap; the report says so
    factors = study.lr_factors[-1:] if arm == HEAD_ONLY else study.lr_factors
    tried = {factor: _train(study, arm, count, first, factor) for factor in factors}
    validated = {factor: _validate(study, run) for factor, run in tried.items()}
    best = max(validated, key=lambda factor: (validated[factor].accuracy, -validated[factor].nll))
    runs = [tried[best], *(_train(study, arm, count, seed, best) for seed in others)]
    return ArmResult(
        arm=arm,
        lr_factor=best,
        tried={factor: evaluation.accuracy for factor, evaluation in validated.items()},
        accuracies=tuple(_of_test(runs, "accuracy")),
        train_seconds=tuple(_of_test(runs, "train_seconds")),
        runs=tuple(str(run.path) for run in runs),
    )


def _validate(study: _Study, run: Run) -> Evaluation:
    return evaluate_model(run.load_model(), study.validation, run.preprocessing)


def _of_test(runs: Sequence[Run], key: str) -> Iterator[float]:
    return (float(getattr(run.test_results, key)) for run in runs)


# --- the whole -----------------------------------------------------------------------------------------------------


def _result(
    study: _Study, source: str, target: str, preset: str, rows: tuple[Row, ...], tests: int, settings: Sequence[str]
) -> Transfer:
    threads = study.pretrained.resolved.threads
    return Transfer(
        source=source,
        target=target,
        preset=preset,
        seeds=len(study.seeds),
        test_images=tests,
        rows=rows,
        verdict=verdict(source, target, rows, len(study.seeds)),
        pretrained=_pretrained_facts(study.pretrained, rows),
        settings={
            "learning rates tried": [f"×{factor:g}" for factor in study.lr_factors],
            "epochs on the target": f"{study.epochs:g}, and at least {study.fewest_steps} steps",
            "validation images": f"{len(study.validation):,}, of the first seed",
            "image size": "×".join(map(str, study.pretrained.preprocessing.image_size)),
            "settings": list(settings),
        },
        hardware=f"{hardware.describe()}, {threads} thread{'s' * (threads != 1)} used",
        report=study.folder.parent / "report.html",
        results=study.folder.parent / "transfer.json",
    )


def _pretrained_facts(run: Run, rows: Sequence[Row]) -> dict[str, Any]:
    fine_tuned = Run.open(rows[0].arms[FINE_TUNED].runs[0])
    return {
        "run": str(run.path),
        "epochs": run.config.train.epochs,
        "test_accuracy": run.test_results.accuracy,
        "train_seconds": run.test_results.train_seconds,
        "weights_fitted": fine_tuned.resolved.starting_weights,
    }
