"""Read a published checkpoint: detect its layout, return its weights in our names or a model with them."""

from __future__ import annotations

import os
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from vitreous.checkpoints import google, huggingface, timm, torchvision, vit_pytorch
from vitreous.checkpoints.adapt import adapt
from vitreous.checkpoints.checkpoint import HEAD, Checkpoint, Mapped, expected_shapes, make_checkpoint
from vitreous.checkpoints.facts import Facts
from vitreous.checkpoints.files import RawFile, read_json, read_tensors
from vitreous.checkpoints.names import choose_prefix, strip_prefix
from vitreous.errors import CheckpointError, ConfigError
from vitreous.models import ViT, build


@dataclass(frozen=True, kw_only=True)
class Layout:
    name: str
    marker: str  # a tensor that only this layout has; the text before it is the prefix
    read: Callable[[Mapping[str, Tensor], Facts, Mapping[str, Any]], Mapped]
    base: str = ""  # a prefix of the backbone that the classifier does not have
    config_key: str | None = None  # a key that only this layout's config.json has
    read_config: Callable[[Mapping[str, Any], Path], Facts] = lambda config, folder: Facts()


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

_WEIGHT_FILES = ("model.safetensors", "pytorch_model.bin")


def read_checkpoint(
    path: Path | str,
    *,
    allow_partial: bool = False,
    num_heads: int | None = None,
    trained_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    prefix: str | None = None,
) -> Checkpoint:
    """Return the weights of a file or folder in our names, with the configuration they imply.

    The keyword arguments state what a file may leave open: the number of heads, the image size it was trained at if
    its grid is not square, the channels of a vit-pytorch patch, and which of several models to take. A tensor that is
    missing, unexpected or of the wrong shape is an error that lists them all; with `allow_partial` the same list is in
    `Checkpoint.report`, and the tensors of a freshly initialised model (seed 0) take their places.
    """
    path = Path(path)
    try:
        asked = Facts.model_validate({"num_heads": num_heads, "image_size": trained_size, "channels": channels})
    except ValidationError:
        raise CheckpointError("num_heads, trained_size and channels must be positive whole numbers") from None
    raw, config = _open(path)
    folder = path if os.path.isdir(path) else path.parent
    try:
        checkpoint = make_checkpoint(path, _map(raw, config, folder, asked, prefix))
    except CheckpointError as error:
        raise CheckpointError(f"{str(path)!r}: {error}") from None
    if asked.image_size not in (None, checkpoint.config.image_size):
        raise CheckpointError(
            f"{str(path)!r} was not trained at {asked.image_size}: it has {checkpoint.config.num_patches} patches"
        )
    if not checkpoint.problems:
        return checkpoint
    if not allow_partial:
        raise CheckpointError(f"{str(path)!r} is not a whole model: {checkpoint.report}")
    return _complete(checkpoint)


def load_model(
    path: Path | str,
    *,
    allow_partial: bool = False,
    num_heads: int | None = None,
    trained_size: int | tuple[int, int] | None = None,
    image_size: int | tuple[int, int] | None = None,
    patch_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    num_classes: int | None = None,
    prefix: str | None = None,
) -> tuple[ViT, Checkpoint]:
    """Return a model with the weights of `path`, in eval mode, and the checkpoint that was read.

    If `image_size`, `patch_size`, `channels` or `num_classes` differ from the file's, the weights are fitted to them
    (see `adapt`; the changes are added to the checkpoint's notes). The other arguments are those of `read_checkpoint`.
    A backbone without a classifier needs `num_classes`.
    """
    checkpoint = read_checkpoint(
        path, allow_partial=allow_partial, num_heads=num_heads, trained_size=trained_size, prefix=prefix
    )
    if num_classes is None and not checkpoint.has_head:
        raise CheckpointError(
            f"{str(path)!r} is a backbone without a classifier: give num_classes=… to start one at zero"
        )
    asked = {"image_size": image_size, "patch_size": patch_size, "channels": channels, "num_classes": num_classes}
    try:
        config = checkpoint.config.replace(**{key: value for key, value in asked.items() if value is not None})
        config.check_geometry()
    except ConfigError as error:
        raise CheckpointError(f"{str(path)!r} cannot be fitted: {error}") from None
    adapted = adapt(checkpoint, config)
    with torch.random.fork_rng(devices=[]):  # the initial values are overwritten: leave the caller's generator alone
        model = build(config)
        assert isinstance(model, ViT)
    model.load_state_dict(adapted.tensors, strict=True)
    notes = (*checkpoint.notes, *adapted.changes)
    return model.eval(), replace(
        checkpoint, tensors=adapted.tensors, config=config, mean=adapted.mean, std=adapted.std, notes=notes
    )


