"""An .npz file of `images` and `labels`. Headers are checked before memory is allocated; nothing is unpickled."""

from __future__ import annotations

import math
import os
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch

from vitreous.data.splits import RawDataset, Split, SplitName
from vitreous.downloads.files import open_plain, sha256_of
from vitreous.errors import DataError
from vitreous.hardware import require_memory
from vitreous.reports.formats import join

ARRAY_NAMES = ("images", "labels", "test_images", "test_labels", "class_names")
_ALWAYS_ALLOWED, _MAX_EXPANSION = 2**28, 100  # bytes unpacked, and per byte of the file; drawings compress by about 10
MAX_DIMENSIONS, MAX_EXTENT = 8, 2**40  # of any array; an empty one may declare a large extent
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, KeyError)


def read_npz(path: Path) -> RawDataset:
    """Read `images` (n,H,W), (n,H,W,C) or (n,C,H,W), uint8 or floats in [0, 1]; `labels` (n,), integers or strings.

    Optional arrays: `test_images`, `test_labels`, and `class_names`, which then names the labels 0, 1, ….
    """
    notes: list[str] = []
    try:
        arrays = _read_arrays(path)
        for required in ("images", "labels"):
            if required not in arrays:
                raise DataError(f"there is no array {required!r}, only {join(sorted(arrays)) or 'others'}")
        if ("test_images" in arrays) != ("test_labels" in arrays):
            raise DataError("there is only one of 'test_images' and 'test_labels'; give both or neither")
        class_names, labels = _index_labels(arrays, notes)
        splits: dict[SplitName, Split] = {"train": _split("images", arrays["images"], labels["labels"], notes)}
        if "test_images" in arrays:
            splits["test"] = _split("test_images", arrays["test_images"], labels["test_labels"], notes)
            if splits["test"].images.shape[1:] != splits["train"].images.shape[1:]:
                raise DataError("images and test_images differ in size or channels; make them equal")
    except DataError as error:
        raise DataError(f"{path}: {error}") from None
    return RawDataset(splits, class_names, checksums={path.name: sha256_of(path)}, notes=tuple(notes))


# --- bytes → arrays ----------------------------------------------------------------------------------------------


class NpyError(ValueError):
    """Why an array is refused: the end of a sentence that begins with its name."""


