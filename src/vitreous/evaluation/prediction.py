"""Predict and evaluate: logits of labelled sets, and predictions for a user's own images."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.data.datasets import Dataset, Split
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import DataError
from vitreous.evaluation import metrics
from vitreous.hardware import prepare
from vitreous.models.fast.inference import infer
from vitreous.runs import Run, load_run_data


@dataclass(frozen=True)
class Evaluation:
    """A model's logits on a labelled set."""

    logits: np.ndarray  # (n, classes)
    labels: np.ndarray  # (n,)

    @property
    def count(self) -> int:
        return len(self.labels)

    @property
    def probabilities(self) -> np.ndarray:
        return torch.from_numpy(self.logits).softmax(dim=1).numpy()

    @property
    def correct(self) -> int:
        return int(metrics.correct(self.logits, self.labels).sum())

    @property
    def accuracy(self) -> float:
        return self.correct / self.count

    @property
    def nll(self) -> float:
        return metrics.nll(self.logits, self.labels)

    @property
    def calibration_error(self) -> float:
        return metrics.calibration_error(self.probabilities, self.labels)

    def summary(self) -> dict[str, float | int]:
        return {
            "accuracy": self.accuracy,
            "correct": self.correct,
            "count": self.count,
            "nll": self.nll,
            "calibration_error": self.calibration_error,
        }


@torch.inference_mode()
def compute_logits(
    model: nn.Module, images: Tensor | Split, preprocessing: Preprocessing, batch_size: int = 500
) -> Tensor:
    """Return the logits (n, classes) of uint8 images (n, C, H, W), in eval mode; the model's mode is restored."""
    was_training = model.training
    model.eval()
    first = next(model.parameters())
    batches = [
        infer(model, preprocessing.to_input(batch).to(device=first.device, dtype=first.dtype)).float().cpu()
        for batch in _batches(images, min(batch_size, max(1, len(images))))
    ]
    model.train(was_training)
    return torch.cat(batches)


def _batches(images: Tensor | Split, size: int) -> Iterable[Tensor]:
    return images.batches(size) if isinstance(images, Split) else images.split(size)


def evaluate_model(model: nn.Module, split: Split, preprocessing: Preprocessing, batch_size: int = 500) -> Evaluation:
    return Evaluation(compute_logits(model, split, preprocessing, batch_size).numpy(), split.labels.numpy())


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
    return evaluate_model(run.load_model(), split, run.preprocessing, batch_size or run.config.train.eval_batch_size)


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

    label: str
    probability: float
    probabilities: dict[str, float]
    pixels: np.ndarray  # uint8 (C, H, W): what the model saw, before normalisation
    notes: tuple[str, ...]

    def as_json(self) -> dict[str, Any]:
        return {
            "label": self.label,
            "probability": self.probability,
            "probabilities": self.probabilities,
            "notes": list(self.notes),
        }


def predict_images(run: Run, images: Sequence[Any] | Iterable[Any]) -> list[Prediction]:
    """Predict a user's own images: paths, bytes, PIL images or arrays, of any size."""
    prepare()
    model = run.load_model()
    prepared = [run.preprocessing.prepare(Path(image) if isinstance(image, str) else image) for image in images]
    if not prepared:
        return []
    pixels = torch.from_numpy(np.stack([one.pixels for one in prepared]))
    probabilities = compute_logits(model, pixels, run.preprocessing).softmax(dim=1)
    return [
        Prediction(
            label=run.class_names[int(row.argmax())],
            probability=float(row.max()),
            probabilities={name: float(p) for name, p in zip(run.class_names, row, strict=True)},
            pixels=one.pixels,
            notes=one.notes,
        )
        for row, one in zip(probabilities, prepared, strict=True)
    ]
