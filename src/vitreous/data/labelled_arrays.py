"""Named arrays → splits: images to uint8 (n, C, H, W), labels to class indices.

Shared by .npz files, .npy files and Python objects. n: images, C: channels, H, W: height and width, K: classes.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Mapping

import numpy as np

from vitreous.data.array_names import assign_roles
from vitreous.data.splits import RawDataset, Split, SplitName
from vitreous.errors import DataError, quoted
from vitreous.reports.formats import by, join, plural

MIN_FLAT_SIDE = 8  # pixels; a table with fewer than 64 columns is hardly one of images
_CHUNK_BYTES = 2**25  # of the images that are converted at a time


# --- splits ------------------------------------------------------------------------------------------------------


def to_dataset(arrays: Mapping[str, np.ndarray], checksums: dict[str, str] | None = None) -> RawDataset:
    """Return the data set that named arrays hold: images as they are stored, labels as integers or strings."""
    import torch

    notes: list[str] = []
    names = assign_roles(arrays)
    splits: list[SplitName] = [split for split in ("train", "val", "test") if ("images", split) in names]
    image_names = {split: names["images", split] for split in splits}
    label_names = {split: names["labels", split] for split in splits}
    columns = {split: to_column(name, arrays[name], notes) for split, name in label_names.items()}
    for split in splits:
        _check_counts(image_names[split], arrays[image_names[split]], columns[split])
    class_array = next((arrays[name] for (role, _), name in names.items() if role == "class_names"), None)
    class_names, labels = index_labels(label_names, columns, class_array, notes)
    images = {split: channels_first(name, arrays[name], notes) for split, name in image_names.items()}
    shapes = {split: images[split].shape[1:] for split in splits}
    for split in splits[1:]:
        if shapes[split] != shapes["train"]:
            raise DataError(
                f"{image_names['train']} and {image_names[split]} differ in size or channels ({shapes['train']} and"
                f" {shapes[split]}); make them equal"
            )
    pixels = to_uint8({image_names[split]: images[split] for split in splits}, notes)
    return RawDataset(
        {
            split: Split(torch.from_numpy(pixels[image_names[split]]), torch.from_numpy(labels[split]))
            for split in splits
        },
        class_names,
        checksums=checksums or {},
        notes=tuple(dict.fromkeys(notes)),
    )


def _check_counts(name: str, images: np.ndarray, labels: np.ndarray) -> None:
    if images.ndim == 0:
        raise DataError(f"{name} is a single number; expected images of shape (n, H, W)")
    if len(images) != len(labels):
        raise DataError(f"{len(images)} {name}, but {len(labels)} labels; expected one label per image")
    if images.size == 0:
        raise DataError(f"{name} is empty (shape {images.shape})")


# --- labels ------------------------------------------------------------------------------------------------------


def to_column(name: str, labels: np.ndarray, notes: list[str]) -> np.ndarray:
    """Return labels as (n,) int64 or strings: a column is squeezed, one-hot rows become indices."""
    if labels.dtype.kind == "O":
        labels = _from_objects(name, labels)
    if labels.dtype.kind == "S":
        try:
            labels = np.char.decode(labels, "utf-8")
        except UnicodeDecodeError:
            raise DataError(f"{name} has bytes that are not UTF-8; save them as strings") from None
    if labels.dtype.kind == "f":  # as pandas has integers with missing values
        _require_all(name, int(np.isnan(labels).sum()))
    if labels.ndim == 2 and labels.shape[1] == 1:
        labels = labels[:, 0]
    if labels.ndim == 2 and labels.shape[1] > 1 and labels.dtype.kind in "iufb":
        labels = _from_one_hot(name, labels)
        notes.append(f"one-hot {name} read as class indices")
    if labels.ndim == 1 and labels.dtype.kind == "f" and labels.size and _is_whole(labels):
        labels = labels.astype(np.int64)
    if labels.ndim != 1 or labels.dtype.kind not in "iubU":
        raise DataError(f"{name} is {labels.dtype} of shape {labels.shape}; expected one integer or string per image")
    if labels.dtype.kind == "U":
        _require_unicode(name, labels)
        return labels
    return labels.astype(np.int64)


def _is_whole(values: np.ndarray) -> bool:
    return bool(np.isfinite(values).all() and (np.abs(values) < 2**53).all() and (values == np.rint(values)).all())


def _from_objects(name: str, labels: np.ndarray) -> np.ndarray:
    """Return an array of Python objects, as pandas gives strings, as strings or numbers."""
    _require_all(name, sum(value is None or value != value for value in labels.flat))
    if all(isinstance(value, str) for value in labels.flat):
        return labels.astype(np.str_)
    if all(isinstance(value, int | np.integer) for value in labels.flat):
        return labels.astype(np.int64)
    other = next(value for value in labels.flat if not isinstance(value, str))
    raise DataError(f"{name} has {quoted(other)} among its labels; expected one integer or string per image")


def _require_all(name: str, missing: int) -> None:
    if missing:
        raise DataError(f"{name} has {plural(missing, 'missing value')}; fill in all labels, or leave those images out")


def _from_one_hot(name: str, labels: np.ndarray) -> np.ndarray:
    if not ((labels == 0) | (labels == 1)).all():
        raise DataError(
            f"{name} has the shape {labels.shape}; expected one integer or string per image, or one-hot rows"
        )
    per_image = labels.sum(axis=1)
    if (per_image != 1).any():
        index = int(np.flatnonzero(per_image != 1)[0])
        raise DataError(
            f"{name} gives image {index} {int(per_image[index])} classes; expected exactly one class per image"
        )
    return labels.argmax(axis=1)


def _require_unicode(name: str, strings: np.ndarray) -> None:
    try:
        "".join(map(str, strings.flat)).encode("utf-8")
    except ValueError:  # half of a surrogate pair, or a number that is no character
        raise DataError(f"{name} has a string that is not Unicode text; write it again") from None


def index_labels(
    names: Mapping[SplitName, str],
    columns: Mapping[SplitName, np.ndarray],
    class_names: np.ndarray | None,
    notes: list[str],
) -> tuple[tuple[str, ...], dict[SplitName, np.ndarray]]:
    """Return the class names, and the labels of each split as indices into them."""
    if class_names is not None:
        return _check_class_names(class_names, names, columns), dict(columns)
    values = np.unique(columns["train"])
    if values.dtype.kind != "U" and not np.array_equal(values, np.arange(len(values))):
        notes.append(f"labels {values[0]} to {values[-1]} renumbered 0 to {len(values) - 1}; their names stay")
    indices = {}
    for split, column in columns.items():
        unknown = np.setdiff1d(column, values) if column.dtype.kind == values.dtype.kind else column[:1]
        if len(unknown):
            raise DataError(f"{names[split]} contains {unknown[0].item()!r}, which no training image has")
        indices[split] = np.searchsorted(values, column).astype(np.int64)
    return tuple(map(str, values)), indices


def _check_class_names(
    class_names: np.ndarray, names: Mapping[SplitName, str], columns: Mapping[SplitName, np.ndarray]
) -> tuple[str, ...]:
    if class_names.ndim == 1 and class_names.dtype.kind in "iu":  # scikit-learn names its digits 0, 1, …
        class_names = class_names.astype(np.str_)
    if class_names.ndim != 1 or class_names.dtype.kind != "U":
        raise DataError(f"class_names is {class_names.dtype} of shape {class_names.shape}; expected strings")
    _require_unicode("class_names", class_names)
    count = len(class_names)
    if len(np.unique(class_names)) != count:
        raise DataError("class_names repeats a name; each class needs its own")
    for split, column in columns.items():
        if column.dtype.kind == "U":
            raise DataError(f"{names[split]} are strings; beside class_names, expected indices into them")
        if len(column) and (column.min() < 0 or column.max() >= count):
            raise DataError(f"{names[split]} go from {column.min()} to {column.max()}; expected 0 to {count - 1}")
    return tuple(map(str, class_names))


# --- images ------------------------------------------------------------------------------------------------------


def channels_first(name: str, images: np.ndarray, notes: list[str]) -> np.ndarray:
    """Return images as (n, C, H, W), C being 1 or 3; a view."""
    if images.ndim == 2:
        side = math.isqrt(images.shape[1])
        if side >= MIN_FLAT_SIDE and side**2 == images.shape[1]:
            notes.append(f"each row of {name}, {images.shape[1]} values, read as {by(side, side)} pixels, line by line")
            return images.reshape(-1, 1, side, side)
        raise DataError(
            f"{name} has the shape {images.shape}, rows that are no square image; give it the shape of images first,"
            " as in X.reshape(-1, height, width) or X.reshape(-1, height, width, 3)"
        )
    if images.ndim == 3:
        return images[:, None]  # (n, 1, H, W)
    if images.ndim == 4 and images.shape[3] in (1, 3):
        if images.shape[1] in (1, 3):
            notes.append(f"{name} of shape {images.shape} read as (n, H, W, C)")
        return images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    transparent = images.ndim == 4 and images.shape[3] == 4
    raise DataError(
        f"{name} has the shape {images.shape}; expected (n, H, W), (n, H, W, C) or (n, C, H, W), C being 1 or 3"
        + ("; without transparency, it is X[..., :3]" if transparent else "")
    )


def to_uint8(images: Mapping[str, np.ndarray], notes: list[str]) -> dict[str, np.ndarray]:
    """Return (n, C, H, W) arrays as uint8, all by the same scale; uint8 in a mapped file stays there."""
    scale = _scale(images, notes)
    return {name: _convert(array, scale) for name, array in images.items()}


def _convert(images: np.ndarray, scale: float) -> np.ndarray:
    if images.dtype == np.uint8:
        return images if isinstance(images, np.memmap) else np.array(images, order="C")
    pixels = np.empty(images.shape, np.uint8)
    for rows in _chunks(images):
        part = images[rows]
        pixels[rows] = np.rint(part.astype(np.float32) * scale) if scale != 1 or part.dtype.kind == "f" else part
    return pixels


def _chunks(images: np.ndarray) -> Iterator[slice]:
    count = max(1, _CHUNK_BYTES // max(1, images[:1].nbytes))
    return (slice(start, start + count) for start in range(0, len(images), count))


def _scale(images: Mapping[str, np.ndarray], notes: list[str]) -> float:
    """Return the factor from the values of the images to levels from 0 to 255; refuse values that are no pixels."""
    first, kinds = next(iter(images)), {"i" if (kind := array.dtype.kind) == "u" else kind for array in images.values()}
    if kinds not in ({"i"}, {"f"}, {"b"}):
        types = join(sorted({str(array.dtype) for array in images.values()}))
        raise DataError(f"{first} is {types}; expected uint8, or floats from 0 to 1")
    if kinds == {"b"}:
        return 255
    if all(array.dtype == np.uint8 for array in images.values()):
        return 1
    low, high = _bounds(images)
    if not (low >= 0 and high <= 255):  # NaN too
        way = "floats must be from 0 to 1, or to 255 (undo a normalisation to mean 0)"
        if kinds == {"i"}:
            way = "integers must be from 0 to 255 (16 bits per pixel: divide by 257)"
        raise DataError(f"{first} goes from {low:g} to {high:g}; {way}")
    if kinds == {"i"}:
        return 1
    if high <= 1:
        return 255
    if high > 16:
        notes.append(f"{first} goes from {low:g} to {high:g}: read as levels from 0 to 255")
        return 1
    if not all(_is_whole(array[rows]) for array in images.values() for rows in _chunks(array)):
        raise DataError(f"{first} goes from {low:g} to {high:g}; floats must be from 0 to 1, or to 255")
    notes.append(f"{first} goes from {low:g} to {high:g} in whole numbers: read as levels from 0 to 16")
    return 255 / 16  # scikit-learn's digits


def _bounds(images: Mapping[str, np.ndarray]) -> tuple[float, float]:
    parts = [array[rows] for array in images.values() for rows in _chunks(array)]  # views
    return float(np.min([part.min() for part in parts])), float(np.max([part.max() for part in parts]))
