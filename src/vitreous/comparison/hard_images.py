"""Images that models get wrong, with every model's prediction: the tiles of both reports."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from vitreous.comparison.results import ModelSummary, Pictures
from vitreous.data.datasets import Split
from vitreous.evaluation import metrics
from vitreous.reports import formats
from vitreous.reports.colors import ModelStyle, light
from vitreous.reports.figures import DrawnFigure
from vitreous.reports.tiles import draw_tiles

MOST_SHOWN = 8  # per model, in a comparison


@dataclass(frozen=True)
class ModelPrediction:
    """One model's prediction for one image."""

    model: str
    label: str
    confidence: float
    correct: bool

    @property
    def percent(self) -> str:
        """Never "100 %": a softmax that rounds to 1 is not certain."""
        return formats.percent(min(self.confidence, 0.9999))


@dataclass(frozen=True)
class HardImage:
    """One image that a model gets wrong, or has a high loss on."""

    index: int  # in its split
    label: str
    predictions: tuple[ModelPrediction, ...]  # the model's own, then those of others
    loss: float  # of the first model
    pixels: NDArray[np.uint8]  # (C, H, W)
    path: str | None = None  # below the data's folder; None where the images are no files
    duplicate: str | None = None  # the same image in the training set: its path and label

    @property
    def own(self) -> ModelPrediction:
        return self.predictions[0]


def hard_image(
    index: int,
    probabilities: Mapping[str, NDArray[np.floating[Any]]],
    label: int,
    pixels: NDArray[np.uint8],
    class_names: Sequence[str],
    **origin: str | None,
) -> HardImage:
    """Return one image of a split, given model → probabilities of all its images; the model at issue comes first."""
    rows = {model: table[index] for model, table in probabilities.items()}
    predictions = tuple(
        ModelPrediction(model, class_names[int(row.argmax())], float(row.max()), bool(row.argmax() == label))
        for model, row in rows.items()
    )
    own = next(iter(rows.values()))
    loss = float(metrics.image_nll(own[None], np.array([label]))[0])
    return HardImage(index, class_names[label], predictions, loss, pixels, **origin)


def confident_mistakes(
    models: Sequence[ModelSummary], images: Pictures, class_names: Sequence[str]
) -> dict[str, list[HardImage]]:
    """Return each model's most confident mistakes; several seeds predict by their mean probabilities."""
    tables = {model.name: model.mean_probabilities() for model in models}
    labels = models[0].labels
    found = {}

    def picture(index: int) -> NDArray[np.uint8]:
        return images.image(index).numpy() if isinstance(images, Split) else images[index]

    for name, table in tables.items():
        wrong = np.flatnonzero(table.argmax(axis=1) != labels)
        worst = wrong[np.argsort(-table[wrong].max(axis=1), kind="stable")][:MOST_SHOWN]
        own_first = {name: table, **tables}
        found[name] = [hard_image(int(i), own_first, int(labels[i]), picture(int(i)), class_names) for i in worst]
    return found


def draw_hard_images(
    images: Sequence[HardImage], style: ModelStyle, name: str, columns: int, *, with_files: bool = False
) -> DrawnFigure:
    """Draw the tiles as a figure, for slides; the page has them as text and small images."""

    def lines(image: HardImage) -> list[tuple[str, str]]:
        texts = [(f"label: {image.label}", light("ink"))]
        for one in image.predictions:
            text = f"{one.model}: {one.label}, {one.percent}{' ✓' if one.correct else ''}"
            texts.append((text, style.color if one is image.own else light("ink-soft")))
        if with_files:
            texts.append((image.path or f"no. {image.index}", light("ink-soft")))
        return texts

    return draw_tiles([(image.pixels, lines(image)) for image in images], name, columns)