def read_npy(stream: IO[bytes], num_bytes: int) -> np.ndarray:
    """Read an untrusted .npy file of `num_bytes`; nothing is unpickled, and the header is checked before the data.

    Raise NpyError where the header or the data are wrong. Errors of the stream itself (zipfile, zlib) pass through.
    """
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran_order, dtype = _HEADER_READERS[version](stream)
    except KeyError:
        raise NpyError(f"has the unknown .npy version {version}") from None
    except (ValueError, SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        reason = " ".join(str(error).split())  # NumPy's messages have several lines
        raise NpyError(f"has a damaged header ({reason:.200})") from None
    if dtype.hasobject:
        raise NpyError("holds pickled Python objects, which are never loaded; save it with dtype=str or a number type")
    available = num_bytes - stream.tell()
    fits = len(shape) <= MAX_DIMENSIONS and all(0 <= extent <= MAX_EXTENT for extent in shape)
    if not fits or dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize != available:
        raise NpyError(f"declares the shape {shape!s:.120} of {dtype}, but {available:,} bytes follow")
    data = bytearray(available)  # filled in place, so that memory has the array once
    done = 0
    while done < available and (count := stream.readinto(memoryview(data)[done:])):  # type: ignore[attr-defined]
        done += count
    if done != available:
        raise NpyError("is truncated")
    return np.ndarray(shape, dtype, buffer=data, order="F" if fortran_order else "C")


_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def check_zip_directory(entries: list[zipfile.ZipInfo], limit: int, most_entries: int = 1000) -> int:
    """Return the bytes that a zip directory declares; refuse a zip bomb before a byte of it is decompressed."""
    if len(entries) > most_entries or len({entry.filename.removesuffix(".npy") for entry in entries}) != len(entries):
        raise NpyError(f"its zip directory has more than {most_entries:,} entries, or repeats a name")
    declared = sum(entry.file_size for entry in entries)
    if declared > limit:
        raise NpyError(f"it would unpack to {declared:,} bytes; the limit for a file of its size is {limit:,}")
    for entry in entries:
        if entry.flag_bits & 1 or entry.compress_type not in (zipfile.ZIP_STORED, zipfile.ZIP_DEFLATED):
            raise NpyError(f"its entry {entry.filename[:80]!r} is encrypted, or compressed in a way NumPy never uses")
    return declared


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    arrays, name = {}, ""
    try:
        with open_plain(path) as file, zipfile.ZipFile(file) as archive:
            entries = archive.infolist()
            size = os.fstat(file.fileno()).st_size
            declared = check_zip_directory(entries, max(_ALWAYS_ALLOWED, _MAX_EXPANSION * size))
            # an array, and its conversion to uint8
            require_memory(2 * declared, f"the arrays of {path}", "store fewer or smaller images, as uint8")
            for info in entries:
                name = info.filename.removesuffix(".npy")
                if name in ARRAY_NAMES:
                    with archive.open(info) as stream:
                        arrays[name] = read_npy(stream, info.file_size)
    except NpyError as error:
        raise DataError(f"{name} {error}".lstrip()) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise DataError(f"not a complete .npz file ({error}); save it again with numpy.savez") from None
    return arrays


# --- arrays → images and labels ----------------------------------------------------------------------------------


def _index_labels(arrays: dict[str, np.ndarray], notes: list[str]) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """Return the class names, and each label array as indices into them."""
    labels = {name: array for name, array in arrays.items() if name in ("labels", "test_labels")}
    for name, array in labels.items():
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise DataError(f"{name} is {array.dtype} of shape {array.shape}; expected one integer or string per image")
    for name, array in arrays.items():
        if array.dtype.kind == "U":
            _require_unicode(name, array)
    if "class_names" in arrays:
        return _check_class_names(arrays["class_names"], labels), labels
    values = np.unique(labels["labels"])
    if values.dtype.kind != "U" and not np.array_equal(values, np.arange(len(values))):
        notes.append(f"labels {values[0]} to {values[-1]} renumbered 0 to {len(values) - 1}; their names stay")
    for name, array in labels.items():
        unknown = np.setdiff1d(array, values)
        if len(unknown):
            raise DataError(f"{name} contains {unknown[0]!r}, which no training image has")
        labels[name] = np.searchsorted(values, array)
    return tuple(map(str, values)), labels


def _require_unicode(name: str, strings: np.ndarray) -> None:
    try:
        "".join(map(str, strings.flat)).encode("utf-8")
    except ValueError:  # half of a surrogate pair, or a number that is no character
        raise DataError(f"{name} has a string that is not Unicode text; write it again") from None


def _check_class_names(class_names: np.ndarray, labels: dict[str, np.ndarray]) -> tuple[str, ...]:
    if class_names.ndim != 1 or class_names.dtype.kind != "U":
        raise DataError(f"class_names is {class_names.dtype} of shape {class_names.shape}; expected strings")
    count = len(class_names)
    if len(np.unique(class_names)) != count:
        raise DataError("class_names repeats a name; each class needs its own")
    for name, array in labels.items():
        if array.dtype.kind == "U":
            raise DataError(f"{name} are strings; beside class_names, expected indices into them")
        if len(array) and (array.min() < 0 or array.max() >= count):
            raise DataError(f"{name} go from {array.min()} to {array.max()}; expected 0 to {count - 1}")
    return tuple(map(str, class_names))


def _split(name: str, images: np.ndarray, labels: np.ndarray, notes: list[str]) -> Split:
    if images.ndim == 0:
        raise DataError(f"{name} is a single number; expected images of shape (n, H, W)")
    if len(images) != len(labels):
        raise DataError(f"{len(images)} {name}, but {len(labels)} labels; expected one label per image")
    if images.size == 0:
        raise DataError(f"{name} is empty (shape {images.shape})")
    pixels = _to_uint8(name, _channels_first(name, images, notes))
    return Split(torch.from_numpy(pixels), torch.from_numpy(labels.astype(np.int64)))


def _channels_first(name: str, images: np.ndarray, notes: list[str]) -> np.ndarray:
    if images.ndim == 3:
        return images[:, None]  # (n, 1, H, W)
    if images.ndim == 4 and images.shape[3] in (1, 3):
        if images.shape[1] in (1, 3):
            notes.append(f"{name} of shape {images.shape} read as (n, H, W, C)")
        return images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    raise DataError(
        f"{name} has the shape {images.shape}; expected (n, H, W), (n, H, W, C) or (n, C, H, W), C being 1 or 3"
    )


def _to_uint8(name: str, images: np.ndarray) -> np.ndarray:
    if images.dtype == np.uint8:
        return np.array(images, order="C")
    if images.dtype.kind != "f":
        raise DataError(f"{name} is {images.dtype}; expected uint8, or floats from 0 to 1")
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= 1):  # NaN too
        raise DataError(f"{name} goes from {low:g} to {high:g}; floats must be from 0 to 1 (divide by 255?)")
    return np.array(np.rint(images.astype(np.float32) * 255), dtype=np.uint8, order="C")
