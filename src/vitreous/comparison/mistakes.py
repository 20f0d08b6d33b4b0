"""`vitreous mistakes`: the images of a split with the highest loss, likely label errors and near-duplicates.

Loss is the negative log likelihood of the label. It is highest where the model is confident of another class: a wrong
label, an unusual image, or a limit of the model.
"""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special
from torch import Tensor

from vitreous.comparison.hard_images import HardImage, draw_hard_images, hard_image
from vitreous.comparison.label_checks import NearPairs, Suspects, find_near_pairs, find_suspects, suspects_csv
from vitreous.data.datasets import Dataset, Split, duplicates_between
from vitreous.errors import ConfigError
from vitreous.evaluation import metrics
from vitreous.evaluation.class_metrics import ClassMetrics
from vitreous.evaluation.metrics import Interval
from vitreous.evaluation.prediction import Evaluation, choose_split, compute_outputs
from vitreous.hardware import prepare
from vitreous.models.representations import Representations
from vitreous.reports.colors import model_styles
from vitreous.reports.confusion import MOST_DRAWN, commonest_confusions, draw_confusion, mistakes_only
from vitreous.reports.formats import percent, percent_decimals
from vitreous.reports.pages import write_report
from vitreous.runs import Run, load_run_data

MOST_SHOWN = 24
_MOST_CONFUSIONS = 10
_MOST_LISTED = 10_000  # likely label errors in gallery.json
_FIGURE_COLUMNS = 6
_MEASURES = ("macro_f1", "balanced_accuracy", "calibration_error", "raw_calibration_error")
_TEMPLATE = Path(__file__).with_name("mistakes.html.jinja")


@dataclass(frozen=True)
class ClassAccuracy:
    name: str
    count: int
    correct: int
    taken_for: tuple[str, int] | None  # the commonest wrong prediction, and how often

    @property
    def interval(self) -> Interval | None:
        """Wilson's; None for a class without images in the split."""
        return metrics.wilson_interval(self.correct, self.count) if self.count else None

    def as_dict(self) -> dict[str, Any]:
        interval = self.interval
        return {
            "class": self.name,
            "count": self.count,
            "correct": self.correct,
            "accuracy": interval.value if interval else None,
            "accuracy_interval": [interval.low, interval.high] if interval else None,
            "most_often_taken_for": self.taken_for[0] if self.taken_for else None,
        }