def _open(path: Path) -> tuple[RawFile, dict[str, Any]]:
    """Return the tensors and the config.json beside them, {} if there is none."""
    is_folder = os.path.isdir(path)  # Path.is_dir raises where the name is too long
    file = _weights_in(path) if is_folder else path
    config = read_json(file.parent / "config.json")
    if is_folder and isinstance(config.get("config"), dict):
        raise CheckpointError(f"{str(path)!r} is a run of vitreous: give it where a run is expected, with --run")
    return read_tensors(file), config


def _weights_in(folder: Path) -> Path:
    for name in _WEIGHT_FILES:
        if (folder / name).exists():
            return folder / name
    if any(folder.glob("*.index.json")):
        raise CheckpointError(f"the weights in {str(folder)!r} are split over several files: save them as one")
    raise CheckpointError(f"the folder {str(folder)!r} holds neither {' nor '.join(_WEIGHT_FILES)}")


def _map(raw: RawFile, config: Mapping[str, Any], folder: Path, asked: Facts, prefix: str | None) -> Mapped:
    """Detect the layout and the prefix, and let the layout's module rename.

    `config` is the config.json in `folder`; `asked` is what the caller states, which comes first.
    """
    for pattern, part in _UNSUPPORTED.items():
        if any(re.search(pattern, name) for name in raw.tensors):
            raise CheckpointError(f"the model has {part}, which the paper's ViT does not have")
    layout, prefixes = _detect(raw.tensors)
    if layout.config_key not in config:
        config = {}  # another library's, or none: a file of one layout may lie in another's folder
    in_config = layout.read_config(config, folder) if config else Facts()
    stated = asked.over(in_config).over(Facts.from_header(raw.metadata))
    notes: list[str] = []
    chosen = choose_prefix(prefixes, prefix)
    inside, outside = strip_prefix(raw.tensors, chosen, prefixes, notes)
    mapped = layout.read(inside, stated, config)
    mapped.used = len(inside.keys() - mapped.unexpected)
    mapped.unexpected = [chosen + name for name in mapped.unexpected] + outside
    mapped.notes = [f"{layout.name} layout", *notes, *mapped.notes]
    return mapped


def _detect(tensors: Mapping[str, Tensor]) -> tuple[Layout, list[str]]:
    """Return the layout and the prefixes of its models: "", "model.", "module.backbone." …"""
    for layout in LAYOUTS:
        markers = [name for name in tensors if name.endswith(layout.marker)]
        if prefixes := {name.removesuffix(layout.marker).removesuffix(layout.base) for name in markers}:
            return layout, sorted(prefixes, key=lambda prefix: (len(prefix), prefix))
    names = ", ".join(layout.name for layout in LAYOUTS)
    shown = ", ".join(sorted(tensors)[:3])
    raise CheckpointError(f"its {len(tensors)} tensors ({shown} …) match no supported layout: {names}")


def _complete(checkpoint: Checkpoint) -> Checkpoint:
    """Drop the tensors that do not fit and take the missing ones from a freshly initialised model."""
    expected = expected_shapes(checkpoint.config)
    num_expected = sum(torch.Size(shape).numel() for shape in expected.values())
    num_found = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    if num_expected > 4 * num_found + 2**26:  # a small file that implies a huge model is no partial checkpoint
        raise CheckpointError(f"{str(checkpoint.path)!r} implies {num_expected:,} parameters and holds {num_found:,}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a training that is resumed from the file starts from the same bits
        tensors = ViT(checkpoint.config).state_dict()
    fitting = {name: tensor for name, tensor in checkpoint.tensors.items() if expected.get(name) == tuple(tensor.shape)}
    if not checkpoint.has_head:  # a backbone stays one: `adapt` gives it a classifier
        tensors = {name: tensor for name, tensor in tensors.items() if name not in HEAD}
    return replace(checkpoint, tensors={**tensors, **fitting})
