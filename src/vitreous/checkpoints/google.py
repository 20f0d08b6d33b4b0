"""Google's `.npz` files: the paper's own and AugReg's, and big_vision's.

Shapes in the file: kernels are (in, out); q, k, v (D, H, K) and (H, K); the output projection (H, K, D); the patch
kernel (P, P, C, D). So the number of heads can be read off. ε is 1e-6 and GELU is Flax's tanh approximation in all of
Google's code; the input is in [-1, 1], which is mean 0.5 and deviation 0.5.

big_vision numbers the sub-modules differently, may stack all blocks along a leading axis, and keeps positions for the
patches alone (what the class token's would add is in `cls` already). Without a class token it pools by the mean of the
normed tokens. Attention pooling (MAPHead) cannot be expressed; nor can sine-cosine positions, which are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoints.checkpoint import Hints, Mapped, Origin
from vitreous.checkpoints.names import MAX_BLOCKS, count_blocks, expand, join_qkv, rename, split_qkv
from vitreous.config import ViTConfig
from vitreous.errors import CheckpointError

MARKER = "embedding/kernel"
_STACKED = "Transformer/encoderblock/"
_BLOCK = r"Transformer/encoderblock_(\d+)/"
NORM_EPS = 1e-6


def _block(norm1: str, attention: str, norm2: str, mlp: str) -> tuple[dict[str, str], dict[str, str]]:
    """Tables of linear layers and of LayerNorms: the two name their weights differently."""
    block = "Transformer/encoderblock_{i}/"
    linear = {
        "blocks.{i}.attn.q": f"{block}{attention}/query",
        "blocks.{i}.attn.k": f"{block}{attention}/key",
        "blocks.{i}.attn.v": f"{block}{attention}/value",
        "blocks.{i}.attn.proj": f"{block}{attention}/out",
        "blocks.{i}.mlp.fc1": f"{block}{mlp}/Dense_0",
        "blocks.{i}.mlp.fc2": f"{block}{mlp}/Dense_1",
    }
    return linear, {"blocks.{i}.norm1": block + norm1, "blocks.{i}.norm2": block + norm2}


_TOP_LINEAR = {"patch_embed.proj": "embedding", "pre_logits": "pre_logits", "head": "head"}
_TOP_NORM = {"norm": "Transformer/encoder_norm"}
_ORIGINAL = _block("LayerNorm_0", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3")
_BIG_VISION = _block("LayerNorm_0", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")
_ORIGINAL_POSITIONS = "Transformer/posembed_input/pos_embedding"
_BIG_VISION_POSITIONS = "pos_embedding"


def _names(big_vision: bool, depth: int) -> dict[str, str]:
    linear, norm = _BIG_VISION if big_vision else _ORIGINAL
    positions = _BIG_VISION_POSITIONS if big_vision else _ORIGINAL_POSITIONS
    return (
        {"cls": "cls_token", positions: "pos_embed"}
        | expand(_TOP_LINEAR | linear, depth, {".weight": "/kernel", ".bias": "/bias"})
        | expand(_TOP_NORM | norm, depth, {".weight": "/scale", ".bias": "/bias"})
    )


def read(tensors: Mapping[str, Tensor], hints: Hints, config: Mapping[str, Any]) -> Mapped:
    used_names = dict(tensors)
    stacked = any(name.startswith(_STACKED) for name in tensors)
    big_vision = stacked or any("/MultiHeadDotProductAttention_0/" in name for name in tensors)
    notes: list[str] = []
    if stacked:
        used_names = _unstack(tensors)
        notes.append("the blocks were stacked along one axis")
    depth = count_blocks(used_names, _BLOCK)
    renamed, unexpected = rename(used_names, _names(big_vision, depth))
    if "pos_embed" not in renamed:
        raise CheckpointError(
            "there are no learned positions in the file: big_vision's sine-cosine ones are not stored"
        )
    used = sum(1 for name in tensors if name not in unexpected)
    heads = _check_axes(renamed)
    turned = {name: _to_ours(name, tensor) for name, tensor in renamed.items()}
    if big_vision and "cls_token" in turned:
        positions = turned["pos_embed"]
        turned["pos_embed"] = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
        notes.append("the class token's position is part of the token already: it is given one of zero")
    half = (0.5,) * (turned["patch_embed.proj.weight"].shape[1] if "patch_embed.proj.weight" in turned else 3)
    origin = Origin("google", NORM_EPS, "tanh", "google", hints.mean or half, hints.std or half, hints.class_names)
    return Mapped(join_qkv(turned), used, unexpected, origin, notes, num_heads=heads)


def _unstack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`encoderblock/…` (L, …) → `encoderblock_i/…` (…), all of the same L."""
    depths = {len(tensor) for name, tensor in tensors.items() if name.startswith(_STACKED) and tensor.ndim}
    if len(depths) != 1 or not 0 < (depth := depths.pop()) <= MAX_BLOCKS:
        raise CheckpointError("the stacked blocks of the file do not agree on how many they are")
    single: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.startswith(_STACKED) or tensor.ndim == 0:
            single[name] = tensor
            continue
        for i in range(depth):
            single[f"Transformer/encoderblock_{i}/{name.removeprefix(_STACKED)}"] = tensor[i]
    return single


