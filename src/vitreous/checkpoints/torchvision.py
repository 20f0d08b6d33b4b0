"""torchvision's VisionTransformer. Its files carry no configuration; its weights expect ImageNet's normalisation."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Facts
from vitreous.checkpoints.names import count_blocks, expand, rename
from vitreous.config import ViTConfig

MARKER = "conv_proj.weight"
_LAYER = "encoder.layers.encoder_layer_{i}."
_BLOCK = r"encoder\.layers\.encoder_layer_(\d+)\."

_TABLE = {
    "cls_token!": "class_token",
    "pos_embed!": "encoder.pos_embedding",
    "patch_embed.proj": "conv_proj",
    "blocks.{i}.norm1": _LAYER + "ln_1",
    "blocks.{i}.attn.qkv.weight!": _LAYER + "self_attention.in_proj_weight",
    "blocks.{i}.attn.qkv.bias!": _LAYER + "self_attention.in_proj_bias",
    "blocks.{i}.attn.proj": _LAYER + "self_attention.out_proj",
    "blocks.{i}.norm2": _LAYER + "ln_2",
    "blocks.{i}.mlp.fc1": _LAYER + "mlp.0",
    "blocks.{i}.mlp.fc2": _LAYER + "mlp.3",
    "norm": "encoder.ln",
    "pre_logits": "heads.pre_logits",
    "head": "heads.head",
}
#: Before torchvision 0.14.
_OLD_MLP = {"blocks.{i}.mlp.fc1": _LAYER + "mlp.linear_1", "blocks.{i}.mlp.fc2": _LAYER + "mlp.linear_2"}

IMAGENET_MEAN, IMAGENET_STD = (0.485, 0.456, 0.406), (0.229, 0.224, 0.225)
NORM_EPS = 1e-6


def read(tensors: Mapping[str, Tensor], stated: Facts, config: Mapping[str, Any]) -> Mapped:
    depth = count_blocks(tensors, _BLOCK)
    renamed, unexpected = rename(tensors, expand(_TABLE, depth) | expand(_OLD_MLP, depth))
    # no other GELU, even if an approximate export's header has it; no other pooling
    facts = Facts(gelu="erf", pool="cls").over(stated).over(Facts(mean=IMAGENET_MEAN, std=IMAGENET_STD))
    return Mapped(
        tensors=renamed,
        unexpected=unexpected,
        facts=facts,
        defaults=Facts(norm_eps=NORM_EPS),
        position_rule="torchvision",
    )


def write(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in expand(_TABLE, config.depth).items()}
    return {names[name]: tensor for name, tensor in tensors.items()}


def model_arguments(config: ViTConfig) -> dict[str, Any]:
    """Return the arguments of torchvision's VisionTransformer."""
    arguments: dict[str, Any] = {
        "image_size": config.image_size[0],
        "patch_size": config.patch_size[0],
        "num_layers": config.depth,
        "num_heads": config.num_heads,
        "hidden_dim": config.dim,
        "mlp_dim": config.mlp_dim,
        "num_classes": config.num_classes,
    }
    if config.head == "mlp":
        arguments["representation_size"] = config.head_hidden or config.dim
    return arguments
