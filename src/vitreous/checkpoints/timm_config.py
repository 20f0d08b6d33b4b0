"""timm's config.json: the architecture's name, `model_args`, and `pretrained_cfg`.

The arguments of timm's VisionTransformer decide what is computed, and what `model_args` leaves out depends on the
architecture's name. Names are read by the rules in `_architecture` (tests/checkpoints/test_timm_config.py compares them
with every model that timm registers); other names are refused, as are the arguments in `_FEATURES`.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from torch import Tensor

from vitreous.checkpoints.facts import Facts, Gelu, gelu_named
from vitreous.checkpoints.fields import Features, Fields, product
from vitreous.errors import CheckpointError, quoted

_TIMM_CLASSES = 1000  # timm's default
_GELU: dict[str, Gelu] = {"gelu": "erf", "gelu_tanh": "tanh", "quick_gelu": "quick"}

_HEADS = {
    "tiny": 3, "wee": 4, "xsmall": 4, "little": 5, "small": 6, "medium": 8, "mediumd": 8, "betwixt": 10, "base": 12,
    "so150m2": 13, "so150m": 14, "so400m": 16, "large": 16, "huge": 16, "giant": 16, "giantopt": 16,
    "gigantic": 16,
}  # fmt: skip
_PLAIN = re.compile(
    rf"(?:vit|deit3?|flexivit|(?P<eva>eva))_(?P<size>{'|'.join(sorted(_HEADS, key=len, reverse=True))})"
    r"(?:_patch(?P<patch>\d+))?(?P<plus>_plus)?(?:_reg(?P<registers>\d+))?"
    r"(?P<kind>_gap|_clip_quickgelu|_clip|_dinov2|_tipsv2|_36x1|_siglip_gap|_siglip)?(?:_\d+)?(?:_miil)?$"
)
#: SigLIP 2's GELU is the tanh approximation; SigLIP's is not.
_TANH_SIGLIP = re.compile(r"(giantopt_patch16|base_patch32|so400m_patch16)_siglip|large_patch16_siglip(_gap)?_512")
#: Part of an architecture's name → the feature.
_REFUSED_NAMES = {
    r"distilled": "a head on DeiT's distillation token",
    r"rope|dinov3|eva02|^eva(?!_large)|_pe_|pe_(core|lang|spatial)": "rotary positions (rope), or EVA's blocks",
    r"_rpn_": "LayerNorms after attention and MLP (residual post-norm)",
    r"_xp_|pwee|\d+x2_": "attention and MLP in parallel",
    r"dwee|dlittle": "differential attention",
    r"giant_patch14_(dinov2|reg\d_dinov2|reg\d_tipsv2)": "SwiGLU, a gated MLP",
    r"aimv2": "RMSNorm and SwiGLU",
    r"intern300m": "no final LayerNorm",
    r"beit3": "LayerNorms inside attention and MLP",
    r"rel_?pos|beit|samvit": "relative position biases",
    r"hybrid|resnet|_r\d+|vitamin": "a convolutional network in front of the transformer",
    r"^(cait|convit|crossvit|xcit|tnt|volo|pit|swin|hiera|levit)": "other blocks than the paper's",
    r"mixer|mlp_|gmlp|resmlp": "no attention",
    r"^(deepseek|gemma4|qwen3)_vit": "rotary positions (rope) or other blocks",
    r"naflex": "positions resized for every image (NaFlex)",
}
#: Arguments of VisionTransformer → (values that our ViT computes, the feature of any other).
_FEATURES: Features = {
    "qk_norm": ((False,), "normalised queries and keys"),
    "scale_attn_norm": ((False,), "a LayerNorm inside attention"),
    "scale_mlp_norm": ((False,), "a LayerNorm inside the MLP"),
    "final_norm": ((True,), "no final LayerNorm"),
    "pool_include_prefix": ((False,), "a pooling over class token and registers"),
    "dynamic_img_pad": ((False,), "images padded to the patches"),
    "embed_layer": ((), "another patch embedding"),
    "embed_norm_layer": ((), "a LayerNorm in the patch embedding"),
    "norm_layer": (("layernorm", "layer_norm", "LayerNorm"), "another norm than LayerNorm with ε 1e-6 (RMSNorm …)"),
    "block_fn": ((), "other blocks"),
    "mlp_layer": ((), "another MLP (SwiGLU …)"),
    "attn_layer": (("attn",), "another attention (differential attention …)"),
}
_POOLINGS = {
    "max": "the maximum over the patches",
    "avgmax": "the mean of average and maximum over the patches",
    "map": "attention pooling (a MAP head)",
    "prr": "attention pooling (PRR)",
    "": "no pooling",
}
#: Training, and sizes that a fixed image does not change.
_HARMLESS_ARGUMENTS = frozenset(
    {"drop_rate", "pos_drop_rate", "patch_drop_rate", "proj_drop_rate", "attn_drop_rate", "drop_path_rate"}
    | {"weight_init", "fix_init", "dynamic_img_size", "strict_img_size", "pretrained", "scriptable"}
)
#: Where the weights come from, what they are called, and how timm crops and resizes.
_HARMLESS = frozenset(
    {"url", "file", "hf_hub_id", "hf_hub_filename", "source", "tag", "custom_load", "architecture", "license"}
    | {"description", "origin_url", "paper_name", "paper_ids", "notes", "pool_size", "test_pool_size", "first_conv"}
    | {"test_input_size", "min_input_size", "test_crop_pct", "crop_mode", "fixed_input_size", "label_descriptions"}
    | {"interpolation", "crop_pct"}  # `deviations` mentions them
)


class TimmConfig:
    """What a config.json states, once every field is accounted for."""

    def __init__(self, config: Mapping[str, Any]):
        top = Fields(config, "config.json")
        pretrained = top.section("pretrained_cfg") if "pretrained_cfg" in config else top  # older files have one object
        arguments = top.section("model_args")
        self.defaults = _architecture(top.take("architecture"))
        self.stated = {name: value for name, value in arguments.values.items() if value is not None}
        arguments.refuse(_FEATURES)
        self.num_classes = _number_of_classes(arguments, top, pretrained)
        self._check_pooling(arguments, top)
        self.facts = self._facts(arguments, pretrained, top)
        pretrained.refuse({"label_offset": ((0,), "classes whose numbers are shifted")})
        if pretrained.take("classifier", "head") != "head":
            raise CheckpointError(
                f"config.json states classifier={quoted(pretrained.take('classifier'))}: another head than one on the"
                " pooled tokens (distilled models have two), which vitreous' ViT does not compute"
            )
        arguments.finish(_HARMLESS_ARGUMENTS)
        top.finish(_HARMLESS)
        pretrained.finish(_HARMLESS)
        self.deviations = _deviations(pretrained)

    def argument(self, name: str) -> Any:
        """Return an argument of VisionTransformer: as stated, else the architecture's default."""
        return self.stated.get(name, self.defaults.get(name))

    @property
    def prefix_positions(self) -> bool | None:
        """Whether the positions include the class token and registers; None if the architecture's default decides."""
        return not self.stated["no_embed_class"] if "no_embed_class" in self.stated else None

    def _check_pooling(self, arguments: Fields, top: Fields) -> None:
        for fields in (arguments, top):
            pooling = fields.take("global_pool")
            if pooling == "" and self.num_classes == 0:
                self.norm_after_pool = self.argument("fc_norm")
                return  # a backbone that returns all tokens: the pooling is assumed
            if pooling is not None and pooling not in ("token", "avg"):
                feature = _POOLINGS.get(pooling, "an unknown pooling") if isinstance(pooling, str) else "not a pooling"
                raise CheckpointError(
                    f"{fields.where} states global_pool={quoted(pooling)}: {feature}, which vitreous' ViT does not"
                    " compute"
                )
        pooling, written = self.argument("global_pool"), top.take("global_pool")
        if written is not None and written != pooling:
            raise CheckpointError(
                f"config.json states global_pool={quoted(written)}, and its architecture and model_args pool by"
                f" {pooling!r}: correct the one that is wrong"
            )
        fc_norm = self.argument("fc_norm")
        self.norm_after_pool = pooling == "avg" if fc_norm is None else fc_norm
        if pooling == "token" and not self.argument("class_token"):
            raise CheckpointError("config.json states class_token=false and global_pool='token': correct one of them")

    def _facts(self, arguments: Fields, pretrained: Fields, top: Fields) -> Facts:
        for name in ("class_token", "reg_tokens", "no_embed_class", "init_values", "fc_norm", "proj_bias"):
            arguments.take(name)
        activation = arguments.take("act_layer", self.defaults["act_layer"])
        dim, ratio = arguments.take("embed_dim"), arguments.take("mlp_ratio")
        positions = arguments.take("pos_embed", "learn")
        if positions not in ("learn", "none", ""):
            raise CheckpointError(f"config.json states pos_embed={quoted(positions)}, which vitreous does not know")
        size = pretrained.take("input_size", [3, None, None])  # [C, height, width]
        if not isinstance(size, list) or len(size) != 3:
            raise CheckpointError(f"config.json states input_size={quoted(size)}; expected [channels, height, width]")
        names = pretrained.take("label_names")
        return arguments.facts(
            {"dim": "embed_dim", "depth": "depth", "qkv_bias": "qkv_bias"},
            patch_size=arguments.take("patch_size", self.defaults["patch_size"]),
            num_heads=arguments.take("num_heads", self.defaults["num_heads"]),
            image_size=arguments.take("img_size", size[1:] if size[1] is not None else None),
            channels=arguments.take("in_chans", size[0]),
            num_classes=self.num_classes or None,
            mlp_dim=None if dim is None or ratio is None else product(dim, ratio),
            pre_norm=arguments.take("pre_norm", self.defaults["pre_norm"]),
            positions="learned" if positions == "learn" else "none",
            gelu=None if activation is None else gelu_named(str(activation).lower(), _GELU),
            norm_eps=self.defaults["norm_eps"] if "norm_layer" not in self.stated else 1e-6,
            pool={"token": "cls", "avg": "mean"}.get(self.argument("global_pool")),
            norm_after_pool=self.norm_after_pool,
            mean=pretrained.take("mean"),
            std=pretrained.take("std"),
            class_names=top.take("label_names") or names or pretrained.take("labels"),
        )

    def check_tensors(self, tensors: Mapping[str, Tensor]) -> None:
        """Refuse weights without a part that the configuration states, or with one that it excludes."""
        has_scale = any(name.endswith("ls1.gamma") for name in tensors)
        wanted_and_found = {
            "class_token": (self.argument("class_token"), "cls_token" in tensors),
            "init_values": (self.stated.get("init_values", has_scale), has_scale),
            "fc_norm": (self.norm_after_pool, "fc_norm.weight" in tensors),
        }
        for name, (wanted, there) in wanted_and_found.items():
            if bool(wanted) != there:
                raise CheckpointError(
                    f"config.json states {name}={quoted(wanted)} (or its architecture does), and the weights"
                    f" {'have' if there else 'lack'} that part: correct the one that is wrong"
                )
        if self.num_classes == 0 and "head.weight" in tensors:
            raise CheckpointError("config.json states num_classes=0, and the weights have a classifier: remove one")
        token = tensors.get("reg_token")
        registers = token.shape[1] if token is not None and token.ndim == 3 else 0
        if self.stated.get("reg_tokens", registers) != registers:
            raise CheckpointError(
                f"config.json states reg_tokens={quoted(self.stated['reg_tokens'])}, and the weights have {registers}:"
                " correct the one that is wrong"
            )


