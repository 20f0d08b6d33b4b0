"""One self-contained HTML file per report: stylesheet, images and text inside, nothing fetched."""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from markupsafe import Markup, escape

from vitreous.downloads.files import atomic_write_bytes, atomic_write_text
from vitreous.errors import RunError
from vitreous.reports import formats
from vitreous.reports.tiles import image_data_uri

if TYPE_CHECKING:
    from jinja2 import Environment

    from vitreous.reports.figures import DrawnFigure

_HERE = Path(__file__).parent


@cache
def stylesheet() -> str:
    """Return `vitreous.css`, which the reports share with the page, and `report.css`."""
    return "".join((_HERE / name).read_text(encoding="utf-8") for name in ("vitreous.css", "report.css"))


def page_environment(templates: Path) -> Environment:
    """Return Jinja for the templates of one folder and the shared ones, with the formats as filters.

    Every value is escaped unless it is `Markup`; a missing one is an error.
    """
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    loader = FileSystemLoader([templates, _HERE])
    environment = Environment(
        loader=loader, autoescape=True, undefined=StrictUndefined, trim_blocks=True, lstrip_blocks=True
    )
    used = (formats.percent, formats.number, formats.mean_count, formats.plural, formats.p_value, image_data_uri)
    environment.filters.update({function.__name__: function for function in used}, unbroken=_unbroken)
    environment.globals["css"] = Markup(stylesheet())
    return environment


def write_report(
    file: Path,
    template: Path,
    *,
    title: str,
    description: str,
    figures: Iterable[DrawnFigure] = (),
    beside: Mapping[str, str | bytes | dict[str, Any]] | None = None,
    **values: Any,
) -> Path:
    """Render `template`, which extends `base.html.jinja`, into `file`; return `file`.

    The figures go into `figures/` beside it, as SVG and PNG. `beside`: more files, name → text, bytes or JSON value.
    """
    page = page_environment(template.parent).get_template(template.name)
    text = page.render(title=title, description=description, **values)
    folder = file.parent
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for figure in figures:
            (folder / "figures").mkdir(exist_ok=True)
            figure.write(folder / "figures")
        for name, content in (beside or {}).items():
            if isinstance(content, dict):
                content = json.dumps(content, indent=2, ensure_ascii=False, allow_nan=False) + "\n"
            atomic_write_bytes(folder / name, content.encode() if isinstance(content, str) else content)
        atomic_write_text(file, text)
    except OSError as error:
        raise RunError(
            f"cannot write the report into {str(folder)!r}: {error.strerror or error}; name another folder with -o"
        ) from error
    return file


def _unbroken(text: str) -> Markup:
    """Keep a number and its unit on one line."""
    joined = re.sub(r"(?<=\d) (?=(%|s|M|G|k)(?!\w))", "\u00a0", str(escape(text)))
    return Markup(re.sub(r"\bp (=|&lt;) ", "p\u00a0\\1\u00a0", joined))
