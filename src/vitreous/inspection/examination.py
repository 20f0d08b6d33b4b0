"""One image examined: every map, what removing things does, and which of the maps may be believed.

Shapes: L layers, H heads, N tokens, K classes, cells in `rows` × `columns`, `height` × `width` pixels.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.inspection import attention as look
from vitreous.inspection import relevance, removal
from vitreous.inspection.cells import Array, Cells, patch_cells, plain_cells
from vitreous.inspection.faithfulness import Faithfulness, judge
from vitreous.inspection.query import background, check_question, like_parameters, undisturbed
from vitreous.models import ViT

#: What each map is, in one line; the order is the reports' when nothing ranks them.
MAPS = {
    "occlusion": "evidence lost when the cell is painted over with the background",
    "patch-removal": "evidence lost when no token may look at the patch",
    "relevance": "gradient × attention through all layers, for this class",
    "attention-rollout": "attention multiplied through all layers, residuals included",
    "last-attention": "the last layer's attention, heads averaged",
    "gradient": "size of the gradient of the class's logit",
    "integrated-gradients": "gradients gathered on the way from the empty picture",
    "grad-cam": "last convolution's features, weighted by their mean gradient",
    "hires-cam": "last convolution's features times their gradient, place by place",
    "ink": "how far the picture differs from its background: a control that knows nothing of the model",
}
#: Maps with values below zero: evidence against the class.
SIGNED = frozenset({"occlusion", "patch-removal", "integrated-gradients"})
#: Controls are judged like maps and explain nothing.
CONTROLS = frozenset({"ink"})


@dataclass(frozen=True)
class Map:
    """One map, on the cells and, where it is natural, at every pixel."""

    name: str
    cells: Array  # (rows, columns)
    pixels: Array | None = None  # (height, width)

    @property
    def signed(self) -> bool:
        return self.name in SIGNED


@dataclass(frozen=True)
class Attention:
    """What a ViT's tokens look at in this image."""

    weights: Array  # (L, H, N, N), [query, key]; rows sum to 1
    readout: Array  # (L, H, rows, columns): from the class token, or the mean of all tokens
    patch: int  # the chosen patch
    from_patch: Array  # (L, H, rows, columns)


@dataclass(frozen=True)
class Examination:
    """What `examine` found. `arrays()` gives all of it by name."""

    target: int
    answer: int
    logits: Array  # (K,)
    probabilities: Array  # (K,)
    cells: Cells
    maps: dict[str, Map]
    faithfulness: Faithfulness
    integration_gap: float  # what integrated gradients miss of completeness, as a share of the logits' difference
    attention: Attention | None = None  # a ViT's, as everything below
    logit_lens: Array | None = None  # (L + 1, K), probabilities
    head_effects: Array | None = None  # (L, H)
    patch_effects: Array | None = None  # (rows, columns)

    def arrays(self) -> dict[str, Array]:
        """Every array by its documented name (`ARRAYS` in report.py)."""
        judged = self.faithfulness
        found: dict[str, Array | None] = {
            "logits": self.logits,
            "probabilities": self.probabilities,
            "cells.row_edges": np.asarray(self.cells.row_edges),
            "cells.column_edges": np.asarray(self.cells.column_edges),
            "logit_lens": self.logit_lens,
            "head_effects": self.head_effects,
            "patch_effects": self.patch_effects,
            "faithfulness.shares": judged.shares,
            "faithfulness.random.deletion": judged.random_deletion,
            "faithfulness.random.insertion": judged.random_insertion,
        }
        if self.attention is not None:
            found["attention"] = self.attention.weights
            found["attention.from_readout"] = self.attention.readout
            found["attention.from_patch"] = self.attention.from_patch
            found["attention.patch"] = np.asarray(self.attention.patch)
        for name, drawn in self.maps.items():
            found[f"maps.{name}.cells"] = drawn.cells
            found[f"maps.{name}.pixels"] = drawn.pixels
            found[f"faithfulness.{name}.deletion"] = judged.deletion_curves[name]
            found[f"faithfulness.{name}.insertion"] = judged.insertion_curves[name]
        return {name: values for name, values in found.items() if values is not None}


def examine(
    model: nn.Module,
    image: Tensor,
    *,
    target: int | None = None,
    patch: int | None = None,
    cells: Cells | None = None,
    integration_steps: int | None = None,
    random_orders: int | None = None,
) -> Examination:
    """Look at one normalised image (C, height, width) through the model.

    `target`: the class to explain; None: the model's answer. `patch`: the patch to look from; None: the one whose
    loss costs most. `cells`: the grid for models without patches (to lay a CNN beside a ViT); a ViT has its own.
    `integration_steps` and `random_orders`: None takes 48 and 32, or 24 and 10 for images above 128 × 128 pixels.
    Nothing of the model changes: parameters, gradients, modes and random numbers stay as they were.
    """
    check_question(model, image, target, patch)
    effort = _effort(image)
    effort = Effort(
        integration_steps or effort.integration_steps, random_orders or effort.random_orders, effort.curve_steps
    )
    with undisturbed(model):
        return _examine(model, like_parameters(model, image), target, patch, cells, effort)


