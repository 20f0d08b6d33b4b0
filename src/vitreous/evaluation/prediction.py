"""Predict and evaluate: logits of labelled sets, and predictions for a user's own images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.data.datasets import Dataset, Split
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import DataError
from vitreous.evaluation import blank, display, metrics
from vitreous.evaluation.class_metrics import ClassMetrics, balanced_accuracy, macro_f1, per_class_metrics
from vitreous.evaluation.novelty import Novelty
from vitreous.hardware import one_thread, prepare
from vitreous.models.fast.inference import Reduce as Reduce  # for those who call compute_outputs
from vitreous.models.fast.inference import infer, infer_outputs
from vitreous.models.representations import Representations
from vitreous.runs import Run, load_run_data


@dataclass(frozen=True)
class Evaluation:
    """A model's logits on a labelled set, and the temperature of its run."""

    __repr__ = display.evaluation_line
    _repr_html_ = display.evaluation_html
    to_pandas = display.evaluation_frame

    logits: np.ndarray  # (n, classes)
    labels: np.ndarray  # (n,)
    temperature: float = 1.0
    class_names: tuple[str, ...] = ()
    lost_patches: Tensor | None = None  # (n,): patches with ink that became no tokens; None: all become tokens

    @property
    def count(self) -> int:
        return len(self.labels)

    @property
    def probabilities(self) -> np.ndarray:
        return calibrated(torch.from_numpy(self.logits), self.temperature).numpy()

    @property
    def correct(self) -> int:
        return int(metrics.correct(self.logits, self.labels).sum())

    @property
    def accuracy(self) -> float:
        return self.correct / self.count

    @property
    def nll(self) -> float:
        return metrics.nll(self.logits / self.temperature, self.labels)

    @property
    def raw_nll(self) -> float:
        """The negative log likelihood with temperature 1."""
        return metrics.nll(self.logits, self.labels)

    @property
    def calibration_error(self) -> float:
        return metrics.calibration_error(self.probabilities, self.labels)

    @property
    def raw_calibration_error(self) -> float:
        """The calibration error with temperature 1."""
        return metrics.calibration_error(calibrated(torch.from_numpy(self.logits), 1.0), self.labels)

    @cached_property
    def confusion(self) -> np.ndarray:
        """(classes, classes) counts: row = label, column = prediction."""
        return metrics.confusion_matrix(self.logits, self.labels)

    @property
    def per_class(self) -> list[ClassMetrics]:
        """Precision, recall, F1 and support of every class."""
        return per_class_metrics(self.confusion, self.class_names)

    @property
    def macro_f1(self) -> float:
        return macro_f1(self.confusion)

    @property
    def balanced_accuracy(self) -> float:
        return balanced_accuracy(self.confusion)

    def probability_summary(self) -> dict[str, float]:
        """What depends on the temperature."""
        names = ("nll", "calibration_error", "raw_nll", "raw_calibration_error")
        return {name: getattr(self, name) for name in names}

    def summary(self) -> dict[str, float | int]:
        counts = {"accuracy": self.accuracy, "correct": self.correct, "count": self.count}
        return {**counts, **self.probability_summary()}


def calibrated(logits: Tensor, temperature: float) -> Tensor:
    """Return probabilities (…, classes), from logits or log-probabilities."""
    return (logits / temperature).softmax(dim=-1)


def compute_logits(
    model: nn.Module, images: Tensor | Split, preprocessing: Preprocessing, batch_size: int = 500
) -> Tensor:
    """Return the logits (n, classes) of uint8 images (n, C, H, W), in eval mode; the model's mode is restored."""
    (logits,) = _in_batches(lambda x: (infer(model, x),), model, images, preprocessing, batch_size)
    return logits


def compute_outputs(
    model: nn.Module, images: Tensor | Split, preprocessing: Preprocessing, reduce: Reduce, batch_size: int = 500
) -> tuple[Tensor, ...]:
    """Return what `reduce` makes of the logits and the representations, which may not fit into memory for all images.

    It gets those of a part of a batch, in several threads, and returns tensors with one row per image.
    """
    return _in_batches(lambda x: infer_outputs(model, x, reduce), model, images, preprocessing, batch_size)


@torch.inference_mode()
def _in_batches(
    outputs: Callable[[Tensor], tuple[Tensor, ...]],
    model: nn.Module,
    images: Tensor | Split,
    preprocessing: Preprocessing,
    batch_size: int,
) -> tuple[Tensor, ...]:
    was_training = model.training
    model.eval()
    first = next(model.parameters())
    found: list[Tensor] = []  # for all images: many small results between large temporary ones fragment the heap
    done = 0
    for batch in _batches(images, min(batch_size, max(1, len(images)))):
        with one_thread():
            x = preprocessing.to_input(batch.to(first.device)).to(first.dtype)
        of_batch = [output.float().cpu() for output in outputs(x)]
        found = found or [output.new_empty(len(images), *output.shape[1:]) for output in of_batch]
        for whole, part in zip(found, of_batch, strict=True):
            whole[done : done + len(batch)] = part
        done += len(batch)
    model.train(was_training)
    return tuple(found)


