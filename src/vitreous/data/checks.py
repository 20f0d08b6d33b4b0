"""Checks of a data set before training: class balance, and duplicate images."""

from __future__ import annotations

import torch

from vitreous.data.datasets import DATASETS, Dataset
from vitreous.data.splits import duplicates_between
from vitreous.reports.formats import join

MAX_IMBALANCE = 2.0  # of the largest class to the smallest
MIN_TRAINING_IMAGES = 20  # per class
_MAX_LISTED = 8


def class_counts(dataset: Dataset) -> list[tuple[str, int, int, int]]:
    """Return (class, training, validation and test images) for each class."""
    splits = (dataset.train, dataset.val, dataset.test)
    columns = [torch.bincount(split.labels, minlength=dataset.num_classes).tolist() for split in splits]
    return list(zip(dataset.class_names, *columns, strict=True))


def balance_notes(dataset: Dataset) -> list[str]:
    """Return a note on classes of unequal size and one on classes with few images, where there are any."""
    train = {name: count for name, count, *_ in class_counts(dataset)}
    (smallest, least), (largest, most) = (pick(train.items(), key=lambda item: item[1]) for pick in (min, max))
    notes = []
    if most >= MAX_IMBALANCE * least:
        notes.append(
            f"imbalanced: {largest!r} has {most / least:.1f} times the training images of {smallest!r}"
            f" ({most:,} and {least:,}); read the accuracy class by class (`vitreous mistakes`)"
        )
    if few := [repr(name) for name, count in train.items() if count < MIN_TRAINING_IMAGES]:
        notes.append(
            f"fewer than {MIN_TRAINING_IMAGES} training images of {join(few, most=3)}: expect low accuracy there,"
            " and start from trained weights (--from)"
        )
    return notes


def duplicate_notes(dataset: Dataset) -> list[str]:
    """Return a note for each image that is in two splits, or in the training set under two labels, pixel for pixel.

    The named data sets are exempt, as in loading: they are used as published.
    """
    if dataset.name in DATASETS:
        return []
    splits = {"train": dataset.train, "val": dataset.val, "test": dataset.test}

    def name_of(split_name: str, index: int) -> str:
        split = splits[split_name]
        if split.paths:
            return f"{split.paths[index]} (in {split_name})"
        return f"{split_name} image {index} ({dataset.class_names[int(split.labels[index])]})"

    notes = []
    for first_name, second_name in (("train", "test"), ("train", "val"), ("val", "test"), ("train", "train")):
        first, second = splits[first_name], splits[second_name]
        for i, j in duplicates_between(first, second):
            same_label = bool(first.labels[i] == second.labels[j])
            if first is second and same_label:
                continue  # the image itself, or a harmless duplicate
            problem = "" if same_label else "; their labels differ: one is wrong"
            notes.append(f"same picture: {name_of(first_name, i)} and {name_of(second_name, j)}{problem}")
    if len(notes) > _MAX_LISTED:
        notes[_MAX_LISTED:] = [f"… {len(notes) - _MAX_LISTED} more"]
    return notes
