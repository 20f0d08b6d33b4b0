"""Prepared copies: decoded images in the cache, as one file that is mapped into memory instead of being read.

A copy is a folder, `prepared/KEY` in the cache: `pixels.npy`, uint8 (n, C, H, W), and `copy.json`, with everything else
and the checksums of both. It is written under another name and renamed when it is complete. The least recently used
copies are removed when all of them together exceed a limit.
"""

from __future__ import annotations

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

from vitreous.data.fitting import Fit, to_channels
from vitreous.data.splits import SplitName
from vitreous.downloads.cache import cache_dir
from vitreous.downloads.files import atomic_write_text, locked, read_plain
from vitreous.errors import DataError

FORMAT = 1
PIXELS, CONTENT = "pixels.npy", "copy.json"
LIMIT_VARIABLE, DEFAULT_LIMIT_GB = "VITREOUS_PREPARED_GB", 20.0
ALWAYS_HASHED = 2**29  # bytes; a larger file is trusted while its size and time are those it was written with

_HEADER_BYTES = 128
_REWRITTEN_ROWS = 256  # at a time


@dataclass(frozen=True)
class Content:
    """Everything about a copy but its pixels. The columns have one entry per image, in the order of the pixels."""

    class_names: list[str]
    names: list[str]
    labels: list[int]
    splits: list[SplitName]
    digests: list[str]  # hexadecimal
    fit: Fit = "stretch"
    notes: tuple[str, ...] = ()
    skipped: tuple[tuple[str, str], ...] = ()  # (name, why it cannot be read)
    source: str = ""  # for people
    keep: bool = False  # not removed to make room: what it was made from may be gone


@dataclass(frozen=True)
class PreparedCopy:
    content: Content
    pixels: np.ndarray  # uint8 (n, C, H, W), mapped; writing to it changes the memory of this process alone


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
        record = json.loads(read_plain(folder / CONTENT, most=2**31))
        checksum = record.pop("checksum")
        if checksum != _checksum(record) or record["format"] != FORMAT:
            raise DamagedCopy
        shape = tuple(record["shape"])
        status = (folder / PIXELS).stat()
        if status.st_size != _HEADER_BYTES + int(np.prod(shape)):
            raise DamagedCopy
        trusted = status.st_size > ALWAYS_HASHED and record["time"] == status.st_mtime_ns
        if not trusted and _sha256_of_pixels(folder / PIXELS) != record["sha256"]:
            raise DamagedCopy
        pixels = np.memmap(folder / PIXELS, np.uint8, mode="c", offset=_HEADER_BYTES, shape=shape)
        columns = dict(record["content"])
        columns |= {"notes": tuple(columns["notes"]), "skipped": tuple(map(tuple, columns["skipped"]))}
        content = Content(**columns)
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError, AttributeError, RecursionError):
        raise DamagedCopy from None
    with contextlib.suppress(OSError):
        os.utime(folder)  # used now
    return PreparedCopy(content, pixels)


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
        self._count, self._channels, self._all_gray = 0, 1, True
        self._hash = hashlib.sha256()
        self._stream = self._create(self._path)

    def append(self, image: np.ndarray, is_gray: bool) -> None:
        """Add a uint8 (C, H, W) image; `is_gray` where its channels are equal but for a tint."""
        if image.shape[0] > self._channels:
            self._rewrite(3)
        elif image.shape[0] < self._channels:
            image = np.repeat(image, 3, axis=0)
        self._write(image.tobytes())
        self._count += 1
        self._all_gray = self._all_gray and is_gray

    def finish(self, content: Content, channels: int | None = None) -> None:
        """Write the rest; a set of gray images gets one channel, unless their number is given."""
        wanted = channels or (1 if self._all_gray else self._channels)
        if wanted != self._channels:
            self._rewrite(wanted)
        self._stream.flush()
        self._stream.seek(0)
        shape = (self._count, self._channels, *self._size)
        self._stream.write(_npy_header(shape))
        self._stream.flush()
        os.fsync(self._stream.fileno())
        self.close()
        record = {
            "format": FORMAT,
            "shape": shape,
            "sha256": self._hash.hexdigest(),
            "time": self._path.stat().st_mtime_ns,
            "content": vars(content),
        }
        record = json.loads(json.dumps(record))  # as it will be read: tuples are lists
        atomic_write_text(self._folder / CONTENT, json.dumps({"checksum": _checksum(record), **record}))

    def close(self) -> None:
        self._stream.close()

    def _create(self, path: Path) -> IO[bytes]:
        stream = path.open("w+b", buffering=2**20)
        stream.write(bytes(_HEADER_BYTES))
        return stream

    def _write(self, data: bytes) -> None:
        self._stream.write(data)
        self._hash.update(data)

    def _rewrite(self, channels: int) -> None:
        """Convert all images so far to this number of channels."""
        old, old_channels = self._stream, self._channels
        self._channels, self._hash = channels, hashlib.sha256()
        temporary = self._path.with_suffix(".other")
        self._stream = self._create(temporary)
        try:
            old.flush()
            old.seek(_HEADER_BYTES)
            image_bytes = old_channels * self._size[0] * self._size[1]
            while data := old.read(_REWRITTEN_ROWS * image_bytes):
                images = np.frombuffer(data, np.uint8).reshape(-1, old_channels, *self._size)
                for image in images:
                    converted = to_channels(image.transpose(1, 2, 0), channels).transpose(2, 0, 1)
                    self._write(converted.tobytes())
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
    keep: bool
    source: str


def list_copies() -> list[CopyInfo]:
    """Return the copies in the cache, the most recently used first."""
    found = []
    for folder in _entries(r"[0-9a-f]{32}"):
        with contextlib.suppress(OSError, ValueError, KeyError, TypeError):
            content = json.loads(read_plain(folder / CONTENT, most=2**31))["content"]
            size = sum(file.stat().st_size for file in folder.iterdir())
            found.append(CopyInfo(folder, size, folder.stat().st_mtime, content["keep"], content["source"]))
    return sorted(found, key=lambda copy: -copy.used)


def make_room(newest: Path) -> None:
    """Remove the least recently used copies until all are within the limit, and what killed processes left."""
    remove_leftovers()
    total, limit = 0, _limit()
    for copy in list_copies():
        total += copy.bytes
        if total > limit and copy.folder != newest and not copy.keep:
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
