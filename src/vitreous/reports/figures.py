"""The style of all matplotlib figures, and figures inside a page: SVG that follows light and dark."""

from __future__ import annotations

import io
import re
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any

from markupsafe import Markup, escape

from vitreous.reports.colors import THEME
from vitreous.reports.fonts import fallback_fonts, family_of, missing_letters

if TYPE_CHECKING:
    from matplotlib.figure import Figure


_STYLE = Path(__file__).with_name("vitreous.mplstyle")


@dataclass(frozen=True)
class DrawnFigure:
    """A finished figure, drawn with the light colours."""

    name: str  # of its files, without ending
    svg: str
    png: bytes = field(repr=False)
    alt: str = ""  # read aloud
    caption: str = ""

    def inline(self) -> Markup:
        """Return the SVG for a page: colours become CSS variables, ids unique, and the text alternative is added."""
        name, svg = self.name, self.svg[self.svg.index("<svg") :]
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
        return Markup(f'{head} role="img" aria-label="{escape(self.alt)}" class="figure">{svg[head_end + 1 :].strip()}')

    def write(self, folder: Path) -> None:
        """Write `name.svg` and `name.png`."""
        (folder / f"{self.name}.svg").write_text(self.svg, encoding="utf-8")
        (folder / f"{self.name}.png").write_bytes(self.png)


@contextmanager
def figure_style(name: str, width: float, height: float) -> Iterator[Figure]:
    """Yield a figure of `width` × `height` CSS pixels in the shared style; without pyplot there is no global state."""
    import matplotlib
    from matplotlib.backends.backend_agg import FigureCanvasAgg
    from matplotlib.figure import Figure

    with (
        matplotlib.rc_context({"svg.hashsalt": name}, fname=_STYLE),  # the same figure gives the same file
        warnings.catch_warnings(),
    ):
        # while the layout is measured; `save_figure` has a font for every letter
        warnings.filterwarnings("ignore", message="Glyph .* missing from|Matplotlib currently does not support")
        figure = Figure(figsize=(width / 96, height / 96), dpi=96, layout="constrained")
        FigureCanvasAgg(figure)
        yield figure


def save_figure(figure: Figure, target: IO[Any], **options: Any) -> None:
    """Write a figure, inside its `figure_style`, with a font for every letter that it has."""
    from matplotlib.text import Text

    texts = [text for text in figure.findobj(Text) if missing_letters([text.get_text()])]
    others = [family_of(path) for path in fallback_fonts(missing_letters(text.get_text() for text in texts))]
    for text in texts:
        text.set_fontfamily(["sans-serif", *others])
    figure.savefig(target, **options)


def finish_figure(figure: Figure, name: str, *, alt: str = "", caption: str = "") -> DrawnFigure:
    """Render a figure, inside its `figure_style`."""
    svg, png = io.StringIO(), io.BytesIO()
    save_figure(figure, svg, format="svg", metadata={"Date": None, "Creator": None, "Type": None, "Format": None})
    figure.set_layout_engine("none")  # already laid out; a second pass would cost as much as the first
    save_figure(figure, png, format="png", dpi=192, metadata={"Software": None})
    return DrawnFigure(name, svg.getvalue(), png.getvalue(), alt, caption)
