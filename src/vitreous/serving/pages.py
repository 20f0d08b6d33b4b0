"""What the server and the static page share: the page's own files and the entries of its models."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from pathlib import Path

from vitreous.export.catalog import Entry, model_entries, model_ids, parse_metadata
from vitreous.reports.pages import stylesheet
from vitreous.runs import Run

PAGE = Path(__file__).with_name("page")
MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


def page_files() -> dict[str, bytes]:
    """Return the page's files by name, with the stylesheet that it shares with the reports."""
    return {**files_in(PAGE), "vitreous.css": stylesheet().encode()}


def files_in(folder: Path) -> dict[str, bytes]:
    """Return a folder's files by their path in it; hidden and other files (an editor's, say) are left out."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.suffix in MEDIA_TYPES)
    shown = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    return {path.as_posix(): (folder / path).read_bytes() for path in shown}


def entries_from_onnx(runs: Sequence[Run], properties: Sequence[Mapping[str, str]]) -> list[Entry]:
    """Return the entry of each run's model in models.json, from the metadata properties of its ONNX file."""
    return model_entries(dict(zip(model_ids(runs), map(parse_metadata, properties), strict=True)))
