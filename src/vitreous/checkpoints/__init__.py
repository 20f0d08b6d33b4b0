"""The field's checkpoints, both ways: timm, DeiT and DINO; Hugging Face; torchvision; Google's npz; older vit-pytorch.

`read_checkpoint` detects the layout and accounts for every tensor; `load_model` gives a model; `adapt` fits weights to
another task; `save_model` writes. One file a layout; `files.py` reads what strangers wrote, and says what it refuses.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoints import google, huggingface, timm, torchvision, vit_pytorch
from vitreous.checkpoints.adapt import Adapted, adapt, take_architecture
from vitreous.checkpoints.checkpoint import HEAD, Checkpoint, Hints, Mapped, Origin, expected_shapes, make_checkpoint
from vitreous.checkpoints.facts import hints_from_header
from vitreous.checkpoints.files import RawFile, read_json, read_tensors
from vitreous.checkpoints.names import choose_prefix, find_prefixes, strip_prefix
from vitreous.checkpoints.positions import POSITION_RULES, PositionRule, resize_positions
from vitreous.checkpoints.save import TARGETS, TargetLayout, save_model
from vitreous.errors import CheckpointError, ConfigError
from vitreous.models.vit import ViT

__all__ = [
    "POSITION_RULES", "TARGETS", "Adapted", "Checkpoint", "Origin", "PositionRule", "TargetLayout", "adapt",
    "load_model", "read_checkpoint", "resize_positions", "save_model", "take_architecture",
]  # fmt: skip


@dataclass(frozen=True)
class _Layout:
    name: str
    marker: str  # the tensor that only this layout has; what stands before it is the prefix
    read: Callable[[Mapping[str, Tensor], Hints, Mapping[str, Any]], Mapped]
    config_key: str | None = None  # what its config.json has and others' have not


_HUGGING_FACE = _Layout("Hugging Face", huggingface.MARKER, huggingface.read, "model_type")
_LAYOUTS = (
    _HUGGING_FACE,
    _Layout("timm", timm.MARKER, timm.read, "architecture"),
    _Layout("torchvision", torchvision.MARKER, torchvision.read),
    _Layout("Google npz", google.MARKER, google.read),
    _Layout("vit-pytorch", vit_pytorch.MARKER, vit_pytorch.read),
)

#: Parts that no loading, partial or not, could make up for: a tensor's name → what it belongs to.
_INEXPRESSIBLE = {
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
    """The weights of a file or folder in our names, with the configuration they imply.

    The keyword arguments answer what a file may leave open: its heads, the image size it was trained at if its
    grid is no square, the channels of a vit-pytorch patch, which of several models it holds. A tensor that is
    missing, unexpected or of the wrong shape is an error that lists them all; with `allow_partial` the same list is in
    `Checkpoint.report`, and a fresh model's tensors, always the same, take their places.
    """
    path = Path(path)
    size = (trained_size, trained_size) if isinstance(trained_size, int) else trained_size
    asked = Hints(num_heads=num_heads, image_size=size, channels=channels)
    raw, config = _open(path)
    try:
        checkpoint = make_checkpoint(path, *_map(path, raw, config, asked, prefix))
    except CheckpointError as error:
        raise CheckpointError(f"{str(path)!r}: {error}") from None
    if size not in (None, checkpoint.config.image_size):
        raise CheckpointError(
            f"{str(path)!r} was not trained at {size}: it has {checkpoint.config.num_patches} patches"
        )
    if checkpoint.problems and not allow_partial:
        raise CheckpointError(f"{str(path)!r} is not a whole model: {checkpoint.report}")
    return _fill_up(checkpoint) if checkpoint.problems else checkpoint


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
    """A model with the weights of `path`, ready to predict (in eval mode), and what was read.

    `image_size`, `patch_size`, `channels` and `num_classes` other than the file's fit the weights to them (see `adapt`;
    the changes are added to the checkpoint's notes); the other arguments are `read_checkpoint`'s. A backbone without
    a classifier needs `num_classes`.
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
    checkpoint = replace(checkpoint, notes=(*checkpoint.notes, *adapted.changes))
    with torch.random.fork_rng(devices=[]):  # what the fresh model draws is overwritten: the person's seed stays put
        model = ViT(config)
    model.load_state_dict(adapted.tensors, strict=True)
    return model.eval(), replace(checkpoint, tensors=adapted.tensors, config=config, origin=adapted.origin)


