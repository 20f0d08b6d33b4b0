"""What the server and the static page share: the page's own files and the entries of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitreous.export.catalog import Entry, model_entries, model_ids, parse_metadata
from vitreous.reports.pages import stylesheet
from vitreous.runs import Run

PAGE = Path(__file__).with_name("page")
SUFFIXES = {".html", ".js", ".css", ".json", ".webmanifest", ".svg", ".png", ".ico", ".txt"}


def page_files() -> dict[str, bytes]:
    """Return the page's files by path relative to index.html, with the stylesheet that it shares with the reports."""
    return {**files_in(PAGE), "vitreous.css": stylesheet().encode()}


def files_in(folder: Path) -> dict[str, bytes]:
    """Return a folder's files by relative path; hidden files, links and other kinds of files are left out."""
    paths = {path.relative_to(folder): path for path in sorted(folder.rglob("*"))}
    return {
        name.as_posix(): path.read_bytes()
        for name, path in paths.items()
        if path.suffix in SUFFIXES
        and path.is_file()
        and not path.is_symlink()
        and not any(part.startswith(".") for part in name.parts)
    }


def entries_from_onnx(runs: Sequence[Run], properties: Sequence[Mapping[str, str]]) -> list[Entry]:
    """Return the entry of each run's model in models.json, from the metadata properties of its ONNX file."""
    return model_entries(dict(zip(model_ids(runs), map(parse_metadata, properties), strict=True)))
