"""The download cache: sets of files pinned by size and SHA-256, fetched from the first origin that delivers them.

A file gets its name in the cache only after its checksum has matched, and by a rename: a reader finds a complete file
or none, even while another process is fetching or after one was killed. What is read is hashed again, once per process:
disks decay.
"""

from __future__ import annotations

import atexit
import contextlib
import errno
import gzip
import hashlib
import json
import lzma
import os
import shutil
import sys
import tarfile
import tempfile
import zlib
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Literal, Protocol

from vitreous.downloads.files import atomic_write_text, is_temporary, locked, remove_leftovers, replacing, sha256_of
from vitreous.errors import DataError

CHUNK_BYTES = 1024 * 1024

Status = Literal["ok", "missing", "corrupt"]
Progress = Callable[[str, int, int | None], None]  # title, bytes so far, bytes in all if known
Stamps = dict[str, list[object]]

_hashed_here: dict[Path, list[object]] = {}  # the stamps of files whose bytes this process has hashed


@dataclass(frozen=True)
class PinnedFile:
    """A file with the size and checksum of its decompressed bytes."""

    name: str
    size: int
    sha256: str


Stream = IO[bytes] | gzip.GzipFile
Streams = Iterator[tuple[PinnedFile, Stream]]


class Origin(Protocol):
    """A place that carries the files of a set."""

    @property
    def title(self) -> str: ...

    @property
    def uses_http(self) -> bool: ...

    def open(self, wanted: Iterable[PinnedFile], folder: Path, work: Path, show: Progress) -> Streams:
        """Yield decompressed streams of the wanted files; `folder` is the set's in the cache, `work` is for scratch."""
        ...


class Unavailable(Exception):
    """This origin cannot deliver; the next one may."""


class NoNetwork(Unavailable):
    """No host can be reached, so the other mirrors need not be tried."""


@dataclass(frozen=True)
class FileSet:
    """Files that belong together, in one folder of the cache, and the origins to try in turn."""

    name: str
    files: tuple[PinnedFile, ...]
    origins: tuple[Origin, ...]
    by_hand: str = ""  # for the error message: other forms in which the user may put the files there

    @property
    def folder(self) -> Path:
        return cache_dir() / self.name

    @property
    def checksums(self) -> dict[str, str]:
        return {file.name: file.sha256 for file in self.files}


def cache_dir() -> Path:
    """Return VITREOUS_CACHE, else the user's cache; where that is missing and cannot be made, a temporary folder."""
    chosen = os.environ.get("VITREOUS_CACHE")
    place = chosen or f"{os.environ.get('XDG_CACHE_HOME') or '~/.cache'}/vitreous"
    try:
        folder = Path(place).expanduser()
    except RuntimeError:  # ~ of a user without a home
        if chosen:
            raise DataError(f"VITREOUS_CACHE is {chosen}, and there is no such home: name another folder") from None
        return _temporary_cache(place)
    nearest = next(path for path in (folder, *folder.parents) if os.path.exists(path))
    # a cache that is there is used even where it is read-only: its files may be all that is needed
    usable = chosen or nearest == folder or (nearest.is_dir() and os.access(nearest, os.W_OK | os.X_OK))
    return folder if usable else _temporary_cache(place)


def _temporary_cache(wanted: str) -> Path:
    """Return a folder for this process and its children, which find it in VITREOUS_CACHE; it is removed at exit."""
    folder = tempfile.mkdtemp(prefix="vitreous-")
    atexit.register(shutil.rmtree, folder, ignore_errors=True)
    os.environ["VITREOUS_CACHE"] = folder
    sys.stderr.write(
        f"vitreous: the cache {wanted} cannot be made, so a temporary folder takes its place;"
        " set VITREOUS_CACHE to a folder that lasts\n"
    )
    return Path(folder)


# --- what is cached ----------------------------------------------------------------------------------------------


def is_cached(files: FileSet) -> bool:
    return not _missing(files)


def verify(files: FileSet) -> dict[str, Status]:
    """Hash every file again; the next `ensure` fetches those that are corrupt."""
    return _check(files, rehash=True)


def _missing(files: FileSet) -> list[PinnedFile]:
    status = _check(files)
    return [file for file in files.files if status[file.name] != "ok"]


def _check(files: FileSet, rehash: bool = False) -> dict[str, Status]:
    """Return the status of every file.

    A verified file is trusted until its size or modification time changes: only `read` hashes it then.
    """
    stamps_path = files.folder / ".verified.json"
    old_stamps = _read_stamps(stamps_path)
    stamps: Stamps = {}
    status: dict[str, Status] = {}
    for file in files.files:
        path = files.folder / file.name
        if not path.is_file():
            status[file.name] = "missing"
            continue
        stamp = _stamp(path, file)
        trusted = not rehash and stamp in (old_stamps.get(file.name), _hashed_here.get(path))
        if trusted or _hash_matches(path, file):
            status[file.name] = "ok"
            stamps[file.name] = stamp
            if not trusted:
                _hashed_here[path] = stamp
        else:
            status[file.name] = "corrupt"
            _hashed_here.pop(path, None)
    if stamps != old_stamps:
        with contextlib.suppress(OSError):  # a read-only cache is hashed by each process instead
            atomic_write_text(stamps_path, json.dumps(stamps, indent=1))
    return status


def _stamp(path: Path, file: PinnedFile) -> list[object]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, file.sha256]


