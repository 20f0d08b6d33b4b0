"""Prepared copies: decoded images in the cache, as one file that is mapped into memory instead of being read.

A copy is a folder, `prepared/KEY` in the cache: `pixels.npy`, uint8 (n, C, H, W); `rows.bin`, the label, split, digest
and sums of each image; `names.json`; and `copy.json`, with everything else and the checksums of all. It is written
under another name and renamed when it is complete. The least recently used copies are removed when all of them
together exceed a limit.
"""

from __future__ import annotations

import array
import contextlib
import hashlib
import json
import os
import re
import secrets
import shutil
import struct
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.data.fitting import Fit, to_channels
from vitreous.data.splits import SPLIT_ORDER, SplitName, image_sums
from vitreous.downloads.cache import cache_dir
from vitreous.downloads.files import atomic_write_bytes, locked, read_plain
from vitreous.errors import DataError

FORMAT = 2
PIXELS, ROWS, NAMES, CONTENT = "pixels.npy", "rows.bin", "names.json", "copy.json"
LIMIT_VARIABLE, DEFAULT_LIMIT_GB = "VITREOUS_PREPARED_GB", 20.0
ALWAYS_HASHED = 2**29  # bytes; a larger file is trusted while its size and time are those it was written with

_HEADER_BYTES = 128
_BLOCK_BYTES = 2**18  # written at a time
_LARGEST = 2**31  # bytes of a file that is read into memory


@dataclass(frozen=True)
class Content:
    """What is known of a copy as a whole."""

    class_names: tuple[str, ...]
    fit: Fit = "stretch"
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()  # (name, why it cannot be read)
    source: str = ""  # for people


@dataclass(frozen=True)
class PreparedCopy:
    content: Content
    names: tuple[str, ...]
    rows: np.ndarray  # (n,) of `row_type`
    pixels: np.ndarray  # uint8 (n, C, H, W), mapped; writing to it changes the memory of this process alone


def row_type(channels: int) -> np.dtype[np.void]:
    """Return the type of what is known of one image; `sums` are those of `splits.image_sums`."""
    return np.dtype([("label", "<i8"), ("split", "u1"), ("digest", "u1", 16), ("sums", "<i8", (channels, 2))])


class DamagedCopy(Exception):
    """A copy that is not as it was written."""


def copies_folder() -> Path:
    """Return VITREOUS_PREPARED, else a folder in the cache."""
    chosen = os.environ.get("VITREOUS_PREPARED")
    return Path(os.path.expanduser(chosen)) if chosen else cache_dir() / "prepared"


# --- reading -----------------------------------------------------------------------------------------------------


def open_copy(folder: Path) -> PreparedCopy | None:
    """Return the copy in `folder`, None where there is none; DamagedCopy where it is not as it was written."""
    try:
        record = json.loads(read_plain(folder / CONTENT, _LARGEST))
        checksum = record.pop("checksum")
        if checksum != _checksum(record) or record["format"] != FORMAT:
            raise DamagedCopy
        shape, sha256 = tuple(record["shape"]), record["sha256"]
        status = (folder / PIXELS).stat()
        if status.st_size != _HEADER_BYTES + int(np.prod(shape)):
            raise DamagedCopy
        trusted = status.st_size > ALWAYS_HASHED and record["time"] == status.st_mtime_ns
        if not trusted and _sha256_of_pixels(folder / PIXELS) != sha256[PIXELS]:
            raise DamagedCopy
        small = {name: read_plain(folder / name, _LARGEST) for name in (ROWS, NAMES)}
        if any(hashlib.sha256(data).hexdigest() != sha256[name] for name, data in small.items()):
            raise DamagedCopy
        rows, names = np.frombuffer(small[ROWS], row_type(shape[1])), tuple(json.loads(small[NAMES]))
        pixels = np.memmap(folder / PIXELS, np.uint8, mode="c", offset=_HEADER_BYTES, shape=shape)
        columns = record["content"]
        tuples = {key: tuple(columns[key]) for key in ("class_names", "notes")}
        content = Content(**{**columns, **tuples, "skipped": tuple(map(tuple, columns["skipped"]))})
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedCopy from None
    with contextlib.suppress(OSError):
        os.utime(folder)  # used now
    return PreparedCopy(content, names, rows, pixels)


