"""The page as a folder for any static host, with the models as ONNX files and the engine that runs them.

index.html …        the page's own files; its <meta name="vitreous-engine"> says that the models run in the browser
train/digits.png …  what the page's own training needs (made_files.py)
models.json         as /v1/models, where each model's "onnx" and "samples" name its files
models/ID.onnx      the full graph with required masks (onnxruntime-web has no optional inputs)
models/ID.safetensors  a ViT's weights, as the graph has them: the page computes from these what happens between the
                    layers, and its first predictions, until the runtime and the graph are there
samples/ID.json     as /v1/samples; models with the same images share one
ort/                onnxruntime-web
….gz                compressed copies. The page itself fetches those of the runtime, models and samples, so that any
                    host will do; the others are for hosts that look for them (nginx: gzip_static on)
"""

from __future__ import annotations

import json
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.config import ViTConfig
from vitreous.downloads import cache as sources
from vitreous.downloads.cache import FileSet, PinnedFile
from vitreous.downloads.origins import NpmPackage
from vitreous.errors import ExportError
from vitreous.export.catalog import check_images, model_ids, models_document, samples_for
from vitreous.export.graph import in_half, require_export_packages
from vitreous.export.onnx_files import Exported, export_onnx
from vitreous.runs import WEIGHTS, Run
from vitreous.serving.compression import LEAST_COMPRESSED, compressed
from vitreous.serving.made_files import MADE_FILES
from vitreous.serving.pages import entries_from_onnx, page_files

_ORT_FILES = (
    PinnedFile("ort.wasm.min.mjs", 50_126, "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b"),
    PinnedFile(
        "ort-wasm-simd-threaded.mjs", 24_381, "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b"
    ),
    PinnedFile(
        "ort-wasm-simd-threaded.wasm", 14_239_897, "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2"
    ),
)
_ORT_PATHS = {file.name: f"package/dist/{file.name}" for file in _ORT_FILES}
_ORT_SHA256 = "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71"  # of the npm package
ORT_WEB = FileSet(
    "onnxruntime-web-1.30.0",
    _ORT_FILES,
    (NpmPackage("onnxruntime-web", "1.30.0", _ORT_PATHS, _ORT_SHA256),),
    by_hand=" (from dist/ of the npm package onnxruntime-web 1.30.0)",
)


@dataclass(frozen=True)
class ExportedPage:
    folder: Path
    models: tuple[Exported, ...]
    files: tuple[str, ...]  # relative to the folder
    bytes: int


def export_page(runs: Sequence[Run], folder: Path) -> ExportedPage:
    """Write the complete page into a new or empty folder; after an error there is no folder."""
    require_export_packages()
    folder = Path(folder)
    if not runs:
        raise ExportError("a page needs at least one run; name one with --run")
    check_images(runs)
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportError(f"{str(folder)!r} exists and is not empty; name another with -o")
    own_files = page_files("browser")
    if "index.html" not in own_files:
        raise ExportError("the page's files are missing from this installation; pip install --force-reinstall vitreous")
    sources.ensure(ORT_WEB)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as work:
            built = Path(work) / folder.name
            for name, content in own_files.items():
                _write(built / name, content)
            for name, make in MADE_FILES.items():
                _write(built / name, make())
            for file in ORT_WEB.files:
                _write(built / "ort" / file.name, sources.read(ORT_WEB, file.name))
            models = _add_models(runs, built)
            _add_compressed_copies(built)
            if folder.exists():
                folder.rmdir()
            built.rename(folder)
    except OSError as error:
        reason = error.strerror or error
        raise ExportError(f"cannot write {str(folder)!r}: {reason}; name another place with -o") from None
    files = tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    return ExportedPage(folder, models, files, sum((folder / name).stat().st_size for name in files))


def _add_models(runs: Sequence[Run], folder: Path) -> tuple[Exported, ...]:
    import onnx

    exported = tuple(
        export_onnx(run, folder / "models" / f"{model_id}.onnx", for_browser=True)
        for run, model_id in zip(runs, model_ids(runs), strict=True)
    )
    loaded = [onnx.load(model.path) for model in exported]
    entries = entries_from_onnx(runs, [{one.key: one.value for one in model.metadata_props} for model in loaded])
    samples: dict[bytes, str] = {}
    for entry, run, model in zip(entries, runs, exported, strict=True):
        model.path.chmod(0o644)
        entry["onnx"] = model.path.relative_to(folder).as_posix()
        entry["lean"] = not model.full  # only `pixels` goes in, only `logits` and `probabilities` come out
        if entry["kind"] == "vit":
            weights = model.path.with_suffix(".safetensors")
            _write(weights, _weights(run, model.half))
            entry["weights"] = weights.relative_to(folder).as_posix()
            config = run.config.model
            entry["skips_patches"] = isinstance(config, ViTConfig) and config.kept_patches != config.num_patches
        entry["samples"] = samples.setdefault(_json(samples_for(run)), f"samples/{entry['id']}.json")
    files = {name: document for document, name in samples.items()}
    files["models.json"] = _json({**models_document(entries), "gzip": True})
    for name, document in files.items():
        _write(folder / name, document)
    return exported


def _weights(run: Run, half: bool) -> bytes:
    """Return the run's weights as safetensors, rounded as those of its graph."""
    content = (run.path / WEIGHTS).read_bytes()
    if not half:
        return content
    from safetensors.numpy import load, save

    rounded = {name: (values, in_half(values)) for name, values in load(content).items()}
    return save({name: values if half is None else half for name, (values, half) in rounded.items()})


def _add_compressed_copies(folder: Path) -> None:
    for path in sorted(folder.rglob("*")):
        if path.is_file() and (path.stat().st_size >= LEAST_COMPRESSED or path.parent != folder):
            _write(path.with_name(f"{path.name}.gz"), compressed(path.read_bytes()))


def _json(document: object) -> bytes:
    return (json.dumps(document, ensure_ascii=False) + "\n").encode()


def _write(path: Path, content: bytes) -> None:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(content)
