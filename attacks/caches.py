"""Damaged caches: downloaded data, their stamps and locks, and the ONNX graphs prepared for serving."""

from __future__ import annotations

import contextlib
import hashlib
import os
import shutil
import struct
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any
from unittest import mock

import numpy as np

from attacks import tiny_runs
from attacks.cases import Case, Finding, Verdict, flip_bits, listed, numbered, refused_or, take_turns

TITLE = "damaged caches"
SECONDS = 60.0
CACHE = "cache"
_COUNT = 300
_GRAPHS = 40  # a damaged graph may be exported again, which takes seconds
_MEGABYTES = 900.0  # of an export

DATA, STAMPS, LISTED, GRAPH = "flipped bits in data", "flipped bits in .verified.json", "other files", "prepared ONNX"
#: name → whether the images must be loaded as they were, because the data themselves are intact
OTHER_FILES = {
    "a file truncated, time kept": False,
    "a file missing": False,
    "a file that is a folder": False,
    "a file that is a pipe": False,
    "a file that is a dangling link": False,
    "a file exchanged for another": False,
    "everything missing": False,
    "stale .part files": True,
    "a stale folder of a fetch": True,
    "a lock that no one has": True,
    "a lock that is a folder": True,
    ".verified.json nested for ever": True,
    ".verified.json is a list": True,
    ".verified.json is not UTF-8": True,
    ".verified.json is a folder": True,
    ".verified.json states other stamps": True,
    "gzipped copies that are bombs": True,
    "a folder without write permission": True,
}

_home: Path
_cache: Path
_run: Path
_pixels: np.ndarray
_probabilities: np.ndarray


def _idx(array: np.ndarray) -> bytes:
    return struct.pack(f">I{array.ndim}I", 0x800 + array.ndim, *array.shape) + array.tobytes()


def _files() -> dict[str, bytes]:
    """Return a small MNIST: the names of its files, and images that the test can recognise."""
    from vitreous.data import specs

    numbers = np.random.default_rng(0)
    return {
        specs.TRAIN_IMAGES: _idx(numbers.integers(0, 256, (60, 28, 28), np.uint8)),
        specs.TRAIN_LABELS: _idx(np.arange(60, dtype=np.uint8) % 10),
        specs.TEST_IMAGES: _idx(numbers.integers(0, 256, (20, 28, 28), np.uint8)),
        specs.TEST_LABELS: _idx(np.arange(20, dtype=np.uint8) % 10),
    }


def warm_up() -> None:
    global _home, _cache, _run, _pixels, _probabilities
    tiny_runs.warm_up()
    _home = Path(tempfile.mkdtemp())
    _run = tiny_runs.make_reference(_home).folder
    _cache = _home / CACHE
    os.environ["VITREOUS_CACHE"] = str(_cache)
    mnist = _cache / "mnist"
    mnist.mkdir(parents=True)
    for name, data in _files().items():
        (mnist / name).write_bytes(data)
    _pixels = np.random.default_rng(1).integers(0, 256, (4, 1, 28, 28), np.uint8)
    # in a fork, because they run torch: the first use writes stamps and graphs to the cache
    pid = os.fork()
    if pid == 0:
        with contextlib.suppress(BaseException):
            _load_data()
            np.save(_home / "probabilities.npy", _predict())
            os._exit(0)
        os._exit(1)
    if tiny_runs.finish(pid):
        raise RuntimeError("the cache could not be made")
    _probabilities = np.load(_home / "probabilities.npy")
    import onnxruntime  # noqa: F401


def cases(seed: int) -> Iterator[Case]:
    yield from take_turns(
        listed("caches", LISTED, OTHER_FILES, seed),
        numbered("caches", DATA, _COUNT, seed),
        numbered("caches", STAMPS, _COUNT, seed),
        numbered("caches", GRAPH, _GRAPHS, seed, megabytes=_MEGABYTES),
    )


def prepare(case: Case, folder: Path) -> None:
    numbers = case.random()
    cache = folder / CACHE
    shutil.copytree(_cache, cache)
    mnist = cache / "mnist"
    if case.kind == LISTED:
        _change(case.name, mnist)
    elif case.kind == DATA:
        file = mnist / numbers.choice(sorted(_files()))
        _write_unnoticed(file, flip_bits(file.read_bytes(), numbers))
    elif case.kind == STAMPS:
        file = mnist / ".verified.json"
        file.write_bytes(flip_bits(file.read_bytes(), numbers))
    else:
        file = numbers.choice(sorted((cache / "onnx").glob("*-lean*.onnx")))
        data = file.read_bytes()
        truncated = numbers.random() < 0.2
        _write_unnoticed(file, data[: numbers.randrange(len(data))] if truncated else flip_bits(data, numbers))


def _write_unnoticed(file: Path, data: bytes) -> None:
    """Change a file as a decaying disk does: its time stays as it was."""
    status = file.stat()
    file.write_bytes(data)
    os.utime(file, ns=(status.st_atime_ns, status.st_mtime_ns))


