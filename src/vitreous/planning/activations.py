"""What a training step keeps for its backward pass, recorded on fake tensors: nothing is allocated or computed.

The encoder blocks keep the same, so a ViT of any depth is extrapolated from two and three blocks.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache

import torch
import torch.nn.functional as F
from torch import Tensor, nn
from torch._subclasses.fake_tensor import FakeTensorMode

from vitreous.config import ModelConfig, TrainConfig, ViTConfig
from vitreous.models import build
from vitreous.training.sharding import recompute_blocks
from vitreous.training.step import DTYPES, freeze


@dataclass(frozen=True)
class Kept:
    """Bytes kept until the backward pass: for each image, and however many there are (weights cast to bfloat16)."""

    per_image: float = 0
    fixed: float = 0

    def __add__(self, other: Kept) -> Kept:
        return Kept(self.per_image + other.per_image, self.fixed + other.fixed)

    def __mul__(self, factor: float) -> Kept:
        return Kept(self.per_image * factor, self.fixed * factor)

    def of(self, images: int) -> float:
        return self.per_image * images + self.fixed


def kept_for_backward(model: ModelConfig, train: TrainConfig, recompute: bool = False) -> Kept:
    """Return what the forward pass keeps; with `recompute`, the inputs of the blocks and one block's activations.

    Only a ViT has blocks to recompute (activation checkpointing).
    """
    train = TrainConfig(precision=train.precision, freeze=train.freeze)  # all that matters here
    if not isinstance(model, ViTConfig):
        return _record(model, train)
    two, three = (_record(model.replace(depth=depth), train, recompute) for depth in (2, 3))
    kept = two + (three + two * -1) * (model.depth - 2)
    if recompute:
        kept += _record(model.replace(depth=3), train) + _record(model.replace(depth=2), train) * -1
    return kept


@lru_cache(maxsize=64)
def _record(config: ModelConfig, train: TrainConfig, recompute: bool = False) -> Kept:
    with torch.device("meta"):
        model = build(config).to(DTYPES[train.precision]).train()
    freeze(model, train)
    if recompute:
        recompute_blocks(model)
    with FakeTensorMode(allow_non_fake_inputs=True):
        model.to_empty(device="cpu")
        one, two = (_kept_bytes(model, config, train, images) for images in (1, 2))
    return Kept(two - one, 2 * one - two)


def _kept_bytes(model: nn.Module, config: ModelConfig, train: TrainConfig, images: int) -> int:
    """Return the bytes that autograd saves for some images, without the parameters themselves."""
    parameters = {parameter.untyped_storage()._cdata for parameter in model.parameters()}
    kept: dict[int, Tensor] = {}  # by storage: q, k and v are three views of one

    def keep(tensor: Tensor) -> Tensor:
        if (storage := tensor.untyped_storage()._cdata) not in parameters:
            kept[storage] = tensor
        return tensor

    pixels = torch.zeros(images, config.channels, *config.image_size, dtype=DTYPES[train.precision])
    labels = torch.zeros(images, dtype=torch.long)
    is_bfloat16 = train.precision == "bfloat16"
    with (
        torch.autocast("cpu", torch.bfloat16, enabled=is_bfloat16),
        torch.autograd.graph.saved_tensors_hooks(keep, lambda tensor: tensor),
    ):
        logits = model(pixels)
        F.cross_entropy(logits.float() if is_bfloat16 else logits, labels)
    return sum(tensor.untyped_storage().nbytes() for tensor in kept.values())
