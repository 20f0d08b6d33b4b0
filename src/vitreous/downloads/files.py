"""Atomic writes, checksums, and locks between processes."""

from __future__ import annotations

import contextlib
import hashlib
import os
import secrets
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import IO


def atomic_write_bytes(path: Path, data: bytes) -> None:
    """Replace `path` by `data`, or leave it as it was: a crash at any moment leaves one or the other."""
    with replacing(path) as stream:
        stream.write(data)


def atomic_write_text(path: Path, text: str) -> None:
    atomic_write_bytes(path, text.encode("utf-8"))


@contextlib.contextmanager
def replacing(path: Path) -> Iterator[IO[bytes]]:
    """Yield a stream to a temporary neighbour of `path`, which replaces it once it is written, flushed and synced."""
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        with temporary.open("xb") as stream:
            yield stream
            stream.flush()
            os.fsync(stream.fileno())
        with contextlib.suppress(FileNotFoundError):
            temporary.chmod(path.stat().st_mode & 0o777)  # the new file keeps the mode of the old one
        os.replace(temporary, path)
    except BaseException:
        temporary.unlink(missing_ok=True)
        raise
    _sync_folder(path.parent)


def _sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows, and some network disks, cannot sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def sha256_of(path: Path) -> str:
    with path.open("rb") as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


@contextlib.contextmanager
def locked(file: Path, when_busy: Callable[[], None]) -> Iterator[bool]:
    """Lock `file` against other processes; yield whether the file system has locks at all.

    When another process has the lock, `when_busy` is called: it raises, or returns to wait.
    """
    from filelock import FileLock, Timeout

    lock = FileLock(file)
    has_locks = True
    try:
        lock.acquire(timeout=0)
    except Timeout:
        when_busy()
        lock.acquire()
    except (NotImplementedError, OSError):  # a network disk without locks, or a read-only folder
        has_locks = False
    try:
        yield has_locks
    finally:
        lock.release()  # a no-op without the lock
