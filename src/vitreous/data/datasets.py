"""Data sets as tensors in three splits: named ones, or any source that `sources/find.py` finds.

A test set that the source defines is used as it is. Otherwise the test set, and always the validation set, is a
stratified sample of the training images, fixed by `split_seed`.
"""

from __future__ import annotations

import dataclasses
import difflib
import math
import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

from vitreous.config import DataConfig
from vitreous.data.fitting import Fit
from vitreous.data.images import convert
from vitreous.data.mapped import MappedRows
from vitreous.data.prepared import has_prepared, verify_folder
from vitreous.data.shuffling import shuffle_patches
from vitreous.data.specs import DATASETS, DatasetInfo, DatasetSpec
from vitreous.data.splits import (
    MeanStd,
    Polarity,
    RawDataset,
    Split,
    View,
    duplicates_between,
    keep_per_class,
    split_indices,
)
from vitreous.downloads import cache
from vitreous.errors import DataError, quoted
from vitreous.hardware import require_memory
from vitreous.reports.formats import by, join

if TYPE_CHECKING:
    from vitreous.data.sources.find import Found

__all__ = [
    "DATASETS", "Dataset", "Description", "Split", "describe", "duplicates_between", "fetch", "load_dataset", "verify",
]  # fmt: skip


_MOST_MEASURED = 5000  # images from which mean and standard deviation are taken where they must be read for that


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
    notes: tuple[str, ...]  # for the user
    duplicates: int = 0  # test images that are in the training set too; not counted in the named data sets
    fit: Fit = "stretch"  # how images of another size are fitted
    skipped: tuple[str, ...] = ()  # files left out because they cannot be read
    shuffled: bool = False  # the patches of the images are in another order (data.shuffle_patches)

    @property
    def image_size(self) -> tuple[int, int]:
        return self.train.image_shape[1:]

    @property
    def channels(self) -> int:
        return self.train.image_shape[0]

    @property
    def num_classes(self) -> int:
        return len(self.class_names)


def load_dataset(config: DataConfig, multiple_of: tuple[int, int] = (1, 1), longest_side: int | None = None) -> Dataset:
    """Load the data that `config` names, after fetching them if needed; split and convert them.

    Where images of several sizes leave the size open, it is a multiple of `multiple_of`, the model's patch, and
    at most `longest_side`.
    """
    raw = _read(config, multiple_of, longest_side)
    _check_classes(config.name, raw)
    notes = list(raw.notes)
    train, val, test = _split(config, raw, notes)
    if not len(test) and config.test_fraction:
        raise DataError(
            f"{config.name}: {len(train)} images are too few for a test set of {config.test_fraction:.0%} of each"
            " class; add images, or a separate test set, or do without (data.test_fraction=0)"
        )
    duplicates = 0 if config.name in DATASETS else len(duplicates_between(train, test))
    if duplicates:
        notes.append(
            f"{duplicates} of the {len(test)} test images are duplicates of training images, pixel for pixel:"
            " accuracy on them means nothing"
        )
    channels, *size = train.image_shape
    is_mapped = isinstance(train.store, MappedRows)
    _check_memory(config, len(train) + len(val) + len(test), train.image_shape, is_mapped)
    train, val, test = (_convert(split, config) for split in (train, val, test))
    if train.block is not None:
        train = train.in_order_of_store()
    new_channels, *new_size = train.image_shape
    if new_size != size:
        notes.append(f"images resized from {by(*size)} to {by(*new_size)}")
    if new_channels != channels:
        notes.append("colours converted to gray by luma" if channels == 3 else "gray repeated over three channels")
    mean, std = _mean_std(raw, train)
    if config.shuffle_patches != "none":
        train, val, test = (shuffle_patches(split, config, part) for part, split in enumerate((train, val, test)))
        own = "the same order for all" if config.shuffle_patches == "fixed" else "each image has an order of its own"
        notes.append(f"patches of {by(*config.shuffle_patch_size)} pixels are shuffled ({own})")
    return Dataset(
        name=config.name, train=train, val=val, test=test, class_names=raw.class_names, mean=mean, std=std,
        polarity=raw.polarity, checksums=raw.checksums, notes=tuple(notes), duplicates=duplicates,
        fit=config.fit or raw.fit, skipped=raw.skipped, shuffled=config.shuffle_patches != "none",
    )  # fmt: skip


def _read(config: DataConfig, multiple_of: tuple[int, int], longest_side: int | None) -> RawDataset:
    source = open_source(config.name)
    if isinstance(source, RawDataset):
        return source
    from vitreous.data.prepare import prepare

    with source.listed() as listing:
        raw = prepare(listing, config, config.name, multiple_of, longest_side)
    return dataclasses.replace(raw, notes=(*source.notes, *raw.notes))


def open_source(name: str) -> Found:
    """Return what a name of data means: arrays, or images that are listed and not decoded yet."""
    if name in DATASETS:
        return DATASETS[name].load()
    from vitreous.data.sources.find import find_source

    source = find_source(name) if name else None
    if source is None:
        raise _unknown(name)
    return source


def _unknown(name: str) -> DataError:
    from vitreous.data.sources.find import FILE_SUFFIXES, KINDS

    expected = f"expected {', '.join(DATASETS)}, {KINDS}"
    if not name:
        return DataError(f"no data set is named; {expected}")
    path, suffix = os.path.expanduser(name), Path(name).suffix.lower()
    if os.path.exists(path):
        way = {".zip": "unpack it first: ", ".xlsx": "save it as CSV: "}.get(suffix, "")
        return DataError(f"{quoted(name)} is no file that data are read from; {way}{expected}")
    if name.lower().endswith(FILE_SUFFIXES) or "/" in name:
        return DataError(f"there is no file or folder {quoted(name)}; {expected}")
    close = difflib.get_close_matches(name[:100].lower(), DATASETS, n=2, cutoff=0.5)
    hint = f" (did you mean {join(close, word='or')}?)" if close else ""
    return DataError(f"there is no data set {quoted(name)}{hint}; {expected}")