def _change(name: str, mnist: Path) -> None:
    first, second = (mnist / each for each in sorted(_files())[:2])
    stamps = mnist / ".verified.json"
    if name == "a file truncated, time kept":
        _write_unnoticed(first, first.read_bytes()[:-7])
    elif name == "a file exchanged for another":
        data = first.read_bytes()
        _write_unnoticed(first, second.read_bytes().ljust(len(data), b"\0")[: len(data)])
    elif name == "everything missing":
        shutil.rmtree(mnist)
    elif name.startswith("a file"):
        first.unlink()
        kind = name.rpartition(" ")[2]
        if kind == "folder":
            first.mkdir()
        elif kind == "pipe":
            os.mkfifo(first)
        elif kind == "link":
            first.symlink_to(mnist / "nowhere")
    elif name == "stale .part files":
        for part in (f".{first.name}.0123456789ab.part", f".{second.name}.ba9876543210.part"):
            (mnist / part).write_bytes(b"half")
    elif name == "a stale folder of a fetch":
        (mnist / ".fetch-abc" / "deep").mkdir(parents=True)
    elif name == "a lock that no one has":
        (mnist / ".lock").write_text("12345")
    elif name == "a lock that is a folder":
        shutil.rmtree(mnist / ".lock", ignore_errors=True)
        (mnist / ".lock").unlink(missing_ok=True)
        (mnist / ".lock").mkdir()
        stamps.unlink()
    elif name == "gzipped copies that are bombs":
        (mnist / f"{first.name}.gz").write_bytes(b"\x1f\x8b\x08" + bytes(100))
        first.touch()
    elif name == "a folder without write permission":
        stamps.unlink()
        mnist.chmod(0o555)
    elif name == ".verified.json is a folder":
        stamps.unlink()
        stamps.mkdir()
    else:
        contents = {"ever": b"[" * 100_000, "list": b"[1]", "UTF-8": b"\xff\xfe{}", "stamps": b'{"x": [1, "y", null]}'}
        stamps.write_bytes(contents[name.rpartition(" ")[2]])


# --- the attack ----------------------------------------------------------------------------------------------------


def attack(case: Case, folder: Path) -> Finding:
    os.environ["VITREOUS_CACHE"] = str(folder / CACHE)
    if case.kind == GRAPH:
        return refused_or(_attack_graph)
    finding = refused_or(_attack_data)
    intact = case.kind == STAMPS or (case.kind == LISTED and OTHER_FILES[case.name])
    if intact and finding.verdict is Verdict.REFUSED:
        return Finding(Verdict.WRONG, f"intact data are refused: {finding.detail}")
    if intact and case.name.startswith("stale") and (left := list((folder / CACHE / "mnist").glob(".*.part"))):
        return Finding(Verdict.WRONG, f"left behind: {left[0].name}")
    return finding


def _attack_data() -> Finding:
    for array, (name, data) in zip(_load_data(), _files().items(), strict=True):
        if array.astype(np.uint8).tobytes() != data[-array.size :]:
            return Finding(Verdict.WRONG, f"{name} changed, and nothing noticed it")
    return Finding(Verdict.IDENTICAL)


def _load_data() -> list[np.ndarray]:
    """Load the small MNIST from the cache, where there is nothing to fetch it from; return the arrays of its files."""
    from vitreous.data import specs
    from vitreous.downloads.cache import FileSet, PinnedFile
    from vitreous.downloads.origins import ByHand

    pinned = tuple(PinnedFile(name, len(data), hashlib.sha256(data).hexdigest()) for name, data in _files().items())
    with mock.patch.object(specs, "MNIST_FILES", FileSet("mnist", pinned, (ByHand(),))):
        splits = specs.DATASETS["mnist"].load().splits
    train, test = splits["train"], splits["test"]
    return [array.numpy() for array in (train.images, train.labels, test.images, test.labels)]


def _attack_graph() -> Finding:
    try:
        found = _predict()
    except Exception as error:
        if type(error).__module__.startswith("onnxruntime"):  # it notices some damage itself
            return Finding(Verdict.CRASH, f"{type(error).__name__}: {str(error)[:200]}")
        raise
    if not np.array_equal(found, _probabilities):
        return Finding(Verdict.WRONG, f"probabilities differ by up to {np.abs(found - _probabilities).max():.2g}")
    return Finding(Verdict.IDENTICAL)


def _predict() -> np.ndarray:
    """Predict with the graph that a server would use."""
    from vitreous.runs import Run
    from vitreous.serving.limits import Limits
    from vitreous.serving.metrics import Metrics
    from vitreous.serving.models import load_models

    (model,) = load_models([Run.open(_run)], Limits(), Metrics(), show_paths=False).values()
    session: Any = model.engine.session
    outputs = session.run(["probabilities"], {"pixels": _pixels.astype(np.float32) / np.float32(255)})
    return np.asarray(outputs[0])
