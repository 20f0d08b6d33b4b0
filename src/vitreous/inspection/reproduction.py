"""Check that the recorded attention is what the model computed with, by recomputing its output.

A map of weights that the prediction does not depend on explains nothing, however plausible it looks. A variant or
another author's subclass of the ViT may record weights before a change (a mask, a norm, another softmax) or compute its
blocks differently; this finds both, because the logits then differ.

Shapes: B images, H heads, N tokens, K = D // H.
"""

from __future__ import annotations

import torch
from torch import Tensor

from vitreous.inspection.query import LookError
from vitreous.models import ViT
from vitreous.models.vit import Block, Taps

#: Of the largest logit; other kernels for the same arithmetic differ by less than a hundredth of this in float32.
TOLERANCE = 1e-3


@torch.no_grad()
def recompute_logits(model: ViT, taps: Taps, head_mask: Tensor | None = None) -> Tensor:
    """Return the logits that the recorded tokens, attention and values give: z + U (A v), then the MLP, layer by layer.

    `head_mask` (L, H) is the one that was given to the model.
    """
    x = taps["tokens"]
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        heads = taps[f"blocks.{i}.attention"] @ taps[f"blocks.{i}.v"]  # (B, H, N, K)
        if head_mask is not None:
            heads = heads * head_mask[i].view(1, -1, 1, 1)
        x = x + block.attn.proj(heads.transpose(1, 2).reshape(x.shape))
        x = x + block.mlp(block.norm2(x))
    kept = taps.get("kept")
    return model.classify(x, None if kept is None else model.token_mask(kept))


@torch.no_grad()
def require_reproduction(model: ViT, images: Tensor, head_mask: Tensor | None = None) -> None:
    """Raise unless the attention recorded for `images` reproduces the logits that the model gives without recording."""
    taps: Taps = {}
    logits = model(images)
    model(images, taps)
    try:
        difference = float((recompute_logits(model, taps, head_mask) - logits).abs().max())
    except (AssertionError, AttributeError, KeyError, RuntimeError):  # other parts, other shapes
        difference = float("inf")
    if not difference <= TOLERANCE * max(1.0, float(logits.abs().max())):
        raise LookError(
            f"the attention that {type(model).__name__} records does not reproduce its prediction (logits recomputed"
            f" from it differ by {difference:.2g}), so maps of it would mislead: record the weights that multiply the"
            " values, in blocks of z + attention, then z + MLP"
        )
