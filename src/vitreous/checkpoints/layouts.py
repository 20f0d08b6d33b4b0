"""The layouts that can be read: which of them a file has, and its tensors in our names."""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from torch import Tensor

from vitreous.checkpoints import google, huggingface, timm, torchvision, vit_pytorch
from vitreous.checkpoints.checkpoint import Mapped
from vitreous.checkpoints.facts import Hints
from vitreous.checkpoints.files import RawFile
from vitreous.checkpoints.names import choose_prefix, strip_prefix
from vitreous.errors import CheckpointError


@dataclass(frozen=True, kw_only=True)
class Layout:
    name: str
    marker: str  # a tensor that only this layout has; the text before it is the prefix
    read: Callable[[Mapping[str, Tensor], Hints, Mapping[str, Any]], Mapped]
    base: str = ""  # a prefix of the backbone that the classifier does not have
    config_key: str | None = None  # a key that only this layout's config.json has
    read_config: Callable[[Mapping[str, Any], Path], Hints] = lambda config, folder: Hints()


LAYOUTS = (
    Layout(
        name="Hugging Face",
        marker=huggingface.MARKER,
        read=huggingface.read,
        base=huggingface.BASE,
        config_key="model_type",
        read_config=huggingface.read_config,
    ),
    Layout(name="timm", marker=timm.MARKER, read=timm.read, config_key="architecture", read_config=timm.read_config),
    Layout(name="torchvision", marker=torchvision.MARKER, read=torchvision.read),
    Layout(name="Google npz", marker=google.MARKER, read=google.read),
    Layout(name="vit-pytorch", marker=vit_pytorch.MARKER, read=vit_pytorch.read),
)

#: Parts that our ViT cannot express, so that even a partial load makes no sense: pattern of a tensor's name → part.
_UNSUPPORTED = {
    r"(^|/)conv_root/kernel": "a ResNet in front of the transformer (the hybrid R+ViT)",
    r"(^|\.)patch_embed\.backbone\.": "a convolutional network in front of the transformer (timm's hybrid)",
    r"(^|\.)conv_proj\.conv_": "torchvision's conv stem with batch norm",
    r"(^|\.)(dist_token|distillation_token|head_dist|distillation_classifier)": "DeiT's distillation token",
    r"(^|\.)(reg_token|register_tokens)": "register tokens",
    r"(^|/|\.)(attn_pool|MAPHead_0)[./]": "attention pooling (a MAP head)",
    r"(^|\.)fc_norm\.": "a LayerNorm after mean pooling (timm's fc_norm) instead of before it",
    r"(^|\.)norm_pre\.": "a LayerNorm before the first block (CLIP's)",
    r"\.attn\.(q_norm|k_norm)\.": "normalised queries and keys",
    r"(relative_position_bias|rel_pos_bias|rope)": "relative or rotary positions of another kind",
}


def map_to_ours(
    raw: RawFile, config: Mapping[str, Any], folder: Path, asked: Hints, prefix: str | None
) -> tuple[Mapped, Hints]:
    """Detect the layout and the prefix and let the layout's module rename; also return all hints combined.

    `config` is the config.json in `folder`; `asked` are the caller's hints, which come first.
    """
    for pattern, part in _UNSUPPORTED.items():
        if any(re.search(pattern, name) for name in raw.tensors):
            raise CheckpointError(f"the model has {part}, which the paper's ViT does not have")
    layout, prefixes = _detect(raw.tensors)
    if layout.config_key not in config:
        config = {}  # another library's, or none: a file of one layout may lie in another's folder
    stated = layout.read_config(config, folder) if config else Hints()
    hints = asked.over(stated.over(Hints.from_header(raw.metadata)))
    notes: list[str] = []
    chosen = choose_prefix(prefixes, prefix)
    inside, outside = strip_prefix(raw.tensors, chosen, prefixes, notes)
    mapped = layout.read(inside, hints, config)
    mapped.unexpected = [chosen + name for name in mapped.unexpected] + outside
    mapped.notes = [f"{layout.name} layout", *notes, *mapped.notes]
    return mapped, hints


def _detect(tensors: Mapping[str, Tensor]) -> tuple[Layout, list[str]]:
    """Return the layout and the prefixes of its models: "", "model.", "module.backbone." …"""
    for layout in LAYOUTS:
        markers = [name for name in tensors if name.endswith(layout.marker)]
        if prefixes := {name.removesuffix(layout.marker).removesuffix(layout.base) for name in markers}:
            return layout, sorted(prefixes, key=lambda prefix: (len(prefix), prefix))
    names = ", ".join(layout.name for layout in LAYOUTS)
    shown = ", ".join(sorted(tensors)[:3])
    raise CheckpointError(f"its {len(tensors)} tensors ({shown} …) match no supported layout: {names}")
