"""Data sets as tensors with fixed splits: by name, from a folder of images, or from an .npz file.

Train, validation and test never share an image by our doing: a test set that is given stands as it is, validation is
cut from the training images, stratified, and the cut is fixed by `split_seed` for good.
"""

from __future__ import annotations

import difflib
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import torch

from vitreous.config import DataConfig
from vitreous.data.images import convert
from vitreous.data.specs import DATASETS, DatasetSpec
from vitreous.data.splits import Polarity, RawDataset, Split, cut, duplicates_between, keep_per_class
from vitreous.downloads import cache as sources
from vitreous.errors import DataError

__all__ = [
    "DATASETS", "Dataset", "Description", "Split", "describe", "duplicates_between", "fetch", "load_dataset", "verify",
]  # fmt: skip

TEST_FRACTION = 0.2  # where the data bring no test set


@dataclass(frozen=True)
class Dataset:
    name: str
    train: Split
    val: Split  # empty where config.val_fraction is 0
    test: Split
    class_names: tuple[str, ...]
    mean: tuple[float, ...]  # per channel, of pixels in [0, 1]
    std: tuple[float, ...]
    polarity: Polarity
    checksums: dict[str, str]
    notes: tuple[str, ...]  # what a person should be told

    @property
    def image_size(self) -> tuple[int, int]:
        height, width = self.train.images.shape[-2:]
        return height, width

    @property
    def channels(self) -> int:
        return self.train.images.shape[1]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def load_dataset(config: DataConfig) -> Dataset:
    """The data that `config` names, fetched if need be, cut and converted as it says."""
    loaded = _read(config)
    _check_classes(config.name, loaded)
    notes = list(loaded.notes)
    train, val, test = _cut(config, loaded, notes)
    if not len(test):
        raise DataError(
            f"{config.name}: {len(train)} images are too few for a test set of {TEST_FRACTION:.0%} of each class; add"
            " images, or a test set of its own"
        )
    duplicates = 0 if config.name in DATASETS else len(duplicates_between(train, test))
    if duplicates:
        notes.append(
            f"{duplicates} of the {len(test)} test images also stand in the training set,"
            " pixel for pixel: accuracy on them says nothing"
        )
    size, channels = loaded.parts["train"].images.shape[-2:], loaded.parts["train"].images.shape[1]
    train, val, test = (_converted(split, config) for split in (train, val, test))
    if tuple(train.images.shape[-2:]) != tuple(size):
        notes.append(f"images resized from {_by(size)} to {_by(train.images.shape[-2:])}")
    if train.images.shape[1] != channels:
        notes.append("colours reduced to gray by luma" if channels == 3 else "gray repeated over three channels")
    mean, std = _mean_std(loaded, train)
    return Dataset(
        config.name, train, val, test, loaded.class_names, mean, std, loaded.polarity, loaded.checksums, tuple(notes)
    )


def _by(size: torch.Size | tuple[int, ...]) -> str:
    return "×".join(map(str, size))


def _read(config: DataConfig) -> RawDataset:
    name = config.name
    if name in DATASETS:
        return DATASETS[name].load()
    path = Path(name).expanduser()
    if name and path.is_dir():
        from vitreous.data.folders import read_folder

        return read_folder(path, config.image_size)
    if name and path.suffix.lower() == ".npz" and path.is_file():
        from vitreous.data.npz import read_npz

        return read_npz(path)
    raise _unknown(name)


def _unknown(name: str) -> DataError:
    expected = f"expected {', '.join(DATASETS)}, a folder with one sub-folder a class, or a FILE.npz"
    if not name:
        return DataError(f"no data set is named; {expected}")
    if Path(name).suffix.lower() == ".npz" or "/" in name:
        return DataError(f"there is no file or folder {name!r}; {expected}")
    close = difflib.get_close_matches(name.lower(), DATASETS, n=2, cutoff=0.5)
    hint = f" (did you mean {' or '.join(close)}?)" if close else ""
    return DataError(f"there is no data set {name!r}{hint}; {expected}")


