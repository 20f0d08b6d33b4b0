"""One model's half of the report: its maps, heads and tables as the pieces that the template lays out.

Shapes: L layers, H heads, P patches, K classes, cells in `rows` × `columns`.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from markupsafe import Markup
from numpy.typing import NDArray

from vitreous.inspection import pictures, words
from vitreous.inspection.cells import Array
from vitreous.inspection.examination import CONTROLS, Examination, Map
from vitreous.inspection.faithfulness import Score

#: Beyond this many patches the report no longer carries one view a patch (they would make it many megabytes).
MOST_VIEWS = 64
_MOST_CLASSES = 10
_SHARES = frozenset({"attention-rollout", "last-attention"})
_EVIDENCE = frozenset({"occlusion", "patch-removal"})


@dataclass(frozen=True)
class MapPanel:
    """A map as the report shows it."""

    name: str
    title: str
    what: str
    svg: Markup
    signed: bool
    low: str  # what the scale's ends mean
    high: str
    score: Score | None
    rank: int | None
    control: bool


def draw_map(drawn: Map, brightness: Array, found: Examination, *, by_pixel: bool = False) -> pictures.Picture:
    """The map's picture, on the cells or at every pixel."""
    if by_pixel:
        assert drawn.pixels is not None
        values = drawn.pixels
    else:
        values = pictures.spread(drawn.cells, found.cells)
    # single pixels stick out: the scale ends where all but one in a hundred lie
    high = float(np.quantile(np.abs(values), 0.99)) if by_pixel else float(np.abs(values).max())
    if drawn.signed:
        return pictures.signed_picture(brightness, values, high, faint=by_pixel)
    return pictures.amount_picture(brightness, values, high)


def map_panels(found: Examination, brightness: Array) -> list[MapPanel]:
    """All maps, the best-judged first, then the controls."""
    panels = []
    ranks = iter(range(1, len(found.maps) + 1))
    for score in sorted(found.faithfulness.scores, key=lambda score: score.name in CONTROLS):
        drawn = found.maps[score.name]
        best = words.place(int(drawn.cells.argmax()), found.cells.grid)
        alt = f"{words.TITLES[drawn.name]} over the picture; the highest value is in {best}."
        svg = pictures.map_svg(draw_map(drawn, brightness, found), found.cells, alt, on_white=drawn.signed)
        control = drawn.name in CONTROLS
        low, high = _scale_ends(drawn)
        rank = None if control else next(ranks)
        panels.append(
            MapPanel(
                drawn.name, words.TITLES[drawn.name], words.WHAT_IT_IS[drawn.name], svg, drawn.signed, low, high,
                score, rank, control,
            )
        )  # fmt: skip
    return panels


def pixel_panels(found: Examination, brightness: Array) -> list[MapPanel]:
    """The maps that have a value at every pixel."""
    panels = []
    for name, drawn in found.maps.items():
        if drawn.pixels is None or name in CONTROLS:
            continue
        picture = draw_map(drawn, brightness, found, by_pixel=True)
        alt = f"{words.TITLES[name]} at every pixel."
        svg = pictures.map_svg(picture, found.cells, alt, on_white=drawn.signed)
        ends = ("against", "for") if drawn.signed else ("none", "most")
        panels.append(MapPanel(name, words.TITLES[name], "", svg, drawn.signed, *ends, None, None, False))
    return panels


def _scale_ends(drawn: Map) -> tuple[str, str]:
    high = float(np.abs(drawn.cells).max())
    if drawn.name in _EVIDENCE:
        return words.odds(-high), words.odds(high)
    if drawn.signed:
        return f"−{high:.2g} logit", f"+{high:.2g} logit"
    return ("0 %", words.percent(high)) if drawn.name in _SHARES else ("none", "most")


# --- heads -------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class View:
    """All heads of all layers, seen from one place."""

    key: str
    label: str  # who looks
    uri: str  # the mosaic: heads down, layers across
    high: str  # what the scale's upper end means


@dataclass(frozen=True)
class HeadsPanel:
    """The attention explorer: views to choose from, and where the choices lie on the picture."""

    views: list[View]
    chosen: str  # the view shown first, besides the read-out's
    boxes: dict[str, str]  # view key → CSS position on the picture
    picture: Markup
    layers: int
    heads: int
    width: int  # of the mosaic, in image pixels
    height: int
    borders: Markup  # the cells' borders over all tiles
    all_patches: bool


_GAP = 3


def heads_panel(
    found: Examination, brightness: Array, pixels: NDArray[np.uint8], from_where: str, key: str
) -> HeadsPanel:
    """Every head's attention, from the read-out and from patches (all of them where they are few).

    `key` tells this model's SVG ids from the other's.
    """
    assert found.attention is not None
    seen, cells = found.attention, found.cells
    first = seen.weights.shape[-1] - cells.count  # 1 with a class token
    views = [_view("readout", from_where, seen.readout, found, brightness)]
    patches = range(cells.count) if cells.count <= MOST_VIEWS else [seen.patch]
    for patch in patches:
        looks = seen.weights[:, :, patch + first, first:].reshape(seen.readout.shape)
        label = f"the patch in {words.place(patch, cells.grid)}"
        views.append(_view(f"patch-{patch}", label, looks, found, brightness))
    L, H = seen.weights.shape[:2]
    height, width = cells.image_size
    gap = _gap(found)
    tiles = [
        f'<use href="#cell-borders-{key}" x="{layer * (width + gap)}" y="{head * (height + gap)}"/>'
        for head in range(H)
        for layer in range(L)
    ]
    path = f'<defs><path id="cell-borders-{key}" class="borders" d="{pictures.border_path(cells)}"/></defs>'
    return HeadsPanel(
        views=views,
        chosen=f"patch-{seen.patch}",
        boxes={f"patch-{patch}": _css_box(found, patch) for patch in patches},
        picture=pictures.map_svg(pictures.plain_picture(pixels), cells, "The picture, cut into patches."),
        layers=L,
        heads=H,
        width=L * (width + gap) - gap,
        height=H * (height + gap) - gap,
        borders=Markup(path + "".join(tiles)),
        all_patches=cells.count <= MOST_VIEWS,
    )


