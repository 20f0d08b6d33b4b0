"""Attention of a ViT: weights of the layers and of pooling; rollout, distance, entropy.

Shapes: B images, L layers, H heads, N tokens (the class token first, if there is one), P patches.
Attention is indexed [query, key]: row q holds the weights of query q over all tokens and sums to 1.
"""

from __future__ import annotations

import math
from collections.abc import Sequence

import torch
from torch import Tensor

from vitreous.models import ViT
from vitreous.models.vit import Taps


def attention_layers(taps: Taps, depth: int) -> list[Tensor]:
    """Return the attention (B, H, N, N) of each layer, first layer first, still attached to the graph."""
    return [taps[f"blocks.{layer}.attention"] for layer in range(depth)]


def stream_layers(taps: Taps, depth: int) -> list[Tensor]:
    """Return the residual stream (B, N, D) after the embedding and after each layer: depth + 1 tensors."""
    return [taps["tokens"], *(taps[f"blocks.{layer}.output"] for layer in range(depth))]


def pooling_weights(model: ViT, taps: Taps) -> Tensor:
    """Return the weight (B, N) of each token in the pooled representation; rows sum to 1, removed patches have 0."""
    normed = taps["normed"]
    if model.config.pool == "cls":
        weights = torch.zeros_like(normed[..., 0])
        weights[:, 0] = 1
        return weights
    # without a class token the tokens are the patches
    kept = taps.get("kept", torch.ones_like(normed[..., 0], dtype=torch.bool))
    scores = torch.zeros_like(normed[..., 0]) if model.pool_score is None else model.pool_score(normed).squeeze(-1)
    return scores.masked_fill(~kept, -math.inf).softmax(dim=-1)


def rollout(layers: Sequence[Tensor], readout: Tensor) -> Tensor:
    """Attention rollout (Abnar & Zuidema, 2020) for one image: layers of (H, N, N), `readout` (N,) → (N,).

    Heads are averaged, the identity is added for the residual connection, rows are normalised to sum to 1, and the
    layers are multiplied from the first to the last.
    """
    identity = torch.eye(layers[0].shape[-1], dtype=layers[0].dtype, device=layers[0].device)
    total = identity
    for attention in layers:
        mixed = attention.mean(dim=0) + identity
        total = (mixed / mixed.sum(dim=-1, keepdim=True)) @ total
    return readout @ total


def attention_distance(attention: Tensor, centres: Tensor, has_class_token: bool) -> Tensor:
    """Mean attention distance (figures 7 and 11 of the paper): (…, N, N) and centres (P, 2) → (…).

    The distance from each patch to all patches, weighted by attention, then averaged over patches. The class token has
    no position in the image: it is left out, and the remaining weights are scaled to sum to 1 again.
    """
    first = int(has_class_token)
    weights = attention[..., first:, first:]
    weights = weights / weights.sum(dim=-1, keepdim=True).clamp(min=torch.finfo(weights.dtype).tiny)
    return (weights * torch.cdist(centres, centres)).sum(dim=-1).mean(dim=-1)


def attention_entropy(attention: Tensor) -> Tensor:
    """Return the mean entropy of the rows, (…, N, N) → (…), between 0 (one token) and 1 (uniform)."""
    entropy = -torch.xlogy(attention, attention).sum(dim=-1)  # xlogy: 0 · log 0 is 0
    return entropy.mean(dim=-1) / math.log(max(attention.shape[-1], 2))  # a single token has entropy 0
