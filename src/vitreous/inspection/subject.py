"""One model of a report, examined and surveyed, with what the report calls it and how it is coloured.

Shapes: C channels, `height` × `width` pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.config import Config
from vitreous.inspection.cells import Cells
from vitreous.inspection.examination import Examination, examine
from vitreous.inspection.model_survey import Survey, survey
from vitreous.models import ViT
from vitreous.reports.colors import ModelStyle
from vitreous.reports.figures import DrawnFigure

_KINDS = {
    "vit": "The ViT",
    "cnn": "The CNN",
    "post-vit": "The post’s ViT",
    "post-cnn": "The post’s CNN",
    "post-design": "The post’s design",
}


@dataclass(frozen=True)
class Subject:
    """One model, examined."""

    key: str  # starts its files' names and SVG ids
    name: str
    model: nn.Module
    config: Config
    pixels: NDArray[np.uint8]  # as the model sees them: its own size
    found: Examination
    surveyed: Survey | None
    style: ModelStyle
    starts_at: str  # the view of the heads that the page opens with
    charts: dict[str, DrawnFigure] = field(default_factory=dict)

    @property
    def is_vit(self) -> bool:
        return isinstance(self.model, ViT)

    @property
    def part(self) -> str:
        return "patch" if self.is_vit else "cell"

    @property
    def looks_from(self) -> str:
        with_class_token = isinstance(self.model, ViT) and self.model.config.has_class_token
        return "the class token" if with_class_token else "the mean of all patches"


def display_names(config: Config, other: Config | None) -> list[tuple[str, Config]]:
    """What to call each model: by its kind where that tells them apart, else by its name."""
    if other is None:
        return [(_KINDS[config.model.kind], config)]
    both = (config, other)
    if config.model.kind != other.model.kind:
        return [(_KINDS[each.model.kind], each) for each in both]
    if config.name != other.name:
        return [(each.name, each) for each in both]
    return [(f"{each.name} ({number})", each) for number, each in enumerate(both, start=1)]


def examined(
    named: tuple[str, Config],
    model: nn.Module,
    model_input: Tensor,
    survey_images: Tensor | None,
    *,
    pixels: NDArray[np.uint8],
    styles: dict[str, ModelStyle],
    target: int | None,
    patch: int | None = None,
    cells: Cells | None = None,
) -> Subject:
    """Examine and survey one model; `cells` are used only where it has none of its own."""
    name, config = named
    size = (model_input.shape[-2], model_input.shape[-1])
    if cells is not None:
        cells = _scaled(cells, size)
    found = examine(model, model_input, target=target, patch=patch, cells=cells)
    over = model_input[None] if survey_images is None else survey_images
    return Subject(
        key=styles[name].color_name,
        name=name,
        model=model,
        config=config,
        pixels=_resized(pixels, size),
        found=found,
        surveyed=survey(model, over) if isinstance(model, ViT) else None,
        style=styles[name],
        starts_at="readout" if patch is None else f"patch-{patch}",
    )


def _scaled(cells: Cells, size: tuple[int, int]) -> Cells:
    """The same cells over a picture of another size."""
    down, across = size[0] / cells.image_size[0], size[1] / cells.image_size[1]
    note = "This model has no patches: the cells are the other model’s, laid over the picture to cover parts of it."
    rows = tuple(edge * down for edge in cells.row_edges)
    return Cells(size, rows, tuple(edge * across for edge in cells.column_edges), True, note)


def _resized(pixels: NDArray[np.uint8], size: tuple[int, int]) -> NDArray[np.uint8]:
    if pixels.shape[1:] == size:
        return pixels
    from PIL import Image

    planes = [Image.fromarray(plane).resize(size[::-1], Image.Resampling.BILINEAR) for plane in pixels]
    return np.stack([np.asarray(plane) for plane in planes])
