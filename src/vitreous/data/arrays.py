"""Python objects as data: `as_source` copies them to the cache, and everything after it reads them by a name."""

from __future__ import annotations

import io
import itertools
import json
import os
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from vitreous.data import copies
from vitreous.data.array_names import assign_roles
from vitreous.data.images import from_pillow
from vitreous.data.labelled_arrays import channels_first, to_dataset, to_uint8
from vitreous.data.python_objects import (
    Files,
    Items,
    Label,
    Pair,
    names_splits,
    to_array,
    to_labels,
    to_splits,
)  # fmt: skip
from vitreous.data.sources.shards import writing_shard
from vitreous.data.splits import SplitName
from vitreous.errors import DataError, quoted
from vitreous.reports.formats import join
from vitreous.reports.progress import counting

_SUFFIXES: dict[SplitName, str] = {"train": "", "val": "_val", "test": "_test"}


def as_source(data: object) -> str:
    """Copy Python data to the cache and return the name by which `load_dataset` finds them; a path is its own name."""
    if isinstance(data, str | os.PathLike):
        return str(os.fspath(data))
    if isinstance(data, Mapping) and not names_splits(data):
        arrays = {str(name): value for name, value in data.items()}
        return _keep_arrays({name: to_array(arrays[name]) for name in assign_roles(arrays).values()})
    splits = to_splits(data)
    if "train" not in splits:
        raise DataError(f"data has no training set, only {join(splits)}; pass it as 'train'")
    kinds = {type(part) for part in splits.values()}
    if len(kinds) > 1:
        raise DataError(
            f"the splits {join(splits)} are of different kinds; pass all of them as arrays, or as data sets"
        )
    if kinds == {Pair}:
        return _keep_pairs({split: part for split, part in splits.items() if isinstance(part, Pair)})
    if kinds == {Files}:
        return _keep_files({split: part for split, part in splits.items() if isinstance(part, Files)})
    return _keep_items({split: part for split, part in splits.items() if isinstance(part, Items)})


# --- a copy of each kind -----------------------------------------------------------------------------------------


def _keep_arrays(arrays: Mapping[str, np.ndarray]) -> str:
    """Copy named arrays as .npy files: uint8 images and class indices, so that reading them maps them into memory."""
    dataset = to_dataset(arrays)
    with copies.writing() as folder:
        for split, members in dataset.splits.items():
            np.save(folder / f"{split}_images.npy", members.images.numpy())
            np.save(folder / f"{split}_labels.npy", members.labels.numpy())
        np.save(folder / "class_names.npy", np.array(dataset.class_names, np.str_))
        return copies.keep(folder, sum(map(len, dataset.splits.values())), dataset.notes)


def _keep_pairs(pairs: Mapping[SplitName, Pair]) -> str:
    for split, pair in pairs.items():
        name = f"X{_SUFFIXES[split]}"
        images, labels = _length(pair.images, name), _length(pair.labels, f"y{_SUFFIXES[split]}")
        if images != labels:
            raise DataError(f"{name} has {images} images and y{_SUFFIXES[split]} {labels} labels; expected one each")
        if not images:
            raise DataError(f"{name} is empty; expected images")
    firsts = [pair.images[0] if isinstance(pair.images, list | tuple) else None for pair in pairs.values()]
    labels_of = {split: to_labels(f"y{_SUFFIXES[split]}", pair.labels) for split, pair in pairs.items()}
    if all(isinstance(first, str | os.PathLike) for first in firsts):
        return _keep_files({split: _as_files(pair.images, labels_of[split]) for split, pair in pairs.items()})
    if not all(first is None or _stacks(pair.images) for first, pair in zip(firsts, pairs.values(), strict=True)):
        return _keep_items({split: _as_items(pair.images, labels_of[split]) for split, pair in pairs.items()})
    arrays = {f"X{_SUFFIXES[split]}": to_array(pair.images) for split, pair in pairs.items()}
    return _keep_arrays(arrays | {f"y{_SUFFIXES[split]}": np.asarray(labels) for split, labels in labels_of.items()})


