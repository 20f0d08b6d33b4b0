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

#: Of the largest number compared; other kernels for the same arithmetic differ by less than a hundredth in float32.
TOLERANCE = 1e-3


@torch.no_grad()
def recompute_stream(model: ViT, taps: Taps, head_mask: Tensor | None = None) -> list[Tensor]:
    """Return z_0 … z_L from the recorded tokens, attention and values: z + U (A v), then the MLP, layer by layer.

    `head_mask` (L, H) is the one that was given to the model.
    """
    stream = [taps["tokens"]]
    for i, block in enumerate(model.blocks):
        assert isinstance(block, Block)
        heads = taps[f"blocks.{i}.attention"] @ taps[f"blocks.{i}.v"]  # (B, H, N, K)
        if head_mask is not None:
            heads = heads * head_mask[i].view(1, -1, 1, 1)
        x = stream[-1] + block.attn.proj(heads.transpose(1, 2).reshape(stream[-1].shape))
        stream.append(x + block.mlp(block.norm2(x)))
    return stream


@torch.no_grad()
def require_reproduction(model: ViT, images: Tensor, head_mask: Tensor | None = None) -> None:
    """Raise unless the attention recorded for `images` reproduces what the model computes without recording.

    Every token of every block is compared, since the head may read few of them, and what the head reads rather than
    the logits: a new head starts at zero.
    """
    read: list[Tensor] = []
    taps: Taps = {}
    hook = model.head.register_forward_pre_hook(lambda _, inputs: read.append(inputs[0]))
    try:
        model(images)
        model(images, taps)
        stream = recompute_stream(model, taps, head_mask)
        key_mask = None if "kept" not in taps else model.token_mask(taps["kept"])
        model.classify(stream[-1], key_mask)
        differences = [_difference(read[-1], read[0])]
        for i, block in enumerate(model.blocks):
            own = block(stream[i], None, None if head_mask is None else head_mask[i], key_mask)
            differences.append(_difference(stream[i + 1], own))
        difference = max(differences)
    except (AssertionError, AttributeError, KeyError, RuntimeError, TypeError):  # other parts, other shapes
        difference = float("inf")
    finally:
        hook.remove()
    if not difference <= TOLERANCE:
        raise LookError(
            f"the attention that {type(model).__name__} records does not reproduce its prediction (tokens recomputed"
            f" from it differ by {difference:.2g} of the largest number), so maps of it would mislead: record the"
            " weights that multiply the values, in blocks of z + attention, then z + MLP"
        )


def _difference(recomputed: Tensor, own: Tensor) -> float:
    """Return the largest difference, as a part of the largest number; NaN stays NaN."""
    return float((recomputed - own).abs().max() / own.abs().max().clamp(min=torch.finfo(own.dtype).tiny))
