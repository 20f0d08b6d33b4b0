"""Fit weights to another task: other images, patches, channels or classes. Every change is reported."""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F
from torch import Tensor

from vitreous.checkpoints.checkpoint import HEAD, Checkpoint, expected_shapes
from vitreous.checkpoints.facts import Stats
from vitreous.checkpoints.positions import RULE_IN_WORDS, resize_positions
from vitreous.config import ViTConfig
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError
from vitreous.reports.formats import by, join

#: Settings that the weights determine: a configuration with other values describes another model.
_ARCHITECTURE = (
    "dim", "depth", "num_heads", "mlp_dim", "pool", "positions", "stem_channels", "stem_depth", "qkv_bias", "norm_eps",
    "gelu", "registers", "pre_norm", "norm_after_pool", "window", "embed_hidden",
)  # fmt: skip


@dataclass(frozen=True)
class Adapted:
    """A complete state dict for `ViT(config)`, what was changed, and the input's mean and std."""

    tensors: dict[str, Tensor]
    changes: list[str]
    mean: Stats
    std: Stats

    def normalise_as_before(self, preprocessing: Preprocessing) -> Preprocessing:
        """Return `preprocessing` with the normalisation the weights were trained with, unless it is unknown."""
        if self.mean is None or self.std is None:
            return preprocessing
        return preprocessing.model_copy(update={"mean": self.mean, "std": self.std})


def take_architecture(checkpoint: Checkpoint, config: ViTConfig) -> ViTConfig:
    """Return `config` with the settings that the weights determine (width, depth, heads, ε, GELU …) taken from them;
    images, patches, channels, classes and regularisation stay as they are."""
    return config.replace(**{name: getattr(checkpoint.config, name) for name in _ARCHITECTURE})


def adapt(checkpoint: Checkpoint, config: ViTConfig, *, new_head: bool | None = None) -> Adapted:
    """Return the checkpoint's weights for `ViT(config)`.

    Position embeddings are resized by the rule of the weights' origin, the patch kernel by its pseudo-inverse, input
    channels summed or spread. `new_head`: start the classifier at zero, as the paper does in fine-tuning; None: only
    if the number of classes or the kind of head differs, or the file has no classifier.
    """
    old, expected = checkpoint.config, expected_shapes(config)
    _check_architecture(old, config)
    tensors, changes, mean, std = dict(checkpoint.tensors), list[str](), checkpoint.mean, checkpoint.std
    if old.channels != config.channels:
        first = "stem.0" if config.stem_channels else "patch_embed.proj"
        weight, bias = f"{first}.weight", f"{first}.bias"
        tensors[weight], tensors[bias], mean, std = change_channels(
            tensors[weight], tensors[bias], config.channels, mean, std
        )
        how = (
            "summed over the channels, the same model for gray images"
            if config.channels < old.channels
            else "divided equally among the channels, the same model for images of equal channels"
        )
        changes.append(f"input channels {old.channels} → {config.channels}: the kernel of {first} {how}")
    if old.patch_size != config.patch_size and config.window is not None:
        raise CheckpointError(
            f"the weights have patches of {by(*old.patch_size)} with windows of {by(*config.window)}, which cannot be"
            f" resized to patches of {by(*config.patch_size)}: keep model.patch_size"
        )
    if old.patch_size != config.patch_size:
        kernel = "patch_embed.proj.weight"
        tensors[kernel] = resize_patch_kernel(tensors[kernel], config.patch_size)
        changes.append(
            f"patches {by(*old.patch_size)} → {by(*config.patch_size)} pixels: pseudo-inverse resize of the kernel"
            " (FlexiViT), which maps a resized patch to the same token"
        )
    if old.grid != config.grid and config.positions == "learned":
        rule, has_class_token = checkpoint.position_rule, config.has_class_token
        tensors["pos_embed"] = resize_positions(tensors["pos_embed"], old.grid, config.grid, has_class_token, rule)
        changes.append(f"positions {by(*old.grid)} → {by(*config.grid)} patches: {RULE_IN_WORDS[rule]}")
    if drops_mlp_head := old.head == "mlp" and config.head == "linear":
        changes.append("the pre-training MLP head is dropped, as the paper does in fine-tuning")
    if new_head is None:
        new_head = not checkpoint.has_head or old.num_classes != config.num_classes
    if new_head or drops_mlp_head:
        tensors |= {name: torch.zeros(expected[name]) for name in HEAD}
        before = f"in place of the one for {old.num_classes}" if checkpoint.has_head else "the file had none"
        changes.append(f"a new classifier for {config.num_classes} classes, starting at zero: {before}")
    if config.knows_background:  # training takes it from the data
        tensors.setdefault("background", torch.zeros(expected["background"]))
    wrong = [name for name in expected if name not in tensors or tuple(tensors[name].shape) != expected[name]]
    if wrong:
        raise CheckpointError(
            f"the weights cannot be fitted to this configuration: missing or of another shape: {join(wrong, most=5)}"
        )
    return Adapted({name: tensors[name].contiguous() for name in expected}, changes, mean, std)


