"""The images a model gets most confidently wrong, and what the others say of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison.confusion import LONGEST_NAME
from vitreous.comparison.curves import short_name
from vitreous.comparison.results import ModelSummary
from vitreous.reports.colors import ModelStyle, light
from vitreous.reports.figures import DrawnFigure, figure_style, finish_figure
from vitreous.reports.pages import image_data_uri

if TYPE_CHECKING:
    from matplotlib.axes import Axes

MOST_SHOWN = 8
_FIGURE_COLUMNS = 4
READING = (
    "Each model's most confident mistakes, with the others' answers below; ✓ marks who is right."
    " Where all agree on the same “wrong” answer, look at the label: it may be the label that is wrong."
    " These are the extremes, not typical mistakes."
)


@dataclass(frozen=True)
class Opinion:
    """One model's answer to one image."""

    model: str
    answer: str
    confidence: float
    right: bool

    @property
    def percent(self) -> str:
        """Never "100 %" for what is less than certain."""
        if self.confidence > 0.99:
            return f"{min(100 * self.confidence, 99.9):.1f} %"
        return f"{100 * self.confidence:.0f} %"


@dataclass(frozen=True)
class Mistake:
    """One image that `own.model` gets wrong."""

    index: int
    truth: str
    own: Opinion
    others: tuple[Opinion, ...]
    pixels: NDArray[np.uint8]  # (C, H, W)

    @property
    def data_uri(self) -> str:
        return image_data_uri(self.pixels)

    @property
    def is_small(self) -> bool:
        """Shown larger than it is: with its pixels, not blurred."""
        return max(self.pixels.shape[1:]) < 64

    @property
    def alt(self) -> str:
        answers = [
            f"{opinion.model} answers {opinion.answer} ({opinion.percent})" for opinion in (self.own, *self.others)
        ]
        return f"Test image {self.index}, truly {self.truth}: {'; '.join(answers)}."


def worst_mistakes(
    models: Sequence[ModelSummary], images: NDArray[np.uint8], class_names: Sequence[str]
) -> dict[str, list[Mistake]]:
    """For each model its most confident mistakes; several seeds answer by their mean probabilities."""
    tables = {model.name: model.mean_probabilities() for model in models}
    labels = models[0].labels

    def mistakes_of(name: str) -> list[Mistake]:
        worst = _worst(tables[name], labels)
        return [_mistake(int(index), name, tables, labels, images, class_names) for index in worst]

    return {model.name: mistakes_of(model.name) for model in models}


def _worst(table: NDArray[np.float64], labels: NDArray[Any]) -> NDArray[np.int64]:
    wrong = np.flatnonzero(table.argmax(axis=1) != labels)
    return wrong[np.argsort(-table[wrong].max(axis=1), kind="stable")][:MOST_SHOWN]


def _mistake(
    index: int,
    name: str,
    tables: Mapping[str, NDArray[np.float64]],
    labels: NDArray[Any],
    images: NDArray[np.uint8],
    class_names: Sequence[str],
) -> Mistake:
    def opinion(model: str) -> Opinion:
        row = tables[model][index]
        answer = int(row.argmax())
        return Opinion(model, class_names[answer], float(row[answer]), answer == labels[index])

    others = tuple(opinion(model) for model in tables if model != name)
    return Mistake(index, class_names[labels[index]], opinion(name), others, images[index])


def draw_mistakes(mistakes: Sequence[Mistake], style: ModelStyle, name: str, folder: Path) -> DrawnFigure:
    """The same tiles as a picture, for slides; the page sets them as text and small images."""
    rows = -(-len(mistakes) // _FIGURE_COLUMNS)
    lines = 2 + len(mistakes[0].others)
    with figure_style(name, 144 * _FIGURE_COLUMNS, rows * (136 + 15 * lines)) as figure:
        for position, mistake in enumerate(mistakes):
            axes = figure.add_subplot(rows, _FIGURE_COLUMNS, position + 1)
            _draw_tile(axes, mistake, style)
        return finish_figure(figure, name, folder)


def _draw_tile(axes: Axes, mistake: Mistake, style: ModelStyle) -> None:
    pixels = mistake.pixels
    if len(pixels) in (3, 4):
        axes.imshow(pixels[:3].transpose(1, 2, 0))
    else:
        axes.imshow(pixels.mean(axis=0), cmap="gray", vmin=0, vmax=255)
    axes.set_axis_off()
    own = mistake.own
    texts = [(f"truly {short_name(mistake.truth, LONGEST_NAME)}", light("ink")), (_line(own), style.color)]
    texts += [(_line(other), light("ink-soft")) for other in mistake.others]
    for line, (text, color) in enumerate(texts):
        below = (0, -12 - 11 * line)
        axes.annotate(text, (0.5, 0), below, "axes fraction", "offset points", ha="center", color=color, fontsize=8)


def _line(opinion: Opinion) -> str:
    model, answer = short_name(opinion.model, LONGEST_NAME), short_name(opinion.answer, LONGEST_NAME)
    return f"{model}: {answer}, {opinion.percent}{' (right)' if opinion.right else ''}"