def _check_classes(name: str, loaded: RawDataset) -> None:
    if loaded.num_classes < 2:
        raise DataError(f"{name}: {loaded.num_classes} class is too few to tell apart; at least 2 are needed")
    counts = torch.bincount(loaded.parts["train"].labels, minlength=loaded.num_classes)
    empty = [class_name for class_name, count in zip(loaded.class_names, counts.tolist(), strict=True) if count == 0]
    if empty:
        raise DataError(f"{name}: no training image of class {', '.join(map(repr, empty[:5]))}; add some, or drop it")


def _cut(config: DataConfig, loaded: RawDataset, notes: list[str]) -> tuple[Split, Split, Split]:
    train, val, test = (loaded.parts.get(part) for part in ("train", "val", "test"))
    assert train is not None
    if test is None:
        kept, off = cut(train.labels, TEST_FRACTION, config.split_seed)
        train, test = train.take(kept), train.take(off)
        notes.append(
            f"no test set given: {len(test)} images ({TEST_FRACTION:.0%} of each class) cut off, fixed by split_seed"
        )
    if val is None:
        kept, off = cut(train.labels, config.val_fraction, config.split_seed)
        train, val = train.take(kept), train.take(off)
    if config.train_per_class is not None:
        train = train.take(keep_per_class(train.labels, config.train_per_class, config.split_seed))
        notes.append(f"only {config.train_per_class} training images a class ({len(train)} in all)")
    return train, val, test


def _converted(split: Split, config: DataConfig) -> Split:
    _, channels, height, width = split.images.shape
    images = convert(split.images, config.image_size or (height, width), config.channels or channels)
    return Split(images, split.labels, split.paths)


def _mean_std(loaded: RawDataset, train: Split) -> tuple[tuple[float, ...], tuple[float, ...]]:
    """The published constants while they apply (resizing keeps them, near enough), else what the training set says."""
    channels = train.images.shape[1]
    if loaded.mean_std is not None and len(loaded.mean_std[0]) == channels:
        return loaded.mean_std
    levels = np.arange(256) / 255
    means, stds = [], []
    for channel in range(channels):
        counts = torch.bincount(train.images[:, channel].flatten(), minlength=256).double().numpy()
        shares = counts / counts.sum()
        mean = float((shares * levels).sum())
        means.append(round(mean, 4))
        # a channel of one single value would be divided by zero
        stds.append(round(max(float((shares * (levels - mean) ** 2).sum()) ** 0.5, 1e-3), 4))
    return tuple(means), tuple(stds)


# --- the cache of the data sets known by name ---------------------------------------------------------------------


@dataclass(frozen=True)
class Description:
    name: str
    title: str
    train_images: int
    test_images: int
    image_size: tuple[int, int]
    channels: int
    num_classes: int
    licence: str
    cached: bool
    where: str  # the folder in the cache, or what the data come with


def describe(name: str) -> Description:
    known = _known(name)
    cached = known.files is None or sources.is_cached(known.files)
    where = "comes with scikit-learn" if known.files is None else str(known.files.folder)
    return Description(
        known.name, known.title, known.train_images, known.test_images, known.image_size, known.channels,
        known.num_classes, known.licence, cached, where,
    )  # fmt: skip


def fetch(name: str) -> Path | None:
    """Bring a data set into the cache, every file hashed; returns its folder (None: it comes with a library)."""
    known = _known(name)
    if known.files is None:
        return None
    sources.verify(known.files)  # so that damage which kept a file's size and time is noticed, and mended below
    return sources.ensure(known.files)


def verify(name: str) -> dict[str, sources.Status]:
    """Hash every file of a data set again: "ok", "missing" or "corrupt" for each."""
    known = _known(name)
    return {} if known.files is None else sources.verify(known.files)


def _known(name: str) -> DatasetSpec:
    if name not in DATASETS:
        raise _unknown(name)
    return DATASETS[name]