def _batches(images: Tensor | Split, size: int) -> Iterable[Tensor]:
    return images.batches(size) if isinstance(images, Split) else images.split(size)


def evaluate_model(
    model: nn.Module, split: Split, preprocessing: Preprocessing, batch_size: int = 500, temperature: float = 1.0
) -> Evaluation:
    logits = compute_logits(model, split, preprocessing, batch_size)
    return Evaluation(logits.numpy(), split.labels.numpy(), temperature)


def evaluate_run(
    run: Run,
    split_name: str = "test",
    batch_size: int | None = None,
    data: str | None = None,
    log: Callable[[str], None] = lambda note: None,
) -> Evaluation:
    """Evaluate a run on a split of the data it was trained on, or of other data with as many classes."""
    prepare()
    dataset = load_run_data(run, data)
    if dataset.num_classes != len(run.class_names):
        raise DataError(
            f"{dataset.name} has {dataset.num_classes} classes and the model {len(run.class_names)}:"
            " choose data with as many, or fine-tune with `vitreous train --from`"
        )
    if dataset.class_names != tuple(run.class_names):
        log(
            f"note: the classes of {dataset.name} have other names ({', '.join(dataset.class_names[:3])}, …) than the"
            f" model's ({', '.join(run.class_names[:3])}, …); they are matched in order"
        )
    split = choose_split(dataset, split_name)
    batch_size = batch_size or run.config.train.eval_batch_size
    model = run.load_model()
    found = evaluate_model(model, split, run.preprocessing, batch_size, run.temperature)
    lost = blank.lost_patches(model, split, run.preprocessing) if blank.skips(model) else None
    return replace(found, class_names=tuple(run.class_names), lost_patches=lost)


def choose_split(dataset: Dataset, name: str) -> Split:
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    if name not in splits:
        raise DataError(f"there is no split {name!r}; choose from train, val, test")
    if not len(splits[name]):
        raise DataError(f"the {name} split of {dataset.name} is empty; choose another with --split")
    return splits[name]


@dataclass(frozen=True)
class Prediction:
    """The prediction for one image, and how the image became the model's input."""

    __repr__ = display.prediction_line
    _repr_html_ = display.prediction_html
    to_pandas = display.prediction_frame

    label: str
    probability: float
    probabilities: dict[str, float]
    pixels: np.ndarray  # uint8 (C, H, W): what the model saw, before normalisation
    notes: tuple[str, ...]
    novelty: float | None = None  # relative to the threshold: above 1 is unlike; None: not measured in this run

    @property
    def unlike(self) -> bool | None:
        """Whether the image is unlike those the model was trained on; None where that is not measured."""
        return None if self.novelty is None else self.novelty > 1

    def most_probable(self, count: int | None = None) -> list[tuple[str, float]]:
        """Return (class, probability), the most probable first; without `count`, all in the order of the classes."""
        pairs = list(self.probabilities.items())
        return pairs if count is None else sorted(pairs, key=lambda pair: -pair[1])[:count]

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "probability": self.probability,
            "probabilities": self.probabilities,
            "novelty": self.novelty,
            "unlike": self.unlike,
            "notes": list(self.notes),
        }


class Predictor:
    """A run's model, ready to predict any number of batches."""

    def __init__(self, run: Run):
        self.run, self.model, self.novelty = run, run.load_model(), Novelty.of_run(run)

    def __call__(self, pixels: Tensor) -> tuple[Tensor, Tensor | None]:
        """Return probabilities (n, classes) and, where the run measures it, the novelty (n,) of uint8 (n, C, H, W)."""
        if self.novelty is None:
            logits, novelty = compute_logits(self.model, pixels, self.run.preprocessing), None
        else:
            logits, novelty = compute_outputs(self.model, pixels, self.run.preprocessing, self._with_novelty)
        with one_thread():
            return calibrated(logits, self.run.temperature), novelty

    def _with_novelty(self, logits: Tensor, parts: Representations) -> tuple[Tensor, Tensor]:
        assert self.novelty is not None
        with one_thread():
            return logits, self.novelty.score(parts)


def predict_images(run: Run, images: Sequence[Any] | Iterable[Any]) -> list[Prediction]:
    """Predict a user's own images: paths, bytes, PIL images or arrays, of any size."""
    prepare()
    predictor = Predictor(run)
    prepared = [run.preprocessing.prepare(Path(image) if isinstance(image, str) else image) for image in images]
    if not prepared:
        return []
    pixels = torch.from_numpy(np.stack([one.pixels for one in prepared]))
    return to_predictions(predictor, pixels, [one.notes for one in prepared])


def to_predictions(predictor: Predictor, pixels: Tensor, notes: Sequence[tuple[str, ...]]) -> list[Prediction]:
    """Predict uint8 images (n, C, H, W); `notes` are on how each was prepared."""
    probabilities, novelty = predictor(pixels)
    names = predictor.run.class_names
    best = probabilities.argmax(dim=1).tolist()
    scores = [None] * len(best) if novelty is None else novelty.tolist()
    return [
        Prediction(names[index], row[index], dict(zip(names, row, strict=True)), image, note, score)
        for index, row, image, note, score in zip(
            best, probabilities.tolist(), pixels.numpy(), notes, scores, strict=True
        )
    ]
