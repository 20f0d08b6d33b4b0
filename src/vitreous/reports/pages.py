"""One self-contained HTML file: stylesheet, pictures and text inside, nothing fetched."""

from __future__ import annotations

import base64
import io
import re
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from markupsafe import Markup, escape

if TYPE_CHECKING:
    import numpy as np
    from jinja2 import Environment
    from numpy.typing import NDArray

_HERE = Path(__file__).parent
#: A picture in a page need not be larger than it is shown, at twice the density.
_LARGEST_SIDE = 256


@cache
def stylesheet() -> str:
    """The shared `vitreous.css`."""
    return (_HERE / "vitreous.css").read_text(encoding="utf-8")


def page_environment(templates: Path) -> Environment:
    """Jinja for the templates of one folder, every value escaped unless it is `Markup`; a missing one is an error."""
    from jinja2 import Environment, FileSystemLoader, StrictUndefined

    environment = Environment(
        loader=FileSystemLoader([templates, _HERE]),
        autoescape=True,
        undefined=StrictUndefined,
        trim_blocks=True,
        lstrip_blocks=True,
    )
    environment.filters["unbroken"] = _unbroken
    return environment


def html_page(title: str, body: str | Markup, *, description: str = "", extra_css: str = "") -> str:
    """A whole page around `body`, which is escaped unless it is `Markup`; `extra_css` is ours and goes in as it is."""
    frame = page_environment(_HERE).get_template("base.html.jinja")
    return frame.render(title=title, body=body, description=description, css=Markup(stylesheet() + extra_css))


def image_data_uri(pixels: NDArray[np.uint8]) -> str:
    """An image (C, H, W) of bytes as a PNG inside a `data:` address; odd numbers of channels are shown grey."""
    from PIL import Image

    if pixels.shape[0] in (3, 4):
        picture = Image.fromarray(pixels[:3].transpose(1, 2, 0).copy())
    else:
        picture = Image.fromarray(pixels.mean(axis=0).round().astype("uint8"))
    picture.thumbnail((_LARGEST_SIDE, _LARGEST_SIDE))
    buffer = io.BytesIO()
    picture.save(buffer, format="PNG", optimize=True)
    return "data:image/png;base64," + base64.b64encode(buffer.getvalue()).decode("ascii")


def _unbroken(text: str) -> Markup:
    """Keep a number and its unit on one line."""
    joined = re.sub(r"(?<=\d) (?=(%|s|M|G|k)(?!\w))", "\u00a0", str(escape(text)))
    return Markup(re.sub(r"\bp (=|&lt;) ", "p\u00a0\\1\u00a0", joined))
