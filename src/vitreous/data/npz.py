"""Files of arrays, .npz and .npy. Headers are checked before memory is allocated; nothing is unpickled."""

from __future__ import annotations

import os
import zipfile
import zlib
from pathlib import Path
from typing import Literal

import numpy as np

from vitreous.data.array_names import assign_roles, parse_name
from vitreous.data.labelled_arrays import to_dataset
from vitreous.data.npy import NpyError, read_header, read_npy
from vitreous.data.splits import RawDataset
from vitreous.downloads.files import open_plain, unchanged_sha256
from vitreous.errors import DataError
from vitreous.hardware import require_memory

_ALWAYS_ALLOWED, _MAX_EXPANSION = 2**28, 100  # bytes unpacked, and per byte of the file; drawings compress by about 10
MAPPED_BYTES = 2**28  # .npy files from this size are mapped into memory and not read
_DAMAGE = (zipfile.BadZipFile, zlib.error, ValueError, EOFError, NotImplementedError, RuntimeError, KeyError)


def read_npz(path: Path) -> RawDataset:
    """Read images (n,H,W), (n,H,W,C) or (n,C,H,W) and labels (n,), named as `array_names.EXPECTED` says.

    Optional arrays: those of a validation and a test set, and `class_names`, which then names the labels 0, 1, ….
    """
    try:
        return to_dataset(_read_arrays(path), {path.name: unchanged_sha256(path)})
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def find_npy_files(path: Path) -> list[Path]:
    """Return the .npy files that belong together: those beside `path` with the same prefix, or all of a folder."""
    folder = path if path.is_dir() else path.parent
    files = [file for file in sorted(folder.iterdir()) if file.suffix.lower() == ".npy" and file.name[0] != "."]
    parsed = {file: parse_name(file.stem) for file in files}
    if folder == path:
        return [file for file in files if parsed[file]]
    mine = parsed.get(path)
    return [file for file in files if file == path or (mine and (other := parsed[file]) and other[0] == mine[0])]


def read_npy_files(path: Path) -> RawDataset:
    """Read the arrays of X.npy and y.npy, named as in an .npz; the path is one of them, or their folder."""
    try:
        files = {file.stem: file for file in find_npy_files(path)}
        wanted = {name: files[name] for name in assign_roles(files).values()}
        arrays = {name: _open_npy(file) for name, file in wanted.items()}
        return to_dataset(arrays, {file.name: unchanged_sha256(file) for file in wanted.values()})
    except DataError as error:
        raise DataError(f"{path}: {error}") from None


def _open_npy(path: Path) -> np.ndarray:
    """Read a .npy file; map one of many uint8 pixels into memory, so that only the images in use are read."""
    try:
        with open_plain(path) as stream:
            size = os.fstat(stream.fileno()).st_size
            shape, fortran_order, dtype = read_header(stream, size)
            if size >= MAPPED_BYTES:
                order: Literal["C", "F"] = "F" if fortran_order else "C"
                # copy-on-write: torch warns of memory that it must not write to
                return np.memmap(path, dtype, "c", stream.tell(), shape, order)
            stream.seek(0)
            return read_npy(stream, size)
    except NpyError as error:
        raise DataError(f"{path.name} {error}") from None
    except (OSError, ValueError) as error:
        raise DataError(f"{path.name} cannot be read: {getattr(error, 'strerror', None) or error}") from None


# --- bytes → arrays ----------------------------------------------------------------------------------------------


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
            wanted = set(assign_roles([info.filename.removesuffix(".npy") for info in entries]).values())
            for info in entries:
                name = info.filename.removesuffix(".npy")
                if name in wanted:
                    with archive.open(info) as stream:
                        arrays[name] = read_npy(stream, info.file_size)
    except NpyError as error:
        raise DataError(f"{name} {error}".lstrip()) from None
    except OSError as error:
        raise DataError(f"cannot be read: {error.strerror or error}") from None
    except _DAMAGE as error:
        raise DataError(f"not a complete .npz file ({error}); save it again with numpy.savez") from None
    return arrays
