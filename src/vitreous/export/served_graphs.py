"""The ONNX graphs that are served, verified: bundled with the package, in the cache, or exported now.

The name of a graph's file ends in its SHA-256. Callers get bytes that match it and open a session from these, so no
byte can change between check and use. A graph that is damaged is exported again. Nothing here imports torch unless a
graph has to be exported.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import shutil
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Literal

import vitreous
from vitreous.config import ViTConfig
from vitreous.downloads.cache import cache_dir
from vitreous.downloads.files import atomic_write_bytes, locked, sha256_of
from vitreous.errors import ExportError
from vitreous.runs import BUNDLED, WEIGHTS, Run

GRAPH_FORMAT = 3  # increased when the graph changes, so that cached files of an older form are not used
GraphKind = Literal["lean", "full"]
_UNFINISHED = ".export-"  # prefix of the folders that exports under way write to


def graph_kinds(run: Run) -> tuple[GraphKind, ...]:
    """Return the graphs that a run has; only ViTs have a full one (graph.py)."""
    return ("lean", "full") if isinstance(run.config.model, ViTConfig) else ("lean",)


def has_graphs(run: Run) -> bool:
    """Return whether every graph of the run is there, and undamaged."""
    return all(find_onnx(run, kind) is not None for kind in graph_kinds(run))


def export_for_serving(runs: Sequence[Run]) -> None:
    """Export the graphs that are not there yet to the cache, where the workers find them."""
    for run in runs:
        for kind in graph_kinds(run):
            onnx_for_serving(run, kind)


def onnx_for_serving(run: Run, kind: GraphKind) -> bytes:
    """Return the run's graph; it is exported and checked where there is none, or a damaged one."""
    return find_onnx(run, kind) or _export(run, kind)


def find_onnx(run: Run, kind: GraphKind) -> bytes | None:
    """Return the run's graph if it is bundled or in the cache, and undamaged."""
    if run.path.resolve().parent == BUNDLED.resolve() and (graph := _read(run.path, kind)):
        return graph
    return _read(_folder(), _cache_name(run, kind))


def write_verified(folder: Path, name: str, graph: bytes) -> Path:
    """Write a graph under a name that ends in its SHA-256; a reader finds all of it or nothing."""
    path = folder / f"{name}-{hashlib.sha256(graph).hexdigest()}.onnx"
    atomic_write_bytes(path, graph)
    return path


def _read(folder: Path, name: str) -> bytes | None:
    for path in _candidates(folder, name):
        with contextlib.suppress(OSError):  # unreadable, or removed by another process that exports it again
            graph = path.read_bytes()
            if path.stem.endswith(hashlib.sha256(graph).hexdigest()):
                return graph
            print(f"{str(path)!r} is damaged (its SHA-256 is not the one in its name) and is not used", file=sys.stderr)
    return None


def _candidates(folder: Path, name: str) -> list[Path]:
    return sorted(folder.glob(f"{name}-*.onnx"))


def _export(run: Run, kind: GraphKind) -> bytes:
    """Export to the cache; of several processes one exports, and the others wait for its file."""
    from vitreous.export.onnx_files import export_onnx

    folder, name = _folder(), _cache_name(run, kind)
    try:
        folder.mkdir(parents=True, exist_ok=True)
        with locked(folder / ".lock", _wait) as alone:
            if alone:
                for unfinished in folder.glob(f"{_UNFINISHED}*"):  # of a process that was killed
                    shutil.rmtree(unfinished, ignore_errors=True)
            if (graph := _read(folder, name)) is not None:  # exported while this process waited
                return graph
            with tempfile.TemporaryDirectory(prefix=_UNFINISHED, dir=folder) as work:
                graph = export_onnx(run, Path(work, "model.onnx"), full=kind == "full").path.read_bytes()
            for damaged in _candidates(folder, name):
                damaged.unlink(missing_ok=True)
            write_verified(folder, name, graph)
            return graph
    except OSError as error:
        raise ExportError(
            f"cannot write to the cache {str(folder)!r}: {error.strerror or error}; make it writable, or set"
            " VITREOUS_CACHE to another folder"
        ) from None


def _wait() -> None:
    print("another process is exporting a model: waiting for it", file=sys.stderr)


def _folder() -> Path:
    return cache_dir() / "onnx"


def _cache_name(run: Run, kind: GraphKind) -> str:
    """Return a hash of weights and configuration, so that another run under the same path gets another file."""
    contents = json.dumps(
        [GRAPH_FORMAT, vitreous.__version__, run.record.model_dump(mode="json"), run.path.resolve().name],
        sort_keys=True,
    )
    weights = sha256_of(run.path / WEIGHTS) if (run.path / WEIGHTS).is_file() else ""
    return f"{hashlib.sha256((contents + weights).encode()).hexdigest()[:32]}-{kind}"
