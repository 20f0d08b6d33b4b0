"""`vitreous mistakes`: the images of a split with the highest loss, where wrong labels are found and fixed.

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

from vitreous.comparison.hard_images import HardImage, draw_hard_images, hard_image
from vitreous.data.datasets import Dataset, Split, duplicates_between
from vitreous.errors import ConfigError
from vitreous.evaluation import metrics
from vitreous.evaluation.prediction import choose_split, evaluate_model
from vitreous.hardware import prepare
from vitreous.reports.colors import model_styles
from vitreous.reports.confusion import MOST_DRAWN, commonest_confusions, draw_confusion, mistakes_only
from vitreous.reports.formats import percent, percent_decimals
from vitreous.reports.pages import write_report
from vitreous.runs import Run, load_run_data

MOST_SHOWN = 24
_MOST_CONFUSIONS = 10
_FIGURE_COLUMNS = 6
_TEMPLATE = Path(__file__).with_name("mistakes.html.jinja")


@dataclass(frozen=True)
class ClassAccuracy:
    name: str
    count: int
    correct: int
    taken_for: tuple[str, int] | None  # the commonest wrong prediction, and how often

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
    duplicates: int  # images of the split that are in the training set too
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
            "classes": [one.as_dict() for one in self.classes],
            "confusions": [{"label": a, "prediction": b, "times": times} for a, b, times in self.confusions],
            "also_in_training": self.duplicates,
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


def find_mistakes(run: Run, split: str = "test", most: int = MOST_SHOWN) -> Mistakes:
    """Evaluate a run on a split of its data and collect the `most` images with the highest loss."""
    if most < 1:
        raise ConfigError(f"--most {most}: at least 1 image")
    prepare()
    dataset = load_run_data(run)
    chosen = choose_split(dataset, split)
    evaluation = evaluate_model(run.load_model(), chosen, run.preprocessing, run.config.train.eval_batch_size)
    probabilities = special.softmax(evaluation.logits.astype(np.float64), axis=1)
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
        duplicates=len(duplicates),
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
    """Write `gallery.html`, `gallery.json`, `by-loss.csv` and the figures into `folder`; return the page."""
    style = model_styles({found.model_name: found.kind})[found.model_name]
    counts = metrics.confusion_matrix(found.probabilities, found.labels).astype(np.float64)
    confusion = draw_confusion(counts, found.class_names, name="confusion", title=found.model_name, color=style.color)
    worst = draw_hard_images(found.worst, style, "worst", _FIGURE_COLUMNS, with_files=True)
    return write_report(
        folder / "gallery.html",
        _TEMPLATE,
        title=f"What {found.model_name} finds hardest in {Path(found.data_name).name or found.data_name}",
        description=found.verdict,
        figures=[worst, confusion],
        beside={"gallery.json": found.as_dict(), "by-loss.csv": _by_loss(found)},
        found=found,
        styles={found.model_name: style},
        confusion=confusion,
        most_drawn=MOST_DRAWN,
        hardest_first=sorted(found.classes, key=lambda one: one.interval.value if one.interval else 2.0),
    )


def _by_loss(found: Mistakes) -> str:
    """Return every image of the split as CSV, the highest loss first."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["loss", "index", "path", "label", "prediction", "confidence"])
    for index in np.argsort(-found.losses, kind="stable"):
        row = found.probabilities[index]
        writer.writerow([
            f"{found.losses[index]:.6g}", int(index), found.paths[index] if found.paths else "",
            found.class_names[int(found.labels[index])], found.class_names[int(row.argmax())], f"{row.max():.6g}",
        ])  # fmt: skip
    return text.getvalue()
