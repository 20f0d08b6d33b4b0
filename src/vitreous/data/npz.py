"""An .npz file of `images` and `labels`; its headers are judged before an array is made, and nothing is unpickled."""

from __future__ import annotations

import math
import tokenize
import zipfile
import zlib
from pathlib import Path
from typing import IO

import numpy as np
import torch

from vitreous.data.splits import PartName, RawDataset, Split
from vitreous.downloads.files import sha256_of
from vitreous.errors import DataError

ARRAY_NAMES = ("images", "labels", "test_images", "test_labels", "class_names")
MAX_BYTES = 8 * 1024**3  # of one array, decompressed
MAX_DIMENSIONS, MAX_EXTENT = 8, 2**40  # of any array; an empty one may declare a large extent
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, OSError, NotImplementedError, RuntimeError, KeyError)


def read_npz(path: Path) -> RawDataset:
    """`images` (n,H,W), (n,H,W,C) or (n,C,H,W), uint8 or floats in [0, 1]; `labels` (n,) integers or words.

    Also, if there: `test_images`, `test_labels`, and `class_names`, which then names the labels 0, 1, ….
    """
    arrays = _read_arrays(path)
    for needed in ("images", "labels"):
        if needed not in arrays:
            raise DataError(f"{path} has no array {needed!r}; it holds {', '.join(sorted(arrays)) or 'none'}")
    if ("test_images" in arrays) != ("test_labels" in arrays):
        raise DataError(f"{path} has only one of 'test_images' and 'test_labels'; give both or neither")
    notes: list[str] = []
    names, labels = _class_names(path, arrays, notes)
    parts: dict[PartName, Split] = {"train": _split(path, "images", arrays["images"], labels["labels"], notes)}
    if "test_images" in arrays:
        parts["test"] = _split(path, "test_images", arrays["test_images"], labels["test_labels"], notes)
        if parts["test"].images.shape[1:] != parts["train"].images.shape[1:]:
            raise DataError(f"{path}: images and test_images differ in size or channels; make them alike")
    return RawDataset(parts, names, checksums={path.name: sha256_of(path)}, notes=tuple(dict.fromkeys(notes)))


# --- bytes → arrays ----------------------------------------------------------------------------------------------


class NpyError(ValueError):
    """Why an array is refused: the end of a sentence that begins with its name."""


def read_npy(stream: IO[bytes], num_bytes: int) -> np.ndarray:
    """Read an untrusted .npy file of `num_bytes`: nothing is unpickled, nothing allocated on the header's word alone.

    Raise NpyError where the header or the data are wrong. Errors of the stream itself (zipfile, zlib) pass through.
    """
    try:
        version = np.lib.format.read_magic(stream)
        shape, fortran_order, dtype = _HEADER_READERS[version](stream)
    except KeyError:
        raise NpyError(f"has the unknown .npy version {version}") from None
    except (ValueError, SyntaxError, TypeError, tokenize.TokenError, RecursionError, MemoryError) as error:
        raise NpyError(f"has a damaged header ({error!s:.200})") from None
    if dtype.hasobject:
        raise NpyError("holds pickled Python objects, which are never loaded; save it with dtype=str or a number type")
    available = num_bytes - stream.tell()
    fits = len(shape) <= MAX_DIMENSIONS and all(0 <= extent <= MAX_EXTENT for extent in shape)
    if not fits or dtype.itemsize == 0 or math.prod(shape) * dtype.itemsize != available:
        raise NpyError(f"declares the shape {shape!s:.120} of {dtype}, but {available:,} bytes follow")
    data = bytearray(stream.read(available))
    if len(data) != available:
        raise NpyError("is truncated")
    return np.ndarray(shape, dtype, buffer=data, order="F" if fortran_order else "C")


_HEADER_READERS = {(1, 0): np.lib.format.read_array_header_1_0, (2, 0): np.lib.format.read_array_header_2_0}


def _read_arrays(path: Path) -> dict[str, np.ndarray]:
    arrays = {}
    try:
        with zipfile.ZipFile(path) as archive:
            for info in archive.infolist():
                name = info.filename.removesuffix(".npy")
                if name not in ARRAY_NAMES:
                    continue
                if info.file_size > MAX_BYTES:
                    raise DataError(f"{path}: {name} unpacks to {info.file_size:,} bytes; the limit is {MAX_BYTES:,}")
                with archive.open(info) as stream:
                    arrays[name] = read_npy(stream, info.file_size)
    except NpyError as error:
        raise DataError(f"{path}: {name} {error}") from None
    except _DAMAGE as error:
        raise DataError(f"{path} is not a complete .npz file ({error}); save it again with numpy.savez") from None
    return arrays