def _check_axes(tensors: Mapping[str, Tensor]) -> int | None:
    """The number of heads. Once flattened, a matrix that was cut otherwise could no longer be told from a right one."""
    cuts: dict[tuple[int, ...], str] = {}
    for name, tensor in tensors.items():
        if tensor.ndim != (expected := _axes(name)):
            raise CheckpointError(f"{name!r} (by our names) has the shape {tuple(tensor.shape)}, not {expected} axes")
        if ".attn." in name and expected > 1:
            is_input = name.endswith("weight") and ".proj." not in name
            cuts.setdefault(tuple(tensor.shape[1:] if is_input else tensor.shape[:2]), name)
    if len(cuts) > 1:
        shown = " and ".join(f"{name!r} into {cut}" for cut, name in list(cuts.items())[:2])
        raise CheckpointError(f"its heads are not all cut alike: {shown} (heads, width)")
    return next(iter(cuts))[0] if cuts else None


def _axes(name: str) -> int:
    if name == "patch_embed.proj.weight":
        return 4
    if name in ("cls_token", "pos_embed"):
        return 3
    is_weight, is_norm = name.endswith("weight"), "norm" in name
    if ".attn." in name:
        return 3 if is_weight else (1 if ".proj." in name else 2)
    return 2 if is_weight and not is_norm else 1


def _to_ours(name: str, tensor: Tensor) -> Tensor:
    """(in, out) → (out, in), heads side by side."""
    if name == "patch_embed.proj.weight":
        return tensor.permute(3, 2, 0, 1)  # (P, P, C, D) → (D, C, P, P)
    if ".attn." in name and tensor.ndim == 3:
        # out: (H, K, D) → (D, H·K); q, k, v: (D, H, K) → (H·K, D)
        return tensor.flatten(0, 1).T if ".proj." in name else tensor.flatten(1).T
    if ".attn." in name:
        return tensor.flatten()
    return tensor.T if tensor.ndim == 2 else tensor


# --- writing: the paper's own layout -----------------------------------------------------------------------


def write(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in _names(False, config.depth).items()}
    pieces = dict(tensors)
    for i in range(0 if config.qkv_bias else config.depth):  # Flax's attention always has the bias: zero is none
        pieces[f"blocks.{i}.attn.qkv.bias"] = torch.zeros(3 * config.dim)
    split = split_qkv(pieces)
    return {names[name]: _to_theirs(name, tensor, config).contiguous() for name, tensor in split.items()}


def _to_theirs(name: str, tensor: Tensor, config: ViTConfig) -> Tensor:
    heads = (config.num_heads, config.head_dim)
    if name == "patch_embed.proj.weight":
        return tensor.permute(2, 3, 1, 0)
    if ".attn.proj." in name:
        return tensor.T.reshape(*heads, config.dim) if name.endswith("weight") else tensor
    if ".attn." in name:
        return tensor.T.reshape(config.dim, *heads) if name.endswith("weight") else tensor.reshape(heads)
    return tensor.T if name.endswith(".weight") and tensor.ndim == 2 else tensor
