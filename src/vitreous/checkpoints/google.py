"""Google's `.npz` files: the paper's own, AugReg's and big_vision's.

Shapes in the file: kernels are (in, out); q, k, v (D, H, K) and (H, K), which state the number of heads; the output
projection (H, K, D); the patch kernel (P, P, C, D). ε is 1e-6 and GELU is Flax's tanh approximation in all of Google's
code; the input is in [-1, 1], which is mean 0.5 and deviation 0.5.

big_vision numbers the sub-modules differently, may stack all blocks along a leading axis, and stores positions for the
patches only (the class token's is part of `cls`). Without a class token it averages the normalised tokens. Attention
pooling (MAPHead) is not supported, nor are sine-cosine positions, which are not stored.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Facts
from vitreous.checkpoints.names import MAX_BLOCKS, count_blocks, expand, join_qkv, rename, split_qkv
from vitreous.config import ViTConfig
from vitreous.errors import CheckpointError

MARKER = "embedding/kernel"
_STACKED = "Transformer/encoderblock/"
_BLOCK = r"Transformer/encoderblock_(\d+)/"
NORM_EPS = 1e-6


def _table(positions: str, attention: str, norm2: str, mlp: str) -> dict[str, str]:
    block = "Transformer/encoderblock_{i}/"
    return {
        "cls_token!": "cls",
        "pos_embed!": positions,
        "patch_embed.proj": "embedding",
        "blocks.{i}.norm1": f"{block}LayerNorm_0",
        "blocks.{i}.attn.q": f"{block}{attention}/query",
        "blocks.{i}.attn.k": f"{block}{attention}/key",
        "blocks.{i}.attn.v": f"{block}{attention}/value",
        "blocks.{i}.attn.proj": f"{block}{attention}/out",
        "blocks.{i}.norm2": block + norm2,
        "blocks.{i}.mlp.fc1": f"{block}{mlp}/Dense_0",
        "blocks.{i}.mlp.fc2": f"{block}{mlp}/Dense_1",
        "norm": "Transformer/encoder_norm",
        "pre_logits": "pre_logits",
        "head": "head",
    }


_ORIGINAL = _table(
    "Transformer/posembed_input/pos_embedding", "MultiHeadDotProductAttention_1", "LayerNorm_2", "MlpBlock_3"
)
_BIG_VISION = _table("pos_embedding", "MultiHeadDotProductAttention_0", "LayerNorm_1", "MlpBlock_0")


def _names(table: dict[str, str], depth: int) -> dict[str, str]:
    """Expand with Flax's names: a LayerNorm has /scale and /bias, a linear layer /kernel and /bias."""
    return {
        theirs.replace(".weight", "/scale" if "norm" in ours else "/kernel").replace(".bias", "/bias"): ours
        for theirs, ours in expand(table, depth).items()
    }


def read(tensors: Mapping[str, Tensor], stated: Facts, config: Mapping[str, Any]) -> Mapped:
    notes: list[str] = []
    stacked = any(name.startswith(_STACKED) for name in tensors)
    big_vision = stacked or any("/MultiHeadDotProductAttention_0/" in name for name in tensors)
    blocks = dict(tensors)
    if stacked:
        blocks = _unstack(tensors)
        notes.append("the blocks were stacked along one axis")
    renamed, unexpected = rename(blocks, _names(_BIG_VISION if big_vision else _ORIGINAL, count_blocks(blocks, _BLOCK)))
    if "pos_embed" not in renamed:
        raise CheckpointError("the file has no learned positions: big_vision does not store its sine-cosine ones")
    num_heads = _check_axes(renamed)
    if num_heads is not None and stated.num_heads not in (None, num_heads):
        raise CheckpointError(f"it has {num_heads} heads, not num_heads={stated.num_heads}")
    ours = {name: _to_ours(name, tensor) for name, tensor in renamed.items()}
    if big_vision and "cls_token" in ours:
        positions = ours["pos_embed"]
        ours["pos_embed"] = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
        notes.append("the class token already includes its position: it is given one of zero")
    half = (0.5,) * (ours["patch_embed.proj.weight"].shape[1] if "patch_embed.proj.weight" in ours else 3)
    implied = Facts.stated("the file", {"num_heads": num_heads, "mean": half or None, "std": half or None})
    return Mapped(
        tensors=join_qkv(ours),
        unexpected=unexpected,
        facts=stated.over(implied),
        defaults=Facts(norm_eps=NORM_EPS, gelu="tanh", pool="cls" if "cls_token" in ours else "mean"),
        position_rule="google",
        notes=notes,
    )


def _unstack(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Turn `encoderblock/…` (L, …) into `encoderblock_i/…` (…); L must be the same everywhere."""
    depths = {len(tensor) for name, tensor in tensors.items() if name.startswith(_STACKED) and tensor.ndim}
    if len(depths) != 1 or not 0 < (depth := depths.pop()) <= MAX_BLOCKS:
        raise CheckpointError("the stacked tensors of the file differ in their number of blocks")
    single: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if not name.startswith(_STACKED) or tensor.ndim == 0:
            single[name] = tensor
            continue
        for i in range(depth):
            single[f"Transformer/encoderblock_{i}/{name.removeprefix(_STACKED)}"] = tensor[i]
    return single


def _check_axes(tensors: Mapping[str, Tensor]) -> int | None:
    """Return the number of heads, after checking every tensor's axes and heads: flattening hides a difference."""
    splits: dict[tuple[int, ...], str] = {}  # (heads, width) → the first tensor that has them
    for name, tensor in tensors.items():
        if tensor.ndim != (expected := _axes(name)):
            raise CheckpointError(f"{name!r} (in our names) has the shape {tuple(tensor.shape)}, not {expected} axes")
        if ".attn." in name and expected > 1:
            is_input = name.endswith("weight") and ".proj." not in name
            splits.setdefault(tuple(tensor.shape[1:] if is_input else tensor.shape[:2]), name)
    if len(splits) > 1:
        shown = " and ".join(f"{name!r} has {split}" for split, name in list(splits.items())[:2])
        raise CheckpointError(f"its tensors differ in (heads, head width): {shown}")
    return next(iter(splits))[0] if splits else None


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
    """Transpose (in, out) to (out, in) and join the heads' axes."""
    if name == "patch_embed.proj.weight":
        return tensor.permute(3, 2, 0, 1)  # (P, P, C, D) → (D, C, P, P)
    if ".attn." in name and tensor.ndim == 3:
        # out: (H, K, D) → (D, H·K); q, k, v: (D, H, K) → (H·K, D)
        return tensor.flatten(0, 1).T if ".proj." in name else tensor.flatten(1).T
    if ".attn." in name:
        return tensor.flatten()
    return tensor.T if tensor.ndim == 2 else tensor


# --- writing, in the paper's own layout -----------------------------------------------------------------------


def write(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in _names(_ORIGINAL, config.depth).items()}
    split = split_qkv(tensors)
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
