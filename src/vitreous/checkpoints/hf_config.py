"""Hugging Face's config.json and preprocessor_config.json, for each family of ViTs that can be read.

Every field is used, in `_HARMLESS`, or refused by name. Defaults are those of the library's configuration classes,
which fill in what a file leaves out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from vitreous.checkpoints.facts import Facts, Gelu, Pool, gelu_named
from vitreous.checkpoints.fields import Features, Fields, product
from vitreous.checkpoints.files import read_json
from vitreous.errors import CheckpointError, quoted

#: `hidden_act` → our GELU. `gelu_new` and `gelu_fast` are the same formula, written out.
_GELU: dict[str, Gelu] = {
    "gelu": "erf", "gelu_python": "erf", "gelu_new": "tanh", "gelu_fast": "tanh", "gelu_pytorch_tanh": "tanh",
    "gelu_python_tanh": "tanh", "gelu_accurate": "tanh", "quick_gelu": "quick",
}  # fmt: skip


@dataclass(frozen=True, kw_only=True)
class Family:
    """A `model_type`: the library's defaults, its classes that we read, and fields of its own."""

    classes: tuple[str, ...]
    norm_eps: float = 1e-12
    act: str = "gelu"
    patch_size: int = 16
    mlp_ratio: int | None = None  # of the families that state a ratio
    registers: int | None = None
    pool: Pool = "cls"
    pre_norm: bool = False
    features: Features = field(default_factory=dict)
    harmless: frozenset[str] = frozenset()
    refused: Mapping[str, str] = field(default_factory=dict)  # class → what its head computes


_DISTILLED = {
    "DeiTForImageClassificationWithTeacher": "the mean of two heads, one on DeiT's distillation token (it is distilled)"
}
_SWIGLU: Features = {"use_swiglu_ffn": ((False,), "SwiGLU, a gated MLP")}
_DINO_FIELDS = frozenset(
    {"layerscale_value", "drop_path_rate", "apply_layernorm", "reshape_hidden_states", "use_mask_token"}
    | {"out_features", "out_indices", "stage_names", "_out_features", "_out_indices"}  # of its Backbone class
)
_DINO_HEAD = "a classifier of the class token and the mean of the patches together"
_MAE_FIELDS = frozenset(
    {"decoder_num_attention_heads", "decoder_hidden_size", "decoder_num_hidden_layers", "decoder_intermediate_size"}
    | {"mask_ratio", "norm_pix_loss"}
)
_CLIP_HEAD = "a classifier of the mean of the patches without the final LayerNorm"

_CLIP = Family(
    classes=("CLIPVisionModel", "CLIPVisionModelWithProjection", "CLIPModel"), norm_eps=1e-5, act="quick_gelu",
    patch_size=32, pre_norm=True, refused={"CLIPForImageClassification": _CLIP_HEAD},
)  # fmt: skip
_SIGLIP = Family(
    classes=("SiglipVisionModel", "SiglipModel", "SiglipForImageClassification"), norm_eps=1e-6,
    act="gelu_pytorch_tanh", pool="mean",
    harmless=frozenset({"vision_use_head"}),  # the MAP head, which is left out
)  # fmt: skip
FAMILIES: dict[str, Family] = {
    "vit": Family(classes=("ViTForImageClassification", "ViTModel", "ViTForMaskedImageModeling")),
    "deit": Family(
        classes=("DeiTForImageClassification", "DeiTModel", "DeiTForMaskedImageModeling"), refused=_DISTILLED
    ),
    "vit_msn": Family(classes=("ViTMSNForImageClassification", "ViTMSNModel"), norm_eps=1e-6),
    "ijepa": Family(classes=("IJepaForImageClassification", "IJepaModel"), pool="mean"),  # no class token
    "vit_mae": Family(classes=("ViTMAEForPreTraining", "ViTMAEModel"), harmless=_MAE_FIELDS),
    "dinov2": Family(
        classes=("Dinov2Model", "Dinov2Backbone"), norm_eps=1e-6, patch_size=14, mlp_ratio=4, features=_SWIGLU,
        harmless=_DINO_FIELDS, refused={"Dinov2ForImageClassification": _DINO_HEAD},
    ),
    "dinov2_with_registers": Family(
        classes=("Dinov2WithRegistersModel", "Dinov2WithRegistersBackbone"), norm_eps=1e-6, mlp_ratio=4, registers=4,
        features=_SWIGLU, harmless=_DINO_FIELDS, refused={"Dinov2WithRegistersForImageClassification": _DINO_HEAD},
    ),
    "clip_vision_model": _CLIP,
    "clip": _CLIP,
    "siglip_vision_model": _SIGLIP,
    "siglip": _SIGLIP,
}  # fmt: skip
#: Two towers: the vision tower's configuration is in a field.
_NESTED = ("clip", "siglip")

