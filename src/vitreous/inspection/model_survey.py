"""Properties of the model rather than of one image: first filters, positions, attention and tokens by depth.

Shapes: B images, L layers, H heads, N tokens, D width or filters, a grid of `rows` × `columns` patches.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.inspection.attention import attention_distance, attention_entropy, attention_layers, stream_layers
from vitreous.inspection.cells import Array, patch_cells
from vitreous.inspection.query import LookError, batch_size, eval_mode, like_parameters
from vitreous.models import CNN, ArticleCNN, ViT
from vitreous.models.vit import Taps

_MOST_FILTERS = 28  # as many as in figure 7 of the paper


@dataclass(frozen=True)
class Filters:
    """Principal components of the filters of the first layer, largest first."""

    components: Array  # (k, C, h, w), each of length 1
    explained: Array  # (k,): share of the variance of the filters
    source: str  # name of the layer, for the report


@dataclass(frozen=True)
class Survey:
    """Measurements averaged over images; `arrays()` returns all of them by name."""

    images: int
    filters: Array  # (k, C, h, w)
    filters_explained: Array  # (k,)
    position_similarity: Array | None  # (rows, columns, rows, columns)
    attention_distance_pixels: Array  # (L, H)
    attention_distance_patches: Array  # (L, H)
    uniform_distance_pixels: float  # the distance of a head with uniform attention
    attention_entropy: Array  # (L, H), 0 … 1 of the maximum
    patch_norms: Array  # (L + 1,): mean norm of the patch tokens after the embedding and each layer
    patch_similarity: Array  # (L + 1,): mean cosine similarity of two different patches of one image
    class_norms: Array | None = None  # (L + 1,)

    def arrays(self) -> dict[str, Array]:
        found = {f"survey.{name}": value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return found | {"survey.uniform_distance_pixels": np.asarray(self.uniform_distance_pixels)}


def survey(model: ViT, images: Tensor) -> Survey:
    """Measure a ViT over normalised images (B, C, height, width)."""
    if images.dim() != 4 or not len(images):
        raise LookError(f"the survey images have shape {tuple(images.shape)}; expected one or more, (B, C, h, w)")
    with eval_mode(model), torch.no_grad():
        images = like_parameters(model, images)
        # the taps hold the N × N weights of every layer, so use smaller batches than for logits alone
        parts = [_measure(model, batch) for batch in images.split(max(1, batch_size(model, images[0]) // 4))]
    means: dict[str, Any] = {
        name: torch.cat([part[name] for part in parts]).mean(dim=0).cpu().numpy() for name in parts[0]
    }
    centres = torch.as_tensor(patch_cells(model.config).centres).to(images)
    filters, similarity = first_filters(model), position_similarity(model)
    assert filters is not None
    return Survey(
        images=len(images),
        filters=filters.components,
        filters_explained=filters.explained,
        position_similarity=None if similarity is None else similarity.cpu().numpy(),
        uniform_distance_pixels=float(torch.cdist(centres, centres).mean()),
        **means,
    )


def _measure(model: ViT, images: Tensor) -> dict[str, Tensor]:
    """Return measurements by name, each (B, L, H) or (B, L + 1)."""
    config = model.config
    taps: Taps = {}
    model(images, taps)
    weights = torch.stack(attention_layers(taps, config.depth), dim=1)  # (B, L, H, N, N)
    stream = torch.stack(stream_layers(taps, config.depth), dim=1)  # (B, L + 1, N, D)
    patches = stream[:, :, int(config.has_class_token) :]
    in_pixels = torch.as_tensor(patch_cells(config).centres).to(weights)  # (P, 2)
    in_patches = torch.cartesian_prod(*(torch.arange(count) for count in config.grid)).to(weights)
    if (chosen := taps.get("chosen")) is not None:  # skipped patches are in no sequence
        weights, patches = _only(chosen, weights, config.has_class_token), _take(patches, chosen)
        in_pixels, in_patches = (centres[chosen][:, None, None] for centres in (in_pixels, in_patches))
    measured = {
        "attention_distance_pixels": attention_distance(weights, in_pixels, config.has_class_token),
        "attention_distance_patches": attention_distance(weights, in_patches, config.has_class_token),
        "attention_entropy": attention_entropy(weights),
        "patch_norms": patches.norm(dim=-1).mean(dim=-1),
        "patch_similarity": mean_similarity(patches),
    }
    if config.has_class_token:
        measured["class_norms"] = stream[:, :, 0].norm(dim=-1)
    return measured


def _take(patches: Tensor, chosen: Tensor) -> Tensor:
    """(B, L + 1, P, D), (B, K) → (B, L + 1, K, D)."""
    return patches.take_along_dim(chosen[:, None, :, None], dim=2)


def _only(chosen: Tensor, weights: Tensor, has_class_token: bool) -> Tensor:
    """(B, L, H, N, N) → the rows and columns of the class token and of the chosen patches (B, K)."""
    tokens = F.pad(chosen + 1, (1, 0)) if has_class_token else chosen
    rows = weights.take_along_dim(tokens[:, None, None, :, None], dim=3)
    return rows.take_along_dim(tokens[:, None, None, None, :], dim=4)


def mean_similarity(tokens: Tensor) -> Tensor:
    """Return the mean cosine similarity over all pairs of different tokens, (…, P, D) → (…); 1 for a single token."""
    P = tokens.shape[-2]
    unit = F.normalize(tokens, dim=-1)
    if P == 1:
        return torch.ones_like(unit[..., 0, 0])
    # |Σ u|² sums over all ordered pairs; each of the P pairs of a token with itself contributes 1
    return (unit.sum(dim=-2).square().sum(dim=-1) - P) / (P * (P - 1))


def position_similarity(model: ViT) -> Tensor | None:
    """Return the similarity (rows, columns, rows, columns) of each position to all others (figure 7 of the paper).

    None for a model that adds no positions to its tokens.
    """
    positions = model.positions()
    if positions is None:
        return None
    patches = F.normalize(positions.detach()[0, int(model.config.has_class_token) :], dim=-1)  # (P, D)
    return (patches @ patches.mT).view(*model.config.grid, *model.config.grid)


def first_filters(model: nn.Module) -> Filters | None:
    """Return principal components of the filters of the first layer; None if that layer is unknown."""
    if isinstance(model, ViT) and model.stem is not None:
        layer, source = model.stem[0], "the first convolution of the stem"
    elif isinstance(model, ViT):
        layer, source = model.patch_embed.proj, "the patch embedding"
    elif isinstance(model, CNN | ArticleCNN):
        layer, source = model.conv1 if isinstance(model, CNN) else model.layers[0], "the first convolution"
    else:
        return None
    weight = layer.weight
    assert isinstance(weight, Tensor)
    flat = weight.detach().flatten(1)  # (D, C·h·w)
    _, sizes, directions = torch.linalg.svd(flat - flat.mean(dim=0), full_matrices=False)
    k = min(_MOST_FILTERS, len(directions), len(flat) - 1 or 1)  # centring leaves at most D − 1 directions
    # the sign of a component is arbitrary: make its largest weight positive, so that images are reproducible
    largest = directions.abs().argmax(dim=1, keepdim=True)
    directions = directions * directions.gather(1, largest).sign()
    variance = sizes.square()
    explained = variance / variance.sum().clamp(min=torch.finfo(variance.dtype).tiny)
    components = directions[:k].view(k, *weight.shape[1:])
    return Filters(components.cpu().numpy(), explained[:k].cpu().numpy(), source)
