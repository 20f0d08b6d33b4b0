"""What happens when something is taken away: a cell painted over, a patch or a head removed; and the logit lens.

Shapes: C channels, `height` × `width` pixels, L layers, H heads, P cells or patches, K classes. One image.
Effects are evidence lost (log₁₀ of the odds, see `asking.evidence`): above zero, the answer needed what was taken.
"""

from __future__ import annotations

import torch
from torch import Tensor, nn

from vitreous.internals.asking import answers, evidence
from vitreous.internals.attention import stream_layers
from vitreous.models import ViT
from vitreous.models.vit import Taps


def occlusion(model: nn.Module, image: Tensor, fill: Tensor, cell_masks: Tensor, target: int) -> Tensor:
    """(P,): evidence lost when each cell (P, height, width) alone is painted with `fill` (C, height, width)."""
    painted = torch.where(cell_masks[:, None], fill[None], image[None])  # (P, C, height, width)
    return _lost(answers(model, image[None]), answers(model, painted), target)


def patch_effects(model: ViT, image: Tensor, target: int) -> Tensor | None:
    """(P,): evidence lost when no token may look at a patch any more, and no pooling counts it.

    Nothing is painted over, so this also shows where an empty patch matters. None for a model with a single patch.
    """
    patches = model.config.num_patches
    if patches == 1:
        return None
    masks = ~torch.eye(patches, dtype=torch.bool, device=image.device)
    removed = answers(model, image[None].expand(patches, -1, -1, -1), masks)
    return _lost(answers(model, image[None]), removed, target)


@torch.no_grad()
def head_effects(model: ViT, image: Tensor, target: int) -> Tensor:
    """(L, H): evidence lost when one head's output is set to zero."""
    L, H = model.config.depth, model.config.num_heads
    removed = []
    for gone in range(L * H):
        mask = torch.ones(L * H, dtype=image.dtype, device=image.device)
        mask[gone] = 0
        removed.append(model(image[None], head_mask=mask.view(L, H)))
    return _lost(answers(model, image[None]), torch.cat(removed), target).view(L, H)


@torch.no_grad()
def logit_lens(model: ViT, taps: Taps) -> Tensor:
    """(L + 1, K): what the answer would be if the head read the tokens after the embedding and after each layer."""
    stream = torch.cat([layer[:1] for layer in stream_layers(taps, model.config.depth)])
    return model.classify(stream)


def _lost(whole: Tensor, removed: Tensor, target: int) -> Tensor:
    return evidence(whole, target) - evidence(removed, target)
