"""What a Python object is: images with labels, labelled files, or items to be read in turn, whatever its library.

No library is imported for it: an object is recognised by what it has.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from PIL import Image, ImageOps

from vitreous.data.array_names import SPLIT_NAMES
from vitreous.data.images import from_pillow
from vitreous.data.labelled_arrays import to_column
from vitreous.data.sources.columns import find_column, to_split
from vitreous.data.splits import SplitName
from vitreous.errors import DataError
from vitreous.reports.formats import join

EXPECTED = (
    "expected (X, y), ((X, y), (X_test, y_test)), a dict of such arrays, a data frame of paths and labels, or a data"
    " set of (image, label) as in torch, torchvision or Hugging Face's datasets"
)
Label = str | int


@dataclass(frozen=True)
class Pair:
    """Images and labels: arrays, tensors or lists."""

    images: Any
    labels: Any


@dataclass(frozen=True)
class Files:
    """Paths of image files with their labels, and the split of each where the object has one."""

    rows: Sequence[tuple[str, Label, SplitName | None]]
    class_names: Sequence[str] | None = None
    notes: tuple[str, ...] = ()


@dataclass(frozen=True)
class Items:
    """A data set whose items are read in turn."""

    read: Callable[[], Iterator[tuple[Any, Any]]]  # (image, label)
    class_names: Sequence[str] | None = None


Part = Pair | Files | Items


def to_splits(data: Any) -> dict[SplitName, Part]:
    if isinstance(data, Mapping):
        return {SPLIT_NAMES[str(name).lower()]: _require_part(part) for name, part in data.items()}
    if isinstance(data, list | tuple) and len(data) in (2, 3) and all(map(_is_whole, data)):
        names: tuple[SplitName, ...] = ("train", "test") if len(data) == 2 else ("train", "val", "test")
        return {name: _require_part(part) for name, part in zip(names, data, strict=True)}
    return {"train": _require_part(data)}


def names_splits(data: Mapping[Any, Any]) -> bool:
    """Return whether the keys are splits, as in {"train": (X, y), "test": …} or Hugging Face's DatasetDict."""
    return bool(data) and all(str(name).lower() in SPLIT_NAMES for name in data)


def _is_whole(value: Any) -> bool:
    """Return whether this is a data set by itself, and not the images or the labels of one."""
    if isinstance(value, list | tuple):
        return len(value) == 2 and all(is_array_like(entry) for entry in value)
    return not is_array_like(value) and _to_part(value) is not None


def is_array_like(value: Any) -> bool:
    """Return whether this is an array, a tensor, a column of a data frame or a list: several of something."""
    if isinstance(value, str | bytes | Image.Image):
        return False
    return isinstance(value, list | tuple) or (hasattr(value, "__array__") and np.ndim(value) > 0)


def _require_part(data: Any) -> Part:
    part = _to_part(data)
    if part is None:
        length = f" of {len(data)}" if isinstance(data, list | tuple) else ""
        raise DataError(f"data is a {type(data).__name__}{length}; {EXPECTED}")
    return part


def _to_part(data: Any) -> Part | None:
    if isinstance(data, list | tuple):
        return Pair(*data) if len(data) == 2 else None
    if hasattr(data, "columns") and hasattr(data, "iloc"):
        return _from_frame(data)
    if isinstance(getattr(data, "features", None), Mapping):
        return _from_hugging_face(data)
    if hasattr(data, "dataset") and hasattr(data, "indices"):  # torch.utils.data.Subset
        return _from_subset(data)
    if hasattr(data, "dataset") and hasattr(data, "batch_size"):
        raise DataError("data is a DataLoader, which batches and shuffles; pass its data set, loader.dataset")
    samples = getattr(data, "samples", None) or getattr(data, "imgs", None)
    if isinstance(samples, list | tuple) and all(isinstance(path, str | os.PathLike) for path, *_ in samples[:1]):
        rows = [(os.path.abspath(path), int(label), None) for path, label, *_ in samples]
        transformed = getattr(data, "transform", None) is not None
        notes = ("the files are read as they are, without the data set's transform",) if transformed else ()
        return Files(rows, _class_names(data), notes)
    if hasattr(data, "__getitem__") and hasattr(data, "__len__") and not hasattr(data, "__array__"):
        return Items(lambda: map(_split_item, _indexed(data)), _class_names(data))
    return None


