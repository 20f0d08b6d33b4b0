"""A run's answers on a split of its own data, the costliest first.

Loss is the negative log likelihood of the label. The images with the highest are those that the model is surest are
something else: a wrong label, a strange picture, or the model's own limits; a person can tell which at a glance.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import special

from vitreous.comparison.confusion import commonest_confusions
from vitreous.comparison.mistakes import Mistake, Opinion
from vitreous.data.datasets import Dataset, Split, duplicates_between, load_dataset
from vitreous.errors import ConfigError, DataError
from vitreous.evaluation import metrics
from vitreous.evaluation.prediction import evaluate_model
from vitreous.hardware import prepare
from vitreous.runs import Run, require_same_data

MOST_SHOWN = 24
_MOST_CONFUSIONS = 10


@dataclass(frozen=True)
class HardImage:
    """One image with a high loss, as the comparison draws a mistake, and where it came from."""

    mistake: Mistake  # it may be a right answer too, if there are few wrong ones
    loss: float
    path: str | None  # below the data's folder; None where the data are no folder
    twin: str | None  # the same picture in the training set: its path and label

    @property
    def alt(self) -> str:
        own = self.mistake.own
        where = f" ({self.path})" if self.path else ""
        return f"Image {self.mistake.index}{where}, labelled {self.mistake.truth}, answered {own.answer}, {own.percent}"

    def as_dict(self) -> dict[str, Any]:
        own = self.mistake.own
        return {
            "index": self.mistake.index,
            "path": self.path,
            "label": self.mistake.truth,
            "answer": own.answer,
            "confidence": own.confidence,
            "right": own.right,
            "loss": self.loss,
            "same_picture_in_training": self.twin,
        }


@dataclass(frozen=True)
class ClassAccuracy:
    name: str
    count: int
    correct: int
    taken_for: tuple[str, int] | None  # the commonest wrong answer, and how often

    @property
    def interval(self) -> metrics.Interval | None:
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
class Gallery:
    """What was found in a split."""

    run: str
    model_name: str
    kind: str
    data_name: str
    split: str
    class_names: tuple[str, ...]
    worst: tuple[HardImage, ...]  # the highest loss first
    classes: tuple[ClassAccuracy, ...]
    confusions: tuple[tuple[str, str, int], ...]  # label, answer, how often; the commonest first
    twins: int  # images of the split that also stand in the training set
    notes: tuple[str, ...]
    losses: NDArray[np.float64] = field(repr=False)  # of every image of the split, in its order
    probabilities: NDArray[np.float64] = field(repr=False)
    labels: NDArray[np.int64] = field(repr=False)
    paths: tuple[str, ...] = field(repr=False)

    @property
    def count(self) -> int:
        return len(self.labels)

    @property
    def correct(self) -> int:
        return sum(one.correct for one in self.classes)

    @property
    def accuracy(self) -> metrics.Interval:
        return metrics.wilson_interval(self.correct, self.count)

    @property
    def said(self) -> str:
        wrong = self.count - self.correct
        share = metrics.percent(self.accuracy.value, metrics.percent_decimals(self.count))
        start = f"{self.model_name} gets {share} of {self.count:,} {self.split} images right"
        if not wrong:
            return f"{start}: no mistakes."
        label, answer, times = self.confusions[0]
        often = f", most often {label} for {answer} ({times}×)" if times > 1 else ""
        return f"{start}; it takes {wrong:,} for something else{often}."

    def as_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "data": self.data_name,
            "split": self.split,
            "count": self.count,
            "correct": self.correct,
            "accuracy": self.accuracy.value,
            "accuracy_interval": [self.accuracy.low, self.accuracy.high],
            "classes": [one.as_dict() for one in self.classes],
            "confusions": [{"label": a, "answer": b, "times": times} for a, b, times in self.confusions],
            "also_in_training": self.twins,
            "worst": [image.as_dict() for image in self.worst],
            "notes": list(self.notes),
        }


def gallery(run: Run, split: str = "test", most: int = MOST_SHOWN) -> Gallery:
    """The run's answers on a split of its data, with the `most` images of highest loss."""
    if most < 1:
        raise ConfigError(f"--most {most}: at least 1 image")
    prepare()
    if not run.config.data.name:
        raise DataError(f"{str(run.path)!r} was converted and has no data of its own; train a run on yours first")
    dataset = load_dataset(run.config.data)
    require_same_data(run, dataset)
    if dataset.class_names != run.class_names:
        raise DataError(
            f"the classes of {dataset.name} are no longer those that {str(run.path)!r} was trained on; train it again"
        )
    chosen = _split(dataset, split)
    evaluation = evaluate_model(run.load_model(), chosen, run.preprocessing, run.config.train.eval_batch_size)
    probabilities = special.softmax(evaluation.logits.astype(np.float64), axis=1)
    labels = evaluation.labels.astype(np.int64)
    losses = metrics.image_nll(probabilities, labels)
    twins = {} if split == "train" else _twins(dataset, chosen)
    worst = [
        _hard_image(int(index), run.config.name, chosen, probabilities, losses, dataset.class_names, twins)
        for index in np.argsort(-losses, kind="stable")[:most]
    ]
    counts = metrics.confusion_matrix(probabilities, labels)
    return Gallery(
        run=str(run.path),
        model_name=run.config.name,
        kind=run.config.model.kind,
        data_name=dataset.name,
        split=split,
        class_names=dataset.class_names,
        worst=tuple(worst),
        classes=tuple(_class_accuracies(counts, dataset.class_names)),
        confusions=tuple(_confusions(counts, dataset.class_names, _MOST_CONFUSIONS)),
        twins=len(twins),
        notes=tuple(_notes(run, dataset, split)),
        losses=losses,
        probabilities=probabilities,
        labels=labels,
        paths=chosen.paths,
    )