def _check_classes(name: str, raw: RawDataset) -> None:
    num_classes = len(raw.class_names)
    if num_classes < 2:
        raise DataError(f"{name}: {num_classes} class is too few to classify; at least 2 are needed")
    counts = np.bincount(raw.splits["train"].labels.numpy(), minlength=num_classes)
    empty = [repr(class_name) for class_name, count in zip(raw.class_names, counts, strict=True) if not count]
    if empty:
        raise DataError(f"{name}: no training image of class {join(empty, most=5)}; add some, or remove the class")


def _split(config: DataConfig, raw: RawDataset, notes: list[str]) -> tuple[Split, Split, Split]:
    train, val, test = raw.splits["train"], raw.splits.get("val"), raw.splits.get("test")
    if test is None:
        kept, held_out = split_indices(train.labels, config.test_fraction, config.split_seed)
        train, test = train.take(kept), train.take(held_out)
        share = f"({config.test_fraction:.0%} of each class)"
        notes.append(
            f"no test set given: {len(test)} images {share} held out, fixed by split_seed"
            if config.test_fraction
            else "no test set: all images are trained on"
        )
    if val is None:
        kept, held_out = split_indices(train.labels, config.val_fraction, config.split_seed)
        train, val = train.take(kept), train.take(held_out)
    if config.train_per_class is not None:
        train = train.take(keep_per_class(train.labels, config.train_per_class, config.split_seed))
        notes.append(f"only {config.train_per_class} training images per class ({len(train)} in all)")
    return train, val, test


def _check_memory(config: DataConfig, num_images: int, shape: tuple[int, int, int], is_mapped: bool) -> None:
    """Refuse a size to which images in memory cannot be resized; mapped ones are resized when they are read."""
    wanted = _converted_shape(config, shape)
    if wanted != shape and not is_mapped:
        require_memory(
            num_images * math.prod(wanted),
            f"{num_images:,} images of {by(*wanted[1:])} pixels",
            "lower data.image_size",
        )


def _converted_shape(config: DataConfig, shape: tuple[int, int, int]) -> tuple[int, int, int]:
    height, width = config.image_size or shape[1:]
    return config.channels or shape[0], height, width


def _convert(split: Split, config: DataConfig) -> Split:
    channels, *size = _converted_shape(config, split.image_shape)
    if (channels, *size) == split.image_shape:
        return split
    view = View((size[0], size[1]), channels, config.fit or "stretch")
    if isinstance(split.store, MappedRows):  # read from a disk: converted when they are read
        return dataclasses.replace(split, view=view)
    names, digests = tuple(split.paths), split.digests
    return Split(convert(split.images, *view), split.labels, store_names=names, store_digests=digests)


def _mean_std(raw: RawDataset, train: Split) -> MeanStd:
    """Return the published constants while they apply (resizing hardly changes them), else those of `train`."""
    channels = train.image_shape[0]
    if raw.mean_std is not None and len(raw.mean_std[0]) == channels:
        return raw.mean_std
    if train.view is not None and train.store_sums is not None:
        train = _of_known_sums(train, train.view.channels)
    count = len(train) * math.prod(train.image_shape[1:])
    means, stds = [], []
    sums = train.sums.tolist() * (channels // train.image_shape[0])
    for total, squares in sums:  # Python's integers: nothing overflows, nothing is rounded
        means.append(round(total / count / 255, 4))
        variance = (count * squares - total**2) / count**2
        stds.append(round(max(math.sqrt(variance) / 255, 1e-3), 4))  # not 0, by which to_input would divide
    return tuple(means), tuple(stds)


def _of_known_sums(train: Split, channels: int) -> Split:
    """Return the images as they are stored, whose sums are known; if they become gray, some of them in gray."""
    if channels >= train.stored_shape[0]:
        return dataclasses.replace(train, view=None)
    some = np.unique(np.linspace(0, len(train) - 1, _MOST_MEASURED).astype(np.int64))
    return dataclasses.replace(train.take(some), store_sums=None)


# --- the named data sets in the cache -----------------------------------------------------------------------------


@dataclass(frozen=True)
class Description(DatasetInfo):
    cached: bool
    where: str  # the folder in the cache, or the library that the data come with


def describe(name: str) -> Description:
    spec = _spec(name)
    info = {field.name: getattr(spec, field.name) for field in dataclasses.fields(DatasetInfo)}
    if spec.files is None:
        return Description(**info, cached=True, where="comes with scikit-learn")
    return Description(**info, cached=cache.is_cached(spec.files), where=str(spec.files.folder))


def fetch(name: str) -> Path | None:
    """Bring a data set into the cache and hash every file; return its folder, or None where a library carries it."""
    files = _spec(name).files
    if files is None:
        return None
    cache.verify(files)  # notices damage that kept a file's size and time, so that ensure fetches the file again
    return cache.ensure(files)


def verify(name: str) -> dict[str, cache.Status]:
    """Hash every file of a data set, or of prepared images, again: "ok", "missing" or "corrupt" for each."""
    folder = Path(os.path.expanduser(name))
    if name not in DATASETS and has_prepared(folder):
        return verify_folder(folder)
    files = _spec(name).files
    return {} if files is None else cache.verify(files)


def _spec(name: str) -> DatasetSpec:
    if name not in DATASETS:
        raise _unknown(name)
    return DATASETS[name]
