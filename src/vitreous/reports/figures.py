"""How a matplotlib figure of ours looks, and how it gets into a page: as SVG that follows light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from vitreous.reports.colors import THEME, light

if TYPE_CHECKING:
    from matplotlib.figure import Figure

_PREFERRED_FONTS = ("Inter", "Helvetica Neue", "Helvetica", "Arial", "Liberation Sans", "DejaVu Sans")


@dataclass(frozen=True)
class DrawnFigure:
    """A finished figure: its file name without ending, and its SVG as drawn (light, on its own paper)."""

    name: str
    svg: str

    def inline(self, alt: str) -> str:
        """For a page: colours become CSS variables, ids unique, and it can be read aloud."""
        return _inline_svg(self.svg, self.name, alt)


@cache
def _fonts() -> list[str]:
    # only those there are: matplotlib logs a warning for each missing one
    from matplotlib import font_manager

    present = set(font_manager.fontManager.get_font_names())
    return [font for font in _PREFERRED_FONTS if font in present] or ["sans-serif"]


def _settings(name: str) -> dict[Any, Any]:
    ink, soft, line = light("ink"), light("ink-soft"), light("line")
    return {
        "font.family": _fonts(),
        "font.size": 9,  # points; 12 CSS pixels
        "text.parse_math": False,  # a class called "$5" is a name, not a formula
        "text.color": ink,
        "axes.labelcolor": soft,
        "axes.labelsize": 9,
        "axes.titlesize": 10,
        "axes.titleweight": "bold",
        "axes.titlelocation": "left",
        "axes.titlecolor": ink,
        "axes.edgecolor": line,
        "axes.facecolor": "none",
        "axes.spines.top": False,
        "axes.spines.right": False,
        "axes.grid": True,
        "axes.axisbelow": True,
        "axes.unicode_minus": True,
        "grid.color": line,
        "grid.linewidth": 0.6,
        "xtick.color": line,
        "ytick.color": line,
        "xtick.labelcolor": soft,
        "ytick.labelcolor": soft,
        "xtick.labelsize": 9,
        "ytick.labelsize": 9,
        "xtick.major.size": 3,
        "ytick.major.size": 0,
        "xtick.minor.size": 0,
        "ytick.minor.size": 0,
        "lines.linewidth": 1.75,
        "lines.markersize": 5,
        "lines.solid_capstyle": "round",
        "legend.frameon": False,
        "legend.fontsize": 9,
        "figure.facecolor": light("paper"),
        "savefig.facecolor": "auto",
        "svg.fonttype": "none",  # text stays text: it can be searched, copied and restyled
        "svg.hashsalt": name,  # the same figure gives the same file
        "image.interpolation": "nearest",
    }


@contextmanager
def figure_style(name: str, width: float, height: float) -> Iterator[Figure]:
    """A figure of `width` × `height` CSS pixels in the shared style; no pyplot, so no backend and no global state."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with matplotlib.rc_context(_settings(name)):
        figure = Figure(figsize=(width / 96, height / 96), dpi=96, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def finish_figure(figure: Figure, name: str, folder: Path) -> DrawnFigure:
    """Write `name.svg` and `name.png` into `folder`; to be called inside `figure_style`."""
    buffer = io.StringIO()
    with warnings.catch_warnings():
        # a class named in a script this machine has no font for: boxes in the PNG; the page uses the reader's fonts
        warnings.filterwarnings("ignore", message="Glyph .* missing from font")
        figure.savefig(buffer, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
        figure.set_layout_engine("none")  # it is laid out; the second time would cost as much as the first
        figure.savefig(folder / f"{name}.png", dpi=192, metadata={"Software": None})
    svg = buffer.getvalue()
    (folder / f"{name}.svg").write_text(svg, encoding="utf-8")
    return DrawnFigure(name, svg)


def _inline_svg(svg: str, name: str, alt: str) -> str:
    from markupsafe import escape

    svg = svg[svg.index("<svg") :]
    svg = re.sub(r"<metadata>.*?</metadata>", "", svg, flags=re.DOTALL)
    svg = re.sub(r'\sxmlns(:\w+)?="[^"]*"', "", svg).replace("xlink:href", "href")
    svg = re.sub(r'\bid="([^"]+)"', rf'id="{name}-\1"', svg)
    svg = re.sub(r'(url\(|href=")#', rf"\1#{name}-", svg)
    variables = {values[0]: f"var(--{key})" for key, values in THEME.items()}
    # only inside style attributes: a class that is called "#ffffff" keeps its name
    svg = re.sub(
        r'style="([^"]*)"',
        lambda style: 'style="' + re.sub(r"#[0-9a-f]{6}", lambda c: variables.get(c[0], c[0]), style[1]) + '"',
        svg,
    )
    head_end = svg.index(">")
    head = re.sub(r'\s(width|height)="[^"]*"', "", svg[:head_end])
    return f'{head} role="img" aria-label="{escape(alt)}" class="figure">{svg[head_end + 1 :].strip()}'