def _indexed(data: Any) -> Iterator[tuple[int, Any]]:
    """Yield (index, item); a data set need not be an iterator, nor raise an IndexError at its end."""
    return ((index, data[index]) for index in range(len(data)))


def _split_item(entry: tuple[int, Any]) -> tuple[Any, Any]:
    index, item = entry
    if isinstance(item, list | tuple) and len(item) >= 2:
        return item[0], item[1]
    if isinstance(item, Mapping):
        image, label = find_column(map(str, item), "path"), find_column(map(str, item), "label")
        if image is not None and label is not None:
            return item[image], item[label]
    raise DataError(f"item {index} of the data set is a {type(item).__name__}; expected (image, label)")


def _class_names(data: Any) -> tuple[str, ...] | None:
    names = getattr(data, "classes", None)
    return tuple(map(str, names)) if isinstance(names, list | tuple) and names else None


def _from_subset(data: Any) -> Part | None:
    whole = _to_part(data.dataset)
    chosen = [int(index) for index in data.indices]
    if isinstance(whole, Files):
        return Files([whole.rows[index] for index in chosen], whole.class_names, whole.notes)
    if isinstance(whole, Items):
        items = data.dataset
        return Items(lambda: (_split_item((index, items[index])) for index in chosen), whole.class_names)
    return None


def _from_hugging_face(data: Any) -> Items:
    names = [str(name) for name in data.features]
    images = [name for name in names if type(data.features[name]).__name__ == "Image"] or names
    image, label = find_column(images, "path") or images[0], find_column(names, "label")
    if label is None or image == label:
        raise DataError(f"the data set has the columns {join(map(repr, names), most=8)}; expected 'image' and 'label'")
    class_names = getattr(data.features[label], "names", None)
    return Items(
        lambda: ((item[image], item[label]) for _, item in _indexed(data)),
        tuple(map(str, class_names)) if class_names else None,
    )


def _from_frame(data: Any) -> Files:
    names = [str(name) for name in data.columns]
    path, label, split = (find_column(names, column) for column in ("path", "label", "split"))
    if path is None or label is None:
        raise DataError(
            f"the data frame has the columns {join(map(repr, names), most=8)}; expected 'path' and 'label', or pass"
            " pixels and labels as (X, y)"
        )
    labels = to_labels("the column " + repr(label), data[label])
    splits = (
        [to_split(str(text), f"row {row}") for row, text in enumerate(data[split])] if split else [None] * len(labels)
    )
    paths = [os.path.abspath(os.path.expanduser(str(text))) for text in data[path]]
    return Files(list(zip(paths, labels, splits, strict=True)))


# --- values -----------------------------------------------------------------------------------------------------------


def to_array(value: Any) -> np.ndarray:
    """Return an array, a tensor on any device, a list of them or of Pillow's images, or a data frame as an array."""
    if hasattr(value, "detach"):
        value = value.detach().cpu().numpy()
    if isinstance(value, list | tuple) and value and isinstance(value[0], Image.Image):
        return np.stack([from_pillow(ImageOps.exif_transpose(image)).pixels for image in value])
    if isinstance(value, list | tuple) and value and hasattr(value[0], "detach"):
        value = [to_array(entry) for entry in value]
    return np.asarray(value)


def to_labels(name: str, labels: Any) -> list[Label]:
    values = to_array(labels)
    if values.dtype.kind == "U" and isinstance(labels, list | tuple) and not all(isinstance(v, str) for v in labels):
        values = np.array(labels, dtype=object)  # NumPy turns [1, "a"] into strings
    return to_column(name, values, []).tolist()
