"""What a folder's owner should know before training: how many images each class has, and pictures that stand twice."""

from __future__ import annotations

from collections.abc import Iterator
from itertools import islice

import torch

from vitreous.data.datasets import DATASETS, Dataset, Split, duplicates_between

IMBALANCE = 2.0  # the largest class over the smallest, from which it is worth a word
FEWEST = 20  # training images of a class
_MOST_LISTED = 8


def class_counts(dataset: Dataset) -> list[tuple[str, int, int, int]]:
    """(class, training, validation, test images), in the data's order."""
    splits = (dataset.train, dataset.val, dataset.test)
    columns = [torch.bincount(split.labels, minlength=dataset.num_classes).tolist() for split in splits]
    return list(zip(dataset.class_names, *columns, strict=True))


def balance_remarks(dataset: Dataset) -> list[str]:
    """Whether the classes are of like size; empty: nothing to say against them."""
    train = {name: count for name, count, *_ in class_counts(dataset)}
    least, most = min(train, key=lambda name: train[name]), max(train, key=lambda name: train[name])
    remarks = []
    if train[most] >= IMBALANCE * train[least]:
        remarks.append(
            f"imbalanced: {most!r} has {train[most] / train[least]:.1f} times the training images of {least!r}"
            f" ({train[most]:,} and {train[least]:,}); read the accuracy class by class (`vitreous mistakes`)"
        )
    few = [name for name, count in train.items() if count < FEWEST]
    if few:
        shown = ", ".join(map(repr, few[:3])) + (" …" if len(few) > 3 else "")
        remarks.append(f"fewer than {FEWEST} training images of {shown}: expect little of {'it' * (len(few) == 1)}"
                       f"{'them' * (len(few) > 1)}, and start from trained weights (--from)")  # fmt: skip
    return remarks


def repeated_pictures(dataset: Dataset) -> list[str]:
    """Pictures that stand in two splits, or under two labels, pixel for pixel: file and file.

    The known sets are left out, as in loading: they stand as they were published.
    """
    if dataset.name in DATASETS:
        return []
    lines = list(islice(_twice(dataset), _MOST_LISTED + 1))
    if len(lines) > _MOST_LISTED:
        lines[_MOST_LISTED:] = [f"… {sum(1 for _ in _twice(dataset)) - _MOST_LISTED} more"]
    return lines


def _twice(dataset: Dataset) -> Iterator[str]:
    train, val, test = dataset.train, dataset.val, dataset.test
    pairs: list[tuple[str, Split, str, Split]] = [
        ("train", train, "test", test), ("train", train, "val", val), ("val", val, "test", test),
        ("train", train, "train", train),
    ]  # fmt: skip
    for first_name, first, second_name, second in pairs:
        for i, j in duplicates_between(first, second):
            same_label = int(first.labels[i]) == int(second.labels[j])
            if first is second and (i == j or same_label):
                continue  # the same image, or a harmless double
            one, other = _named(first, first_name, i, dataset), _named(second, second_name, j, dataset)
            label = "" if same_label else "; their labels differ: one is wrong"
            yield f"same picture: {one} and {other}{label}"


def _named(split: Split, name: str, index: int, dataset: Dataset) -> str:
    label = dataset.class_names[int(split.labels[index])]
    return f"{split.paths[index]} (in {name})" if split.paths else f"{name} image {index} ({label})"