@dataclass(frozen=True)
class Effort:
    """How often the model is asked: some four thousand times for small images, five hundred for large ones."""

    integration_steps: int
    random_orders: int
    curve_steps: int


def _effort(image: Tensor) -> Effort:
    small = image.shape[-2] * image.shape[-1] <= 128 * 128
    # 49 steps: cell by cell for 4 × 4 patches of 28 × 28 pixels
    return Effort(48, 32, 49) if small else Effort(24, 10, 12)


def _examine(
    model: nn.Module,
    image: Tensor,
    target: int | None,
    patch: int | None,
    cells: Cells | None,
    effort: Effort,
) -> Examination:
    if isinstance(model, ViT):
        cells = patch_cells(model.config)
    elif cells is None:
        cells = plain_cells((image.shape[-2], image.shape[-1]))
    kept = model.kept_patches if isinstance(model, removal.Reduced) else None
    asked = relevance.forward_and_back(model, image, target, patch_mask=kept)
    fill = background(image)
    masks = torch.as_tensor(cells.masks(), device=image.device)
    maps = _maps_of_any_model(model, image, fill, masks, cells, asked, effort.integration_steps)
    removed = removal.patch_effects(model, image, asked.target) if isinstance(model, ViT) else None
    if isinstance(model, ViT):
        maps |= _maps_of_a_vit(model, asked, cells, removed)
    ordered = {name: maps[name] for name in MAPS if name in maps}
    judged = judge(
        model, image, fill, masks, asked.target, {name: drawn.cells for name, drawn in ordered.items()},
        random_orders=effort.random_orders, most_steps=effort.curve_steps,
    )  # fmt: skip
    common = Examination(
        target=asked.target,
        answer=int(asked.logits.argmax()),
        logits=_array(asked.logits),
        probabilities=_array(asked.logits.softmax(dim=-1)),
        cells=cells,
        maps=ordered,
        faithfulness=judged,
        integration_gap=_integration_gap(model, fill, asked, ordered["integrated-gradients"]),
    )
    if not isinstance(model, ViT):
        return common
    most_needed = int(ordered["occlusion"].cells.argmax()) if patch is None else patch
    return replace(
        common,
        attention=_attention(model, asked, cells, most_needed),
        logit_lens=_array(removal.logit_lens(model, asked.taps).softmax(dim=-1)),
        head_effects=_array(removal.head_effects(model, image, asked.target)),
        patch_effects=None if removed is None else _array(removed).reshape(cells.grid),
    )


def _maps_of_any_model(
    model: nn.Module,
    image: Tensor,
    fill: Tensor,
    masks: Tensor,
    cells: Cells,
    asked: relevance.Pass,
    integration_steps: int,
) -> dict[str, Map]:
    integrated = relevance.integrated_gradients(model, image, fill, asked.target, integration_steps)
    by_pixel = {
        "gradient": asked.image_gradient.abs().sum(dim=0),
        "integrated-gradients": integrated.sum(dim=0),
        "ink": (image - fill).abs().sum(dim=0),
        **relevance.class_activation_maps(model, image, asked.target),
    }
    maps = {name: Map(name, cells.total(_array(values)), _array(values)) for name, values in by_pixel.items()}
    occluded = removal.occlusion(model, image, fill, masks, asked.target)
    return maps | {"occlusion": Map("occlusion", _array(occluded).reshape(cells.grid))}


def _maps_of_a_vit(model: ViT, asked: relevance.Pass, cells: Cells, removed: Tensor | None) -> dict[str, Map]:
    layers = [layer[0] for layer in look.attention_layers(asked.taps, model.config.depth)]
    pooling = look.pooling_weights(model, asked.taps, asked.patch_mask)[0].detach()
    over_tokens = {
        "relevance": relevance.class_relevance(
            layers, asked.attention_gradients, relevance.relevance_readout(model, asked)
        ),
        "attention-rollout": look.rollout(layers, pooling),
        "last-attention": pooling @ layers[-1].mean(dim=0),
    }
    first = int(model.config.has_class_token)
    by_patch = {name: values[first:] for name, values in over_tokens.items()}
    if removed is not None:
        by_patch["patch-removal"] = removed
    return {name: Map(name, _array(values).reshape(cells.grid)) for name, values in by_patch.items()}


def _attention(model: ViT, asked: relevance.Pass, cells: Cells, patch: int) -> Attention:
    weights = torch.cat(look.attention_layers(asked.taps, model.config.depth))  # (L, H, N, N)
    has_class_token = model.config.has_class_token
    shape = (*weights.shape[:2], *cells.grid)
    return Attention(
        weights=_array(weights),
        readout=_array(look.from_readout(weights, has_class_token)).reshape(shape),
        patch=patch,
        from_patch=_array(look.from_patch(weights, patch, has_class_token)).reshape(shape),
    )


@torch.no_grad()
def _integration_gap(model: nn.Module, fill: Tensor, asked: relevance.Pass, integrated: Map) -> float:
    assert integrated.pixels is not None
    difference = float(asked.logits[asked.target] - model(fill[None])[0, asked.target])
    return abs(float(integrated.pixels.sum()) - difference) / max(abs(difference), 1e-9)


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()
