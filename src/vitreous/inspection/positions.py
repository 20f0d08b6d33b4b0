"""Cosine similarity of position embeddings, for `look`, the ONNX export and the web page."""

from __future__ import annotations

import torch.nn.functional as F
from torch import Tensor

from vitreous.models import ViT

__all__ = ["position_similarity"]


def position_similarity(model: ViT) -> Tensor | None:
    """Return the similarity (rows, columns, rows, columns) of each position to all others (figure 7 of the paper).

    None for a model that adds no positions to its tokens.
    """
    positions = model.positions()
    if positions is None:
        return None
    patches = F.normalize(positions.detach()[0, int(model.config.has_class_token) :], dim=-1)  # (P, D)
    return (patches @ patches.mT).view(*model.config.grid, *model.config.grid)
