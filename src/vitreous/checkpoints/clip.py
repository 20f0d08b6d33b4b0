"""The vision towers of CLIP and SigLIP, from Hugging Face's transformers, as backbones.

CLIP: a LayerNorm before the first block, the class token after the last one, no bias in the patch projection. SigLIP:
no class token; its own pooling (MAP, attention with a learned query) is left out, and the normalised patches are
averaged, as SiglipForImageClassification does. The text towers are left out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Facts
from vitreous.checkpoints.hf_config import FAMILIES
from vitreous.checkpoints.names import count_blocks, expand, join_qkv, rename
from vitreous.errors import CheckpointError

MARKER = "embeddings.patch_embedding.weight"
BASES = ("vision_model.",)
_BLOCK = r"(?:vision_model\.)?encoder\.layers\.(\d+)\."
_LAYER = "encoder.layers.{i}."
_TABLE = {
    "cls_token!": "embeddings.class_embedding",
    "pos_embed!": "embeddings.position_embedding.weight",
    "patch_embed.proj": "embeddings.patch_embedding",
    "norm_pre": "pre_layrnorm",
    "blocks.{i}.norm1": _LAYER + "layer_norm1",
    "blocks.{i}.attn.q": _LAYER + "self_attn.q_proj",
    "blocks.{i}.attn.k": _LAYER + "self_attn.k_proj",
    "blocks.{i}.attn.v": _LAYER + "self_attn.v_proj",
    "blocks.{i}.attn.proj": _LAYER + "self_attn.out_proj",
    "blocks.{i}.norm2": _LAYER + "layer_norm2",
    "blocks.{i}.mlp.fc1": _LAYER + "mlp.fc1",
    "blocks.{i}.mlp.fc2": _LAYER + "mlp.fc2",
    "norm": "post_layernorm",
    "head": "classifier",
}
_LEFT_OUT = {
    "the text tower": r"text_model\.|text_projection\.|logit_(scale|bias)$",
    "the projection to the text's space": r"visual_projection\.",
    "the attention pooling (MAP head)": r"(vision_model\.)?head\.(probe$|attention\.|layernorm\.|mlp\.)",
    "position numbers": r"(vision_model\.)?embeddings\.position_ids$",
}
#: OpenAI's CLIP; the library's default.
_CLIP_MEAN, _CLIP_STD = (0.48145466, 0.4578275, 0.40821073), (0.26862954, 0.26130258, 0.27577711)


def read(tensors: Mapping[str, Tensor], stated: Facts, config: Mapping[str, Any]) -> Mapped:
    names = expand(_TABLE, count_blocks(tensors, _BLOCK))
    names |= {base + theirs: ours for theirs, ours in names.items() for base in BASES}
    renamed, unexpected = rename(tensors, names)
    is_clip, notes = "cls_token" in renamed, list[str]()
    for what, pattern in _LEFT_OUT.items():
        left_out = [name for name in unexpected if re.match(pattern, name)]
        unexpected = [name for name in unexpected if name not in left_out]
        if left_out:
            notes.append(f"{what} is left out ({len(left_out)} tensors)")
    if is_clip and "head.weight" in renamed:
        raise CheckpointError(
            "CLIP's classifier reads the mean of the patches without the final LayerNorm, which vitreous' ViT does not"
            " compute: save the vision tower alone (CLIPVisionModel)"
        )
    for name, ndim in (("cls_token", 1), ("pos_embed", 2)):
        if name in renamed:
            if renamed[name].ndim != ndim:
                raise CheckpointError(f"{name!r} (in our names) has the shape {tuple(renamed[name].shape)}")
            renamed[name] = renamed[name].reshape(1, -1, renamed[name].shape[-1])
    kernel = renamed.get("patch_embed.proj.weight")
    if is_clip and kernel is not None and kernel.ndim == 4 and "patch_embed.proj.bias" not in renamed:
        renamed["patch_embed.proj.bias"] = torch.zeros(len(kernel))
    if not is_clip:
        notes.append("the normalised patches are averaged, as SiglipForImageClassification does")
    if stated.mean is None:
        notes.append("no preprocessor_config.json beside it: input normalised as the library does by default")
    mean, std = (_CLIP_MEAN, _CLIP_STD) if is_clip else ((0.5,) * 3, (0.5,) * 3)
    family = FAMILIES["clip" if is_clip else "siglip"]
    return Mapped(
        tensors=join_qkv(renamed),
        unexpected=unexpected,
        facts=stated.over(Facts(mean=mean, std=std, pool=family.pool)),
        defaults=Facts(norm_eps=family.norm_eps, gelu="quick" if is_clip else "tanh"),
        position_rule="hf",
        notes=notes,
    )