def _read_stamps(path: Path) -> Stamps:
    try:
        stamps = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError, RecursionError):  # damaged: the files are hashed again
        return {}
    return stamps if isinstance(stamps, dict) else {}


def _hash_matches(path: Path, file: PinnedFile) -> bool:
    try:
        return path.stat().st_size == file.size and sha256_of(path) == file.sha256
    except OSError:
        return False


# --- fetching ----------------------------------------------------------------------------------------------------


def ensure(files: FileSet) -> Path:
    """Return the folder that holds all the files; fetch those that are missing or corrupt."""
    if is_cached(files) and not _has_leftovers(files.folder):
        return files.folder

    def wait() -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"Another process is fetching {files.name}; waiting for it.\n")

    try:
        files.folder.mkdir(parents=True, exist_ok=True)
        # Without locks, two processes at worst fetch the same file: each renames its own complete copy.
        with locked(files.folder / ".lock", wait) as alone:
            if alone:
                _remove_leftovers(files.folder)
            if missing := _missing(files):  # again: another process may have fetched while this one waited
                _fetch(files, missing)
    except OSError as error:
        megabytes = sum(file.size for file in files.files) / 1e6
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = f"make room for about {max(2 * megabytes, 1):.0f} MB there" if full else "make it writable"
        raise DataError(
            f"cannot write to the cache {files.folder}: {error.strerror or error}; {remedy},"
            " or set VITREOUS_CACHE to another folder"
        ) from None
    return files.folder


def _has_leftovers(folder: Path) -> bool:
    return any(file.name.startswith(".fetch-") or is_temporary(file) for file in folder.glob(".*"))


def read(files: FileSet, name: str) -> bytes:
    """Return the bytes of a file, fetched if it is missing, and again if it was damaged since then."""
    file = next(file for file in files.files if file.name == name)
    path = ensure(files) / name
    for fetch_again in (True, False):
        try:
            stamp, data = _stamp(path, file), path.read_bytes()
        except OSError as error:
            reason = f"cannot be read ({error.strerror or error})"
        else:
            if _hashed_here.get(path) == stamp or hashlib.sha256(data).hexdigest() == file.sha256:
                _hashed_here[path] = stamp
                return data
            reason = "is damaged (its SHA-256 is not the one expected)"
        if fetch_again:
            verify(files)  # forgets the stamps of damaged files, so that ensure fetches them
            ensure(files)
    raise DataError(f"{path} {reason}; remove it, or set VITREOUS_CACHE to another folder")


def _remove_leftovers(folder: Path) -> None:
    """Remove the temporary files of a process that was killed while fetching."""
    for scratch in folder.glob(".fetch-*"):
        shutil.rmtree(scratch, ignore_errors=True)
    remove_leftovers(folder)


def _fetch(files: FileSet, missing: list[PinnedFile]) -> None:
    if shutil.disk_usage(files.folder).free < 2 * sum(file.size for file in missing):  # packed and unpacked
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    failures = ""
    network = True
    with _progress(files.name) as show:
        for origin in files.origins:
            reason = ""
            if origin.uses_http and not network:
                reason = "not tried, since there is no network"
            else:
                try:
                    _fetch_from(origin, missing, files.folder, show)
                except Unavailable as error:
                    network = network and not isinstance(error, NoNetwork)
                    reason = str(error)
                missing = _missing(files)
                if not missing:
                    return
            failures += f" {origin.title}: {reason or 'lacks ' + ', '.join(file.name for file in missing)};"
    names = ", ".join(file.name for file in missing)
    damaged = [file.name for file in missing if (files.folder / file.name).is_file()]
    damage = f" to replace {', '.join(damaged)}, damaged in the cache" if damaged else ""
    raise DataError(
        f"could not fetch {files.name!r}{damage}; tried{failures} to continue without a network, put {names} into"
        f" {files.folder} by hand{files.by_hand}."
    )


def _fetch_from(origin: Origin, wanted: list[PinnedFile], folder: Path, show: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder, ignore_cleanup_errors=True) as work:
        for file, stream in origin.open(wanted, folder, Path(work), show):
            with replacing(folder / file.name) as target:
                size, sha256 = copy_stream(stream, target, limit=file.size)
                if size != file.size:
                    amount = f"more than {file.size}" if size > file.size else f"{size}, not {file.size}"
                    raise Unavailable(f"{file.name} has {amount} bytes")
                if sha256 != file.sha256:
                    raise Unavailable(f"{file.name} does not have the SHA-256 expected")


def copy_stream(stream: Stream, target: IO[bytes], limit: int) -> tuple[int, str]:
    """Copy a stream up to the first byte beyond `limit`; return the number of bytes copied and their SHA-256."""
    digest, size = hashlib.sha256(), 0
    while True:
        try:
            chunk = stream.read(min(CHUNK_BYTES, limit + 1 - size))
        except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
            # the origin's fault, unlike an OSError of target.write
            raise Unavailable(f"the data are damaged ({error})") from None
        if not chunk:
            return size, digest.hexdigest()
        size += len(chunk)
        digest.update(chunk)
        target.write(chunk)


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """Yield a function that updates a progress bar on a terminal, and does nothing elsewhere."""
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TransferSpeedColumn
    from rich.progress import Progress as ProgressBar

    columns = ("{task.description}", BarColumn(), DownloadColumn(), TransferSpeedColumn())
    disable = not sys.stderr.isatty()
    with ProgressBar(*columns, console=Console(stderr=True), transient=True, disable=disable) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, total: bar.update(task, description=f"{title}: {what}", completed=done, total=total)
