"""About the model rather than one image: filters, positions, and how attention and tokens change with depth.

Shapes: B images, L layers, H heads, N tokens, D width, a grid of `rows` × `columns` patches.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.inspection.attention import attention_distance, attention_entropy, attention_layers, stream_layers
from vitreous.inspection.cells import Array, patch_cells
from vitreous.inspection.positions import first_filters, position_similarity
from vitreous.inspection.query import LookError, batch_size, like_parameters, undisturbed
from vitreous.models import ViT
from vitreous.models.vit import Taps


@dataclass(frozen=True)
class Survey:
    """What `survey` found; means are over images. `arrays()` gives all of it by name."""

    images: int
    filters: Array  # (k, C, h, w)
    filters_explained: Array  # (k,)
    filters_source: str
    position_similarity: Array | None  # (rows, columns, rows, columns)
    attention_distance_pixels: Array  # (L, H)
    attention_distance_patches: Array  # (L, H)
    uniform_distance_pixels: float  # what a head that looks at all patches alike would have
    attention_entropy: Array  # (L, H), 0 … 1 of the largest
    patch_norms: Array  # (L + 1,): mean length of the patches' tokens after the embedding and each layer
    class_norms: Array | None  # (L + 1,)
    patch_similarity: Array  # (L + 1,): mean cosine similarity of two different patches of one image

    def arrays(self) -> dict[str, Array]:
        found = {f"survey.{name}": value for name, value in vars(self).items() if isinstance(value, np.ndarray)}
        return found | {"survey.uniform_distance_pixels": np.asarray(self.uniform_distance_pixels)}


def survey(model: ViT, images: Tensor) -> Survey:
    """Survey a ViT over normalised images (B, C, height, width); a hundred are plenty."""
    if images.dim() != 4 or not len(images):
        raise LookError(f"the survey's images have shape {tuple(images.shape)}; give one or more, (B, C, h, w)")
    with undisturbed(model), torch.no_grad():
        images = like_parameters(model, images)
        # the taps hold every layer's N × N weights: smaller batches than for answers alone
        batches = images.split(max(1, batch_size(model, images[0]) // 4))
        parts = [_measure(model, batch) for batch in batches]
        means = {
            name: sum(part[name] * len(batch) for part, batch in zip(parts, batches, strict=True)) / len(images)
            for name in parts[0]
        }
        return _summary(model, len(images), {name: torch.as_tensor(value) for name, value in means.items()})


def _measure(model: ViT, images: Tensor) -> dict[str, Tensor]:
    """Means over a batch, by name; (L, H) or (L + 1,) each."""
    config = model.config
    taps: Taps = {}
    model(images, taps)
    weights = torch.stack(attention_layers(taps, config.depth), dim=1)  # (B, L, H, N, N)
    stream = torch.stack(stream_layers(taps, config.depth), dim=1)  # (B, L + 1, N, D)
    first = int(config.has_class_token)
    in_pixels, in_patches = _centres(model, weights)
    measured = {
        "distance_pixels": attention_distance(weights, in_pixels, config.has_class_token),
        "distance_patches": attention_distance(weights, in_patches, config.has_class_token),
        "entropy": attention_entropy(weights),
        "patch_norms": stream[:, :, first:].norm(dim=-1).mean(dim=-1),
        "class_norms": stream[:, :, 0].norm(dim=-1),
        "similarity": mean_similarity(stream[:, :, first:]),
    }
    return {name: values.mean(dim=0) for name, values in measured.items()}


def _centres(model: ViT, like: Tensor) -> tuple[Tensor, Tensor]:
    """The patches' middles, (P, 2): in pixels, and counted in patches."""
    rows, columns = model.config.grid
    in_patches = torch.cartesian_prod(torch.arange(rows), torch.arange(columns)).view(-1, 2)
    return torch.as_tensor(patch_cells(model.config).centres).to(like), in_patches.to(like)


def mean_similarity(tokens: Tensor) -> Tensor:
    """(…, P, D) → (…): mean cosine similarity over all pairs of different tokens; 1 for a single token."""
    P = tokens.shape[-2]
    unit = F.normalize(tokens, dim=-1)
    if P == 1:
        return torch.ones_like(unit[..., 0, 0])
    # the mean of all pairs is the square of the mean vector; each of the P pairs of a token with itself counts 1
    return (unit.sum(dim=-2).square().sum(dim=-1) - P) / (P * (P - 1))


def _summary(model: ViT, count: int, means: dict[str, Tensor]) -> Survey:
    filters = first_filters(model)
    assert filters is not None
    similarity = position_similarity(model)
    in_pixels, _ = _centres(model, means["entropy"])
    uniform = torch.full((len(in_pixels), len(in_pixels)), 1 / len(in_pixels)).to(in_pixels)
    return Survey(
        images=count,
        filters=filters.components.cpu().numpy(),
        filters_explained=filters.explained.cpu().numpy(),
        filters_source=filters.source,
        position_similarity=None if similarity is None else similarity.cpu().numpy(),
        attention_distance_pixels=means["distance_pixels"].cpu().numpy(),
        attention_distance_patches=means["distance_patches"].cpu().numpy(),
        uniform_distance_pixels=float(attention_distance(uniform, in_pixels, has_class_token=False)),
        attention_entropy=means["entropy"].cpu().numpy(),
        patch_norms=means["patch_norms"].cpu().numpy(),
        class_norms=means["class_norms"].cpu().numpy() if model.config.has_class_token else None,
        patch_similarity=means["similarity"].cpu().numpy(),
    )
