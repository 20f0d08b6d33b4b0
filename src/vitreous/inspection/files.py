"""The report's pictures as files, PNG and SVG; the charts among them are kept for the page, too.

Shapes: L layers, H heads, cells in `rows` × `columns`.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from vitreous.inspection import figures, panels, pictures, words
from vitreous.inspection.examination import CONTROLS
from vitreous.inspection.faithfulness import Score
from vitreous.inspection.positions import first_filters
from vitreous.inspection.sheets import Tile, write_sheet, write_table
from vitreous.inspection.subject import Subject


def draw_files(subject: Subject, class_names: Sequence[str], folder: Path, prefix: str) -> None:
    """The pictures as files; the charts are kept for the page, too."""
    found, brightness = subject.found, pictures.grey(subject.pixels)
    tiles = [
        Tile(
            panels.draw_map(found.maps[score.name], brightness, found),
            (words.TITLES[score.name], _marks(score)),
            found.cells,
            found.maps[score.name].signed,
        )
        for score in found.faithfulness.scores
    ]
    picture = Tile(pictures.plain_picture(subject.pixels), (class_names[found.target], "the picture"), found.cells)
    title = f"Maps for “{class_names[found.target]}”, ranked by insertion − deletion"
    write_sheet(folder, f"{prefix}maps", title, [picture, *tiles], columns=5)
    subject.charts["judgement"] = figures.draw_judgement(found, f"{prefix}judgement", folder)
    filters = first_filters(subject.model)
    if filters is not None:
        shown = [Tile(pictures.filter_picture(component)) for component in filters.components.cpu().numpy()]
        write_sheet(folder, f"{prefix}filters", f"Principal components of {filters.source}", shown, columns=7, size=64)
    if subject.surveyed is None or found.attention is None:
        return
    _draw_vit_files(subject, class_names, folder, prefix)


def _marks(score: Score) -> str:
    return f"gain {panels.number(score.gain)}, {'a control' if score.name in CONTROLS else score.verdict}"


def _draw_vit_files(subject: Subject, class_names: Sequence[str], folder: Path, prefix: str) -> None:
    found, surveyed, brightness = subject.found, subject.surveyed, pictures.grey(subject.pixels)
    assert surveyed is not None
    assert found.attention is not None
    assert found.logit_lens is not None
    assert found.head_effects is not None
    views = {"heads": (found.attention.readout, subject.looks_from)}
    place = words.place(found.attention.patch, found.cells.grid)
    views["heads-from-patch"] = (found.attention.from_patch, f"the patch in {place}")
    for name, (looks, place) in views.items():
        layers, heads = looks.shape[:2]
        high = panels.heads_scale(looks)
        tiles = [
            Tile(
                pictures.amount_picture(brightness, pictures.spread(looks[layer, head], found.cells), high),
                (f"layer {layer + 1}, head {head + 1}",),
                found.cells,
            )
            for head in range(heads)
            for layer in range(layers)
        ]
        title = f"Attention from {place}: 0 to {panels.scale_end(looks, high)}"
        write_sheet(folder, prefix + name, title, tiles, columns=layers, size=112)
    layer_names = [f"layer {layer + 1}" for layer in range(len(found.head_effects))]
    classes = panels.shown_classes(found)
    table = (found.logit_lens[:, classes].T, [class_names[k] for k in classes], ["input", *layer_names])
    write_table(folder, f"{prefix}logit-lens", "What each layer would answer", *table, signed=False)
    heads = [f"head {head + 1}" for head in range(found.head_effects.shape[1])]
    table = (found.head_effects.T, heads, layer_names)
    write_table(folder, f"{prefix}head-effects", "Evidence lost without the head", *table, signed=True)
    subject.charts["depth"] = figures.draw_depth(surveyed, f"{prefix}depth", folder)
    if surveyed.position_similarity is not None:
        tile = Tile(pictures.positions_picture(surveyed.position_similarity))
        write_sheet(folder, f"{prefix}positions", "Likeness of positions, −1 (blue) to 1 (orange)", [tile], 1, 560)