def _as_files(paths: Sequence[str], labels: Sequence[Label]) -> Files:
    return Files([(os.path.abspath(path), label, None) for path, label in zip(paths, labels, strict=True)])


def _as_items(images: Sequence[Any], labels: Sequence[Label]) -> Items:
    return Items(lambda: zip(images, labels, strict=True))


def _keep_files(parts: Mapping[SplitName, Files]) -> str:
    """Copy a list of files, not the files, as the manifest that Hugging Face's ImageFolder has."""
    first = parts["train"]
    with copies.writing() as folder:
        count = 0
        with (folder / "metadata.jsonl").open("w", encoding="utf-8") as stream:
            for split, part in parts.items():
                for path, label, own_split in part.rows:
                    record = {"file_name": path, "label": label, "split": own_split or split}
                    stream.write(json.dumps(record, ensure_ascii=False) + "\n")
                    count += 1
        _write_class_names(folder, first.class_names)
        return copies.keep(folder, count, [note for part in parts.values() for note in part.notes])


def _keep_items(parts: Mapping[SplitName, Items]) -> str:
    """Copy images one by one as tar shards of PNG files; they may be of several sizes."""
    with copies.writing() as folder, counting("copying the data set", None) as update:
        count = 0
        for split, part in parts.items():
            with writing_shard(folder / f"{split}.tar") as add:
                for where, image, label in _read_items(split, part):
                    add(_to_png(image, where), str(to_labels(f"the label of {where}", [_scalar(label)])[0]))
                    count += 1
                    update(count)
        _write_class_names(folder, parts["train"].class_names)
        return copies.keep(folder, count)


def _read_items(split: SplitName, part: Items) -> Iterator[tuple[str, Any, Any]]:
    """Yield (what it is in messages, image, label) of each item."""
    items = part.read()
    for index in itertools.count():
        where = f"image {index}" + ("" if split == "train" else f" of the {split} set")
        try:
            image, label = next(items)
        except StopIteration:
            return
        except OSError as error:  # a file behind the item is missing, or no image
            raise DataError(f"{where} cannot be read from the data set: {error}; repair it, or leave it out") from None
        yield where, image, label


def _write_class_names(folder: Path, class_names: Sequence[str] | None) -> None:
    if class_names is not None:
        text = "".join(" ".join(name.split()) + "\n" for name in class_names)
        (folder / "class_names.txt").write_text(text, encoding="utf-8")


# --- values ------------------------------------------------------------------------------------------------------


def _stacks(images: Sequence[Any]) -> bool:
    """Return whether images of a list are all of one kind, size and mode, so that they are one array."""

    def kind(image: Any) -> object:
        return (image.mode, image.size) if isinstance(image, Image.Image) else (type(image), np.shape(image))

    first = kind(images[0])
    return all(kind(image) == first for image in images)


def _length(value: Any, name: str) -> int:
    try:
        return len(value)
    except TypeError:
        raise DataError(f"{name} is {quoted(value)}; expected one entry per image") from None


def _scalar(label: Any) -> Any:
    return label.item() if hasattr(label, "item") and np.size(label) == 1 else label


def _to_png(image: Any, where: str) -> bytes:
    if isinstance(image, Image.Image):
        pixels = from_pillow(ImageOps.exif_transpose(image)).pixels
    else:
        notes: list[str] = []
        array = to_array(image)
        if array.ndim not in (2, 3):
            raise DataError(f"{where} is {quoted(image)}; expected a Pillow image, an array or a tensor")
        planes = to_uint8({where: channels_first(where, array[None], [])}, notes)[where]  # (1, C, H, W)
        if notes:  # one image does not show which scale all of them have
            raise DataError(f"{notes[0]}, which one image cannot show; pass uint8, or floats from 0 to 1")
        pixels = planes[0].transpose(1, 2, 0)
    stream = io.BytesIO()
    Image.fromarray(pixels[:, :, 0] if pixels.shape[2] == 1 else pixels).save(stream, "PNG", compress_level=1)
    return stream.getvalue()
