"""Calibration: the temperature that makes probabilities mean what they say, fitted on validation images (Guo, 2017).

Probabilities are softmax(logits / T) everywhere; the logits and the predicted class never change. Label smoothing
leaves every confident prediction at 91 %, so T is below 1 there; an overconfident model has T above 1.

Shapes: n images, c classes.
"""

from __future__ import annotations

from collections.abc import Callable

import numpy as np
import torch
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from vitreous.data.datasets import Dataset, Split
from vitreous.errors import DataError, RunError
from vitreous.evaluation.novelty import LEAST_VALIDATION, Part, combine_parts, fit_part, novelty_record
from vitreous.evaluation.prediction import Evaluation, Reduce, compute_outputs, evaluate_model
from vitreous.hardware import prepare
from vitreous.models.representations import Representations, representation_names
from vitreous.reports.formats import percent
from vitreous.runs import Calibration, Fitted, Run, load_run_data, write_calibration

COLDEST, HOTTEST = 0.05, 20.0
LEAST_IMAGES = 30  # validation images; a temperature from fewer is often worse than none (docs/calibration.md)
FEW_IMAGES = 100  # a temperature from fewer is uncertain
MOST_TRAINING = 5000  # images whose statistics are taken: more change the figures little
MOST_SCORES = 2**20  # in float64 that are in memory at a time
MOST_VALUES = 2**25  # of one representation that are in memory at a time


