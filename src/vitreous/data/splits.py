"""Splits: images with their labels, and how to divide them reproducibly."""

from __future__ import annotations

import hashlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import cached_property
from typing import TYPE_CHECKING, Literal, NamedTuple

import numpy as np
from numpy.typing import NDArray

from vitreous.data.fitting import Fit
from vitreous.data.mapped import ChosenNames, MappedRows
from vitreous.data.splitmix import splitmix64

if TYPE_CHECKING:
    from torch import Tensor

Polarity = Literal["light-on-dark", "as-is"]
SplitName = Literal["train", "val", "test"]
SPLIT_ORDER: tuple[SplitName, ...] = ("train", "val", "test")
MeanStd = tuple[tuple[float, ...], tuple[float, ...]]  # per channel, of pixels in [0, 1]
DIGEST_BYTES = 16
DIGEST = f"S{DIGEST_BYTES}"  # NumPy drops zero bytes at the end of an element, which no comparison notices
Digests = NDArray[np.bytes_]
_ROWS_AT_ONCE = 2**16


class View(NamedTuple):
    """What stored images are converted to when they are read (`images.convert`)."""

    size: tuple[int, int]
    channels: int
    fit: Fit


@dataclass(frozen=True)
class Split:
    """Images with their labels: rows of a store, which may be in mapped files, so that splitting copies none.

    `batch` reads the rows that are asked for; `images` reads all of them. What is known of each row of the store is
    shared by all splits of it.
    """

    store: Tensor | MappedRows  # uint8 (rows of the store, C, H, W)
    labels: Tensor  # int64 (n,)
    rows: Tensor | None = None  # int64 (n,): where the images are in the store; None: the store is this split
    store_names: Sequence[str] = ()  # of the image files
    store_digests: Digests | None = None  # of the images these were made from; None: these are the source
    store_sums: NDArray[np.int64] | MappedRows | None = None  # (rows of the store, C, 2): `image_sums`, if known
    view: View | None = None  # None: images are used as they are stored
    block: int | None = None  # images of this split that are side by side in the store (sampler.py); None: in memory

    def __len__(self) -> int:
        return len(self.labels)

    @property
    def stored_shape(self) -> tuple[int, int, int]:
        """Channels, height and width in the store."""
        channels, height, width = self.store.shape[1:]
        return channels, height, width

    @property
    def image_shape(self) -> tuple[int, int, int]:
        """Channels, height and width."""
        return self.stored_shape if self.view is None else (self.view.channels, *self.view.size)

    @cached_property
    def images(self) -> Tensor:
        """All images, uint8 (n, C, H, W): of a large folder a copy in memory, so prefer `batch`."""
        return self.batch(slice(None))

    def batch(self, indices: Tensor | np.ndarray | slice) -> Tensor:
        """Return the images at these indices, uint8 (len(indices), C, H, W)."""
        return self._as(self._read(indices), self.view)

    def stored_batch(self, indices: Tensor | np.ndarray | slice) -> Tensor:
        """Return the images at these indices in the size in which they are stored, which may be larger."""
        return self._as(self._read(indices), self.view and self.view._replace(size=self.stored_shape[1:]))

    def _as(self, images: Tensor, view: View | None) -> Tensor:
        from vitreous.data.images import convert

        return images if view is None else convert(images, *view)

    def _read(self, indices: Tensor | np.ndarray | slice) -> Tensor:
        import torch

        chosen = torch.from_numpy(indices) if isinstance(indices, np.ndarray) else indices
        rows = chosen if self.rows is None else self.rows[chosen]
        if isinstance(self.store, torch.Tensor):
            return self.store[rows]
        return torch.from_numpy(self.store.read(rows if isinstance(rows, slice) else rows.numpy()))

    def image(self, index: int) -> Tensor:
        """Return one image, uint8 (C, H, W)."""
        return self.batch(slice(index, index + 1))[0]

    def batches(self, size: int) -> Iterator[Tensor]:
        """Yield all images in order, `size` at a time; one empty batch where there are none."""
        for start in range(0, max(1, len(self)), size):
            yield self.batch(slice(start, start + size))

    def take(self, indices: np.ndarray) -> Split:
        """Return the images at these indices; if they are ascending, those of a block stay side by side."""
        import torch

        chosen = torch.from_numpy(indices)
        rows = chosen if self.rows is None else self.rows[chosen]
        return replace(self, labels=self.labels[chosen], rows=rows)

    def in_order_of_store(self) -> Split:
        """Return the same images in the order in which they are stored."""
        return self if self.rows is None else self.take(np.argsort(self.rows.numpy(), kind="stable"))

    @property
    def paths(self) -> Sequence[str]:
        """The names of the image files; empty where there are none."""
        if self.rows is None or not len(self.store_names):
            return self.store_names
        return ChosenNames(self.store_names, self.rows.numpy())

    @property
    def digests(self) -> Digests:
        """The digest of every image as its source has it, (n,): the same at every `image_size`."""
        if self.store_digests is None:
            return self._own_digests
        return self.store_digests if self.rows is None else self.store_digests[self.rows.numpy()]

    def digest(self, index: int) -> bytes:
        """Return the digest of one image."""
        if self.store_digests is None:
            return bytes(self._own_digests[index])
        return bytes(self.store_digests[index if self.rows is None else int(self.rows[index])])

    @cached_property
    def _own_digests(self) -> Digests:
        digests = (image_digest(image) for batch in self.batches(256) for image in batch.numpy())
        return np.fromiter(digests, DIGEST, count=len(self))

    @property
    def sums(self) -> NDArray[np.int64]:
        """The sum of the pixels and that of their squares, (C, 2), per channel over all images, as they are stored."""
        if self.store_sums is None:
            return np.sum([image_sums(batch.numpy()).sum(axis=0) for batch in self.batches(256)], axis=0)
        total = np.zeros(self.store_sums.shape[1:], np.int64)
        for start in range(0, len(self), _ROWS_AT_ONCE):
            some = slice(start, min(start + _ROWS_AT_ONCE, len(self)))
            rows = some if self.rows is None else self.rows[some].numpy()
            found = self.store_sums.read(rows) if isinstance(self.store_sums, MappedRows) else self.store_sums[rows]
            total += found.sum(axis=0)
        return total

    @property
    def sha256(self) -> str:
        """The checksum of the source images and their labels, in this order."""
        checksum = hashlib.sha256(self.digests.tobytes())
        checksum.update(self.labels.numpy().tobytes())
        return checksum.hexdigest()


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
    """Return pairs (first index in a, index in b) of images that are equal pixel for pixel.

    Within one split (`a is b`), an image is no duplicate of itself.
    """
    if not len(a) or not len(b):
        return ()
    known, first = np.unique(a.digests, return_index=True)
    found = b.digests
    places = np.minimum(np.searchsorted(known, found), len(known) - 1)
    hits = np.flatnonzero(known[places] == found)
    pairs = zip(first[places[hits]].tolist(), hits.tolist(), strict=True)
    return tuple((i, j) for i, j in pairs if a is not b or i != j)
