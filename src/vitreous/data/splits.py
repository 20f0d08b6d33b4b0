"""Splits: images with their labels, and how to divide them reproducibly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Literal

import numpy as np
from numpy.typing import NDArray

from vitreous.data.fitting import Fit
from vitreous.data.splitmix import splitmix64

if TYPE_CHECKING:
    from torch import Tensor

Polarity = Literal["light-on-dark", "as-is"]
SplitName = Literal["train", "val", "test"]
SPLIT_ORDER: tuple[SplitName, ...] = ("train", "val", "test")
MeanStd = tuple[tuple[float, ...], tuple[float, ...]]  # per channel, of pixels in [0, 1]


@dataclass(frozen=True)
class Split:
    """Images with their labels: rows of a store, which may be a memory-mapped file, so that splitting copies none.

    `batch` reads the rows that are asked for; `images` reads all of them.
    """

    store: Tensor  # uint8 (rows of the store, C, H, W)
    labels: Tensor  # int64 (n,)
    paths: tuple[str, ...] = ()  # of the image files, for folders
    source_digests: tuple[bytes, ...] = ()  # of the images these were made from; empty: these are the source
    rows: Tensor | None = None  # int64 (n,): where the images are in the store; None: the store is this split
    store_sums: NDArray[np.int64] | None = None  # (rows of the store, C, 2): `image_sums`, where they are known

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        channels, height, width = self.store.shape[1:]
        return channels, height, width

    @cached_property
    def images(self) -> Tensor:
        """All images, uint8 (n, C, H, W): of a large folder a copy in memory, so prefer `batch`."""
        return self.store if self.rows is None else self.store[self.rows]

    def batch(self, indices: Tensor | np.ndarray | slice) -> Tensor:
        """Return the images at these indices, uint8 (len(indices), C, H, W)."""
        import torch

        chosen = torch.from_numpy(indices) if isinstance(indices, np.ndarray) else indices
        return self.store[chosen if self.rows is None else self.rows[chosen]]

    def image(self, index: int) -> Tensor:
        """Return one image, uint8 (C, H, W)."""
        return self.batch(slice(index, index + 1))[0]

    def batches(self, size: int) -> Iterator[Tensor]:
        """Yield all images in order, `size` at a time; one empty batch where there are none."""
        for start in range(0, max(1, len(self)), size):
            yield self.batch(slice(start, start + size))

    def take(self, indices: np.ndarray) -> Split:
        import torch

        chosen = torch.from_numpy(indices)
        paths, digests = (
            tuple(values[i] for i in indices) if values else () for values in (self.paths, self.source_digests)
        )
        rows = chosen if self.rows is None else self.rows[chosen]
        return Split(self.store, self.labels[chosen], paths, digests, rows, self.store_sums)

    @cached_property
    def digests(self) -> tuple[bytes, ...]:
        """The digest of every image as its source has it: the same at every `image_size`."""
        return self.source_digests or tuple(
            image_digest(image) for batch in self.batches(256) for image in batch.numpy()
        )

    @property
    def sums(self) -> NDArray[np.int64]:
        """The sum of the pixels and that of their squares, (C, 2), per channel over all images."""
        if self.store_sums is not None:
            return (self.store_sums if self.rows is None else self.store_sums[self.rows.numpy()]).sum(axis=0)
        return np.sum([image_sums(batch.numpy()).sum(axis=0) for batch in self.batches(256)], axis=0)

    @property
    def sha256(self) -> str:
        """The checksum of the source images and their labels, in this order."""
        return hashlib.sha256(b"".join(self.digests) + self.labels.numpy().tobytes()).hexdigest()


def image_sums(images: np.ndarray) -> NDArray[np.int64]:
    """Return the sum of the pixels and that of their squares, (n, C, 2), of uint8 (n, C, H, W) images."""
    flat = images.reshape(*images.shape[:2], -1)
    squares = np.square(flat, dtype=np.uint16)  # at most 255²
    return np.stack([flat.sum(axis=2, dtype=np.int64), squares.sum(axis=2, dtype=np.int64)], axis=2)


def image_digest(pixels: np.ndarray) -> bytes:
    return hashlib.blake2b(pixels.tobytes(), digest_size=16).digest()


@dataclass(frozen=True)
class RawDataset:
    """A data set as its reader returns it: only the splits that the source defines, nothing converted."""

    splits: Mapping[SplitName, Split]
    class_names: tuple[str, ...]
    mean_std: MeanStd | None = None  # None: to be measured
    polarity: Polarity = "as-is"
    checksums: dict[str, str] = field(default_factory=dict)
    notes: tuple[str, ...] = ()
    fit: Fit = "stretch"  # how the images got their size
    skipped: tuple[str, ...] = ()  # files left out because they cannot be read


def split_indices(labels: Tensor, fraction: float, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """Return ascending indices (kept, held out): `fraction` of every class is held out, but never all of it."""
    kept, held_out = [], []
    for members in _shuffled_classes(labels, seed):
        count = 0 if fraction == 0 else min(max(1, round(fraction * len(members))), len(members) - 1)
        held_out.append(members[:count])
        kept.append(members[count:])
    return np.sort(np.concatenate(kept)), np.sort(np.concatenate(held_out))


def keep_per_class(labels: Tensor, count: int, seed: int) -> np.ndarray:
    """Return ascending indices of at most `count` images per class; a smaller `count` gives a subset."""
    return np.sort(np.concatenate([members[:count] for members in _shuffled_classes(labels, seed)]))


def _shuffled_classes(labels: Tensor, seed: int) -> list[np.ndarray]:
    """Return the indices of each class, in an order fixed by the seed."""
    values = labels.numpy()
    state = int.from_bytes(hashlib.sha256(str(seed).encode()).digest()[:8], "big")
    order = np.argsort(splitmix64(state, np.arange(1, len(values) + 1)), kind="stable")
    return [order[values[order] == label] for label in np.unique(values)]


def duplicates_between(a: Split, b: Split) -> tuple[tuple[int, int], ...]:
    """Return pairs (index in a, index in b) of images that are equal pixel for pixel."""
    first: dict[bytes, int] = {}
    for index, digest in enumerate(a.digests):
        first.setdefault(digest, index)
    return tuple((first[digest], index) for index, digest in enumerate(b.digests) if digest in first)
