"""Atomic writes, reading of plain files, checksums, and locks between processes."""

from __future__ import annotations

import contextlib
import errno
import functools
import hashlib
import io
import os
import re
import secrets
import stat
import sys
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
    """Yield a stream to a temporary neighbour of `path`, which replaces it once it is written, flushed and synced.

    Temporaries that killed processes left in the folder are removed as well.
    """
    _require_replaceable(path)
    with contextlib.ExitStack() as until_renamed:
        temporary, stream = _create_temporary(path, until_renamed)
        try:
            with stream:
                yield stream
                stream.flush()
                os.fsync(stream.fileno())
            with contextlib.suppress(FileNotFoundError):
                temporary.chmod(path.stat().st_mode & 0o777)  # the new file keeps the mode of the old one
            os.replace(temporary, path)
        except BaseException:
            temporary.unlink(missing_ok=True)
            raise
    remove_leftovers(path.parent)
    sync_folder(path.parent)


def _require_replaceable(path: Path) -> None:
    """Refuse to replace a pipe, socket or device: root may rename a file over /dev/null, and everything then breaks."""
    if not path.name:  # "." or "/"
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if os.path.islink(path) and os.readlink(path).startswith("/proc/"):  # /dev/stdin, whatever it is connected to
        raise OSError(errno.EINVAL, "it is a stream of this process, not a file", str(path))
    if os.path.exists(path):
        _require_plain(os.stat(path), path, "name another file")


def _create_temporary(path: Path, until_renamed: contextlib.ExitStack) -> tuple[Path, IO[bytes]]:
    """Return a new temporary neighbour of `path` and a stream to it; it is locked until it has its final name."""
    while True:
        temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
        stream = temporary.open("xb")
        if sys.platform != "win32":  # Windows cannot rename a file that is still open, and has no such lock
            lock = os.dup(stream.fileno())
            until_renamed.callback(os.close, lock)
            _lock_temporary(lock, wait=True)
        if temporary.exists():
            return temporary, stream
        stream.close()  # another process took it for a leftover before it was locked


def _lock_temporary(descriptor: int, wait: bool) -> bool:
    """Return whether this process has the lock now; never, where there are no such locks."""
    if sys.platform == "win32":
        return False
    import fcntl

    try:
        fcntl.flock(descriptor, fcntl.LOCK_EX if wait else fcntl.LOCK_EX | fcntl.LOCK_NB)
    except OSError:
        return False
    return True


def is_temporary(file: Path) -> bool:
    """Return whether this is a file that `replacing` has not renamed yet, or never will: its process was killed."""
    return re.fullmatch(r"\..+\.[0-9a-f]{12}\.part", file.name) is not None and file.is_file()


def remove_leftovers(folder: Path) -> None:
    """Remove temporaries that killed processes left in `folder`; those being written now are locked, and stay."""
    for file in folder.glob(".*.part"):
        with contextlib.suppress(OSError):  # another process was faster, or the folder is read-only
            if is_temporary(file):
                with file.open("rb") as stream:
                    if _lock_temporary(stream.fileno(), wait=False):
                        file.unlink()


def sync_folder(folder: Path) -> None:
    with contextlib.suppress(OSError):  # Windows, and some network disks, cannot sync a folder
        handle = os.open(folder, os.O_RDONLY)
        try:
            os.fsync(handle)
        finally:
            os.close(handle)


def open_plain(path: Path) -> io.BufferedReader:
    """Open a plain file for reading; refuse, as an OSError, a pipe, socket or device: reading one may never end.

    The type is asked before opening, which may already have an effect on a device, and again once it is open.
    """
    try:
        _require_plain(os.stat(path), path)
        # without O_NONBLOCK, opening a pipe waits for a writer
        flags = os.O_RDONLY | getattr(os, "O_NONBLOCK", 0) | getattr(os, "O_BINARY", 0)
        stream = os.fdopen(os.open(path, flags), "rb")
    except ValueError as error:  # a null byte in the name
        raise OSError(errno.EINVAL, str(error), str(path)) from None
    try:
        _require_plain(os.fstat(stream.fileno()), path)
    except BaseException:
        stream.close()
        raise
    return stream


def _require_plain(status: os.stat_result, path: Path, advice: str = "save its content to a file") -> None:
    if stat.S_ISDIR(status.st_mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder, not a file", str(path))
    if not stat.S_ISREG(status.st_mode):
        raise OSError(errno.EINVAL, f"it is a pipe, socket or device, not a plain file; {advice}", str(path))


def read_plain(path: Path, most: int = 2**26) -> bytes:
    """Return the content of a plain file of at most `most` bytes; anything else is an OSError."""
    with open_plain(path) as stream:
        data = stream.read(most + 1)
    if len(data) > most:
        raise OSError(errno.EFBIG, f"it is larger than {most:,} bytes", str(path))
    return data


def sha256_of(path: Path) -> str:
    with open_plain(path) as stream:
        return hashlib.file_digest(stream, "sha256").hexdigest()


def unchanged_sha256(path: Path) -> str:
    """Return the SHA-256 of a file; one of the same size and time as before in this process is not read again."""
    status = os.stat(path)
    return _sha256_of_stamped(path, status.st_size, status.st_mtime_ns)


@functools.lru_cache(maxsize=1024)
def _sha256_of_stamped(path: Path, size: int, mtime_ns: int) -> str:
    return sha256_of(path)


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
