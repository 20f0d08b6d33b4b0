"""Change every field of a config.json, one at a time, and compare with what the real library builds from it.

    python bench/mutations.py [--only TEXT] [--verbose]

Each field of the file, and each that the library's classes have besides, gets other valid values. Where the library
builds a model from the changed file, ours must give its numbers or refuse; where it cannot, ours must refuse or give
the numbers of the unchanged file.

bench/families.py writes the counts into docs/checkpoints.md.
"""

from __future__ import annotations

import argparse
import copy
import inspect
import json
import logging
import tempfile
import warnings
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import torch
from families import TINY, hf_model, images_for, logits_of, pooled_of, save_hf, save_timm, timm_model
from survey import TOLERANCE, quiet, relative_difference
from torch import Tensor

from vitreous.checkpoints import load_model
from vitreous.errors import CheckpointError

#: Base → (the library's class or architecture, arguments).
BASES: dict[str, tuple[str, dict[str, Any]]] = {
    "timm": ("vit_base_patch16_224", {}),
    "timm, mean and fc_norm": ("vit_base_patch16_224", {"global_pool": "avg"}),
    "timm, mean, no class token": ("vit_base_patch16_gap_224", {}),
    "timm, DINOv2 with registers": ("vit_small_patch14_reg4_dinov2", {}),
    "timm, CLIP": ("vit_base_patch16_clip_224", {}),
    "timm, DeiT III": ("deit3_small_patch16_224", {}),
    "ViTForImageClassification": ("ViTForImageClassification", {"num_labels": 7}),
    "ViTModel": ("ViTModel", {}),
    "DeiTForImageClassification": ("DeiTForImageClassification", {"num_labels": 7}),
    "ViTMSNForImageClassification": ("ViTMSNForImageClassification", {"num_labels": 7}),
    "IJepaForImageClassification": ("IJepaForImageClassification", {"num_labels": 7}),
    "ViTMAEModel": ("ViTMAEModel", {"mask_ratio": 0.0}),
    "Dinov2Model": ("Dinov2Model", {}),
    "Dinov2WithRegistersModel": ("Dinov2WithRegistersModel", {}),
    "CLIPVisionModel": ("CLIPVisionModel", {}),
    "CLIPModel": ("CLIPModel", {}),
    "SiglipVisionModel": ("SiglipVisionModel", {}),
    "SiglipForImageClassification": ("SiglipForImageClassification", {"num_labels": 7}),
}
_WORDS = {
    "global_pool": ["", "avg", "avgmax", "max", "token", "map", "prr"],
    "act_layer": ["gelu", "gelu_tanh", "quick_gelu", "relu", "silu", "mish", "hard_swish", "tanh", "GELU", "selu"],
    "norm_layer": ["layernorm", "layernormfp32", "rmsnorm", "simplenorm", "layernorm2d", "batchnorm1d"],
    "embed_norm_layer": ["layernorm", "rmsnorm"],
    "attn_layer": ["attn", "diff"],
    "pos_embed": ["learn", "none", ""],
    "weight_init": ["skip", "jax", "moco", ""],
    "pooler_act": ["tanh", "relu", "gelu"],
    "interpolation": ["bilinear", "bicubic", "nearest"],
    "crop_mode": ["center", "squash", "border"],
    "problem_type": ["single_label_classification", "multi_label_classification", "regression"],
    "_attn_implementation": ["eager", "sdpa"], "attn_implementation": ["eager", "sdpa"],
    "dtype": ["float32", "float16"], "torch_dtype": ["float32", "bfloat16"],
    "model_type": [
        "vit", "deit", "vit_mae", "vit_msn", "ijepa", "dinov2", "dinov2_with_registers", "clip_vision_model",
    ],
    "classifier": ["head", "fc", ["head", "head_dist"]],
    "architecture": [
        "vit_tiny_patch16_224", "vit_small_patch16_224", "vit_base_patch16_clip_224", "vit_base_patch16_gap_224",
        "vit_base_patch32_clip_quickgelu_224", "vit_base_patch16_siglip_gap_224", "vit_base_patch32_siglip_gap_256",
        "vit_base_patch16_siglip_224", "vit_small_patch14_dinov2", "vit_small_patch14_reg4_dinov2",
        "eva_large_patch14_196", "deit3_small_patch16_224", "deit_tiny_distilled_patch16_224", "flexivit_small",
        "vit_base_patch16_rpn_224", "vit_medium_patch16_reg4_gap_256", "vit_so150m_patch16_reg4_gap_256",
        "vit_base_patch16_xp_224", "vit_intern300m_patch14_448", "beit_base_patch16_224",
    ],
}  # fmt: skip
#: Values that a configuration does not state, of the type that the library expects.
_ABSENT: dict[str, list[Any]] = {
    "init_values": [0.1, 1e-5], "reg_tokens": [0, 2, 4], "fc_norm": [True, False], "head_dim": [8, 16],
    "num_register_tokens": [0, 2, 4], "use_swiglu_ffn": [True], "is_causal": [True], "vision_use_head": [False],
    "qkv_bias": [True, False], "attention_bias": [False], "layer_norm_eps": [1e-3], "is_decoder": [True],
    "label_offset": [0, 1], "no_embed_class": [True, False], "class_token": [True, False], "num_heads": [2, 4],
    "label_names": [["a"] * 7, ["a"] * 3], "rope_theta": [100.0], "pruned_heads": [{}, {"0": [1]}],
}  # fmt: skip