# --- arrays → images and labels ----------------------------------------------------------------------------------


def _class_names(
    path: Path, arrays: dict[str, np.ndarray], notes: list[str]
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    """The classes' names, and each label array as indices into them."""
    given: dict[str, np.ndarray] = {name: arrays[name] for name in ("labels", "test_labels") if name in arrays}
    for name, array in given.items():
        if array.ndim != 1 or array.dtype.kind not in "iuU":
            raise DataError(
                f"{path}: {name} is {array.dtype} of shape {array.shape}; expected one integer, or word, for each image"
            )
    if "class_names" in arrays:
        return _named(path, arrays["class_names"], given)
    values = np.unique(given["labels"])
    if given["labels"].dtype.kind != "U" and not np.array_equal(values, np.arange(len(values))):
        notes.append(f"labels {values[0]} to {values[-1]} renumbered 0 to {len(values) - 1}; their names stay")
    indices: dict[str, np.ndarray] = {}
    for name, array in given.items():
        unknown = np.setdiff1d(array, values)
        if len(unknown):
            raise DataError(f"{path}: {name} holds {unknown[0]!r}, which no training image has")
        indices[name] = np.searchsorted(values, array)
    return tuple(str(value) for value in values), indices


def _named(
    path: Path, class_names: np.ndarray, given: dict[str, np.ndarray]
) -> tuple[tuple[str, ...], dict[str, np.ndarray]]:
    if class_names.ndim != 1 or class_names.dtype.kind != "U":
        raise DataError(f"{path}: class_names is {class_names.dtype} of shape {class_names.shape}; expected words")
    names = tuple(str(name) for name in class_names)
    if len(set(names)) != len(names):
        raise DataError(f"{path}: class_names repeats a name; each class needs its own")
    for name, array in given.items():
        if array.dtype.kind == "U":
            raise DataError(f"{path}: {name} are words; where class_names are given, expected indices into them")
        if len(array) and (array.min() < 0 or array.max() >= len(names)):
            raise DataError(f"{path}: {name} go from {array.min()} to {array.max()}; expected 0 to {len(names) - 1}")
    return names, given


def _split(path: Path, name: str, images: np.ndarray, labels: np.ndarray, notes: list[str]) -> Split:
    if images.ndim == 0:
        raise DataError(f"{path}: {name} is a single number; expected images, as in shape (n, H, W)")
    if len(images) != len(labels):
        raise DataError(f"{path}: {len(images)} {name}, but {len(labels)} labels; expected one label an image")
    if images.size == 0:
        raise DataError(f"{path}: {name} is empty (shape {images.shape})")
    pixels = _channels_first(path, name, images, notes)
    return Split(torch.from_numpy(_bytes(path, name, pixels)), torch.from_numpy(labels.astype(np.int64)))


def _channels_first(path: Path, name: str, images: np.ndarray, notes: list[str]) -> np.ndarray:
    if images.ndim == 3:
        return images[:, None]  # (n, 1, H, W)
    if images.ndim == 4 and images.shape[3] in (1, 3):
        if images.shape[1] in (1, 3):
            notes.append(f"{name} of shape {images.shape} taken as (n, H, W, C)")
        return images.transpose(0, 3, 1, 2)
    if images.ndim == 4 and images.shape[1] in (1, 3):
        return images
    raise DataError(
        f"{path}: {name} has the shape {images.shape}; expected (n, H, W), (n, H, W, C) or (n, C, H, W), C being 1 or 3"
    )


def _bytes(path: Path, name: str, images: np.ndarray) -> np.ndarray:
    if images.dtype == np.uint8:
        return np.array(images, order="C")
    if images.dtype.kind != "f":
        raise DataError(f"{path}: {name} is {images.dtype}; expected uint8, or floats from 0 to 1")
    low, high = images.min(), images.max()
    if not (low >= 0 and high <= 1):  # NaN too
        raise DataError(f"{path}: {name} goes from {low:g} to {high:g}; floats must lie in 0 to 1 (divide by 255?)")
    return np.array(np.rint(images.astype(np.float32) * 255), dtype=np.uint8, order="C")
