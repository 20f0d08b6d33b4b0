"""One model of a report, examined and surveyed, with its display name and colour.

Shapes: C channels, `height` × `width` pixels.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
import torch
from numpy.typing import NDArray
from torch import Tensor, nn

from vitreous.config import Config
from vitreous.data.images import convert
from vitreous.inspection.cells import Array, patch_cells
from vitreous.inspection.examination import Examination, examine
from vitreous.inspection.model_survey import Survey, survey
from vitreous.inspection.pictures import grey
from vitreous.models import ViT
from vitreous.reports.colors import ModelStyle, model_styles

_KINDS = {
    "vit": "The ViT",
    "cnn": "The CNN",
    "mixer": "The mixer",
    "post-vit": "The article’s ViT",
    "post-cnn": "The article’s CNN",
    "post-design": "The article’s design",
}
_SHARED_CELLS = "This model has no patches: the cells are those of the other model."


@dataclass(frozen=True)
class ModelInput:
    """A model, and the image as the model takes it."""

    model: nn.Module
    config: Config
    image: Tensor  # (C, height, width), normalised
    survey_images: Tensor | None = None  # (B, C, height, width); None: survey over `image` alone
    temperature: float = 1.0  # of the run


@dataclass(frozen=True)
class Subject:
    """One model, examined."""

    key: str  # prefix of file names and SVG ids
    name: str
    model: nn.Module
    config: Config
    pixels: NDArray[np.uint8]  # (C, height, width) at the size the model takes
    result: Examination
    survey: Survey | None
    style: ModelStyle
    opens_at: str  # the attention view that the page shows first

    @property
    def brightness(self) -> Array:
        return grey(self.pixels)

    @property
    def is_vit(self) -> bool:
        return isinstance(self.model, ViT)

    @property
    def part(self) -> str:
        return "patch" if self.is_vit else "cell"

    @property
    def readout(self) -> str:
        """The token whose attention is shown first."""
        has_class_token = isinstance(self.model, ViT) and self.model.config.has_class_token
        return "the class token" if has_class_token else "the mean of all patches"


def examine_models(
    models: Sequence[ModelInput], pixels: NDArray[np.uint8], target: int | None, patch: int | None
) -> list[Subject]:
    """Examine and survey one or two models; `patch` is for the first. A CNN beside a ViT gets its cells."""
    names = _display_names([each.config for each in models])
    styles = model_styles({name: each.config.model.kind for name, each in zip(names, models, strict=True)})
    patches = [patch_cells(each.model.config) for each in models if isinstance(each.model, ViT)]
    subjects: list[Subject] = []
    for name, each in zip(names, models, strict=True):
        size = (each.image.shape[-2], each.image.shape[-1])
        grids = [*patches, *(subject.result.cells for subject in subjects)]
        cells = grids[0].scaled_to(size, _SHARED_CELLS) if grids else None
        over = each.image[None] if each.survey_images is None else each.survey_images
        of_patch = None if subjects else patch
        subjects.append(
            Subject(
                key=styles[name].color_name,
                name=name,
                model=each.model,
                config=each.config,
                pixels=convert(torch.as_tensor(pixels)[None], size, len(pixels))[0].numpy(),
                result=examine(
                    each.model, each.image, target=target, patch=of_patch, cells=cells, temperature=each.temperature
                ),
                survey=survey(each.model, over) if isinstance(each.model, ViT) else None,
                style=styles[name],
                opens_at="readout" if of_patch is None else f"patch-{of_patch}",
            )
        )
    return subjects


def _display_names(configs: Sequence[Config]) -> list[str]:
    """Name each model by its kind if that is unique, else by its run."""
    for names in ([_KINDS[config.model.kind] for config in configs], [config.name for config in configs]):
        if len(set(names)) == len(names):
            return names
    return [f"{config.name} ({index})" for index, config in enumerate(configs, start=1)]
