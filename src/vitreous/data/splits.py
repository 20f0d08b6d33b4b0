"""Splits: images with their labels, and the one way to cut them, fixed by a seed for good."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal

import numpy as np
import torch
from torch import Tensor

Polarity = Literal["light-on-dark", "as-is"]
PartName = Literal["train", "val", "test"]


@dataclass(frozen=True)
class Split:
    images: Tensor  # uint8 (n, C, H, W)
    labels: Tensor  # int64 (n,)
    paths: tuple[str, ...] = ()  # for folders: where each image came from

    def __len__(self) -> int:
        return len(self.labels)

    def take(self, indices: np.ndarray) -> Split:
        chosen = torch.from_numpy(indices)
        paths = tuple(self.paths[i] for i in indices) if self.paths else ()
        return Split(self.images[chosen], self.labels[chosen], paths)


@dataclass(frozen=True)
class RawDataset:
    """What a reader hands over: the parts that the data themselves define, and what is known of them."""

    parts: Mapping[PartName, Split]
    class_names: tuple[str, ...]
    mean_std: tuple[tuple[float, ...], tuple[float, ...]] | None = None  # None: to be measured
    polarity: Polarity = "as-is"
    checksums: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def cut(labels: Tensor, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Indices (kept, cut off), each ascending: from every class its share, but never a class's last image."""
    kept, off = [], []
    for members in _shuffled_classes(labels, seed):
        share = 0 if fraction == 0 else min(max(1, round(fraction * len(members))), len(members) - 1)
        off.append(members[:share])
        kept.append(members[share:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(off))


def keep_per_class(labels: Tensor, count: int, seed: int) -> np.ndarray:
    """Ascending indices of at most `count` images of each class; a smaller count keeps a subset of a larger one's."""
    return np.sort(np.concatenate([members[:count] for members in _shuffled_classes(labels, seed)]))


def _shuffled_classes(labels: Tensor, seed: int) -> list[np.ndarray]:
    """Each class's indices, in an order fixed by the seed."""
    values = labels.numpy()
    keys = _scrambled(np.arange(len(values), dtype=np.uint64), seed)
    order = np.argsort(keys, kind="stable")
    return [order[values[order] == label] for label in np.unique(values)]


def _scrambled(numbers: np.ndarray, seed: int) -> np.ndarray:
    """SplitMix64 of each number; written out, since a library's shuffle may change with its version, a split not."""
    step = np.uint64(0x9E3779B97F4A7C15)
    with np.errstate(over="ignore"):
        start = np.uint64(int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:8], "big"))
        z = start + (numbers + np.uint64(1)) * step
        z = (z ^ (z >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
        z = (z ^ (z >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
        return z ^ (z >> np.uint64(31))


def duplicates_between(a: Split, b: Split) -> tuple[tuple[int, int], ...]:
    """Pairs (index in a, index in b) of images that are equal to the last pixel: what training has seen of a test."""
    first: dict[bytes, int] = {}
    for index, digest in enumerate(_digests(a)):
        first.setdefault(digest, index)
    return tuple((first[digest], index) for index, digest in enumerate(_digests(b)) if digest in first)


def _digests(split: Split) -> list[bytes]:
    return [hashlib.blake2b(image.tobytes(), digest_size=16).digest() for image in split.images.numpy()]
