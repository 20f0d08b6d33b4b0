"""What a model has learned before it sees a picture: its first filters and the likeness of its positions.

Shapes: D filters, C channels, h × w pixels a filter, a grid of `rows` × `columns` patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.models import CNN, ArticleCNN, ViT

_MOST_FILTERS = 28  # as many as the paper's figure 7 shows


@dataclass(frozen=True)
class Filters:
    """The first layer's filters as principal components, the largest first."""

    components: Tensor  # (k, C, h, w), each of length 1
    explained: Tensor  # (k,): share of the filters' variance
    source: str  # which layer they are of, in words


def position_similarity(model: ViT) -> Tensor | None:
    """(rows, columns, rows, columns): cosine similarity of each position to all others (the paper's figure 7).

    None where no positions are added to the tokens.
    """
    positions = model.positions()
    if positions is None:
        return None
    patches = positions.detach()[0, int(model.config.has_class_token) :]
    unit = F.normalize(patches, dim=-1)
    return (unit @ unit.mT).view(*model.config.grid, *model.config.grid)


def first_filters(model: nn.Module, most: int = _MOST_FILTERS) -> Filters | None:
    """Principal components of the filters that meet the pixels; None for a model whose first layer is unknown."""
    if isinstance(model, ViT) and model.stem is not None:
        layer, source = model.stem[0], "the conv stem's first convolution"
    elif isinstance(model, ViT):
        layer, source = model.patch_embed.proj, "the patch embedding"
    elif isinstance(model, CNN):
        layer, source = model.conv1, "the first convolution"
    elif isinstance(model, ArticleCNN):
        layer, source = model.layers[0], "the first convolution"
    else:
        return None
    weight = layer.weight
    assert isinstance(weight, Tensor)
    return principal_components(weight.detach(), source, most)


def principal_components(weight: Tensor, source: str, most: int) -> Filters:
    """Of filters (D, C, h, w), by a singular value decomposition of the centred filters."""
    flat = weight.flatten(1)
    _, sizes, directions = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    k = min(most, len(directions), len(flat) - 1 or 1)  # centring leaves at most D − 1 directions
    # a component and its opposite are the same one: let the largest weight be above zero, so pictures do not flip
    largest = directions.abs().argmax(dim=1, keepdim=True)
    directions = directions * directions.gather(1, largest).sign()
    variance = sizes.square()
    explained = variance / variance.sum().clamp(min=torch.finfo(variance.dtype).tiny)
    return Filters(directions[:k].view(k, *weight.shape[1:]), explained[:k], source)
