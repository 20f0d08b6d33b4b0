"""Examination of one image: every map, the effect of removing parts, and the faithfulness of the maps.

Shapes: L layers, H heads, N tokens, K classes, cells in `rows` × `columns`, `height` × `width` pixels.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import torch
from torch import Tensor, nn

from vitreous.evaluation.prediction import calibrated
from vitreous.inspection import attention, relevance, removal
from vitreous.inspection.cells import Array, Cells, patch_cells, plain_cells
from vitreous.inspection.faithfulness import Faithfulness, judge
from vitreous.inspection.query import background, batched_logits, check_query, eval_mode, like_parameters
from vitreous.models import ViT


class MapKind(NamedTuple):
    """What a map shows and in which unit; maps in log-odds and logits are signed."""

    title: str
    description: str
    unit: str = ""  # "log-odds", "logit", "share", or none


#: All maps; reports list them in this order where no score ranks them.
MAPS = {
    "occlusion": MapKind("Occlusion", "The pixels of each cell in turn are set to the background.", "log-odds"),
    "patch-removal": MapKind("Patch removal", "Each patch in turn is removed from attention.", "log-odds"),
    "relevance": MapKind("Relevance", "Gradient × attention through all layers, for this class."),
    "attention-rollout": MapKind("Attention rollout", "Product over all layers; the same for every class.", "share"),
    "last-attention": MapKind("Last-layer attention", "Mean over heads; the same for every class.", "share"),
    "gradient": MapKind("Gradient", "How strongly a small change of a pixel changes the logit."),
    "integrated-gradients": MapKind("Integrated gradients", "Gradients summed on a path from empty.", "logit"),
    "grad-cam": MapKind("Grad-CAM", "Features of the last convolution, weighted by their mean gradient."),
    "hires-cam": MapKind("HiResCAM", "Features of the last convolution × their gradient, position by position."),
    "ink": MapKind("Ink alone", "A control without the model: how far pixels differ from the background."),
}
#: Scored like the maps, but explains nothing.
CONTROL = "ink"


@dataclass(frozen=True)
class Map:
    """One map, on the cells and, for some methods, at every pixel."""

    name: str
    cells: Array  # (rows, columns)
    pixels: Array | None = None  # (height, width)

    @property
    def kind(self) -> MapKind:
        return MAPS[self.name]

    @property
    def signed(self) -> bool:
        return self.kind.unit in ("log-odds", "logit")


@dataclass(frozen=True)
class Attention:
    """The attention of a ViT for this image."""

    weights: Array  # (L, H, N, N), [query, key]; rows sum to 1
    grid: tuple[int, int]
    patch: int  # the chosen patch

    @property
    def readout(self) -> Array:
        """(L, H, rows, columns): from the class token or, without one, the mean over all tokens."""
        L, H, N, _ = self.weights.shape
        has_class_token = self.grid[0] * self.grid[1] < N
        readout = self.weights[:, :, 0, 1:] if has_class_token else self.weights.mean(axis=2)
        return readout.reshape(L, H, *self.grid)

    def from_patch(self, patch: int) -> Array:
        """(L, H, rows, columns): from one patch."""
        L, H, N, _ = self.weights.shape
        first = N - self.grid[0] * self.grid[1]  # 1 with a class token
        return self.weights[:, :, first + patch, first:].reshape(L, H, *self.grid)


@dataclass(frozen=True)
class Examination:
    """The result of `examine`; `arrays()` returns all of it by name."""

    target: int
    prediction: int
    logits: Array  # (K,)
    probabilities: Array  # (K,)
    cells: Cells
    maps: dict[str, Map]
    faithfulness: Faithfulness
    integration_gap: float  # error of completeness of integrated gradients, relative to the difference of logits
    attention: Attention | None = None  # this and the following: only for a ViT
    logit_lens: Array | None = None  # (L + 1, K), probabilities
    head_effects: Array | None = None  # (L, H)

    @property
    def patch_effects(self) -> Array | None:
        """(rows, columns); only for a ViT with several patches."""
        return self.maps["patch-removal"].cells if "patch-removal" in self.maps else None

    def arrays(self) -> dict[str, Array]:
        """Return every array by its documented name (`ARRAYS` in report.py)."""
        judged = self.faithfulness
        arrays: dict[str, Array | None] = {
            "cells.row_edges": np.asarray(self.cells.row_edges),
            "cells.column_edges": np.asarray(self.cells.column_edges),
            "faithfulness.shares": judged.shares,
            "faithfulness.random.deletion": judged.random_deletion,
            "faithfulness.random.insertion": judged.random_insertion,
        }
        for name in ("logits", "probabilities", "logit_lens", "head_effects", "patch_effects"):
            arrays[name] = getattr(self, name)
        if self.attention is not None:
            arrays["attention"] = self.attention.weights
            arrays["attention.from_readout"] = self.attention.readout
            arrays["attention.from_patch"] = self.attention.from_patch(self.attention.patch)
            arrays["attention.patch"] = np.asarray(self.attention.patch)
        for name, drawn in self.maps.items():
            arrays[f"maps.{name}.cells"] = drawn.cells
            arrays[f"maps.{name}.pixels"] = drawn.pixels
            arrays[f"faithfulness.{name}.deletion"] = judged.deletion_curves[name]
            arrays[f"faithfulness.{name}.insertion"] = judged.insertion_curves[name]
        return {name: values for name, values in arrays.items() if values is not None}


def examine(
    model: nn.Module,
    image: Tensor,
    *,
    target: int | None = None,
    patch: int | None = None,
    cells: Cells | None = None,
    temperature: float = 1.0,
    integration_steps: int | None = None,
    random_orders: int | None = None,
) -> Examination:
    """Examine one normalised image (C, height, width); the model and the random state are left unchanged.

    `target`: the class to explain; None: the predicted one. `patch`: the patch whose attention is shown; None: the one
    with the largest occlusion effect. `cells`: the grid for models without patches; a ViT has its own.
    `temperature`: of the run; probabilities and odds are those of logits / temperature.
    `integration_steps` and `random_orders`: None means 48 and 32, or 24 and 10 above 128 × 128 pixels. That is some
    four thousand forward passes for small images, five hundred for large ones.
    """
    check_query(model, image, target, patch)
    is_small = image[0].numel() <= 128 * 128
    with eval_mode(model):
        image = like_parameters(model, image)
        if isinstance(model, ViT):
            cells = patch_cells(model.config)
        elif cells is None:
            cells = plain_cells((image.shape[-2], image.shape[-1]))
        trace = relevance.forward_and_back(model, image, target)
        if isinstance(model, ViT) and (chosen := trace.taps.get("chosen")) is not None:
            cells = cells.without(tuple(sorted(set(range(cells.count)) - set(chosen[0].tolist()))))
        fill = background(image)
        masks = torch.as_tensor(cells.masks(), device=image.device)
        maps = _pixel_maps(model, image, fill, cells, trace, integration_steps or (48 if is_small else 24))
        on_cells = {"occlusion": removal.occlusion(model, image, fill, masks, trace.target, temperature)}
        if isinstance(model, ViT):
            on_cells |= _patch_maps(model, image, trace, temperature)
        maps |= {name: Map(name, _array(values).reshape(cells.grid)) for name, values in on_cells.items()}
        maps = {name: maps[name] for name in MAPS if name in maps}
        faithfulness = judge(
            model, image, fill, masks, trace.target, {name: drawn.cells for name, drawn in maps.items()},
            random_orders=random_orders or (32 if is_small else 10),
            most_steps=49 if is_small else 12,  # 49: cell by cell for 4 × 4 patches of 28 × 28 pixels
            temperature=temperature,
        )  # fmt: skip
        if patch is None:
            patch = int(maps["occlusion"].cells.argmax())
        return Examination(
            target=trace.target,
            prediction=int(trace.logits.argmax()),
            logits=_array(trace.logits),
            probabilities=_array(calibrated(trace.logits, temperature)),
            cells=cells,
            maps=maps,
            faithfulness=faithfulness,
            integration_gap=_integration_gap(model, fill, trace, maps["integrated-gradients"]),
            **(_vit_fields(model, image, trace, patch, temperature) if isinstance(model, ViT) else {}),
        )


def _pixel_maps(
    model: nn.Module, image: Tensor, fill: Tensor, cells: Cells, trace: relevance.Trace, integration_steps: int
) -> dict[str, Map]:
    integrated = relevance.integrated_gradients(model, image, fill, trace.target, integration_steps)
    maps = {
        "gradient": trace.image_gradient.abs().sum(dim=0),
        "integrated-gradients": integrated.sum(dim=0),
        "ink": (image - fill).abs().sum(dim=0),
        **relevance.class_activation_maps(model, image, trace.target),
    }
    return {name: Map(name, cells.total(_array(values)), _array(values)) for name, values in maps.items()}


def _patch_maps(model: ViT, image: Tensor, trace: relevance.Trace, temperature: float) -> dict[str, Tensor]:
    """Return the maps (P,) that only a ViT has."""
    layers = [layer[0] for layer in attention.attention_layers(trace.taps, model.config.depth)]
    pooling = attention.pooling_weights(model, trace.taps)[0].detach()
    readout = relevance.relevance_readout(model, trace)
    over_tokens = {
        "relevance": relevance.class_relevance(layers, trace.attention_gradients, readout),
        "attention-rollout": attention.rollout(layers, pooling),
        "last-attention": pooling @ layers[-1].mean(dim=0),
    }
    maps = {name: values[int(model.config.has_class_token) :] for name, values in over_tokens.items()}
    removed = removal.patch_effects(model, image, trace.target, temperature)
    return maps if removed is None else maps | {"patch-removal": removed}


def _vit_fields(model: ViT, image: Tensor, trace: relevance.Trace, patch: int, temperature: float) -> dict[str, Any]:
    weights = torch.cat(attention.attention_layers(trace.taps, model.config.depth))  # (L, H, N, N)
    return {
        "attention": Attention(_array(weights), model.config.grid, patch),
        "logit_lens": _array(calibrated(removal.logit_lens(model, trace.taps), temperature)),
        "head_effects": _array(removal.head_effects(model, image, trace.target, temperature)),
    }


def _integration_gap(model: nn.Module, fill: Tensor, trace: relevance.Trace, integrated: Map) -> float:
    difference = float(trace.logits[trace.target] - batched_logits(model, fill[None])[0, trace.target])
    return abs(float(integrated.cells.sum()) - difference) / max(abs(difference), 1e-9)


def _array(tensor: Tensor) -> Array:
    return tensor.detach().cpu().numpy()