#: MAE's encoder masks patches at random in pre-training; ours, as in fine-tuning, reads all, and says so.
_NOT_COMPARED = {("ViTMAEModel", "mask_ratio")}


@dataclass(frozen=True)
class Change:
    section: str  # "" for the file itself
    field: str
    value: Any
    config: dict[str, Any]

    def __str__(self) -> str:
        return f"{self.section + '.' if self.section else ''}{self.field}={self.value!r}"


def alternatives(field: str, value: Any) -> list[Any]:
    """Return other values of the type that the library expects of this field."""
    words = _WORDS.get(field, []) + _ABSENT.get(field, [])
    if field.endswith("_act"):
        from transformers.activations import ACT2CLS

        words = [*words, *ACT2CLS]
    if isinstance(value, bool):
        words = [*words, not value]
    elif isinstance(value, int):
        words = [*words, value + 1, 2 * value, max(1, value // 2), 0]
    elif isinstance(value, float):
        words = [*words, 10 * value + 1e-3, 0.5, value / 10]
    elif isinstance(value, list) and value and isinstance(value[0], int | float):
        words = [*words, value[::-1], [2 * each for each in value], value[0]]
    elif isinstance(value, list) and value and isinstance(value[0], str):
        words = [*words, value[:1], value * 2]
    elif isinstance(value, str) and not words:
        words = ["other"]
    elif isinstance(value, dict) and value:
        words = [*words, {}, dict(list(value.items())[:1])]
    return [other for other in words if type(other) is not type(value) or other != value]


def changes(config: dict[str, Any], absent: dict[str, dict[str, Any]]) -> Iterator[Change]:
    """Yield every change of one field; `absent` are the fields that the library has besides, by section."""
    for section in ("", "model_args", "pretrained_cfg", "vision_config"):
        if section and not isinstance(config.get(section), dict):
            continue
        present = config[section] if section else config
        fields = {name: value for name, value in present.items() if name not in ("pretrained_cfg", "model_args")}
        fields = {**absent.get(section, {}), **fields}
        for field, value in fields.items():
            if isinstance(value, dict) and field.endswith("_config"):
                continue
            options = [(False, other) for other in alternatives(field, value)]
            for removed, other in [*options, *([(True, None)] if field in present else [])]:
                changed = copy.deepcopy(config)
                target = changed[section] if section else changed
                target[field] = other
                if removed:
                    del target[field]
                yield Change(section, field, "(removed)" if removed else other, changed)


def absent_fields(base: str) -> dict[str, dict[str, Any]]:
    """Return what the library's constructor or configuration class takes, with its defaults."""
    if base.startswith("timm"):
        from timm.models.vision_transformer import VisionTransformer

        parameters = inspect.signature(VisionTransformer).parameters.values()
        skipped = ("device", "dtype", "block_fn", "mlp_layer", "embed_layer")  # classes, which JSON has not
        arguments = {each.name: each.default for each in parameters if each.name not in skipped}
        arguments["attn_layer"] = None
        return {"model_args": arguments, "pretrained_cfg": {"label_offset": None, "label_names": None}}
    import transformers

    config_class = getattr(transformers, BASES[base][0]).config_class
    section = "vision_config" if hasattr(config_class(), "vision_config") else ""
    defaults = config_class().vision_config if section else config_class()
    fields = {name: value for name, value in defaults.to_dict().items() if not isinstance(value, dict)}
    extra = dict.fromkeys(
        ("head_dim", "is_causal", "use_swiglu_ffn", "num_register_tokens", "rope_theta", "is_decoder")
    )
    return {section: {**extra, **fields}}


# --- what the library and what we compute --------------------------------------------------------------------


def save_base(base: str, folder: Path) -> None:
    kind, arguments = BASES[base]
    if base.startswith("timm"):
        save_timm(timm_model(kind, **arguments), folder, **arguments)
        path = folder / "config.json"
        config = json.loads(path.read_text()) | {"architecture": kind}
        path.write_text(json.dumps(config))
    else:
        save_hf(hf_model(kind, **arguments), folder)


def peer_output(base: str, folder: Path, images: Tensor) -> Tensor | None:
    """Return what the library computes from the folder; None if it cannot."""
    try:
        if base.startswith("timm"):
            import timm

            return timm.create_model(f"local-dir:{folder}", pretrained=True).eval()(images)
        import transformers

        model = getattr(transformers, BASES[base][0]).from_pretrained(folder, dtype=torch.float32).eval()
        return (logits_of if base.endswith("Classification") else pooled_of)(model, images)
    except Exception:  # whatever a library raises for a configuration that makes no sense
        return None


def our_output(base: str, folder: Path, images: Tensor) -> Tensor:
    is_logits = base.endswith("Classification") or base.startswith("timm")
    model, _ = load_model(folder, **({} if is_logits else {"num_classes": TINY.num_classes}))
    taps: dict[str, Tensor] = {}
    logits = model(images, taps)
    return logits if is_logits else taps["pooled"]


@torch.no_grad()
def outcomes(base: str, only: str = "") -> Iterator[tuple[Change, str, str]]:
    """Yield each change with what became of it, and the refusal's words."""
    images = images_for(TINY)
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        save_base(base, folder)
        path = folder / "config.json"
        config = json.loads(path.read_text())
        plain, peer_plain = our_output(base, folder, images), peer_output(base, folder, images)
        assert peer_plain is not None, base
        assert relative_difference(plain, peer_plain) < TOLERANCE, base
        for change in changes(config, absent_fields(base)):
            if only not in str(change) or (base, change.field) in _NOT_COMPARED:
                continue
            path.write_text(json.dumps(change.config))
            try:
                ours = our_output(base, folder, images)
            except CheckpointError as error:
                yield change, "refused", str(error)
                continue
            except Exception as error:  # what must never happen
                yield change, "CRASH", repr(error)
                continue
            torch.manual_seed(0)
            theirs = peer_output(base, folder, images)
            expected = plain if theirs is None else theirs
            difference = relative_difference(ours, expected)
            changed = theirs is not None and relative_difference(theirs, peer_plain) > TOLERANCE
            kind = "followed" if changed else "no effect" if theirs is not None else "refused by the library"
            yield change, kind if difference < TOLERANCE else f"WRONG by {difference:.1e}", ""


def table(only: str = "", field: str = "", verbose: bool = False) -> str:
    """Return the counts per base as Markdown; print what is wrong."""
    kinds = ("followed", "no effect", "refused", "refused by the library", "WRONG", "CRASH")
    heads = ("same change in ours", "no effect in either", "refused", "refused by the library, ours unchanged", "wrong")
    lines = [f"| changed | changes | {' | '.join(heads)} |", "|---" * (len(heads) + 2) + "|"]
    for base in BASES:
        if only not in base:
            continue
        counts: Counter[str] = Counter()
        for change, kind, words in outcomes(base, field):
            counts[kind.split(" by ")[0] if kind.startswith("WRONG") else kind] += 1
            if verbose or kind.startswith(("WRONG", "CRASH")):
                print(base, change, kind, words[-200:], sep=" | ", flush=True)
        numbers = [counts[kind] for kind in kinds]
        cells = [base, sum(counts.values()), *numbers[:4], numbers[4] + numbers[5]]
        lines.append("| " + " | ".join(map(str, cells)) + " |")
    return "\n".join(lines)


def main() -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n")[0])
    parser.add_argument("--only", default="", help="a part of a base's name")
    parser.add_argument("--field", default="", help="a part of a change")
    parser.add_argument("--verbose", action="store_true")
    arguments = parser.parse_args()
    logging.getLogger("vitreous.checkpoints").setLevel(logging.ERROR)
    quiet()
    print(table(arguments.only, arguments.field, arguments.verbose))


if __name__ == "__main__":
    warnings.simplefilter("ignore")
    main()
