"""timm, and what shares its names: DeiT, DINO, MAE, and this library.

timm's files carry no configuration; a folder in its Hugging Face style has a config.json beside the weights. Of a file
alone, LayerNorm ε 1e-6, erf GELU and the class token, if there is one, are assumed. The input's normalisation differs
from model to model (AugReg 0.5, DeiT and DINO ImageNet's), so none is assumed.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoints.assumptions import PRE_NORM_BLOCKS
from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Facts
from vitreous.checkpoints.fold import fold_layer_scale, separate_registers
from vitreous.checkpoints.names import count_blocks, expand, rename
from vitreous.checkpoints.timm_config import TimmConfig
from vitreous.config import ViTConfig
from vitreous.errors import CheckpointError

MARKER = "patch_embed.proj.weight"
_BLOCK = r"blocks\.(\d+)\."

_SAME_NAMES = (
    "cls_token!", "reg_token!", "pos_embed!", "patch_embed.proj", "norm_pre", "blocks.{i}.norm1", "blocks.{i}.attn.qkv",
    "blocks.{i}.attn.proj", "blocks.{i}.norm2", "blocks.{i}.mlp.fc1", "blocks.{i}.mlp.fc2", "norm", "fc_norm", "head",
    "blocks.{i}.ls1.gamma!", "blocks.{i}.ls2.gamma!",  # LayerScale (DeiT III, DINOv2): a factor on a branch's output
)  # fmt: skip
_TABLE = {name: name.removesuffix("!") for name in _SAME_NAMES}
_TABLE["pre_logits"] = "pre_logits.fc"  # the paper's tanh layer, which timm had until 0.6
#: Parts of pre-training by MAE and DINOv2.
_PRETRAINING = re.compile(r"(mask_token|decoder_pos_embed)$|decoder_(embed|blocks|norm|pred)\.")
_BIASED = ("attn.proj", "mlp.fc1", "mlp.fc2")

NORM_EPS, _CLIP_EPS = 1e-6, 1e-5


def read_config(config: Mapping[str, Any], folder: Path) -> Facts:
    return TimmConfig(config).facts


def read(tensors: Mapping[str, Tensor], stated: Facts, config: Mapping[str, Any]) -> Mapped:
    depth = count_blocks(tensors, _BLOCK)
    renamed, others = rename(tensors, expand(_TABLE, depth))
    unexpected = [name for name in others if not _PRETRAINING.match(name)]
    notes, no_class_token = list[str](), "cls_token" not in renamed
    record = TimmConfig(config) if config else None
    if record is not None:
        record.check_tensors(renamed)
        if record.deviations:
            notes.append(f"timm {' and '.join(record.deviations)}; vitreous stretches the image, bilinearly")
    if len(others) > len(unexpected):
        notes.append(f"{len(others) - len(unexpected)} tensors of pre-training (mask token, decoder) are left out")
    norm_after_pool = _take_fc_norm(renamed)
    _add_zero_biases(renamed, depth, record, notes)
    fold_layer_scale(renamed, notes)
    embedded = record.prefix_positions if record is not None else None
    separate_registers(renamed, stated.image_size, embedded, notes)
    if stated.mean is None:
        notes.append(
            "the file does not state its input's normalisation: AugReg's is 0.5/0.5, DeiT's and DINO's ImageNet's"
        )
    return Mapped(
        tensors=renamed,
        unexpected=unexpected,
        facts=stated.over(Facts(norm_after_pool=norm_after_pool)),
        defaults=Facts(norm_eps=NORM_EPS, gelu="erf", pool="mean" if norm_after_pool or no_class_token else "cls"),
        position_rule="timm",
        notes=notes,
        assumptions=[PRE_NORM_BLOCKS] if record is None and norm_after_pool and no_class_token else [],
    )


def _take_fc_norm(tensors: dict[str, Tensor]) -> bool:
    """Rename the LayerNorm after the pooling, which replaces the one before it; return whether there is one."""
    parts = [part for part in ("weight", "bias") if f"fc_norm.{part}" in tensors]
    if parts and any(f"norm.{part}" in tensors for part in ("weight", "bias")):
        raise CheckpointError(
            "the model has a LayerNorm before the pooling and another after it (norm and fc_norm), which vitreous' ViT"
            " does not compute"
        )
    if not parts and not any(f"norm.{part}" in tensors for part in ("weight", "bias")):
        raise CheckpointError(
            "the model has no final LayerNorm (norm or fc_norm), which vitreous' ViT does not compute"
        )
    for part in parts:
        tensors[f"norm.{part}"] = tensors.pop(f"fc_norm.{part}")
    return bool(parts)


def _add_zero_biases(tensors: dict[str, Tensor], depth: int, record: TimmConfig | None, notes: list[str]) -> None:
    """Write the biases that CLIP's patch projection and `proj_bias=False` leave out as zeros."""
    kernel = tensors.get("patch_embed.proj.weight")
    lacking = ["patch_embed.proj"] if "norm_pre.weight" in tensors and kernel is not None else []
    if record is not None and record.argument("proj_bias") is False:
        lacking += [f"blocks.{i}.{layer}" for i in range(depth) for layer in _BIASED]
    lacking = [layer for layer in lacking if f"{layer}.weight" in tensors and f"{layer}.bias" not in tensors]
    lacking = [layer for layer in lacking if tensors[f"{layer}.weight"].ndim]  # a number has no rows
    for layer in lacking:
        tensors[f"{layer}.bias"] = torch.zeros(len(tensors[f"{layer}.weight"]))
    if lacking:
        notes.append(f"{len(lacking)} layers have no bias: they are given zeros, the same arithmetic")


# --- writing -----------------------------------------------------------------------------------------------


#: LayerNorm's ε → an architecture that has it; `model_args` override all the rest.
ARCHITECTURES = {1e-6: "vit_base_patch16_224", 1e-5: "vit_base_patch16_clip_224"}


def write(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    written, first = dict(tensors), int(config.has_class_token)
    if config.pre_norm:  # timm's patch projection has no bias then: it goes into the patches' positions
        positions, bias = written["pos_embed"].clone(), written.pop("patch_embed.proj.bias")
        positions[:, first:] += bias
        written["pos_embed"] = positions
    if config.registers:  # timm's positions are for all tokens
        positions = written["pos_embed"]
        none = positions.new_zeros(1, config.registers, config.dim)
        written["pos_embed"] = torch.cat([positions[:, :first], none, positions[:, first:]], dim=1)
    if config.norm_after_pool:
        written |= {f"fc_norm.{part}": written.pop(f"norm.{part}") for part in ("weight", "bias")}
    return written


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
        arguments |= {"class_token": False, "global_pool": "avg", "fc_norm": config.norm_after_pool}
    if config.gelu != "erf":
        arguments["act_layer"] = {"tanh": "gelu_tanh", "quick": "quick_gelu"}[config.gelu]
    if config.registers:
        arguments["reg_tokens"] = config.registers
    if config.pre_norm or config.norm_eps == _CLIP_EPS:  # the architecture with this ε has one
        arguments["pre_norm"] = config.pre_norm
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
        "architecture": ARCHITECTURES.get(config.norm_eps, ARCHITECTURES[NORM_EPS]),
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
