"""Colours and markers. Each colour has a name, a value on light paper and one on dark; `vitreous.css` has the same.

Figures are drawn with the light values. Where one is inlined in a page, `figures.py` replaces each value by its CSS
variable, so that it follows the reader's light or dark setting. That is why no two names share a value.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from matplotlib.colors import Colormap

#: name → (on light, on dark)
THEME: dict[str, tuple[str, str]] = {
    "paper": ("#ffffff", "#14181b"),
    "surface": ("#f4f6f7", "#1d2327"),
    "line": ("#dde2e5", "#323a40"),
    "ink": ("#1b2126", "#e8ebed"),
    "ink-soft": ("#5b6670", "#a0abb4"),
    # Models: distinguishable with the common colour-blindnesses by hue and lightness, and always by marker as well.
    "vit": ("#0b7f7c", "#45bdb6"),
    "cnn": ("#b8750c", "#e0a94a"),
    "model-3": ("#7a5bc4", "#a994ea"),
    "model-4": ("#c2476c", "#ec8aa6"),
    "model-5": ("#2f74c0", "#7db3ee"),
    "model-6": ("#5d7324", "#a9c06a"),
    # Amounts in eight steps of cividis. The larger, the further from the paper: on light paper the first steps are
    # paled, on dark the order is reversed and they are dimmed.
    "amount-1": ("#faf3c6", "#10264a"),
    "amount-2": ("#e9dea0", "#34425f"),
    "amount-3": ("#c4b983", "#5b606e"),
    "amount-4": ("#928d78", "#767676"),
    "amount-5": ("#767676", "#928d78"),
    "amount-6": ("#5b606e", "#b0a571"),
    "amount-7": ("#3b496c", "#d1bf61"),
    "amount-8": ("#003070", "#f3db42"),
    # Text on those steps: dark on the light ones, light on the dark ones.
    "on-amount-low": ("#1c1d1f", "#f7f8f9"),
    "on-amount-high": ("#fdfdfd", "#18191a"),
}
AMOUNT_STEPS = 8
_BLUE, _ORANGE = "#2f6db5", "#d9730d"


def light(name: str) -> str:
    """Return the value a figure is drawn with."""
    return THEME[name][0]


def amount_colors(level: int) -> tuple[str, str]:
    """Return fill and text colour for step 1 … 8 of an amount."""
    return light(f"amount-{level}"), light("on-amount-low" if level <= AMOUNT_STEPS // 2 else "on-amount-high")


@cache
def sequential_map() -> Colormap:
    """Return cividis, for amounts: perceptually even and safe for colour-blind readers."""
    from matplotlib import colormaps

    return colormaps["cividis"]


@cache
def diverging_map() -> Colormap:
    """Return the map for signed values: blue below zero, white at zero, orange above."""
    from matplotlib.colors import LinearSegmentedColormap

    return LinearSegmentedColormap.from_list("vitreous-signed", [_BLUE, "#ffffff", _ORANGE])


@dataclass(frozen=True)
class ModelStyle:
    """Colour, marker and dash of one model in every figure, table and page."""

    color_name: str
    marker: str  # matplotlib's
    dash: tuple[float, ...]  # on, off, …; empty: solid
    path: str  # the marker as an SVG path in a 12×12 box, for HTML

    @property
    def color(self) -> str:
        return light(self.color_name)

    @property
    def css(self) -> str:
        return f"var(--{self.color_name})"


_STYLES = (
    ModelStyle("vit", "o", (), "M6 1.2a4.8 4.8 0 1 0 0 9.6a4.8 4.8 0 1 0 0-9.6z"),
    ModelStyle("cnn", "s", (6.0, 2.0), "M1.8 1.8h8.4v8.4h-8.4z"),
    ModelStyle("model-3", "^", (2.0, 1.5), "M6 1l5.2 9.6h-10.4z"),
    ModelStyle("model-4", "D", (7.0, 2.0, 1.5, 2.0), "M6 .6l5.4 5.4l-5.4 5.4l-5.4-5.4z"),
    ModelStyle("model-5", "v", (4.0, 1.5), "M6 11l5.2-9.6h-10.4z"),
    ModelStyle("model-6", "P", (4.0, 1.5, 1.5, 1.5), "M4.2 1h3.6v3.2h3.2v3.6h-3.2v3.2h-3.6v-3.2h-3.2v-3.6h3.2z"),
)
MOST_MODELS = len(_STYLES)


def model_styles(kinds: Mapping[str, str]) -> dict[str, ModelStyle]:
    """Return a style per model, given name → kind: the first ViT is teal, the first CNN ochre, whatever the order."""
    chosen: dict[str, ModelStyle] = {}
    # "vit" before "post-vit": the plain kind gets the family's colour
    for family, style in (("vit", _STYLES[0]), ("cnn", _STYLES[1])):
        candidates = [name for name, kind in kinds.items() if kind == family]
        candidates += [name for name, kind in kinds.items() if kind.endswith(f"-{family}")]
        if candidates:
            chosen[candidates[0]] = style
    free = iter([style for style in (*_STYLES[2:], *_STYLES[:2]) if style not in chosen.values()])
    return {name: chosen.get(name) or next(free) for name in kinds}
