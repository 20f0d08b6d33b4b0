"""Position embeddings fitted to another grid of patches, by the rule of the weights' origin.

The paper interpolates in two dimensions and leaves the class token's position alone. Its implementations interpolate
differently, and a model is most accurate with the rule it was published with. Each rule equals its origin's own
function (tests/checkpoints/test_positions.py); grids need not be square.

Shapes: G class tokens (0 or 1), h × w the grid, D width; an embedding is (1, G + h·w, D).
"""

from __future__ import annotations

from typing import Any, Literal, get_args

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.errors import CheckpointError
from vitreous.reports.formats import by

PositionRule = Literal["google", "timm", "hf", "torchvision"]
POSITION_RULES: tuple[PositionRule, ...] = get_args(PositionRule)

_INTERPOLATION: dict[str, dict[str, Any]] = {
    "google": {"mode": "bilinear", "align_corners": True},  # scipy.ndimage.zoom(order=1), in big_vision as well
    "timm": {"mode": "bicubic", "antialias": True},
    "hf": {"mode": "bicubic", "align_corners": False},
    "torchvision": {"mode": "bicubic", "align_corners": True},
}
#: The same in words, for the notes of `adapt`.
RULE_IN_WORDS: dict[str, str] = {
    "google": "bilinear, corner-aligned, as Google's code does",
    "timm": "bicubic, antialiased, as timm does",
    "hf": "bicubic, as Hugging Face does",
    "torchvision": "bicubic, corner-aligned, as torchvision does",
}


def resize_positions(
    pos_embed: Tensor,
    old_grid: tuple[int, int],
    new_grid: tuple[int, int],
    has_class_token: bool,
    rule: PositionRule,
) -> Tensor:
    """Interpolate `pos_embed` (1, [1 +] h·w, D) from `old_grid` to `new_grid`; the class token's position stays."""
    if rule not in _INTERPOLATION:
        raise CheckpointError(f"unknown position rule {rule!r}; choose from {', '.join(POSITION_RULES)}")
    prefix = int(has_class_token)
    tokens = old_grid[0] * old_grid[1] + prefix
    if pos_embed.ndim != 3 or pos_embed.shape[:2] != (1, tokens):
        raise CheckpointError(
            f"a position embedding of shape {tuple(pos_embed.shape)} does not fit a grid of {by(*old_grid)}"
            f" patches{' and a class token' if prefix else ''}: expected (1, {tokens}, width)"
        )
    if old_grid == new_grid:
        return pos_embed
    class_position, patches = pos_embed[:, :prefix], pos_embed[:, prefix:]
    plane = patches.float().reshape(1, *old_grid, -1).permute(0, 3, 1, 2)  # (1, D, h, w)
    plane = F.interpolate(plane, size=new_grid, **_INTERPOLATION[rule])
    patches = plane.flatten(2).transpose(1, 2).to(pos_embed.dtype)  # (1, h'·w', D)
    return torch.cat([class_position, patches], dim=1)
