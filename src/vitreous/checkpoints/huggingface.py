"""Hugging Face transformers' ViT: a folder of model.safetensors, config.json and preprocessor_config.json.

Files have the names of transformers 4 (5 still writes them). The names that 5 uses in memory are read as well, since a
state dict saved by hand has them. ε, GELU and heads come from config.json or are the library's defaults.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Facts, Gelu, gelu_named
from vitreous.checkpoints.files import read_json
from vitreous.checkpoints.names import count_blocks, expand, join_qkv, rename, split_qkv
from vitreous.config import ViTConfig
from vitreous.errors import CheckpointError

MARKER = "embeddings.patch_embeddings.projection.weight"
BASE = "vit."  # prefix of all tensors but the classifier's, in a model with a classifier
_BLOCK = r"(?:vit\.)?(?:encoder\.layer|layers)\.(\d+)\."

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
_IN_FILES = _TOP | {f"blocks.{{i}}.{ours}": f"encoder.layer.{{i}}.{theirs}" for ours, (theirs, _) in _BLOCKS.items()}
_IN_MEMORY = _TOP | {f"blocks.{{i}}.{ours}": f"layers.{{i}}.{theirs}" for ours, (_, theirs) in _BLOCKS.items()}

#: `hidden_act` → our GELU. `gelu_new` and `gelu_fast` are the same formula, written out.
_GELU: dict[str, Gelu] = {
    "gelu": "erf", "gelu_python": "erf", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh",
}  # fmt: skip
NORM_EPS = 1e-12


def read_config(config: Mapping[str, Any], folder: Path) -> Facts:
    """Return what config.json and the preprocessor_config.json in its folder state."""
    model_type = config.get("model_type", "vit")
    if model_type != "vit":
        raise CheckpointError(f"the folder holds a {model_type!r} model; only Hugging Face's 'vit' is supported")
    preprocessor = read_json(folder / "preprocessor_config.json")
    names = config.get("id2label")
    if isinstance(names, dict) and all(name == f"LABEL_{i}" for i, name in names.items()):
        names = None  # the library's placeholders
    return Facts.from_untrusted(
        num_heads=config.get("num_attention_heads"),
        image_size=config.get("image_size"),
        norm_eps=config.get("layer_norm_eps"),
        gelu=gelu_named(config.get("hidden_act", "gelu"), _GELU),
        mean=preprocessor.get("image_mean"),
        std=preprocessor.get("image_std"),
        class_names=names,
    )


def read(tensors: Mapping[str, Tensor], stated: Facts, config: Mapping[str, Any]) -> Mapped:
    depth = count_blocks(tensors, _BLOCK)
    names = expand(_IN_FILES, depth) | expand(_IN_MEMORY, depth)
    names |= {BASE + theirs: ours for theirs, ours in names.items()}
    renamed, unexpected = rename(tensors, names)
    notes = []
    if "head.weight" in renamed and "pre_logits.weight" in renamed:
        del renamed["pre_logits.weight"]
        renamed.pop("pre_logits.bias", None)
        notes.append("the pooler is left out: Hugging Face's classifier does not read it either")
    if not config:
        notes.append(f"no config.json beside it: LayerNorm ε {NORM_EPS:g} and erf GELU, the library's defaults")
    if stated.mean is None:
        notes.append("no preprocessor_config.json beside it: input normalised with 0.5/0.5, the library's default")
    kernel = renamed.get("patch_embed.proj.weight")
    half = (0.5,) * (kernel.shape[1] if kernel is not None and kernel.ndim == 4 else 3)
    return Mapped(
        tensors=join_qkv(renamed),
        unexpected=unexpected,
        facts=stated.over(Facts.from_untrusted(norm_eps=NORM_EPS, gelu="erf", mean=half, std=half)),
        position_rule="hf",
        notes=notes,
    )


# --- writing -----------------------------------------------------------------------------------------------


def write(tensors: Mapping[str, Tensor], config: ViTConfig) -> dict[str, Tensor]:
    names = {ours: theirs for theirs, ours in expand(_IN_FILES, config.depth).items()}
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
