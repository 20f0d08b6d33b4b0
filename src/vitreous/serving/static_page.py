"""The page as a static folder for any static host: its files, the models as ONNX, and the engine that runs them.

index.html …        the page's own files
engine.json         {"engine": "browser"}: no server answers here, the models run in the browser
models.json         what there is (see catalog.py); each model's "onnx" names its file
models/ID.onnx      the full graph, its masks required (onnxruntime-web knows no optional inputs)
samples.json        test images to begin with
ort/                onnxruntime-web
"""

from __future__ import annotations

import json
import shutil
import tempfile
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from vitreous.downloads import cache as sources
from vitreous.downloads.cache import FileSet, PinnedFile
from vitreous.downloads.origins import NpmPackage
from vitreous.export.catalog import (
    model_entries,
    model_ids,
    models_document,
    parse_metadata,
    run_for_samples,
    sample_digits,
)
from vitreous.export.graph import ExportError, require_export_packages
from vitreous.export.onnx_files import Exported, export_for_browser
from vitreous.runs import Run

PAGE = Path(__file__).with_name("page")
STYLESHEET = Path(__file__).parents[1] / "reports" / "vitreous.css"
SUFFIXES = {".html", ".js", ".mjs", ".css", ".json", ".svg", ".png", ".ico", ".woff2", ".webmanifest", ".txt"}

_ORT_FILES = (
    PinnedFile("ort.wasm.min.mjs", 50_126, "219e6a1fc8a9938268d18efca3c91d310bd2f4a59bbd13744df5b2b7fc6cee3b"),
    PinnedFile(
        "ort-wasm-simd-threaded.mjs", 24_381, "e13f7f94fc51b4ca72b12faeb1ee95f4ace6dfbc8939bc718aabdc0a27c4299b"
    ),
    PinnedFile(
        "ort-wasm-simd-threaded.wasm", 14_239_897, "3398c10d07d229bd91b364548e130e0e51a8e5704b88c7c083ebbeb78842dee2"
    ),
)
ORT_WEB = FileSet(
    "onnxruntime-web-1.30.0",
    _ORT_FILES,
    (
        NpmPackage(
            "onnxruntime-web",
            "1.30.0",
            {file.name: f"package/dist/{file.name}" for file in _ORT_FILES},
            "d2228df7e4616bc3348bf504ee888f3bec43789a273f0a63f3e68d203ce3bf71",
        ),
    ),
    by_hand=" (from dist/ of the npm package onnxruntime-web 1.30.0)",
)


@dataclass(frozen=True)
class ExportedPage:
    folder: Path
    models: tuple[Exported, ...]
    files: tuple[str, ...]  # all of them, relative to the folder
    bytes: int


def page_files() -> dict[str, Path]:
    """The page's own files by their address relative to index.html, and the reports' stylesheet, which it shares."""
    return {**files_in(PAGE), STYLESHEET.name: STYLESHEET}


def files_in(folder: Path) -> dict[str, Path]:
    """A page's files by their address relative to the folder; hidden ones and other kinds are not the page's."""
    found = {
        path.relative_to(folder).as_posix(): path
        for path in sorted(folder.rglob("*"))
        if path.is_file() and not path.is_symlink() and path.suffix in SUFFIXES
    }
    return {name: path for name, path in found.items() if not any(part.startswith(".") for part in name.split("/"))}


def export_page(runs: Sequence[Run], folder: Path) -> ExportedPage:
    """Write the whole page into a new (or empty) folder; it appears whole or not at all."""
    require_export_packages()
    folder = Path(folder)
    if not runs:
        raise ExportError("a page needs at least one run; name one with --run")
    if folder.exists() and (not folder.is_dir() or any(folder.iterdir())):
        raise ExportError(f"{str(folder)!r} exists already and is not empty; name another with -o")
    own = page_files()
    if "index.html" not in own:
        raise ExportError("the page's files are missing from this installation; pip install --force-reinstall vitreous")
    engine = sources.ensure(ORT_WEB)
    try:
        folder.parent.mkdir(parents=True, exist_ok=True)
        with tempfile.TemporaryDirectory(prefix=f".{folder.name}.", dir=folder.parent) as work:
            built = Path(work) / folder.name
            models = _build(runs, built, own, engine)
            folder.rmdir() if folder.exists() else None
            built.rename(folder)
    except OSError as error:
        raise ExportError(
            f"cannot write {str(folder)!r}: {error.strerror or error}; name another place with -o"
        ) from None
    files = tuple(sorted(path.relative_to(folder).as_posix() for path in folder.rglob("*") if path.is_file()))
    return ExportedPage(folder, models, files, sum((folder / name).stat().st_size for name in files))


def _build(runs: Sequence[Run], folder: Path, own: dict[str, Path], engine: Path) -> tuple[Exported, ...]:
    for name, path in own.items():
        _copy(path, folder / name)
    for file in ORT_WEB.files:
        _copy(engine / file.name, folder / "ort" / file.name)
    exported = {
        ident: _model(run, folder / "models" / f"{ident}.onnx")
        for ident, run in zip(model_ids(runs), runs, strict=True)
    }
    write_documents(exported, run_for_samples(runs), folder)
    return tuple(exported.values())


def _model(run: Run, path: Path) -> Exported:
    exported = export_for_browser(run, path)
    path.chmod(0o644)
    return exported


def write_documents(exported: dict[str, Exported], sampled: Run, folder: Path) -> None:
    import onnx

    described = {
        ident: parse_metadata({entry.key: entry.value for entry in onnx.load(one.path).metadata_props})
        for ident, one in exported.items()
    }
    entries = model_entries(described)
    for entry, one in zip(entries, exported.values(), strict=True):
        entry["onnx"] = one.path.relative_to(folder).as_posix()
        entry["lean"] = not one.full  # only `pixels` goes in, only `logits` and `probabilities` come out
    _write_json(folder / "models.json", models_document(entries))
    _write_json(folder / "samples.json", sample_digits(sampled))
    _write_json(folder / "engine.json", {"engine": "browser"})


def _write_json(path: Path, value: object) -> None:
    path.write_text(json.dumps(value, ensure_ascii=False) + "\n", encoding="utf-8")


def _copy(source: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(source, target)