#: Other model types, by the feature that ours does not have.
_OTHER_TYPES = {
    "dinov3_vit": "rotary positions (rope)",
    "beit": "relative position biases",
    "data2vec-vision": "relative position biases",
    "siglip2": "positions resized for every image (NaFlex)",
    "siglip2_vision_model": "positions resized for every image (NaFlex)",
    "vit_hybrid": "a ResNet in front of the transformer (the hybrid R+ViT)",
    "swin": "shifted windows",
    "swinv2": "shifted windows",
    "timm_wrapper": "timm's own model: save it with timm",
}

#: Without effect on the logits: training, reporting, generation, and what the library writes for its own use.
_HARMLESS = frozenset(
    {
        "hidden_dropout_prob", "attention_probs_dropout_prob", "attention_dropout", "initializer_range",
        "initializer_factor", "encoder_stride", "transformers_version", "_name_or_path", "name_or_path", "_commit_hash",
        "torch_dtype", "dtype", "output_attentions", "output_hidden_states", "return_dict", "use_return_dict",
        "torchscript", "use_cache", "label2id", "finetuning_task", "task_specific_params", "tie_word_embeddings",
        "attn_implementation", "_attn_implementation", "_attn_implementation_autoset", "_attn_implementation_internal",
        "chunk_size_feed_forward", "is_encoder_decoder", "gradient_checkpointing", "tokenizer_class", "prefix",
        "bos_token_id", "pad_token_id", "eos_token_id", "sep_token_id", "decoder_start_token_id", "max_length",
        "min_length", "do_sample", "early_stopping", "num_beams", "num_beam_groups", "diversity_penalty", "temperature",
        "top_k", "top_p", "typical_p", "repetition_penalty", "length_penalty", "no_repeat_ngram_size",
        "encoder_no_repeat_ngram_size", "bad_words_ids", "num_return_sequences", "output_scores",
        "return_dict_in_generate", "forced_bos_token_id", "forced_eos_token_id", "remove_invalid_values",
        "exponential_decay_length_penalty", "suppress_tokens", "begin_suppress_tokens", "tf_legacy_loss",
        "use_bfloat16", "logit_scale_init_value", "text_config", "text_config_dict", "vision_config_dict",
        "projection_dim", "dropout",
    }
)  # fmt: skip
_NEVER_NULL = (
    "hidden_size", "num_hidden_layers", "num_attention_heads", "intermediate_size", "mlp_ratio", "hidden_act",
    "layer_norm_eps", "image_size", "patch_size", "num_channels", "qkv_bias", "num_register_tokens",
)  # fmt: skip
_FEATURES: Features = {
    "quantization_config": ((), "quantised weights"),
    "auto_map": ((), "code of its own"),
    "pruned_heads": (({},), "pruned heads"),
    "is_decoder": ((False,), "a decoder, with causal attention"),
    "is_causal": ((False,), "causal attention"),
    "add_cross_attention": ((False,), "cross attention"),
    "cross_attention_hidden_size": ((), "cross attention"),
    "problem_type": (("single_label_classification",), "several labels per image, or a regression"),
}


def family_of(config: Mapping[str, Any]) -> Family:
    """Return the family that a config.json names."""
    model_type = config.get("model_type")
    if isinstance(model_type, str) and model_type in FAMILIES:
        return FAMILIES[model_type]
    why = _OTHER_TYPES.get(model_type) if isinstance(model_type, str) else None
    has = f" with {why}" if why else ""
    raise CheckpointError(
        f"config.json names a {quoted(model_type)} model{has}, which vitreous' ViT cannot express; it reads"
        f" {', '.join(FAMILIES)}"
    )


def read_config(config: Mapping[str, Any], folder: Path) -> Facts:
    """Return what config.json and the preprocessor_config.json in its folder state."""
    family, top = family_of(config), Fields(config, "config.json")
    nested = top.take("model_type") in _NESTED
    model = top.section("vision_config") if nested else top
    for fields in (top, model) if nested else (top,):
        fields.refuse(_FEATURES)
        fields.take("model_type")
    _check_classes(family, top.take("architectures", []))
    model.refuse(family.features)
    labels, id2label = top.facts({"num_classes": "num_labels"}), top.take("id2label")
    if nested:  # old files repeat the defaults of the library there
        model.take("id2label"), model.take("num_labels")
    names = Facts.stated(top.where, {"class_names": id2label}, {"class_names": "id2label"}).class_names
    if names is not None and labels.num_classes not in (None, len(names)):
        raise CheckpointError(f"config.json states num_labels={labels.num_classes} and has {len(names)} in id2label")
    labels = labels.model_copy(update=_without_placeholders(names))
    facts = _model_facts(family, model)
    top.finish(_HARMLESS | family.harmless)
    model.finish(_HARMLESS | family.harmless)
    return facts.over(labels).over(_processor_facts(read_json(folder / "preprocessor_config.json"), facts.channels))