@dataclass(frozen=True)
class Mistakes:
    """One run's predictions on one split."""

    run: str
    model_name: str
    kind: str
    data_name: str
    split: str
    class_names: tuple[str, ...]
    worst: tuple[HardImage, ...]  # the highest loss first
    classes: tuple[ClassAccuracy, ...]
    confusions: tuple[tuple[str, str, int], ...]  # label, prediction, count; the commonest first
    class_metrics: tuple[ClassMetrics, ...]
    macro_f1: float
    balanced_accuracy: float
    calibration_error: float
    raw_calibration_error: float  # without temperature
    duplicates: int  # images of the split that are in the training set too
    suspects: Suspects | None  # likely label errors; None: not searched
    near: NearPairs  # near-duplicates
    notes: tuple[str, ...]
    losses: NDArray[np.float64] = field(repr=False)  # of every image of the split, in its order
    probabilities: NDArray[np.float64] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    paths: Sequence[str] = field(repr=False)

    @property
    def count(self) -> int:
        return len(self.labels)

    @property
    def correct(self) -> int:
        return sum(one.correct for one in self.classes)

    @property
    def accuracy(self) -> Interval:
        return metrics.wilson_interval(self.correct, self.count)

    @property
    def verdict(self) -> str:
        share = percent(self.accuracy.value, percent_decimals(self.count))
        start = f"{self.model_name} predicts {share} of {self.count:,} {self.split} images correctly"
        if self.correct == self.count:
            return f"{start}: no mistakes."
        label, prediction, times = self.confusions[0]
        often = f", most often {label} for {prediction} ({times}×)" if times > 1 else ""
        return f"{start} and takes {self.count - self.correct:,} for another class{often}."

    def as_dict(self) -> dict[str, Any]:
        """Return the content of `gallery.json`."""
        return {
            **{key: getattr(self, key) for key in ("run", "split", "count", "correct")},
            "data": self.data_name,
            "accuracy": self.accuracy.value,
            "accuracy_interval": [self.accuracy.low, self.accuracy.high],
            **{key: getattr(self, key) for key in _MEASURES},
            "classes": [
                one.as_dict() | {"precision": of_class.precision, "recall": of_class.recall, "f1": of_class.f1}
                for one, of_class in zip(self.classes, self.class_metrics, strict=True)
            ],
            "confusions": [{"label": a, "prediction": b, "times": times} for a, b, times in self.confusions],
            "also_in_training": self.duplicates,
            "label_errors": None if self.suspects is None else self._label_errors(self.suspects),
            "near_duplicates": self.near.as_dict(),
            "worst": [
                {
                    **{key: getattr(image, key) for key in ("index", "path", "label", "loss")},
                    "prediction": image.own.label,
                    "confidence": image.own.confidence,
                    "correct": image.own.correct,
                    "same_picture_in_training": image.duplicate,
                }
                for image in self.worst
            ],
            "notes": list(self.notes),
        }

    def _label_errors(self, suspects: Suspects) -> dict[str, Any]:
        """Return the likely label errors for `gallery.json`: the likeliest; `label-errors.csv` has all."""
        found = suspects.found
        columns = (found.indices, found.suggested, found.margins)
        rows = zip(*(column[:_MOST_LISTED].tolist() for column in columns), strict=True)
        return {
            "probabilities": suspects.method,
            "count": suspects.count,
            "images": [
                {
                    "index": index,
                    "path": self.paths[index] if self.paths else None,
                    "label": self.class_names[int(self.labels[index])],
                    "suggested": self.class_names[suggested],
                    "margin": margin,
                }
                for index, suggested, margin in rows
            ],
        }


def find_mistakes(run: Run, split: str = "test", most: int = MOST_SHOWN) -> Mistakes:
    """Evaluate a run on a split of its data and collect the `most` images with the highest loss."""
    if most < 1:
        raise ConfigError(f"--most {most}: at least 1 image")
    prepare()
    dataset = load_run_data(run)
    chosen = choose_split(dataset, split)

    def outputs(logits: Tensor, representations: Representations) -> tuple[Tensor, ...]:
        if split != "train":  # features are only for training images, whose own probabilities say little
            return (logits,)
        return logits, representations[-1] if representations else logits

    batch_size = run.config.train.eval_batch_size
    logits, *features = compute_outputs(run.load_model(), chosen, run.preprocessing, outputs, batch_size)
    evaluation = Evaluation(logits.numpy(), chosen.labels.numpy(), run.temperature, dataset.class_names)
    probabilities = special.softmax(evaluation.logits.astype(np.float64) / run.temperature, axis=1)
    labels = evaluation.labels.astype(np.int64)
    losses = metrics.image_nll(probabilities, labels)
    duplicates = {} if split == "train" else _duplicates(dataset, chosen)
    worst = tuple(
        hard_image(
            index, {run.config.name: probabilities}, int(labels[index]), chosen.image(index).numpy(),
            dataset.class_names, path=chosen.paths[index] if chosen.paths else None, duplicate=duplicates.get(index),
        )
        for index in map(int, np.argsort(-losses, kind="stable")[:most])
    )  # fmt: skip
    counts = metrics.confusion_matrix(probabilities, labels).astype(np.float64)
    notes = dataset.notes
    if split == "train":
        notes += ("these are the images it was trained on: their accuracy says nothing about new ones",)
    suspects = find_suspects(
        split, chosen, dataset, probabilities, (features or [logits])[0].numpy(), most, run.config.name
    )
    near = find_near_pairs(dataset, split)
    notes += (*near.notes, *((suspects,) if isinstance(suspects, str) else ()))
    commonest = commonest_confusions(counts, dataset.class_names, _MOST_CONFUSIONS)
    return Mistakes(
        run=str(run.path),
        model_name=run.config.name,
        kind=run.config.model.kind,
        data_name=dataset.name,
        split=split,
        class_names=dataset.class_names,
        worst=worst,
        classes=tuple(_class_accuracies(counts, dataset.class_names)),
        confusions=tuple((label, prediction, round(times)) for label, prediction, times in commonest),
        class_metrics=tuple(evaluation.per_class),
        **{key: getattr(evaluation, key) for key in _MEASURES},
        duplicates=len(duplicates),
        suspects=None if isinstance(suspects, str) else suspects,
        near=near,
        notes=notes,
        losses=losses,
        probabilities=probabilities,
        labels=labels,
        paths=chosen.paths,
    )