def _gap(found: Examination) -> int:
    return max(1, round(_GAP * found.cells.image_size[1] / 28))


def _view(key: str, label: str, looks: Array, found: Examination, brightness: Array) -> View:
    """`looks` (L, H, rows, columns) on one scale, so that heads can be compared.

    One sharp head would leave all others dark: the scale ends where a quarter of the heads go beyond it.
    """
    high = heads_scale(looks)
    painted = pictures.amount_picture(brightness, pictures.spread(looks, found.cells), high)  # (L, H, h, w, 3)
    tiles = [list(of_head) for of_head in painted.swapaxes(0, 1)]
    fineness = tiles[0][0].shape[0] // found.cells.image_size[0]
    uri = pictures.data_uri(pictures.mosaic(tiles, _gap(found) * fineness))
    return View(key, label, uri, scale_end(looks, high))


def heads_scale(looks: Array) -> float:
    """The attention that gets the brightest colour, given all heads' (L, H, rows, columns)."""
    return float(np.quantile(looks.max(axis=(2, 3)), 0.75))


def scale_end(looks: Array, high: float) -> str:
    return ("≥ " if looks.max() > high else "") + words.percent(high)


def _css_box(found: Examination, patch: int) -> str:
    left, top, wide, tall = pictures.cell_box(found.cells, patch)
    height, width = found.cells.image_size
    return (
        f"left:{100 * left / width:.3f}%;top:{100 * top / height:.3f}%;"
        f"width:{100 * wide / width:.3f}%;height:{100 * tall / height:.3f}%"
    )


# --- tables ------------------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Cell:
    """A table's cell: its words and its colour."""

    text: str
    style: str


@dataclass(frozen=True)
class Row:
    name: str
    cells: list[Cell]
    marked: bool = False


def shown_classes(found: Examination) -> list[int]:
    """All classes where they are few, else the likeliest ones and the target."""
    classes = len(found.probabilities)
    if classes <= _MOST_CLASSES:
        return list(range(classes))
    likeliest = [int(k) for k in np.argsort(-found.probabilities)[:_MOST_CLASSES]]
    return likeliest if found.target in likeliest else [*likeliest[:-1], found.target]


def lens_rows(found: Examination, class_names: Sequence[str]) -> list[Row]:
    """The logit lens: a row a class, a column a layer."""
    assert found.logit_lens is not None
    return [
        Row(
            class_names[k],
            [Cell(words.percent(float(p)) if p >= 0.1 else "", _amount(float(p))) for p in found.logit_lens[:, k]],
            marked=k == found.target,
        )
        for k in shown_classes(found)
    ]


def _amount(share: float) -> str:
    """Steps of cividis that follow light and dark; almost nothing is left as paper, so that the eye finds the rest."""
    if share < 0.02:
        return "background:var(--surface)"
    step = min(8, 1 + int(share * 8))
    return f"background:var(--amount-{step});color:var(--on-amount-{'low' if step <= 4 else 'high'})"


def head_rows(found: Examination) -> list[Row]:
    """What each head is worth: a row a head, a column a layer."""
    assert found.head_effects is not None
    high = float(np.abs(found.head_effects).max()) or 1.0
    return [
        Row(f"head {head + 1}", [Cell(number(value, "+.2f"), _signed(value / high)) for value in values])
        for head, values in enumerate(found.head_effects.T.tolist())
    ]


def _signed(share: float) -> str:
    color = "#d9730d" if share > 0 else "#2f6db5"
    return f"background:color-mix(in srgb, {color} {80 * abs(share):.0f}%, var(--paper))"


@dataclass(frozen=True)
class Bar:
    name: str
    text: str
    width: float  # 0 … 100
    answer: bool
    label: bool


def answer_bars(found: Examination, class_names: Sequence[str], label: int | None) -> list[Bar]:
    return [
        Bar(class_names[k], words.percent(p), 100 * p, k == found.answer, k == label)
        for k, p in ((k, float(found.probabilities[k])) for k in shown_classes(found))
    ]


@dataclass(frozen=True)
class Strip:
    """Where a map's gain lies between the worst and the best: positions in percent of the strip."""

    random_low: float
    random_high: float
    occlusion: float
    at: dict[str, float]


def gain_strip(found: Examination) -> Strip:
    judged = found.faithfulness
    random = np.trapezoid(judged.random_insertion - judged.random_deletion, judged.shares, axis=1)
    gains = {score.name: score.gain for score in judged.scores}
    low = min(float(random.min()), *gains.values())
    high = max(float(random.max()), *gains.values())
    span = (high - low) or 1.0
    low, span = low - 0.03 * span, 1.06 * span
    place = {name: 100 * (gain - low) / span for name, gain in gains.items()}
    ends = [100 * (float(np.quantile(random, q)) - low) / span for q in (0.1, 0.9)]
    return Strip(ends[0], ends[1], place["occlusion"], place)


def number(value: float, form: str = ".2f") -> str:
    """With a true minus sign; a dash where there is no number."""
    return "–" if math.isnan(value) else format(value, form).replace("-", "−")