def _model_facts(family: Family, model: Fields) -> Facts:
    model.refuse_null(_NEVER_NULL)
    model.refuse({"pooler_act": (("tanh",), "a pooler with another activation than tanh")})
    model.take("pooler_output_size")  # the tensors show it
    for unread in ("intermediate_size", "mlp_ratio"):  # each family reads one of them
        model.take(unread)
    dim, num_heads = model.take("hidden_size", 768), model.take("num_attention_heads", 12)
    if family.mlp_ratio is None:
        mlp_dim = model.take("intermediate_size", 3072)
    else:
        ratio = model.take("mlp_ratio", family.mlp_ratio)
        mlp_dim = product(dim, ratio)
    head_dim = model.take("head_dim")  # of no configuration class, but the models read it
    whole = isinstance(dim, int) and isinstance(num_heads, int) and isinstance(head_dim, int)
    if head_dim is not None and not (whole and head_dim * num_heads == dim):
        raise CheckpointError(
            f"{model.where} states head_dim={quoted(head_dim)}: heads of another width together than the tokens, which"
            " vitreous' ViT does not compute"
        )
    return model.facts(
        {
            "dim": "hidden_size", "mlp_dim": "intermediate_size", "num_heads": "num_attention_heads",
            "norm_eps": "layer_norm_eps", "image_size": "image_size", "patch_size": "patch_size",
            "channels": "num_channels", "depth": "num_hidden_layers", "registers": "num_register_tokens",
        },
        dim=dim,
        mlp_dim=mlp_dim,
        num_heads=num_heads,
        norm_eps=model.take("layer_norm_eps", family.norm_eps),
        image_size=model.take("image_size", 224),
        patch_size=model.take("patch_size", family.patch_size),
        channels=model.take("num_channels", 3),
        depth=model.take("num_hidden_layers", 12),
        registers=model.take("num_register_tokens", family.registers),
        qkv_bias=model.take("qkv_bias", True),
        gelu=gelu_named(model.take("hidden_act", family.act), _GELU),
        pool=family.pool,
        pre_norm=family.pre_norm,
    )  # fmt: skip


def _check_classes(family: Family, architectures: Any) -> None:
    for name in architectures if isinstance(architectures, list) else [architectures]:
        if isinstance(name, str) and name in family.refused:
            raise CheckpointError(f"{name} computes {family.refused[name]}, which vitreous' ViT does not")
        if name not in family.classes:
            raise CheckpointError(
                f"config.json names the class {quoted(name)}, which vitreous does not read; it reads"
                f" {', '.join(family.classes)}"
            )


def _without_placeholders(names: tuple[str, ...] | None) -> dict[str, Any]:
    """Return the number of classes, and their names unless they are the library's placeholders."""
    if names is None:
        return {}
    placeholders = all(name == f"LABEL_{i}" for i, name in enumerate(names))
    return {"num_classes": len(names), "class_names": None if placeholders else names}


# --- the image processor -----------------------------------------------------------------------------------


def _processor_facts(record: Mapping[str, Any], channels: int | None) -> Facts:
    """Return the normalisation: the processor scales pixels of 0 to 255, we take them from 0 to 1."""
    if not record:
        return Facts()
    fields = Fields(record, "preprocessor_config.json")
    mean, std = (_per_channel(fields.take(name), channels) for name in ("image_mean", "image_std"))
    if fields.take("do_normalize", True) is False:
        mean, std = [0.0] * (channels or 3), [1.0] * (channels or 3)
    fields.refuse({"rescale_offset": ((0, 0.0), "pixels that are shifted"), "do_flip_channel_order": ((False,), "BGR")})
    stated = Facts.stated(fields.where, {"mean": mean, "std": std}, {"mean": "image_mean", "std": "image_std"})
    factor = fields.take("rescale_factor", 1 / 255) if fields.take("do_rescale", True) else 1.0
    if not isinstance(factor, int | float) or not 0 < factor < 1e6:
        raise CheckpointError(f"{fields.where}: rescale_factor={quoted(factor)}: expected a number above 0")
    scale = factor * 255
    if abs(scale - 1) < 1e-6 or stated.mean is None or stated.std is None:
        return stated
    scaled = {"mean": [m / scale for m in stated.mean], "std": [s / scale for s in stated.std]}
    return Facts.stated(fields.where, scaled, {"mean": "image_mean", "std": "image_std"})


def _per_channel(value: Any, channels: int | None) -> Any:
    """A single number is for every channel."""
    return [value] * (channels or 3) if isinstance(value, int | float) else value


def processor_deviations(folder: Path) -> list[str]:
    """Return what the folder's image processor does and ours does not: `vitreous predict` then sees other pixels."""
    record, lines = read_json(folder / "preprocessor_config.json"), []
    if not record:
        return []
    if record.get("do_center_crop"):
        lines.append("crops the centre")
    if record.get("do_resize", True) and record.get("resample", 2) != 2:
        lines.append("resizes with another filter than bilinear")
    if record.get("do_pad"):
        lines.append("pads")
    size = record.get("size")
    if isinstance(size, dict) and "shortest_edge" in size:
        lines.append("resizes the shorter side only")
    return lines
