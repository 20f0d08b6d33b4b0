"""Weights fitted to another task: other images, other patches, other channels, other classes.

Nothing is changed silently: `adapt` returns what it did, in words.
"""

from __future__ import annotations

from dataclasses import dataclass, replace

import torch
from torch import Tensor

from vitreous.checkpoints.checkpoint import HEAD, Checkpoint, Origin, expected_shapes
from vitreous.checkpoints.patches import change_channels, resize_patch_kernel
from vitreous.checkpoints.positions import RULE_IN_WORDS, resize_positions
from vitreous.config import ViTConfig
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError

#: What the weights decide. A configuration that says otherwise describes another model.
_ARCHITECTURE = (
    "dim", "depth", "num_heads", "mlp_dim", "pool", "positions", "stem_channels", "stem_depth", "qkv_bias", "norm_eps",
    "gelu",
)  # fmt: skip


@dataclass(frozen=True)
class Adapted:
    """A whole state dict for `ViT(config)`, what was changed, and the origin with the input's mean and std as now."""

    tensors: dict[str, Tensor]
    changes: list[str]
    origin: Origin

    def normalise_as_before(self, preprocessing: Preprocessing) -> Preprocessing:
        """`preprocessing` with the input normalisation the weights were trained with, where it is known."""
        if self.origin.mean is None or self.origin.std is None:
            return preprocessing
        return preprocessing.model_copy(update={"mean": self.origin.mean, "std": self.origin.std})


def take_architecture(checkpoint: Checkpoint, config: ViTConfig) -> ViTConfig:
    """`config` with what the weights decide taken from them (width, depth, heads, ε, GELU …); images, patches,
    channels, classes and regularisation stay as they are."""
    return config.replace(**{name: getattr(checkpoint.config, name) for name in _ARCHITECTURE})


def adapt(checkpoint: Checkpoint, config: ViTConfig, *, new_head: bool | None = None) -> Adapted:
    """The checkpoint's weights for `ViT(config)`.

    Position embeddings are resized by the rule of the weights' origin, the patch kernel by its pseudo-inverse, input
    channels summed or spread. `new_head`: start the classifier at zero, as the paper does in fine-tuning; None: only
    if the classes' number or the kind of head differ, or the file has none.
    """
    _check_architecture(checkpoint, config)
    tensors, changes = dict(checkpoint.tensors), list[str]()
    origin = _adapt_channels(tensors, checkpoint, config, changes)
    _adapt_patches(tensors, checkpoint.config, config, changes)
    _adapt_positions(tensors, checkpoint, config, changes)
    _adapt_head(tensors, checkpoint, config, new_head, changes)
    expected = expected_shapes(config)
    wrong = [name for name in expected if name not in tensors or tuple(tensors[name].shape) != expected[name]]
    if wrong:
        shown = ", ".join(wrong[:5]) + (" …" if len(wrong) > 5 else "")
        raise CheckpointError(
            f"the weights cannot be fitted to this configuration: {shown} differ in shape or are missing"
        )
    return Adapted({name: tensors[name].contiguous() for name in expected}, changes, origin)


def _check_architecture(checkpoint: Checkpoint, config: ViTConfig) -> None:
    differing = [
        f"{name} is {getattr(checkpoint.config, name)} in the weights and {getattr(config, name)} in the configuration"
        for name in _ARCHITECTURE
        if getattr(checkpoint.config, name) != getattr(config, name)
    ]
    if differing:
        raise CheckpointError(f"the weights are another model's: {'; '.join(differing)}")


def _adapt_channels(
    tensors: dict[str, Tensor], checkpoint: Checkpoint, config: ViTConfig, changes: list[str]
) -> Origin:
    old, origin = checkpoint.config.channels, checkpoint.origin
    if old == config.channels:
        return origin
    first = "stem.0" if config.stem_channels else "patch_embed.proj"
    weight, bias = f"{first}.weight", f"{first}.bias"
    tensors[weight], tensors[bias], mean, std = change_channels(
        tensors[weight], tensors[bias], config.channels, origin.mean, origin.std
    )
    how = (
        "summed over the channels, which is the same model for gray images"
        if config.channels < old
        else "a third for each channel, which is the same model for images of equal channels"
    )
    changes.append(f"input channels {old} → {config.channels}: the kernel of {first} {how}")
    return replace(origin, mean=mean, std=std)


def _adapt_patches(tensors: dict[str, Tensor], old: ViTConfig, new: ViTConfig, changes: list[str]) -> None:
    if old.patch_size == new.patch_size:
        return
    name = "patch_embed.proj.weight"
    tensors[name] = resize_patch_kernel(tensors[name], new.patch_size)
    changes.append(
        f"patches {_times(old.patch_size)} → {_times(new.patch_size)} pixels: pseudo-inverse resize of the kernel"
        " (FlexiViT), which answers a resized patch as before"
    )


def _adapt_positions(tensors: dict[str, Tensor], checkpoint: Checkpoint, config: ViTConfig, changes: list[str]) -> None:
    old = checkpoint.config
    if old.grid == config.grid or config.positions != "learned":
        return
    rule = checkpoint.origin.position_rule
    tensors["pos_embed"] = resize_positions(tensors["pos_embed"], old.grid, config.grid, config.has_class_token, rule)
    changes.append(f"positions {_times(old.grid)} → {_times(config.grid)} patches: {RULE_IN_WORDS[rule]}")


def _adapt_head(
    tensors: dict[str, Tensor], checkpoint: Checkpoint, config: ViTConfig, new_head: bool | None, changes: list[str]
) -> None:
    old = checkpoint.config
    if config.head == "mlp" and (old.head != "mlp" or config.head_hidden != old.head_hidden):
        raise CheckpointError("the weights have no MLP head of that width: set model.head=linear, as fine-tuning does")
    if new_head is None:
        new_head = not checkpoint.has_head or (old.num_classes, old.head) != (config.num_classes, config.head)
    if old.head == "mlp" and config.head == "linear":
        for name in ("pre_logits.weight", "pre_logits.bias"):
            tensors.pop(name, None)
        changes.append("the pre-training MLP head is dropped, as the paper does in fine-tuning")
        new_head = True
    if not new_head:
        return
    hidden = (config.head_hidden or config.dim) if config.head == "mlp" else config.dim
    tensors[HEAD[0]], tensors[HEAD[1]] = torch.zeros(config.num_classes, hidden), torch.zeros(config.num_classes)
    before = f"in place of the one for {old.num_classes}" if checkpoint.has_head else "the file had none"
    changes.append(f"a new classifier for {config.num_classes} classes, starting at zero: {before}")


def _times(size: tuple[int, int]) -> str:
    return f"{size[0]}×{size[1]}"
