"""The graphs in the cache: never used when damaged, written whole, exported once by several processes."""

from __future__ import annotations

import hashlib
import shutil
import threading
from pathlib import Path
from types import SimpleNamespace

import numpy as np
import pytest

from vitreous.errors import ExportError
from vitreous.export import onnx_files, served_graphs
from vitreous.export.served_graphs import find_onnx, has_graphs, onnx_for_serving
from vitreous.runs import BUNDLED, Run, WeightsRecord


class Exporter:
    """In place of `export_onnx`, which takes seconds: writes other bytes for each run and kind, and counts."""

    def __init__(self) -> None:
        self.calls = 0
        self.started, self.go_on = threading.Event(), threading.Event()
        self.go_on.set()

    def __call__(self, run: Run, path: Path, full: bool) -> SimpleNamespace:
        self.calls += 1
        self.started.set()
        assert self.go_on.wait(30)
        path.write_bytes(f"{run.record.weights.sha256} {full}".encode() * 20)
        return SimpleNamespace(path=path)


@pytest.fixture
def cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("VITREOUS_CACHE", str(tmp_path / "cache"))
    return tmp_path / "cache" / "onnx"


@pytest.fixture
def exporter(monkeypatch: pytest.MonkeyPatch) -> Exporter:
    exporter = Exporter()
    monkeypatch.setattr(onnx_files, "export_onnx", exporter)
    return exporter


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """A run that is not bundled."""
    (tmp_path / "run").mkdir()
    for name in ("config.json", "model.safetensors"):
        shutil.copy(BUNDLED / "vit" / name, tmp_path / "run")
    return Run.open(tmp_path / "run")


def test_the_cache_tells_runs_and_graphs_apart(run: Run, cache: Path, exporter: Exporter) -> None:
    assert not has_graphs(run)
    first = onnx_for_serving(run, "full")
    assert onnx_for_serving(run, "full") == first
    assert onnx_for_serving(run, "lean") != first
    assert exporter.calls == 2
    assert has_graphs(run)
    other = Run(run.path, run.record.replace(weights=WeightsRecord(sha256="of others")))
    assert onnx_for_serving(other, "full") != first
    files = [path for path in cache.iterdir() if path.name != ".lock"]
    assert len(files) == 3
    assert all(path.stem.endswith(hashlib.sha256(path.read_bytes()).hexdigest()) for path in files)


def test_no_flipped_bit_is_served(
    run: Run, cache: Path, exporter: Exporter, capsys: pytest.CaptureFixture[str]
) -> None:
    good = onnx_for_serving(run, "lean")
    random = np.random.default_rng(0)
    for flips in range(1, 31):
        (file,) = cache.glob("*.onnx")
        damaged = bytearray(good)
        damaged[random.integers(len(good))] ^= 1 << int(random.integers(8))
        file.write_bytes(damaged)
        assert find_onnx(run, "lean") is None
        assert onnx_for_serving(run, "lean") == good
        assert exporter.calls == 1 + flips
        assert "is damaged" in capsys.readouterr().err
    (file,) = cache.glob("*.onnx")  # the damaged one was replaced
    file.write_bytes(good[:-1])
    assert onnx_for_serving(run, "lean") == good


def test_a_damaged_bundled_graph_is_exported_again(
    cache: Path, exporter: Exporter, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    shutil.copytree(BUNDLED / "cnn", tmp_path / "bundled" / "cnn")
    monkeypatch.setattr(served_graphs, "BUNDLED", tmp_path / "bundled")
    run = Run.open(tmp_path / "bundled" / "cnn")
    (file,) = run.path.glob("lean-*.onnx")
    assert onnx_for_serving(run, "lean") == file.read_bytes()
    assert exporter.calls == 0
    with file.open("r+b") as stream:
        stream.seek(1000)
        stream.write(b"?")
    assert onnx_for_serving(run, "lean") in [path.read_bytes() for path in cache.glob("*.onnx")]
    assert exporter.calls == 1


def test_of_two_at_once_one_exports(run: Run, cache: Path, exporter: Exporter, monkeypatch: pytest.MonkeyPatch) -> None:
    exporter.go_on.clear()
    waits = threading.Event()
    monkeypatch.setattr(served_graphs, "_wait", waits.set)
    (cache / ".export-of-a-killed-process").mkdir(parents=True)
    found: list[bytes] = []
    threads = [threading.Thread(target=lambda: found.append(onnx_for_serving(run, "lean"))) for _ in range(2)]
    threads[0].start()
    assert exporter.started.wait(30)
    threads[1].start()
    assert waits.wait(30)
    assert find_onnx(run, "lean") is None  # not before it is whole
    exporter.go_on.set()
    for thread in threads:
        thread.join(30)
    assert exporter.calls == 1
    assert found[0] == found[1]
    assert sorted(path.suffix for path in cache.iterdir() if path.name != ".lock") == [".onnx"]


def test_a_cache_that_cannot_be_written(run: Run, cache: Path, exporter: Exporter) -> None:
    cache.parent.write_text("not a folder")
    with pytest.raises(ExportError, match="set VITREOUS_CACHE to another folder"):
        onnx_for_serving(run, "lean")
    assert exporter.calls == 0