def _check_architecture(old: ViTConfig, new: ViTConfig) -> None:
    differing = [
        f"{name} is {getattr(old, name)} in the weights and {getattr(new, name)} in the configuration"
        for name in _ARCHITECTURE
        if getattr(old, name) != getattr(new, name)
    ]
    if differing:
        raise CheckpointError(f"the weights are of another model: {'; '.join(differing)}")
    if new.head == "mlp" and (old.head != "mlp" or new.head_hidden != old.head_hidden):
        raise CheckpointError("the weights have no MLP head of that width: set model.head=linear, as fine-tuning does")


# --- the patch kernel: D width, C channels, p × p the old patch, q × q the new one; a kernel is (D, C, p, p) ---


def resize_patch_kernel(kernel: Tensor, new_size: tuple[int, int]) -> Tensor:
    """Resize by pseudo-inverse (FlexiViT, Beyer et al. 2023, Section 3.4): a resized patch gives the same token.

    With R the linear map that resizes a p × p patch x to q × q, the new kernel is w' = (Rᵀ)⁺ w, the least-squares
    solution of ⟨R x, w'⟩ = ⟨x, w⟩ for all x: exact when the patch grows, optimal when it shrinks. Resizing the kernel
    like an image instead (plain bilinear) scales the tokens by about (q / p)².
    R is bilinear and antialiased, because small images are usually averaged down from larger ones. It is separable, so
    two small pseudo-inverses suffice: W' = (R_row⁺)ᵀ W R_column⁺.
    """
    rows, columns = (
        torch.linalg.pinv(_resize_matrix(old, new)) for old, new in zip(kernel.shape[-2:], new_size, strict=True)
    )  # (p, q) each
    return (rows.T @ kernel.double() @ columns).to(kernel.dtype)


def _resize_matrix(old: int, new: int) -> Tensor:
    """Return R for one axis, (new, old): the resized unit vectors."""
    units = torch.eye(old, dtype=torch.float64)[None, None]
    return F.interpolate(units, size=(new, old), mode="bilinear", antialias=True)[0, 0]


def change_channels(
    kernel: Tensor, bias: Tensor, channels: int, mean: Stats, std: Stats
) -> tuple[Tensor, Tensor, Stats, Stats]:
    """Convert a first convolution from 3 channels to 1 or 1 to 3; return kernel, bias, and the input's mean and std.

    3 → 1: three equal channels give Σ_c w_c · x, so the sum over the channels is the same model for gray images.
    Channels that were normalised differently ((g - m_c) / s_c, as ImageNet's) get one mean m and deviation s:
    w = Σ_c w_c s / s_c, and the difference of the means goes into the bias, Σ w_c (m - m_c) / s_c.
    1 → 3: a third of the kernel per channel, the same model for images whose channels are equal.
    """
    old = kernel.shape[1]
    if (old, channels) == (1, 3):
        return kernel.expand(-1, 3, -1, -1) / 3, bias, mean and mean * 3, std and std * 3
    if channels != 1:
        raise CheckpointError(
            f"weights for {old} input channels cannot be fitted to {channels}; only 3 → 1 and 1 → 3 can"
        )
    if mean is None or std is None or len(mean) != old or len(std) != old:
        return kernel.sum(dim=1, keepdim=True), bias, None, None
    gray_mean, gray_std = sum(mean) / old, sum(std) / old
    means, stds = torch.tensor([mean, std], dtype=torch.float64)
    per_channel = kernel.double()
    shift = (per_channel.sum(dim=(2, 3)) * (gray_mean - means) / stds).sum(dim=1)  # (D,)
    gray = (per_channel * (gray_std / stds)[:, None, None]).sum(dim=1, keepdim=True)
    return gray.to(kernel.dtype), (bias.double() + shift).to(bias.dtype), (gray_mean,), (gray_std,)