def fit_temperature(logits: NDArray[np.floating], labels: NDArray[np.integer]) -> float:
    """Return the temperature with the least negative log likelihood, between 0.05 and 20.

    As in Platt's scaling, each label counts as certain to (n + 1) / (n + 2) only: else the best temperature of a model
    that predicts all n images correctly would be 0. The loss is convex in 1 / T, so its derivative has one zero.
    """
    scores, truth = np.asarray(logits), np.asarray(labels)
    n, c = scores.shape
    if n == 0 or c < 2 or not np.isfinite(scores).all() or np.ptp(scores, axis=1).max() == 0:
        return 1.0  # nothing to fit
    certainty = (n + 1) / (n + 2)

    def mean(of_rows: Callable[[NDArray[np.float64], NDArray[np.integer]], NDArray[np.float64]]) -> float:
        """Return the mean over images of what is computed for a part of them at a time."""
        size, parts = max(1, MOST_SCORES // c), []
        for start in range(0, n, size):
            some = scores[start : start + size].astype(np.float64)
            parts.append(of_rows(some - some.max(axis=1, keepdims=True), truth[start : start + size]))
        return float(np.concatenate(parts).mean())

    def under_smoothed_label(some: NDArray[np.float64], labels: NDArray[np.integer]) -> NDArray[np.float64]:
        of_label = some[np.arange(len(some)), labels]
        others = (some.sum(axis=1) - of_label) / (c - 1)
        return np.asarray(certainty * of_label + (1 - certainty) * others)

    wanted = mean(under_smoothed_label)

    def slope(inverse: float) -> float:
        return mean(lambda some, _: (special.softmax(inverse * some, axis=1) * some).sum(axis=1)) - wanted

    low, high = 1 / HOTTEST, 1 / COLDEST
    if slope(low) >= 0:
        return HOTTEST
    if slope(high) <= 0:
        return COLDEST
    for _ in range(60):
        middle = float(np.sqrt(low * high))
        low, high = (middle, high) if slope(middle) < 0 else (low, middle)
    return 1 / float(np.sqrt(low * high))


#: a split → what `reduce` makes of its images, in their order
Compute = Callable[[Split, Reduce], tuple[Tensor, ...]]


def fit_calibration(compute: Compute, dataset: Dataset, names: tuple[str, ...]) -> Fitted | None:
    """Return the calibration of a model by its outputs on the validation split and on a part of the training split.

    None where there are no validation images. `names`: of the model's representations.
    """
    if not len(dataset.val):
        return None
    parts = fit_parts(compute, dataset.train, len(names)) if len(dataset.val) >= LEAST_VALIDATION else []
    fitted_parts = [part for part in parts if part is not None]

    def logits_and_distances(logits: Tensor, representations: Representations) -> tuple[Tensor, ...]:
        pairs = zip(fitted_parts, representations, strict=True)
        return logits, *(part.distance(values.cpu().double()) for part, values in pairs)

    def only_logits(logits: Tensor, _: Representations) -> tuple[Tensor, ...]:
        return (logits,)

    notes = []
    if len(dataset.val) < LEAST_IMAGES:
        notes.append(f"no temperature is fitted: fewer than {LEAST_IMAGES} validation images")
    if not names:
        notes.append("novelty is not measured: this model mixes the images of a batch")
    elif not parts:
        notes.append(f"novelty is not measured: fewer than {LEAST_VALIDATION} validation images")
    elif len(fitted_parts) < len(parts):
        notes.append("novelty is not measured: the representations of the training images do not vary within a class")
        fitted_parts = []
    val_logits, *distances = compute(dataset.val, logits_and_distances if fitted_parts else only_logits)
    novelty, record = None, None
    if fitted_parts:
        novelty, share = combine_parts(fitted_parts, torch.stack(distances, dim=1))
        record = novelty_record(novelty, share, names, len(statistics_sample(dataset.train)), len(dataset.val))
    logits, labels = val_logits.numpy(), dataset.val.labels.numpy()
    temperature = fit_temperature(logits, labels) if len(labels) >= LEAST_IMAGES else 1.0
    raw, calibrated = Evaluation(logits, labels), Evaluation(logits, labels, temperature)
    if LEAST_IMAGES <= len(labels) < FEW_IMAGES:
        notes.append(f"fitted on {len(labels)} validation images only: the temperature is uncertain")
    calibration = Calibration(
        temperature=temperature,
        data=dataset.name,
        images=len(labels),
        nll=calibrated.nll,
        raw_nll=raw.nll,
        calibration_error=calibrated.calibration_error,
        raw_calibration_error=raw.calibration_error,
        novelty=record,
        notes=tuple(notes),
    )
    return calibration, None if novelty is None else novelty.to_bytes()


def fit_parts(compute: Compute, train: Split, count: int) -> list[Part | None]:
    """Return the statistics of each of `count` representations; None for one that does not vary."""
    sample, parts = statistics_sample(train), []
    for number in range(count):

        def one(_: Tensor, representations: Representations, number: int = number) -> tuple[Tensor, ...]:
            return (representations[number],)

        (first,) = compute(sample.take(np.zeros(1, np.int64)), one)
        # of a representation with many places, fewer images fit into memory, and are enough
        chosen = statistics_sample(sample, max(20, MOST_VALUES // first.numel()))
        (values,) = compute(chosen, one)
        parts.append(fit_part(values, chosen.labels))
    return parts


def statistics_sample(split: Split, most: int = MOST_TRAINING) -> Split:
    """Return the training images whose statistics are taken: all, or evenly spaced ones, so of every class."""
    count = len(split)
    return split if count <= most else split.take(np.linspace(0, count - 1, most).astype(np.int64))


def calibrate_run(run: Run, data: str | None = None, log: Callable[[str], None] = lambda note: None) -> Calibration:
    """Fit the calibration of an existing run and store it; `data`: for a converted run, which has none of its own."""
    if data is not None and run.config.data.name:
        raise RunError(
            f"{str(run.path)!r} was trained on {run.config.data.name!r}, whose validation images calibrate it: leave"
            " out --data"
        )
    prepare()
    model = run.load_model()
    dataset = load_run_data(run, data)
    if dataset.class_names != tuple(run.class_names):
        raise DataError(
            f"the classes of {dataset.name} ({', '.join(dataset.class_names[:3])}, …) are not the model's"
            f" ({', '.join(run.class_names[:3])}, …): calibrate on images of the same classes"
        )
    if not len(dataset.val):
        raise DataError(
            f"{dataset.name} has no validation images, and probabilities are calibrated on them: give it a val/ folder,"
            " or set data.val_fraction above 0 when training"
        )
    batch_size = run.config.train.eval_batch_size

    def compute(split: Split, reduce: Reduce) -> tuple[Tensor, ...]:
        return compute_outputs(model, split, run.preprocessing, reduce, batch_size)

    fitted = fit_calibration(compute, dataset, representation_names(model))
    assert fitted is not None
    test = run.record.results.test
    if test is not None:  # what its probabilities are worth now; the predictions are the same
        again = evaluate_model(model, dataset.test, run.preprocessing, batch_size, fitted[0].temperature)
        test = test.model_copy(update=again.probability_summary())
    try:
        with run.locked():
            write_calibration(run, fitted, test)
    except OSError as error:
        raise RunError(
            f"cannot write to {str(run.path)!r}: {error.strerror or error}; make it writable, or calibrate a copy"
        ) from None
    for note in fitted[0].notes:
        log(f"note: {note}")
    return fitted[0]


def in_words(calibration: Calibration) -> str:
    """Return what was fitted, and what it changed, in a sentence."""
    before, after = (percent(error, 2) for error in (calibration.raw_calibration_error, calibration.calibration_error))
    if calibration.images < LEAST_IMAGES:
        return f"the probabilities are not calibrated (temperature 1): calibration error {before}"
    return (
        f"temperature {calibration.temperature:.3g}, fitted on {calibration.images:,} validation images: calibration"
        f" error {before} before, {after} after"
    )