def _open(path: Path) -> tuple[RawFile, dict[str, Any]]:
    """The tensors, and the config.json beside them; {}: there is none."""
    file = _weights_in(path) if path.is_dir() else path
    config = read_json(file.parent / "config.json") or {}
    if path.is_dir() and isinstance(config.get("config"), dict):
        raise CheckpointError(f"{str(path)!r} is a run of vitreous: name it where a run is asked for, with --run")
    return read_tensors(file), config


def _weights_in(folder: Path) -> Path:
    for name in _WEIGHT_FILES:
        if (folder / name).exists():
            return folder / name
    if any(folder.glob("*.index.json")):
        raise CheckpointError(f"the weights in {str(folder)!r} are split over several files: save them as one")
    raise CheckpointError(f"the folder {str(folder)!r} holds neither {' nor '.join(_WEIGHT_FILES)}")


def _map(path: Path, raw: RawFile, config: dict[str, Any], asked: Hints, prefix: str | None) -> tuple[Mapped, Hints]:
    """Find the layout and the prefix, refuse what cannot be expressed, and let the layout's adapter do the rest."""
    for pattern, part in _INEXPRESSIBLE.items():
        if any(re.search(pattern, name) for name in raw.tensors):
            raise CheckpointError(f"the model has {part}, which the paper's ViT does not have")
    layout, prefixes = _detect(raw.tensors)
    if layout.config_key not in config:
        config = {}  # another library's, or none: a file of one layout may lie in another's folder
    neighbours = _neighbours(path, layout, config) if config else Hints()
    hints = asked.over(neighbours.over(hints_from_header(raw.metadata)))
    notes: list[str] = []
    chosen = choose_prefix(prefixes, prefix)
    inside, outside = strip_prefix(raw.tensors, chosen, prefixes, notes)
    mapped = layout.read(inside, hints, config)
    mapped.unexpected = [chosen + name for name in mapped.unexpected] + outside
    mapped.notes = [f"{layout.name} layout", *notes, *mapped.notes]
    return mapped, hints


def _detect(tensors: Mapping[str, Tensor]) -> tuple[_Layout, list[str]]:
    for layout in _LAYOUTS:
        prefixes = find_prefixes(tensors, layout.marker)
        if layout is _HUGGING_FACE:  # the classifier stands outside "vit."
            prefixes = sorted({found.removesuffix(huggingface.BASE) for found in prefixes})
        if prefixes:
            return layout, prefixes
    names = ", ".join(layout.name for layout in _LAYOUTS)
    shown = ", ".join(sorted(tensors)[:3])
    raise CheckpointError(f"its {len(tensors)} tensors ({shown} …) are in no layout known here: {names}")


def _neighbours(path: Path, layout: _Layout, config: Mapping[str, Any]) -> Hints:
    """What config.json and, for Hugging Face, the preprocessor's file tell."""
    if layout is not _HUGGING_FACE:
        return timm.hints_from(config)
    folder = path if path.is_dir() else path.parent
    return huggingface.hints_from(config, read_json(folder / "preprocessor_config.json") or {})


def _fill_up(checkpoint: Checkpoint) -> Checkpoint:
    """For a partial load: drop what does not fit, and take the rest from a freshly initialised model."""
    expected = expected_shapes(checkpoint.config)
    wanted = sum(torch.Size(shape).numel() for shape in expected.values())
    there = sum(tensor.numel() for tensor in checkpoint.tensors.values())
    if wanted > 4 * there + 2**26:  # a small file that implies a huge model is no partial checkpoint
        raise CheckpointError(f"{str(checkpoint.path)!r} implies {wanted:,} parameters and holds {there:,}")
    with torch.random.fork_rng(devices=[]):
        torch.manual_seed(0)  # a training that is resumed from the file starts from the same bits
        tensors = ViT(checkpoint.config).state_dict()
    fitting = {name: tensor for name, tensor in checkpoint.tensors.items() if expected.get(name) == tuple(tensor.shape)}
    if not checkpoint.has_head:  # a backbone stays one: `adapt` gives it a classifier
        tensors = {name: tensor for name, tensor in tensors.items() if name not in HEAD}
    return replace(checkpoint, tensors={**tensors, **fitting})
