"""Likely label errors and near-duplicates of one split, for `vitreous mistakes`."""

from __future__ import annotations

import csv
import io
from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison.hard_images import HardImage, hard_image
from vitreous.data.datasets import Dataset, Split
from vitreous.data.near_duplicates import NearDuplicate, near_duplicates
from vitreous.errors import DataError
from vitreous.evaluation.label_errors import FOLDS, LabelErrors, find_label_errors, out_of_fold

_HELD_OUT = "the run's own probabilities, which are held out: it was not trained on these images"
_OUT_OF_FOLD = (
    f"out-of-fold probabilities of linear discriminant analysis on the model's features ({FOLDS} folds). The features"
    " come from a model that was trained on these labels, so errors that it learned by heart stay hidden"
)


@dataclass(frozen=True)
class Suspects:
    """Images whose labels are likely wrong."""

    method: str  # whose probabilities these are, in words
    found: LabelErrors
    probabilities: NDArray[np.float64] = field(repr=False)  # (n, classes), held out
    images: tuple[HardImage, ...] = ()  # the likeliest errors first; as many as are shown

    @property
    def count(self) -> int:
        return len(self.found.indices)


def find_suspects(
    split_name: str,
    split: Split,
    dataset: Dataset,
    own: NDArray[np.float64],
    features: NDArray[np.floating],
    most: int,
    model_name: str,
) -> Suspects | str:
    """Return likely label errors of a split; where they cannot be found, the reason.

    `own`: the run's probabilities (n, classes). `features` (n, d): for out-of-fold ones of the training split.
    """
    labels = split.labels.numpy().astype(np.int64)
    method, table = _HELD_OUT, own
    if split_name == "train":
        try:
            method, table = _OUT_OF_FOLD, out_of_fold(features.astype(np.float64), labels, dataset.num_classes)
        except DataError as error:
            return f"label errors were not searched: {error}"
    found = find_label_errors(table, labels)
    shown = tuple(
        hard_image(
            index, {model_name: table}, int(labels[index]), split.image(index).numpy(), dataset.class_names,
            path=split.paths[index] if split.paths else None,
        )
        for index in map(int, found.indices[:most])
    )  # fmt: skip
    return Suspects(method, found, table, shown)


def suspects_csv(suspects: Suspects, split: Sequence[str], labels: NDArray[np.int64], names: Sequence[str]) -> str:
    """Return all likely label errors as CSV, the likeliest first; `split`: the images' paths, or none."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["index", "path", "label", "suggested", "probability_of_label", "probability_of_suggested"])
    for index, suggested in zip(suspects.found.indices.tolist(), suspects.found.suggested.tolist(), strict=True):
        row, label = suspects.probabilities[index], int(labels[index])
        path = split[index] if split else ""
        writer.writerow([index, path, names[label], names[suggested], f"{row[label]:.6g}", f"{row[suggested]:.6g}"])
    return text.getvalue()


@dataclass(frozen=True)
class Picture:
    """One of two near-duplicates."""

    split: str
    index: int
    path: str | None
    label: str
    pixels: NDArray[np.uint8] = field(repr=False)  # (C, H, W)

    @property
    def name(self) -> str:
        return self.path or f"{self.split} image {self.index}"


@dataclass(frozen=True)
class NearPairs:
    """Pictures of the split that are almost the same as others."""

    pairs: tuple[tuple[Picture, Picture, float], ...]  # with their similarity, the most similar first
    notes: tuple[str, ...]

    def as_dict(self) -> list[dict[str, Any]]:
        def describe(picture: Picture) -> dict[str, Any]:
            return {key: getattr(picture, key) for key in ("split", "index", "path", "label")}

        return [
            {"first": describe(first), "second": describe(second), "similarity": similarity}
            for first, second, similarity in self.pairs
        ]


def find_near_pairs(dataset: Dataset, split_name: str) -> NearPairs:
    """Return near-duplicates of pictures of this split in other splits, or in it under another label.

    Of pictures that are equal pixel for pixel, those with the same label are counted elsewhere, as duplicates.
    """
    found = near_duplicates(dataset, among=(split_name,))
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}

    def picture(split: str, index: int) -> Picture:
        images = splits[split]
        path = images.paths[index] if images.paths else None
        label = dataset.class_names[int(images.labels[index])]
        return Picture(split, index, path, label, images.image(index).numpy())

    def is_equal(pair: NearDuplicate) -> bool:
        (a, i), (b, j) = pair.first, pair.second
        return splits[a].digest(i) == splits[b].digest(j)

    kept = [pair for pair in found.pairs if not (pair.same_label and is_equal(pair))]
    pairs = tuple((picture(*pair.first), picture(*pair.second), pair.similarity) for pair in kept)
    return NearPairs(pairs, found.notes)
