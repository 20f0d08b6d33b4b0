"""Where a ViT's tokens look: maps from the class token, the mean or a patch; rollout, distance, entropy.

Shapes: B images, L layers, H heads, N tokens (the class token first, if there is one), P patches.
Attention is indexed [query, key]: row q says how token q spreads its look over all tokens, and sums to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vitreous.models import ViT
from vitreous.models.vit import Taps


def attention_layers(taps: Taps, depth: int) -> list[Tensor]:
    """Each layer's attention (B, H, N, N), the first layer first, still part of the graph that the taps hold."""
    return [taps[f"blocks.{layer}.attention"] for layer in range(depth)]


def stream_layers(taps: Taps, depth: int) -> list[Tensor]:
    """The residual stream (B, N, D) after the embedding and after each layer: depth + 1 of them."""
    return [taps["tokens"], *(taps[f"blocks.{layer}.output"] for layer in range(depth))]


def pooling_weights(model: ViT, taps: Taps, patch_mask: Tensor | None = None) -> Tensor:
    """(B, N), summing to 1: how much the answer reads from each token after the last layer.

    `patch_mask` (B or 1, P), as the model got it: no pooling counts a patch where it is False.
    """
    normed = taps["normed"]
    if model.config.pool == "cls":
        weights = torch.zeros_like(normed[..., 0])
        weights[:, 0] = 1
        return weights
    # without a class token the tokens are the patches
    kept = torch.ones_like(normed[..., 0], dtype=torch.bool) if patch_mask is None else patch_mask
    scores = torch.zeros_like(normed[..., 0]) if model.pool_score is None else model.pool_score(normed).squeeze(-1)
    return scores.masked_fill(~kept, -math.inf).softmax(dim=-1)


def from_readout(attention: Tensor, has_class_token: bool) -> Tensor:
    """(…, N, N) → (…, P): what the class token looks at or, where there is none, what the tokens do on average."""
    return attention[..., 0, 1:] if has_class_token else attention.mean(dim=-2)


def from_patch(attention: Tensor, patch: int, has_class_token: bool) -> Tensor:
    """(…, N, N) → (…, P): what one patch looks at."""
    return attention[..., patch + has_class_token, int(has_class_token) :]


def rollout(layers: Sequence[Tensor], readout: Tensor) -> Tensor:
    """Attention rollout (Abnar & Zuidema, 2020) for one image: layers of (H, N, N), `readout` (N,) → (N,).

    Heads are averaged; half of each layer is the residual, which passes a token on as it is; rows are normalised, so
    that what arrives still sums to 1; the first layer is applied first.
    """
    total = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype, device=layers[0].device)
    for attention in layers:
        mixed = attention.mean(dim=0) + torch.eye(len(total), dtype=total.dtype, device=total.device)
        total = (mixed / mixed.sum(dim=-1, keepdim=True)) @ total
    return readout @ total


def attention_distance(attention: Tensor, centres: Tensor, has_class_token: bool) -> Tensor:
    """The paper's mean attention distance (figures 7 and 11): (…, N, N) and centres (P, 2) → (…).

    For each patch, the distance to the patches it looks at, weighted by how much; then the mean over patches. The class
    token has no place in the picture: it is left out and the other weights are scaled to sum to 1 again.
    """
    first = int(has_class_token)
    weights = attention[..., first:, first:]
    weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return (weights * torch.cdist(centres, centres)).sum(dim=-1).mean(dim=-1)


def attention_entropy(attention: Tensor) -> Tensor:
    """(…, N, N) → (…): the rows' mean entropy as a share of the largest: 0 looks at one token, 1 at all alike."""
    tokens = attention.shape[-1]
    if tokens == 1:
        return torch.zeros_like(attention[..., 0, 0])
    entropy = -torch.xlogy(attention, attention).sum(dim=-1)  # xlogy: 0 · log 0 is 0
    return entropy.mean(dim=-1) / torch.log(torch.tensor(float(tokens), dtype=entropy.dtype))