def _split(dataset: Dataset, name: str) -> Split:
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}
    if name not in splits:
        raise DataError(f"there is no split {name!r}; choose from train, val, test")
    if not len(splits[name]):
        raise DataError(f"the {name} split of {dataset.name} is empty; choose another with --split")
    return splits[name]


def _twins(dataset: Dataset, chosen: Split) -> dict[int, str]:
    """Index in the split → what the same picture is called in the training set."""
    found = {}
    for known, index in duplicates_between(dataset.train, chosen):
        label = dataset.class_names[int(dataset.train.labels[known])]
        found[index] = f"{dataset.train.paths[known]} ({label})" if dataset.train.paths else f"image {known} ({label})"
    return found


def _hard_image(
    index: int,
    model: str,
    split: Split,
    probabilities: NDArray[np.float64],
    losses: NDArray[np.float64],
    class_names: Sequence[str],
    twins: dict[int, str],
) -> HardImage:
    row, label = probabilities[index], int(split.labels[index])
    answer = int(row.argmax())
    own = Opinion(model, class_names[answer], float(row[answer]), answer == label)
    mistake = Mistake(index, class_names[label], own, (), split.images[index].numpy())
    return HardImage(mistake, float(losses[index]), split.paths[index] if split.paths else None, twins.get(index))


def _class_accuracies(counts: NDArray[np.int64], class_names: Sequence[str]) -> list[ClassAccuracy]:
    """A class each, in the data's order."""
    result = []
    for label, name in enumerate(class_names):
        others = counts[label].copy()
        others[label] = 0
        commonest = int(others.argmax())
        taken_for = (class_names[commonest], int(others[commonest])) if others[commonest] else None
        result.append(ClassAccuracy(name, int(counts[label].sum()), int(counts[label, label]), taken_for))
    return result


def _confusions(counts: NDArray[np.int64], class_names: Sequence[str], most: int) -> list[tuple[str, str, int]]:
    found = commonest_confusions(counts.astype(np.float64), class_names, most)
    return [(label, answer, round(times)) for label, answer, times in found]


def _notes(run: Run, dataset: Dataset, split: str) -> list[str]:
    notes = list(dataset.notes)
    if split == "train":
        notes.append("these are the images it learnt from: their accuracy says nothing about new ones")
    return notes
