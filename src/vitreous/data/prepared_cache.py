"""The cache of prepared copies: each in a folder `prepared/KEY`, written under another name and renamed when complete.

The least recently used copies are removed when all of them together exceed a limit.
"""

from __future__ import annotations

import contextlib
import os
import re
import secrets
import shutil
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from vitreous.data.prepared import DamagedCopy, Manifest, open_prepared, read_manifest
from vitreous.data.splits import RawDataset
from vitreous.downloads.cache import cache_dir
from vitreous.downloads.files import locked
from vitreous.errors import DataError

LIMIT_VARIABLE, DEFAULT_LIMIT_GB = "VITREOUS_PREPARED_GB", 20.0


def copies_folder() -> Path:
    """Return VITREOUS_PREPARED, else a folder in the cache."""
    chosen = os.environ.get("VITREOUS_PREPARED")
    return Path(os.path.expanduser(chosen)) if chosen else cache_dir() / "prepared"


def open_copy(folder: Path) -> tuple[Manifest, RawDataset] | None:
    """Return the copy in `folder`, None where there is none; DamagedCopy where it is not as it was written."""
    manifest = read_manifest(folder)
    if manifest is None:
        return None
    raw = open_prepared(folder, manifest, trusts_time=True)
    with contextlib.suppress(OSError):
        os.utime(folder)  # used now
    return manifest, raw


@contextlib.contextmanager
def new_copy(folder: Path) -> Iterator[Path]:
    """Yield a folder to write a copy to, which is named `folder` once that is done; nothing is left of another one."""
    temporary = folder.with_name(f".{folder.name}.{secrets.token_hex(6)}.part")
    temporary.mkdir(parents=True)
    try:
        yield temporary
        if folder.exists():  # damaged, or finished by another process without locks
            remove_copy(folder)
        with contextlib.suppress(OSError):  # another process was faster
            os.rename(temporary, folder)
    finally:
        shutil.rmtree(temporary, ignore_errors=True)


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
        source = ""  # of one that is damaged, or of an earlier version
        with contextlib.suppress(DamagedCopy):
            manifest = read_manifest(folder)
            source = manifest.content.source if manifest else ""
        with contextlib.suppress(OSError):
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
