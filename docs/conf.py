"""Sphinx: the pages of this folder as a site, without network. `make docs` builds it with warnings as errors."""

from __future__ import annotations

import re
import sys
from pathlib import Path
from typing import Any

_ROOT = Path(__file__).parents[1]
_VERSION = re.search(r'__version__ = "([^"]+)"', (_ROOT / "src/vitreous/__init__.py").read_text(encoding="utf-8"))
assert _VERSION is not None
sys.path.insert(0, str(Path(__file__).parent))  # mathml.py

project = "vitreous"
release = version = _VERSION[1]
copyright = "the vitreous authors"
extensions = ["myst_parser", "mathml"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build", "reference/vit"]
smartquotes = False  # it makes a dash of the two hyphens of --set
html_theme = "furo"
html_title = f"vitreous {release}"
html_math_renderer = "mathml"
html_static_path = ["_static", "reference/vit/static"]
html_css_files = ["colors.css", "site.css"]
html_favicon = "../src/vitreous/serving/page/icon.svg"
html_logo = "../src/vitreous/serving/page/icon.svg"
html_copy_source = False
html_show_sourcelink = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b7f7c", "color-brand-content": "#0b7f7c"},
    "dark_css_variables": {"color-brand-primary": "#45bdb6", "color-brand-content": "#45bdb6"},
}
if tags.has("page"):  # type: ignore[name-defined] # noqa: F821  # `make site`: with the static page, in page/
    html_extra_path = ["../build/static"]
myst_heading_anchors = 4
myst_enable_extensions = ["colon_fence", "deflist", "dollarmath"]


def _link_notebooks(_app: Any, name: str, source: list[str]) -> None:
    """Link to the page of a notebook; on a forge the same link leads to the notebook itself."""
    up = "../" * name.count("/")
    source[0] = re.sub(r"\((?:\.\./)+notebooks/(\w+)\.ipynb\)", rf"({up}reference/notebooks/\1.md)", source[0])


def setup(app: Any) -> None:
    app.connect("source-read", _link_notebooks)