def _number_of_classes(arguments: Fields, top: Fields, pretrained: Fields) -> Any:
    """Return the model's number of classes; timm replaces the head by a random one if the weights' number differs."""
    top.take("num_features")
    inner = pretrained.take("num_classes", _TIMM_CLASSES)
    number = top.take("num_classes", inner)
    given = arguments.take("num_classes", number)
    if given not in (0, number):
        raise CheckpointError(
            f"config.json states num_classes={quoted(number)}, and {quoted(given)} in model_args: timm would replace"
            " the classifier by a random one; correct the one that is wrong"
        )
    return given


def _architecture(name: Any) -> dict[str, Any]:
    """Return the arguments that timm's function of this name sets, as far as the tensors do not show them."""
    for pattern, feature in _REFUSED_NAMES.items():
        if isinstance(name, str) and re.search(pattern, name):
            raise CheckpointError(f"the architecture {name!r} has {feature}, which vitreous' ViT does not compute")
    found = _PLAIN.match(name) if isinstance(name, str) else None
    if found is None:
        raise CheckpointError(
            f"config.json names the architecture {quoted(name)}, whose defaults vitreous does not know: only plain ViTs"
            " are read (vit_*, deit_*, deit3_*, flexivit_*, eva_large_*)"
        )
    kind = found["kind"] or ""
    if kind == "_siglip":
        raise CheckpointError(f"the architecture {name!r} has {_POOLINGS['map']}, which vitreous' ViT does not compute")
    gap, clip, eva = kind.endswith("_gap"), kind.startswith("_clip"), bool(found["eva"])
    heads = 14 if found["plus"] else 16 if name == "vit_base_patch16_gap_224" else _HEADS[found["size"]]
    return {
        "num_heads": heads,
        "patch_size": int(found["patch"] or 16),
        "class_token": not gap,
        "global_pool": "avg" if gap or eva else "token",
        "fc_norm": False if gap and (found["size"] == "so150m" or not found["registers"]) else None,
        "norm_eps": 1e-5 if clip else 1e-6,
        "pre_norm": clip,
        "act_layer": "quick_gelu" if "quickgelu" in kind else "gelu_tanh" if _TANH_SIGLIP.search(name) else "gelu",
    }


def _deviations(pretrained: Fields) -> list[str]:
    """Return what timm's own preprocessing does and ours does not."""
    lines = []
    if pretrained.take("crop_pct", 1.0) != 1.0:
        lines.append(f"crops the centre ({quoted(pretrained.take('crop_pct'))} of it)")
    if pretrained.take("interpolation", "bilinear") != "bilinear":
        lines.append("resizes with another filter than bilinear")
    return lines
