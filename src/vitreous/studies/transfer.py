"""What does pre-training on other images gain when labels are few? Pre-train once, then train with and without it.

All arms get the same labelled images, steps and batches, and a learning rate chosen on validation images; nothing is
chosen on the test set. Every training is a run folder of its own: finished runs are reused, so the same command goes
on where it stopped.
"""

from __future__ import annotations

import sys
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vitreous import hardware
from vitreous.config import Config, ViTConfig, configure
from vitreous.data.datasets import Dataset, Split, load_dataset
from vitreous.data.sampler import BatchSampler
from vitreous.data.splits import keep_per_class
from vitreous.errors import ConfigError, DataError
from vitreous.evaluation.prediction import evaluate_model
from vitreous.reports.formats import by, plural
from vitreous.runs import Run, report_folder
from vitreous.studies.grid import train_or_reuse
from vitreous.studies.transfer_report import (
    FINE_TUNED,
    HEAD_ONLY,
    SCRATCH,
    ArmResult,
    Row,
    Transfer,
    gains_over_scratch,
    render_table,
    verdict,
    write_transfer,
)

__all__ = ["Transfer", "render_table", "transfer"]

#: Images on which learning rates are chosen: some of those whose labels the study withholds from training anyway.
VALIDATION_PER_CLASS = 100
_FEWEST_VALIDATION_PER_CLASS = 10
#: On the target: with few images, many steps are worth more than large batches.
LARGEST_BATCH, _SMALLEST_BATCH, _STEPS_PER_EPOCH = 64, 16, 4


@dataclass(frozen=True)
class _Study:
    """What all trainings on the target share."""

    base: Config  # on the target, without weights, labels or seed
    pretrained: Run
    folder: Path
    validation: Split  # of the first seed; none of its images is trained on, however many labels there are
    num_classes: int
    seeds: tuple[int, ...]
    lr_factors: tuple[float, ...]
    epochs: float
    fewest_steps: int
    device: str
    progress: bool


def transfer(
    source: str = "fashion-mnist",
    target: str = "mnist",
    per_class: Sequence[int] = (10, 100, 1000),
    seeds: int = 3,
    preset: str = "vit",
    *,
    pretrain_epochs: float = 5.0,
    epochs: float = 2.0,
    fewest_steps: int = 300,
    lr_factors: Sequence[float] = (0.3, 1.0, 3.0),
    out: Path | str | None = None,
    settings: Sequence[str] = (),
    device: str = "auto",
    progress: bool = True,
) -> Transfer:
    """Pre-train `preset` on `source`, then learn `target` from `per_class` labelled images with and without it.

    Every training on the target takes `epochs` epochs, but at least `fewest_steps` steps. `lr_factors` multiply the
    preset's learning rates; each arm takes the one with the best validation accuracy.
    """
    counts = _check(source, target, per_class, seeds, lr_factors)
    folder = report_folder(out, Path("runs") / f"transfer-{_stem(source)}-{_stem(target)}")
    config = configure(preset, settings=settings, data=source)
    if not isinstance(config.model, ViTConfig):
        raise ConfigError(f"--preset {preset}: transfer is for ViTs, and this is a {config.model.kind}")
    _check_enough(load_dataset(config.data.replace(name=target, val_fraction=0)), counts[-1])
    before = config.replace(train=config.train.replace(epochs=pretrain_epochs))
    pretrained = train_or_reuse(before, folder / "runs" / "pretrained", device, progress)
    base = _on_target(config, target, pretrained)
    dataset = load_dataset(base.data)
    study = _Study(
        base=base,
        pretrained=pretrained,
        folder=folder / "runs",
        validation=_validation_images(dataset.train, counts[-1], base.seed),
        num_classes=dataset.num_classes,
        seeds=tuple(range(config.seed, config.seed + seeds)),
        lr_factors=tuple(sorted(set(lr_factors))),
        epochs=epochs,
        fewest_steps=fewest_steps,
        device=device,
        progress=progress,
    )
    tables = [{arm: _measure(study, arm, count) for arm in (SCRATCH, FINE_TUNED, HEAD_ONLY)} for count in counts]
    rows = tuple(
        Row(count, count * study.num_classes, *_steps_and_batch(study, count), table, gains)
        for count, table, gains in zip(counts, tables, gains_over_scratch(tables), strict=True)
    )
    threads = plural(pretrained.resolved.threads, "thread")
    result = Transfer(
        source=source,
        target=target,
        preset=preset,
        seeds=seeds,
        test_images=len(dataset.test),
        rows=rows,
        verdict=verdict(source, target, rows, seeds),
        pretrained={
            "run": str(pretrained.path),
            "epochs": pretrain_epochs,
            "test_accuracy": pretrained.test_results.accuracy,
            "train_seconds": pretrained.test_results.train_seconds,
            "weights_fitted": Run.open(rows[0].arms[FINE_TUNED].runs[0]).resolved.starting_weights,
        },
        settings={
            "learning rates tried": [f"×{factor:g}" for factor in study.lr_factors],
            "epochs on the target": f"{epochs:g}, and at least {fewest_steps} steps",
            "validation images": f"{len(study.validation):,}, of the first seed",
            "image size": by(*pretrained.preprocessing.image_size),
            "settings": list(settings),
        },
        hardware=f"{hardware.describe()}, {threads} used",
        report=folder / "report.html",
        results=folder / "results.json",
    )
    return write_transfer(result)


