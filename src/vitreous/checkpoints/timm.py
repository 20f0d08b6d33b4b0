"""timm, and what shares its names: DeiT, DINO, and this library.

timm's files carry no configuration; a folder in its Hugging Face style has a config.json beside the weights. Defaults:
LayerNorm ε 1e-6, erf GELU, bicubic antialiased position resize. The input's normalisation differs from model to model
(AugReg 0.5, DeiT and DINO ImageNet's), so none is assumed.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Facts, Gelu, gelu_named
from vitreous.checkpoints.names import count_blocks, expand, rename
from vitreous.config import ViTConfig
from vitreous.errors import CheckpointError

MARKER = "patch_embed.proj.weight"
_BLOCK = r"blocks\.(\d+)\."

_SAME_NAMES = (
    "cls_token!", "pos_embed!", "patch_embed.proj", "blocks.{i}.norm1", "blocks.{i}.attn.qkv", "blocks.{i}.attn.proj",
    "blocks.{i}.norm2", "blocks.{i}.mlp.fc1", "blocks.{i}.mlp.fc2", "norm", "head",
    "blocks.{i}.ls1.gamma!", "blocks.{i}.ls2.gamma!",  # LayerScale (DeiT III, DINOv2): a factor on a branch's output
)  # fmt: skip
_TABLE = {name: name.removesuffix("!") for name in _SAME_NAMES}
_TABLE["pre_logits"] = "pre_logits.fc"  # the paper's tanh layer, which timm had until 0.6

_GELU: dict[str, Gelu] = {"gelu": "erf", "gelu_erf": "erf", "gelu_tanh": "tanh"}
NORM_EPS = 1e-6


def read_config(config: Mapping[str, Any], folder: Path) -> Facts:
    pretrained = config.get("pretrained_cfg")
    pretrained = pretrained if isinstance(pretrained, dict) else config
    arguments = config.get("model_args")
    arguments = arguments if isinstance(arguments, dict) else {}
    input_size = pretrained.get("input_size")  # [C, height, width]
    fallback = Facts.from_untrusted(image_size=input_size[1:] if isinstance(input_size, list) else None)
    return Facts.from_untrusted(
        num_heads=arguments.get("num_heads"),
        image_size=arguments.get("img_size"),
        gelu=gelu_named(arguments.get("act_layer", "gelu"), _GELU),
        mean=pretrained.get("mean"),
        std=pretrained.get("std"),
        class_names=config.get("label_names") or pretrained.get("label_names"),
    ).over(fallback)


def read(tensors: Mapping[str, Tensor], stated: Facts, config: Mapping[str, Any]) -> Mapped:
    depth = count_blocks(tensors, _BLOCK)
    renamed, unexpected = rename(tensors, expand(_TABLE, depth))
    if config.get("global_pool") == "avg" and "cls_token" in renamed:
        raise CheckpointError("the model has a class token but pools the patch tokens, which our ViT cannot express")
    notes = []
    if num_scales := _fold_layer_scale(renamed):
        notes.append(f"{num_scales} LayerScale vectors multiplied into the matrices before them: the same arithmetic")
    if _add_class_position(renamed, stated.image_size):
        notes.append("the class token has no position embedding: it is given a zero one, the same arithmetic")
    if stated.mean is None:
        notes.append(
            "the file does not state its input's normalisation: AugReg's is 0.5/0.5, DeiT's and DINO's ImageNet's"
        )
    facts = stated.over(Facts(norm_eps=NORM_EPS, gelu="erf"))
    return Mapped(tensors=renamed, unexpected=unexpected, facts=facts, position_rule="timm", notes=notes)


def _fold_layer_scale(tensors: dict[str, Tensor]) -> int:
    """Multiply each γ into the layer before it, γ · (W x + b) = (γ W) x + γ b; return how many there were."""
    gammas = [name for name in tensors if name.endswith(".gamma")]
    for name in gammas:
        block, which, _ = name.rsplit(".", 2)
        target = f"{block}.attn.proj" if which == "ls1" else f"{block}.mlp.fc2"
        weight, bias, gamma = tensors.get(f"{target}.weight"), tensors.get(f"{target}.bias"), tensors.pop(name)
        if weight is None or bias is None or gamma.shape != bias.shape or weight.shape[:1] != gamma.shape:
            raise CheckpointError(f"{name!r} fits no layer of its shape")
        tensors[f"{target}.weight"], tensors[f"{target}.bias"] = weight * gamma[:, None], bias * gamma
    return len(gammas)


def _add_class_position(tensors: dict[str, Tensor], image_size: tuple[int, int] | None) -> bool:
    """Give the class token a position of zero if the file has none (timm's `no_embed_class`, DeiT III)."""
    positions, kernel = tensors.get("pos_embed"), tensors.get("patch_embed.proj.weight")
    if positions is None or kernel is None or "cls_token" not in tensors or positions.ndim != 3 or kernel.ndim != 4:
        return False
    count = positions.shape[1]
    patches_only = _is_square(count) and not _is_square(count - 1)
    if image_size is not None and 0 not in kernel.shape:
        grid = image_size[0] // kernel.shape[2] * (image_size[1] // kernel.shape[3])
        if grid in (count, count - 1):
            patches_only = grid == count
    if patches_only:
        tensors["pos_embed"] = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
    return patches_only


def _is_square(number: int) -> bool:
    return number > 0 and math.isqrt(number) ** 2 == number


# --- writing -----------------------------------------------------------------------------------------------


def write(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    return dict(tensors)


def model_arguments(config: ViTConfig) -> dict[str, Any]:
    """Return the arguments of timm's VisionTransformer."""
    arguments: dict[str, Any] = {
        "img_size": list(config.image_size),
        "patch_size": list(config.patch_size),
        "embed_dim": config.dim,
        "depth": config.depth,
        "num_heads": config.num_heads,
        "mlp_ratio": _ratio(config.mlp_dim, config.dim),
        "qkv_bias": config.qkv_bias,
    }
    if config.pool == "mean":
        arguments |= {"class_token": False, "global_pool": "avg", "fc_norm": False}
    if config.gelu == "tanh":
        arguments["act_layer"] = "gelu_tanh"
    return arguments


def _ratio(mlp_dim: int, dim: int) -> float:
    """Return the ratio from which timm's int(dim * ratio) recovers mlp_dim: rounding may fall short by one."""
    ratio = mlp_dim / dim
    return ratio if int(dim * ratio) == mlp_dim else math.nextafter(ratio, math.inf)


def config_json(
    config: ViTConfig, mean: tuple[float, ...], std: tuple[float, ...], class_names: tuple[str, ...] | None
) -> dict[str, Any]:
    """Return what `timm.create_model("local-dir:FOLDER", pretrained=True)` builds the model from."""
    record: dict[str, Any] = {
        "architecture": "vit_base_patch16_224",  # any plain ViT: `model_args` override all of it
        "num_classes": config.num_classes,
        "num_features": config.dim,
        "global_pool": "token" if config.pool == "cls" else "avg",
        "model_args": model_arguments(config),
        "pretrained_cfg": {
            "num_classes": config.num_classes,
            "input_size": [config.channels, *config.image_size],
            "fixed_input_size": True,
            "interpolation": "bilinear",
            "crop_pct": 1.0,
            "mean": list(mean),
            "std": list(std),
            "first_conv": "patch_embed.proj",
            "classifier": "head",
        },
    }
    if class_names is not None:
        record["label_names"] = list(class_names)
    return record