def _checksum(record: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(record, sort_keys=True).encode("ascii")).hexdigest()


def _sha256_of_pixels(path: Path) -> str:
    with path.open("rb") as stream:
        stream.seek(_HEADER_BYTES)
        return hashlib.file_digest(stream, "sha256").hexdigest()


# --- writing -----------------------------------------------------------------------------------------------------


class CopyWriter:
    """Write images one after the other into a new folder: gray until the first colour image comes, then colour."""

    def __init__(self, folder: Path, size: tuple[int, int]):
        self._folder, self._size = folder, size
        self._path = folder / PIXELS
        self._channels, self._all_gray = 1, True
        self._names: list[str] = []
        self._labels, self._splits, self._digests = array.array("q"), bytearray(), bytearray()
        self._start(self._path)

    def append(
        self, image: np.ndarray, name: str, label: int, split: SplitName, digest: bytes, is_gray: bool = False
    ) -> None:
        """Add a uint8 (C, H, W) image; `is_gray` where its channels are equal but for a tint."""
        if image.shape[0] > self._channels:
            self._rewrite(3)
        elif image.shape[0] < self._channels:
            image = np.repeat(image, 3, axis=0)
        self._write(image)
        self._names.append(name)
        self._labels.append(label)
        self._splits.append(SPLIT_ORDER.index(split))
        self._digests += digest
        self._all_gray = self._all_gray and is_gray

    def finish(self, content: Content, channels: int | None = None) -> None:
        """Write the rest; a set of gray images gets one channel, unless their number is given."""
        wanted = channels or (1 if self._all_gray else self._channels)
        if wanted != self._channels:
            self._rewrite(wanted)
        self._write_block()
        shape = (len(self._names), self._channels, *self._size)
        self._stream.seek(0)
        self._stream.write(_npy_header(shape))
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.close()
        rows = np.empty(len(self._names), row_type(self._channels))
        rows["label"], rows["split"] = self._labels, np.frombuffer(self._splits, np.uint8)
        rows["digest"] = np.frombuffer(self._digests, np.uint8).reshape(-1, 16)
        rows["sums"] = np.concatenate(self._sums)
        small = {ROWS: rows.tobytes(), NAMES: json.dumps(self._names).encode("ascii")}
        for name, data in small.items():
            atomic_write_bytes(self._folder / name, data)
        record = {
            "format": FORMAT,
            "shape": shape,
            "sha256": {PIXELS: self._hash.hexdigest()}
            | {name: hashlib.sha256(data).hexdigest() for name, data in small.items()},
            "time": self._path.stat().st_mtime_ns,
            "content": vars(content),
        }
        record = {"checksum": _checksum(record), **record}
        atomic_write_bytes(self._folder / CONTENT, json.dumps(record).encode("ascii"))

    def close(self) -> None:
        self._stream.close()

    def _start(self, path: Path) -> None:
        """Begin a file of images with the present number of channels."""
        self._stream: IO[bytes] = path.open("w+b")
        self._stream.write(bytes(_HEADER_BYTES))
        self._hash = hashlib.sha256()
        self._block: list[np.ndarray] = []
        self._sums: list[NDArray[np.int64]] = []  # of the blocks

    def _write(self, image: np.ndarray) -> None:
        self._block.append(image)
        if len(self._block) * image.size >= _BLOCK_BYTES:
            self._write_block()

    def _write_block(self) -> None:
        if not self._block:
            return
        images, self._block = np.stack(self._block), []
        self._sums.append(image_sums(images))
        self._hash.update(images.data)
        self._stream.write(images.data)

    def _rewrite(self, channels: int) -> None:
        """Convert all images so far to this number of channels."""
        self._write_block()
        old, old_channels = self._stream, self._channels
        self._channels = channels
        temporary = self._path.with_suffix(".other")
        self._start(temporary)
        try:
            old.seek(_HEADER_BYTES)
            image_bytes = old_channels * self._size[0] * self._size[1]
            while data := old.read(max(1, _BLOCK_BYTES // image_bytes) * image_bytes):
                images = np.frombuffer(data, np.uint8).reshape(-1, old_channels, *self._size)
                for image in images:
                    self._write(to_channels(image.transpose(1, 2, 0), channels).transpose(2, 0, 1))
        finally:
            old.close()
        os.replace(temporary, self._path)


def _npy_header(shape: tuple[int, ...]) -> bytes:
    text = f"{{'descr': '|u1', 'fortran_order': False, 'shape': {shape}, }}"
    return (
        b"\x93NUMPY\x01\x00" + struct.pack("<H", _HEADER_BYTES - 10) + text.ljust(_HEADER_BYTES - 11).encode() + b"\n"
    )


@contextlib.contextmanager
def new_copy(folder: Path, size: tuple[int, int]) -> Iterator[CopyWriter]:
    """Yield the writer of a copy that gets the name `folder` once it is complete; nothing is left of another one."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.part")
    temporary.mkdir(parents=True)
    try:
        writer = CopyWriter(temporary, size)
        try:
            yield writer
        finally:
            writer.close()
        if folder.exists():  # damaged, or finished by another process without locks
            remove_copy(folder)
        with contextlib.suppress(OSError):  # another process was faster
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


# --- the cache of copies -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class CopyInfo:
    folder: Path
    bytes: int
    used: float  # seconds since the epoch
    source: str


def list_copies() -> list[CopyInfo]:
    """Return the copies in the cache, the most recently used first."""
    found = []
    for folder in _entries(r"[0-9a-f]{32}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            source = json.loads(read_plain(folder / CONTENT, _LARGEST))["content"]["source"]
            size = sum(file.stat().st_size for file in folder.iterdir())
            found.append(CopyInfo(folder, size, folder.stat().st_mtime, source))
    return sorted(found, key=lambda copy: -copy.used)


def make_room(newest: Path) -> None:
    """Remove the least recently used copies until all are within the limit, and what killed processes left."""
    remove_leftovers()
    total, limit = 0, _limit()
    for copy in list_copies():
        total += copy.bytes
        if total > limit and copy.folder != newest:
            total -= copy.bytes
            remove_copy(copy.folder)


def remove_all() -> tuple[int, int]:
    """Remove every copy; return how many there were, and their bytes."""
    copies = list_copies()
    remove_leftovers()
    shutil.rmtree(copies_folder(), ignore_errors=True)
    return len(copies), sum(copy.bytes for copy in copies)


def remove_copy(folder: Path) -> None:
    """Remove a copy, which has its name or is gone: never a part of it."""
    gone = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.part")
    with contextlib.suppress(OSError):  # another process was faster, or the cache is read-only
        os.rename(folder, gone)
        shutil.rmtree(gone, ignore_errors=True)


def remove_leftovers() -> None:
    """Remove what killed processes left unfinished; a copy that is being made is locked."""
    for folder in _entries(r"\.[0-9a-f]{32}\.[0-9a-f]{12}\.part"):
        key = folder.name.split(".")[1]
        with contextlib.suppress(_Busy, OSError), locked(lock_of(folder.with_name(key)), _raise_busy) as alone:
            if alone:
                shutil.rmtree(folder, ignore_errors=True)


def lock_of(folder: Path) -> Path:
    return folder.with_name(f".{folder.name}.lock")


class _Busy(Exception):
    """Another process has the lock."""


def _raise_busy() -> None:
    raise _Busy


def _entries(pattern: str) -> list[Path]:
    try:
        return [entry for entry in copies_folder().iterdir() if re.fullmatch(pattern, entry.name) and entry.is_dir()]
    except OSError:
        return []


def _limit() -> float:
    asked = os.environ.get(LIMIT_VARIABLE) or DEFAULT_LIMIT_GB
    try:
        limit = float(asked)
    except ValueError:
        limit = -1.0
    if not 0 <= limit < float("inf"):
        raise DataError(f"{LIMIT_VARIABLE} is {asked!r}; expected a number of gigabytes, such as {DEFAULT_LIMIT_GB:g}")
    return limit * 1e9