def _stem(data: str) -> str:
    return Path(data).stem or "data"


def _check(
    source: str, target: str, per_class: Sequence[int], seeds: int, lr_factors: Sequence[float]
) -> tuple[int, ...]:
    if source == target:
        raise ConfigError(f"--from-data and --to are both {source!r}: name other images to pre-train on")
    if seeds < 2:
        raise ConfigError(f"--seeds {seeds}: at least 2, since one training cannot show whether a gain is chance")
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
            f" {_FEWEST_VALIDATION_PER_CLASS} are kept for validation; use at most {max(left, 0)}"
        )


def _on_target(config: Config, target: str, pretrained: Run) -> Config:
    """Return the configuration on the target, with images resized to those of pre-training: a patch then covers the
    same share of the image, and the position embeddings fit. All arms see the same pixels."""
    size = config.data.image_size or pretrained.preprocessing.image_size
    return config.replace(
        data=config.data.replace(name=target, image_size=size, val_fraction=0, split_seed=config.seed)
    )


def _validation_images(train: Split, most: int, seed: int) -> Split:
    """Return images that this seed never trains on: `keep_per_class` takes the first of a fixed order, these follow."""
    more = keep_per_class(train.labels, most + VALIDATION_PER_CLASS, seed)
    return train.take(np.setdiff1d(more, keep_per_class(train.labels, most, seed)))


# --- one arm at one number of labels ---------------------------------------------------------------------------------


def _steps_and_batch(study: _Study, count: int) -> tuple[int, int]:
    images = count * study.num_classes
    batch = min(LARGEST_BATCH, study.base.train.batch_size, max(_SMALLEST_BATCH, images // _STEPS_PER_EPOCH), images)
    return max(study.fewest_steps, round(study.epochs * images / batch)), batch


def _config(study: _Study, arm: str, count: int, seed: int, factor: float) -> Config:
    steps, batch = _steps_and_batch(study, count)
    base, train = study.base, study.base.train
    epochs = steps / BatchSampler(count * study.num_classes, batch, seed).steps_per_epoch
    changed = train.replace(
        lr=train.lr * factor, muon_lr=train.muon_lr * factor, batch_size=batch, epochs=epochs,
        min_steps_per_epoch=1, freeze="backbone" if arm == HEAD_ONLY else "none",
    )  # fmt: skip
    weights = None if arm == SCRATCH else str(study.pretrained.path)
    return base.replace(
        # every seed draws other labelled images: their choice matters more than anything else
        data=base.data.replace(train_per_class=count, split_seed=seed),
        train=changed, start=base.start.replace(weights=weights), seed=seed,
    )  # fmt: skip


def _train(study: _Study, arm: str, count: int, seed: int, factor: float) -> Run:
    path = study.folder / f"{count}-per-class" / f"{arm.replace(' ', '-')}-lr{factor:g}-seed{seed}"
    before = time.perf_counter()
    run = train_or_reuse(_config(study, arm, count, seed, factor), path, study.device, progress=False)
    if study.progress:
        elapsed = time.perf_counter() - before
        line = f"{count} per class, {arm}, learning rate ×{factor:g}, seed {seed}: {elapsed:.0f} s"
        print(line, file=sys.stderr, flush=True)
    return run


def _measure(study: _Study, arm: str, count: int) -> ArmResult:
    """Choose the learning rate on the first seed's validation images, then train the other seeds with it."""
    first, *others = study.seeds
    # the head alone takes the largest rate untested, which keeps this side arm cheap; the report states it
    factors = study.lr_factors[-1:] if arm == HEAD_ONLY else study.lr_factors
    tried = {factor: _train(study, arm, count, first, factor) for factor in factors}
    validated = {
        factor: evaluate_model(run.load_model(), study.validation, run.preprocessing) for factor, run in tried.items()
    }
    best = max(validated, key=lambda factor: (validated[factor].accuracy, -validated[factor].nll))
    runs = [tried[best], *(_train(study, arm, count, seed, best) for seed in others)]
    return ArmResult(
        arm=arm,
        lr_factor=best,
        tried={factor: evaluation.accuracy for factor, evaluation in validated.items()},
        accuracies=tuple(run.test_results.accuracy for run in runs),
        train_seconds=tuple(run.test_results.train_seconds for run in runs),
        runs=tuple(str(run.path) for run in runs),
    )
