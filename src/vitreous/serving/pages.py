"""What the server and the static page share: the page's own files and the entries of its models."""

from __future__ import annotations

import posixpath
import re
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal

from vitreous.export.catalog import Entry, model_entries, model_ids, parse_metadata
from vitreous.reports.pages import stylesheet
from vitreous.runs import Run

PAGE = Path(__file__).with_name("page")
MEDIA_TYPES = {".html": "text/html", ".js": "text/javascript", ".css": "text/css", ".svg": "image/svg+xml"}


#: where the models run: on a server, or in the browser
PageEngine = Literal["http", "browser"]
_ENGINE = '<meta name="vitreous-engine" content="http">'
_PRELOAD = '<link rel="modulepreload" href="{}">'
_IMPORTED = re.compile(r'^(?:import|export|\}) .*?(?<=["\s])from "(\.[^"]+)";|^import "(\.[^"]+)";', re.MULTILINE)


def page_files(engine: PageEngine = "http") -> dict[str, bytes]:
    """Return the page's files by name, with the stylesheet that it shares with the reports.

    index.html names the engine, and every module that is needed at once: the browser would otherwise find them one
    import after the other.
    """
    files = {**files_in(PAGE), "vitreous.css": stylesheet().encode()}
    modules = imported_modules(files, ("main.js", f"engine-{engine}.js", "texts/play-en.js"))
    index = files["index.html"].decode()
    index = index.replace(_ENGINE, _ENGINE.replace("http", engine))
    index = index.replace(_PRELOAD.format("main.js"), "\n".join(_PRELOAD.format(name) for name in modules))
    return {**files, "index.html": index.encode()}


def imported_modules(files: Mapping[str, bytes], roots: Iterable[str]) -> list[str]:
    """Return modules and all that they import statically, the nearest first."""
    found = list(roots)
    for name in found:  # grows on the way
        for groups in _IMPORTED.findall(files[name].decode()):
            module = posixpath.normpath(posixpath.join(posixpath.dirname(name), next(filter(None, groups))))
            if module not in found:
                found.append(module)
    return found


def files_in(folder: Path) -> dict[str, bytes]:
    """Return a folder's files by their path in it; hidden and other files (an editor's, say) are left out."""
    paths = (path.relative_to(folder) for path in sorted(folder.rglob("*")) if path.suffix in MEDIA_TYPES)
    shown = [path for path in paths if not any(part.startswith(".") for part in path.parts)]
    return {path.as_posix(): (folder / path).read_bytes() for path in shown}


def entries_from_onnx(runs: Sequence[Run], properties: Sequence[Mapping[str, str]]) -> list[Entry]:
    """Return the entry of each run's model in models.json, from the metadata properties of its ONNX file."""
    return model_entries(dict(zip(model_ids(runs), map(parse_metadata, properties), strict=True)))
