"""Hugging Face transformers' ViT, DeiT, MSN, I-JEPA, MAE and DINOv2.

A folder has weights, config.json and preprocessor_config.json. Files have the names of transformers 4 (5 still writes
them). The names that 5 uses in memory are read as well, since a state dict saved by hand has them. DINOv2's register
tokens are registers in our ViT, and so is DeiT's distillation token where only the class token has a head.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Facts
from vitreous.checkpoints.fold import fold_layer_scale, separate_registers
from vitreous.checkpoints.hf_config import FAMILIES
from vitreous.checkpoints.names import count_blocks, expand, join_qkv, rename, split_qkv
from vitreous.config import ViTConfig
from vitreous.errors import CheckpointError

MARKER = "embeddings.patch_embeddings.projection.weight"
#: Prefixes of all tensors but the classifier's, in a model with a classifier.
BASES = ("vit.", "deit.", "ijepa.", "dinov2_with_registers.", "dinov2.")
_BLOCK = r"(?:\w+\.)?(?:encoder\.layer|layers)\.(\d+)\."

_TOP = {
    "cls_token!": "embeddings.cls_token",
    "pos_embed!": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
    "pre_logits": "pooler.dense",
    "head": "classifier",
}
#: A block's modules: ours → (in files, in the memory of transformers 5).
_BLOCKS = {
    "norm1": ("layernorm_before", "layernorm_before"),
    "attn.q": ("attention.attention.query", "attention.q_proj"),
    "attn.k": ("attention.attention.key", "attention.k_proj"),
    "attn.v": ("attention.attention.value", "attention.v_proj"),
    "attn.proj": ("attention.output.dense", "attention.o_proj"),
    "norm2": ("layernorm_after", "layernorm_after"),
    "mlp.fc1": ("intermediate.dense", "mlp.fc1"),
    "mlp.fc2": ("output.dense", "mlp.fc2"),
}
_DINO_BLOCKS = {
    "norm1": "norm1", "norm2": "norm2", "mlp.fc1": "mlp.fc1", "mlp.fc2": "mlp.fc2", "attn.q": "attention.q_proj",
    "attn.k": "attention.k_proj", "attn.v": "attention.v_proj", "attn.proj": "attention.o_proj",
    "ls1.gamma!": "layer_scale1.lambda1", "ls2.gamma!": "layer_scale2.lambda1",
}  # fmt: skip
_IN_FILES = _TOP | {f"blocks.{{i}}.{ours}": f"encoder.layer.{{i}}.{theirs}" for ours, (theirs, _) in _BLOCKS.items()}
_IN_MEMORY = _TOP | {f"blocks.{{i}}.{ours}": f"layers.{{i}}.{theirs}" for ours, (_, theirs) in _BLOCKS.items()}
_DINO = {f"blocks.{{i}}.{ours}": f"encoder.layer.{{i}}.{theirs}" for ours, theirs in _DINO_BLOCKS.items()}

#: Parts of pre-training: MAE's and SimMIM's decoders, and the token in place of masked patches.
_PRETRAINING = re.compile(r"(decoder\.(decoder_\w+|mask_token|0)(\.|$)|(\w+\.)?embeddings\.mask_token$)")


def read(tensors: Mapping[str, Tensor], stated: Facts, config: Mapping[str, Any]) -> Mapped:
    if any(name.startswith("distillation_classifier") for name in tensors):
        raise CheckpointError(
            "the model is distilled: its logits are the mean of two heads, one on DeiT's distillation token, which"
            " vitreous' ViT does not compute"
        )
    depth, kind = count_blocks(tensors, _BLOCK), _kind(tensors, config)
    names = expand(_IN_FILES, depth) | expand(_IN_MEMORY, depth) | expand(_DINO, depth)
    names |= {"embeddings.register_tokens": "reg_token", "embeddings.distillation_token": "reg_token"}
    names |= {base + theirs: ours for theirs, ours in names.items() for base in BASES}
    renamed, others = rename(tensors, names)
    unexpected = [name for name in others if not _PRETRAINING.match(name)]
    notes = []
    if len(others) > len(unexpected):
        notes.append(f"{len(others) - len(unexpected)} tensors of pre-training (mask token, decoder) are left out")
    if "head.weight" in renamed and "pre_logits.weight" in renamed:
        del renamed["pre_logits.weight"]
        renamed.pop("pre_logits.bias", None)
        notes.append("the pooler is left out: Hugging Face's classifier does not read it either")
    head, kernel = renamed.get("head.weight"), renamed.get("patch_embed.proj.weight")
    if kind.startswith("dinov2") and head is not None:
        raise CheckpointError(
            "DINOv2's classifier reads the class token and the mean of the patches together, which vitreous' ViT does"
            " not: save the backbone alone (Dinov2Model)"
        )
    found = renamed["reg_token"].shape[1] if "reg_token" in renamed and renamed["reg_token"].ndim == 3 else 0
    if stated.registers not in (None, found):
        raise CheckpointError(
            f"config.json states num_register_tokens={stated.registers}, and the weights have {found}: correct the one"
            " that is wrong"
        )
    if kind == "vit_mae":
        notes.append("all patches become tokens: masking (mask_ratio) is a part of pre-training")
    if kind == "deit" and "reg_token" in renamed:
        notes.append("DeiT's distillation token, which no head reads, is kept as a register: the same arithmetic")
    fold_layer_scale(renamed, notes)
    if kind == "deit":  # DINOv2's registers have no position
        separate_registers(renamed, stated.image_size, True, notes)
    family = FAMILIES[kind]
    half = (0.5,) * (kernel.shape[1] if kernel is not None and kernel.ndim == 4 and kernel.shape[1] else 3)
    if stated.mean is None:
        notes.append("no preprocessor_config.json beside it: input normalised with 0.5/0.5, the library's default")
    return Mapped(
        tensors=join_qkv(renamed),
        unexpected=unexpected,
        facts=stated.over(Facts(mean=half, std=half, pool=family.pool)),
        defaults=Facts(norm_eps=family.norm_eps, gelu="erf"),
        position_rule="timm" if kind == "dinov2_with_registers" else "hf",
        notes=notes,
    )


def _kind(tensors: Mapping[str, Tensor], config: Mapping[str, Any]) -> str:
    """Return the model type, from config.json or, for a file alone, from the tensors that only one type has."""
    if config:
        return str(config["model_type"])
    for part, kind in (
        ("distillation_token", "deit"), ("register_tokens", "dinov2_with_registers"), ("layer_scale1", "dinov2"),
    ):  # fmt: skip
        if any(part in name for name in tensors):
            return kind
    return "vit" if any(name.endswith("embeddings.cls_token") for name in tensors) else "ijepa"


# --- writing -----------------------------------------------------------------------------------------------


def write(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in expand(_IN_FILES, config.depth).items()}
    written = {names[name]: tensor for name, tensor in split_qkv(tensors).items()}
    return {name if name.startswith("classifier.") else BASES[0] + name: tensor for name, tensor in written.items()}


def config_json(config: ViTConfig, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    names = class_names or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": {"erf": "gelu", "tanh": "gelu_pytorch_tanh", "quick": "quick_gelu"}[config.gelu],
        "hidden_dropout_prob": config.dropout,
        "attention_probs_dropout_prob": 0.0,
        "layer_norm_eps": config.norm_eps,
        "image_size": _one_if_square(config.image_size),
        "patch_size": _one_if_square(config.patch_size),
        "num_channels": config.channels,
        "qkv_bias": config.qkv_bias,
        "id2label": {str(i): name for i, name in enumerate(names)},
        "label2id": {name: i for i, name in enumerate(names)},
        "torch_dtype": "float32",
    }


def preprocessor_json(config: ViTConfig, mean: tuple[float, ...], std: tuple[float, ...]) -> dict[str, Any]:
    """Return what AutoImageProcessor reads: pixels are resized, divided by 255 and normalised."""
    height, width = config.image_size
    return {
        "image_processor_type": "ViTImageProcessor",
        "do_resize": True,
        "size": {"height": height, "width": width},
        "resample": 2,  # bilinear
        "do_rescale": True,
        "rescale_factor": 1 / 255,
        "do_normalize": True,
        "image_mean": list(mean),
        "image_std": list(std),
        "do_convert_rgb": config.channels == 3,  # a gray image stays gray
    }


def _one_if_square(size: tuple[int, int]) -> int | list[int]:
    return size[0] if size[0] == size[1] else list(size)
