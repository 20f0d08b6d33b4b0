"""A run as an ONNX file: written beside its place, checked, and only then given its name."""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import secrets
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

import vitreous
from vitreous.downloads.cache import cache_dir
from vitreous.downloads.files import sha256_of
from vitreous.export.graph import ExportError, build_graph, require_export_packages, without_defaults
from vitreous.export.parity import Parity, check_parity
from vitreous.hardware import prepare
from vitreous.models import ViT
from vitreous.runs import Run

if TYPE_CHECKING:
    from onnx import ModelProto

GRAPH_FORMAT = 1  # goes up when the graph changes, so that cached files of an older form are not used


@dataclass(frozen=True)
class Exported:
    """One ONNX file, checked."""

    path: Path
    full: bool  # with masks and insides
    inputs: tuple[str, ...]  # "pixels", then the optional ones
    outputs: tuple[str, ...]
    bytes: int
    parity: Parity
    elapsed_seconds: float


def export_onnx(run: Run, path: Path, full: bool = True) -> Exported:
    """Write the run's model to `path`, one ONNX file, after it has proved itself; a failed check leaves no file.

    `full` (a ViT's only; other models have nothing to show) adds the optional inputs `head_mask`, `token_mask` and
    the outputs `attention`, `lens`, `queries`, `keys`, `values`. Without it: `pixels` → `logits`, `probabilities`.
    """
    return _export(run, path, full, lambda proto: proto)


def export_for_browser(run: Run, path: Path) -> Exported:
    """The full graph, checked as `export_onnx` does, then stripped of the masks' defaults (see `without_defaults`)."""
    return _export(run, path, True, without_defaults)


def _export(run: Run, path: Path, full: bool, finish: Callable[[ModelProto], ModelProto]) -> Exported:
    require_export_packages()
    import onnx

    prepare()
    path, start = Path(path), time.perf_counter()
    if path.is_dir():
        raise ExportError(f"{str(path)!r} is a folder; name a file, as in -o model.onnx")
    model = run.load_model()
    full = full and isinstance(model, ViT)
    proto = build_graph(run, model, full)
    temporary = path.with_name(f".{path.name}.{secrets.token_hex(6)}.part")
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        _write(proto, temporary)
        parity = check_parity(temporary, run, model, full)
        finished = finish(proto)
        if finished is not proto:
            _write(finished, temporary)
        os.replace(temporary, path)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"onnx.checker refuses the graph: {str(error).splitlines()[0]}; please report it") from None
    except OSError as error:
        raise ExportError(
            f"cannot write {str(path)!r}: {error.strerror or error}; name another place with -o"
        ) from None
    finally:
        with contextlib.suppress(OSError):
            temporary.unlink(missing_ok=True)
    return Exported(
        path=path,
        full=full,
        inputs=tuple(value.name for value in proto.graph.input),
        outputs=tuple(value.name for value in proto.graph.output),
        bytes=path.stat().st_size,
        parity=parity,
        elapsed_seconds=time.perf_counter() - start,
    )


def _write(proto: ModelProto, path: Path) -> None:
    import onnx

    onnx.checker.check_model(proto, full_check=True)
    assert not any(tensor.external_data for tensor in proto.graph.initializer), "all weights belong in the one file"
    with path.open("wb") as stream:
        stream.write(proto.SerializeToString())
        stream.flush()
        os.fsync(stream.fileno())


def onnx_for_serving(run: Run, full: bool) -> Path:
    """The run's ONNX file in the cache; exported (and checked) the first time, found again ever after.

    Named by what it is made of, weights and configuration, so that another run under the same path is another file.
    """
    made_of = json.dumps(
        [GRAPH_FORMAT, vitreous.__version__, run.record.model_dump(mode="json"), run.path.resolve().name],
        sort_keys=True,
    )
    weights = sha256_of(run.path / "model.safetensors") if (run.path / "model.safetensors").is_file() else ""
    key = hashlib.sha256((made_of + weights).encode()).hexdigest()[:32]
    path = cache_dir() / "onnx" / f"{key}-{'full' if full else 'lean'}.onnx"
    if not path.is_file():
        export_onnx(run, path, full)
    return path
