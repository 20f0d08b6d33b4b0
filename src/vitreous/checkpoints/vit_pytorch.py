"""lucidrains' vit-pytorch in its older form (PreNorm modules named `fn`), which is the paper's model.

The current form normalises the patches before and after their projection. The paper has no such LayerNorms and they
cannot be folded away, so it is refused. LayerNorm ε is torch's 1e-5; q, k, v have no bias; heads are 64 wide by
default; a flattened patch is ordered row, column, channel.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Facts
from vitreous.checkpoints.names import count_blocks, expand, rename
from vitreous.errors import CheckpointError

MARKER = "to_patch_embedding.1.weight"
_BLOCK = r"transformer\.layers\.(\d+)\."
_HEAD_DIM = 64
NORM_EPS = 1e-5

_TABLE = {
    "cls_token!": "cls_token",
    "pos_embed!": "pos_embedding",
    "patch_embed.proj": "to_patch_embedding.1",
    "blocks.{i}.norm1": "transformer.layers.{i}.0.norm",
    "blocks.{i}.attn.qkv.weight!": "transformer.layers.{i}.0.fn.to_qkv.weight",
    "blocks.{i}.attn.proj": "transformer.layers.{i}.0.fn.to_out.0",
    "blocks.{i}.norm2": "transformer.layers.{i}.1.norm",
    "blocks.{i}.mlp.fc1": "transformer.layers.{i}.1.fn.net.0",
    "blocks.{i}.mlp.fc2": "transformer.layers.{i}.1.fn.net.3",
    "norm": "mlp_head.0",
    "head": "mlp_head.1",
}


def read(tensors: Mapping[str, Tensor], stated: Facts, config: Mapping[str, Any]) -> Mapped:
    if tensors[MARKER].ndim == 1:
        raise CheckpointError(
            "current vit-pytorch puts a LayerNorm before the patch projection and another after it"
            " (to_patch_embedding.1 and .3), which the paper's ViT does not have"
        )
    if not any(".fn." in name for name in tensors):
        raise CheckpointError(
            "its blocks are none of older vit-pytorch's, in which a PreNorm (norm, fn) is around attention and MLP"
        )
    if stated.pool == "mean":
        raise CheckpointError(
            "vit-pytorch's mean is over class token and patches, which vitreous' ViT does not compute"
        )
    renamed, unexpected = rename(tensors, expand(_TABLE, count_blocks(tensors, _BLOCK)))
    renamed["patch_embed.proj.weight"] = _as_kernel(renamed["patch_embed.proj.weight"], stated.channels)
    heads = None
    qkv = renamed.get("blocks.0.attn.qkv.weight")
    if qkv is not None and qkv.ndim == 2:
        rows, dim = qkv.shape
        if rows != 3 * dim:
            raise CheckpointError(f"its heads are {rows // 3} wide together and its tokens {dim}; both must be equal")
        heads = dim // _HEAD_DIM if dim % _HEAD_DIM == 0 else None
    return Mapped(
        tensors=renamed,
        unexpected=unexpected,
        facts=stated.over(Facts(norm_eps=NORM_EPS, gelu="erf")),  # it has no others
        defaults=Facts(num_heads=heads or None, pool="cls"),
        position_rule="timm",
    )


def _as_kernel(weight: Tensor, stated_channels: int | None) -> Tensor:
    """(D, P·P·C) → (D, C, P, P). P²·1 and P²·3 are never equal, which identifies the channels."""
    size = weight.shape[-1]
    for channels in (stated_channels,) if stated_channels else (3, 1):
        side = math.isqrt(size // channels)
        if weight.ndim == 2 and side and side * side * channels == size:
            return weight.reshape(-1, side, side, channels).permute(0, 3, 1, 2)
    raise CheckpointError(
        f"patches of {size} numbers are no square of 3 or 1 channels, so their size is unknown: give channels=…"
    )
