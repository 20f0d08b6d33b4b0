"""Write a run as an ONNX file: under a temporary name, until it has been checked."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from vitreous.downloads.files import replacing
from vitreous.errors import ExportError
from vitreous.export.graph import build_graph, make_masks_required, require_export_packages, store_weights_in_half
from vitreous.export.parity import MAX_HALF_DIFFERENCE, Parity, check_parity
from vitreous.hardware import prepare
from vitreous.models import ViT
from vitreous.runs import Run

if TYPE_CHECKING:
    from onnx import ModelProto
    from torch import nn


@dataclass(frozen=True)
class Exported:
    """A checked ONNX file."""

    path: Path
    full: bool  # with masks and intermediates
    half: bool  # weights stored as float16
    inputs: tuple[str, ...]  # "pixels", then the optional ones
    outputs: tuple[str, ...]
    bytes: int
    parity: Parity
    elapsed_seconds: float


def export_onnx(run: Run, path: Path, full: bool = True, *, for_browser: bool = False) -> Exported:
    """Write the run's model to `path` as one ONNX file, after checking it; a failed check leaves no file.

    `full` (ViTs only) adds the optional inputs `head_mask` and `token_mask` and the outputs `attention`, `lens`,
    `queries`, `keys` and `values`. Otherwise the graph is `pixels` → `logits`, `probabilities` and, where the run
    measures it, `novelty`. `for_browser`: the weights are stored as float16, unless that changes a prediction or any
    output too much; once the file is checked, the masks lose their defaults.
    """
    require_export_packages()
    import onnx

    prepare()
    path, start = Path(path), time.perf_counter()
    if path.is_dir():
        raise ExportError(f"{str(path)!r} is a folder; name a file, as in -o model.onnx")
    if run.preprocessing.shuffled:
        raise ExportError(
            f"{str(run.path)!r} was trained on images with shuffled patches (data.shuffle_patches), for a study: it"
            " predicts no other images, so there is nothing to export"
        )
    model = run.load_model()
    full = full and isinstance(model, ViT)
    proto = build_graph(run, model, full)
    half = None
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        with replacing(path) as stream:
            if for_browser:
                half = _written_in_half(proto, stream, run, model, full)
            if half is not None:
                proto, parity = half
            else:
                _write(proto, stream)
                parity = check_parity(Path(stream.name), run, model, full)
            if for_browser:
                make_masks_required(proto)
                _write(proto, stream)
    except onnx.checker.ValidationError as error:
        raise ExportError(f"onnx.checker refuses the graph: {str(error).splitlines()[0]}; please report it") from None
    except OSError as error:
        raise ExportError(
            f"cannot write {str(path)!r}: {error.strerror or error}; choose another place with -o"
        ) from None
    return Exported(
        path=path,
        full=full,
        half=half is not None,
        inputs=tuple(value.name for value in proto.graph.input),
        outputs=tuple(value.name for value in proto.graph.output),
        bytes=path.stat().st_size,
        parity=parity,
        elapsed_seconds=time.perf_counter() - start,
    )


def _written_in_half(
    proto: ModelProto, stream: IO[bytes], run: Run, model: nn.Module, full: bool
) -> tuple[ModelProto, Parity] | None:
    """Write the graph with float16 weights and check it; return None where they are not accurate enough."""
    import onnx

    half = onnx.ModelProto()
    half.CopyFrom(proto)
    store_weights_in_half(half)
    _write(half, stream)
    try:
        return half, check_parity(Path(stream.name), run, model, full, MAX_HALF_DIFFERENCE)
    except ExportError:
        return None


def _write(proto: ModelProto, stream: IO[bytes]) -> None:
    """Check the graph and replace the content of the file by it."""
    import onnx

    onnx.checker.check_model(proto, full_check=True)
    assert not any(tensor.external_data for tensor in proto.graph.initializer), "all weights belong in the one file"
    stream.seek(0)
    stream.truncate()
    stream.write(proto.SerializeToString())
    stream.flush()