def _duplicates(dataset: Dataset, chosen: Split) -> dict[int, str]:
    """Return index in the split → path (or number) and label of the same image in the training set."""
    train, found = dataset.train, {}
    for known, index in duplicates_between(train, chosen):
        where = train.paths[known] if train.paths else f"image {known}"
        found[index] = f"{where} ({dataset.class_names[int(train.labels[known])]})"
    return found


def _class_accuracies(counts: NDArray[np.float64], class_names: Sequence[str]) -> list[ClassAccuracy]:
    result = []
    for label, (name, wrong) in enumerate(zip(class_names, mistakes_only(counts), strict=True)):
        commonest = int(wrong.argmax())
        taken_for = (class_names[commonest], int(wrong[commonest])) if wrong.any() else None
        result.append(ClassAccuracy(name, int(counts[label].sum()), int(counts[label, label]), taken_for))
    return result


def write_mistakes(found: Mistakes, folder: Path) -> Path:
    """Write `gallery.html`, `gallery.json`, `by-loss.csv`, `label-errors.csv` and the figures; return the page."""
    style = model_styles({found.model_name: found.kind})[found.model_name]
    counts = metrics.confusion_matrix(found.probabilities, found.labels).astype(np.float64)
    confusion = draw_confusion(counts, found.class_names, name="confusion", title=found.model_name, color=style.color)
    worst = draw_hard_images(found.worst, style, "worst", _FIGURE_COLUMNS, with_files=True)
    beside: dict[str, str | bytes | dict[str, Any]] = {"gallery.json": found.as_dict(), "by-loss.csv": _by_loss(found)}
    if found.suspects is not None:
        beside["label-errors.csv"] = suspects_csv(found.suspects, found.paths, found.labels, found.class_names)
    order = sorted(zip(found.classes, found.class_metrics, strict=True), key=lambda pair: _difficulty(pair[0]))
    return write_report(
        folder / "gallery.html",
        _TEMPLATE,
        title=f"What {found.model_name} finds hardest in {Path(found.data_name).name or found.data_name}",
        description=found.verdict,
        figures=[worst, confusion],
        beside=beside,
        found=found,
        styles={found.model_name: style},
        confusion=confusion,
        most_drawn=MOST_DRAWN,
        hardest_first=order,
        most_pairs=MOST_SHOWN,
    )


def _difficulty(one: ClassAccuracy) -> float:
    return one.interval.value if one.interval else 2.0  # classes without images come last


def _by_loss(found: Mistakes) -> bytes:
    """Return every image of the split as CSV, the highest loss first."""
    data = io.BytesIO()  # a StringIO takes four bytes per letter
    text = io.TextIOWrapper(data, "utf-8", newline="")
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["loss", "index", "path", "label", "prediction", "confidence"])
    for index in np.argsort(-found.losses, kind="stable"):
        row = found.probabilities[index]
        writer.writerow([
            f"{found.losses[index]:.6g}", int(index), found.paths[index] if found.paths else "",
            found.class_names[int(found.labels[index])], found.class_names[int(row.argmax())], f"{row.max():.6g}",
        ])  # fmt: skip
    text.flush()
    return data.getvalue()
