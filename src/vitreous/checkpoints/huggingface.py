"""Hugging Face transformers' ViT: a folder of model.safetensors, config.json and preprocessor_config.json.

The names on disk are those of transformers 4 (5 still writes them); the names in memory of 5 are read as well, since a
state dict saved by hand has them. ε, GELU and heads come from config.json; without one, the library's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.checkpoints.checkpoint import Hints, Mapped, Origin
from vitreous.checkpoints.facts import as_eps, as_numbers, as_size, class_names_from
from vitreous.checkpoints.names import TORCH_SUFFIXES, count_blocks, expand, join_qkv, rename, split_qkv
from vitreous.config import ViTConfig
from vitreous.errors import CheckpointError

MARKER = "embeddings.patch_embeddings.projection.weight"
BASE = "vit."  # what a model with a classifier puts before all but the classifier
_BLOCK = r"(?:encoder\.layer|layers)\.(\d+)\."

_SHARED = {
    "cls_token!": "embeddings.cls_token",
    "pos_embed!": "embeddings.position_embeddings",
    "patch_embed.proj": "embeddings.patch_embeddings.projection",
    "norm": "layernorm",
    "pre_logits": "pooler.dense",
    "head": "classifier",
}
_ON_DISK = _SHARED | {
    "blocks.{i}.norm1": "encoder.layer.{i}.layernorm_before",
    "blocks.{i}.attn.q": "encoder.layer.{i}.attention.attention.query",
    "blocks.{i}.attn.k": "encoder.layer.{i}.attention.attention.key",
    "blocks.{i}.attn.v": "encoder.layer.{i}.attention.attention.value",
    "blocks.{i}.attn.proj": "encoder.layer.{i}.attention.output.dense",
    "blocks.{i}.norm2": "encoder.layer.{i}.layernorm_after",
    "blocks.{i}.mlp.fc1": "encoder.layer.{i}.intermediate.dense",
    "blocks.{i}.mlp.fc2": "encoder.layer.{i}.output.dense",
}
_IN_MEMORY = _SHARED | {
    "blocks.{i}.norm1": "layers.{i}.layernorm_before",
    "blocks.{i}.attn.q": "layers.{i}.attention.q_proj",
    "blocks.{i}.attn.k": "layers.{i}.attention.k_proj",
    "blocks.{i}.attn.v": "layers.{i}.attention.v_proj",
    "blocks.{i}.attn.proj": "layers.{i}.attention.o_proj",
    "blocks.{i}.norm2": "layers.{i}.layernorm_after",
    "blocks.{i}.mlp.fc1": "layers.{i}.mlp.fc1",
    "blocks.{i}.mlp.fc2": "layers.{i}.mlp.fc2",
}

#: `hidden_act` → our GELU. `gelu_new` and `gelu_fast` are the same formula, written out.
_GELU = {"gelu": "erf", "gelu_python": "erf", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh"}
NORM_EPS = 1e-12


def hints_from(config: Mapping[str, Any], preprocessor: Mapping[str, Any]) -> Hints:
    """What config.json and preprocessor_config.json tell."""
    model_type = config.get("model_type", "vit")
    if model_type != "vit":
        raise CheckpointError(f"the folder holds a {model_type!r} model; only Hugging Face's 'vit' is the paper's")
    activation = config.get("hidden_act", "gelu")
    if not isinstance(activation, str) or activation not in _GELU:
        raise CheckpointError(f"the activation {activation!r} of the model's config.json is not GELU")
    heads = config.get("num_attention_heads")
    names = class_names_from(config.get("id2label"))
    if names is not None and all(name == f"LABEL_{i}" for i, name in enumerate(names)):
        names = None  # the library's placeholders
    return Hints(
        num_heads=heads if type(heads) is int else None,
        image_size=as_size(config.get("image_size")),
        norm_eps=as_eps(config.get("layer_norm_eps")),
        gelu="tanh" if _GELU[activation] == "tanh" else "erf",
        mean=as_numbers(preprocessor.get("image_mean")),
        std=as_numbers(preprocessor.get("image_std")),
        class_names=names,
    )


def read(tensors: Mapping[str, Tensor], hints: Hints, config: Mapping[str, Any]) -> Mapped:
    bare = {name.removeprefix(BASE): tensor for name, tensor in tensors.items()}
    if len(bare) != len(tensors):
        raise CheckpointError(f"the file names the same tensor with and without {BASE!r} before it")
    depth = count_blocks(bare, _BLOCK)
    names = expand(_ON_DISK, depth, TORCH_SUFFIXES) | expand(_IN_MEMORY, depth, TORCH_SUFFIXES)
    renamed, unexpected = rename(bare, names)
    used, notes = len(renamed), []
    if "head.weight" in renamed and "pre_logits.weight" in renamed:
        del renamed["pre_logits.weight"]
        renamed.pop("pre_logits.bias", None)
        notes.append("the pooler is left out: Hugging Face's classifier does not read it either")
    if not config:
        notes.append(f"there is no config.json beside it: LayerNorm ε {NORM_EPS:g}, erf GELU, the library's defaults")
    if hints.mean is None:
        notes.append(
            "there is no preprocessor_config.json beside it: input normalised with 0.5/0.5, the library's default"
        )
    half = (0.5,) * _channels(renamed)
    origin = Origin(
        "hf", hints.norm_eps or NORM_EPS, hints.gelu or "erf", "hf", hints.mean or half, hints.std or half,
        hints.class_names,
    )  # fmt: skip
    return Mapped(join_qkv(renamed), used, unexpected, origin, notes)


def _channels(tensors: Mapping[str, Tensor]) -> int:
    kernel = tensors.get("patch_embed.proj.weight")
    return kernel.shape[1] if kernel is not None and kernel.ndim == 4 else 3


# --- writing -----------------------------------------------------------------------------------------------


def write(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in expand(_ON_DISK, config.depth, TORCH_SUFFIXES).items()}
    written = {names[name]: tensor for name, tensor in split_qkv(tensors).items()}
    return {name if name.startswith("classifier.") else BASE + name: tensor for name, tensor in written.items()}


def config_json(config: ViTConfig, class_names: tuple[str, ...] | None) -> dict[str, Any]:
    names = class_names or tuple(f"LABEL_{i}" for i in range(config.num_classes))
    return {
        "architectures": ["ViTForImageClassification"],
        "model_type": "vit",
        "hidden_size": config.dim,
        "num_hidden_layers": config.depth,
        "num_attention_heads": config.num_heads,
        "intermediate_size": config.mlp_dim,
        "hidden_act": "gelu_pytorch_tanh" if config.gelu == "tanh" else "gelu",
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
    """What AutoImageProcessor reads: pixels resized, divided by 255, normalised."""
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
