"""Sphinx: the pages of this folder as a site, without network. `make docs` builds it with warnings as errors."""

from __future__ import annotations

import re
from pathlib import Path

_ROOT = Path(__file__).parents[1]
_VERSION = re.search(r'__version__ = "([^"]+)"', (_ROOT / "src/vitreous/__init__.py").read_text(encoding="utf-8"))
assert _VERSION is not None

project = "vitreous"
release = version = _VERSION[1]
copyright = "the vitreous authors"
extensions = ["myst_parser"]
source_suffix = {".md": "markdown"}
exclude_patterns = ["_build"]
html_theme = "furo"
html_title = f"vitreous {release}"
html_static_path: list[str] = []
html_copy_source = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0b7f7c", "color-brand-content": "#0b7f7c"},
    "dark_css_variables": {"color-brand-primary": "#45bdb6", "color-brand-content": "#45bdb6"},
}
myst_heading_anchors = 4
myst_enable_extensions = ["deflist"]
