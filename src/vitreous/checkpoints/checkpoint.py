"""A checkpoint that was read: tensors in our names, the configuration they imply, and an account of each tensor."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import torch
from torch import Tensor

from vitreous.checkpoints.assumptions import complete, how_to_state
from vitreous.checkpoints.facts import Facts, Stats
from vitreous.checkpoints.fold import class_token_to_register
from vitreous.checkpoints.positions import PositionRule
from vitreous.config import ViTConfig, build_config
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError, ConfigError
from vitreous.models.vit import ViT
from vitreous.reports.formats import by

HEAD = ("head.weight", "head.bias")


@dataclass(kw_only=True)
class Mapped:
    """The tensors of a foreign file under our names and in our shapes, and the names that could not be mapped."""

    tensors: dict[str, Tensor]
    unexpected: list[str]
    facts: Facts  # as the file and the caller state them, or as the layout implies them
    defaults: Facts  # assumed where nothing is stated
    position_rule: PositionRule
    notes: list[str] = field(default_factory=list)
    assumptions: list[str] = field(default_factory=list)  # besides those that arguments change
    used: int = 0  # tensors of the file that went into ours


@dataclass(frozen=True, kw_only=True)
class Checkpoint:
    """Weights for a `ViT(config)`; `notes` state what was converted, `assumptions` what the file leaves open."""

    path: Path
    tensors: dict[str, Tensor]
    config: ViTConfig
    position_rule: PositionRule  # how positions are resized
    mean: Stats = None
    std: Stats = None
    class_names: tuple[str, ...] | None = None
    total: int  # tensors in the file that belong to the model
    used: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong_shape: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()
    assumptions: tuple[str, ...] = ()  # each with the argument that changes it

    @property
    def has_head(self) -> bool:
        return HEAD[0] in self.tensors

    @property
    def problems(self) -> list[str]:
        """What keeps the weights from being a complete model or, without a classifier, a complete backbone."""
        lines = [f"missing: {name}" for name in self.missing]
        lines += [f"unexpected: {name}" for name in self.unexpected]
        return lines + [f"wrong shape: {line}" for line in self.wrong_shape]

    @property
    def report(self) -> str:
        """One line, "152 of 152 tensors, none left over", and one more per problem."""
        head = f"{self.used} of {self.total} tensors"
        if not self.problems:
            return f"{head}, none left over"
        counts = {"missing": self.missing, "left over": self.unexpected, "of the wrong shape": self.wrong_shape}
        words = ", ".join(f"{len(names)} {what}" for what, names in counts.items() if names)
        return "\n".join([f"{head}; {words}", *(f"  {line}" for line in self.problems)])

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How an image becomes this model's input; None if the file does not state it."""
        mean, std = self.mean, self.std
        if mean is None or std is None or not len(mean) == len(std) == self.config.channels or min(std) <= 0:
            return None
        return bilinear_preprocessing(self.config, mean, std)

    @classmethod
    def of_model(cls, model: ViT, mean: Stats = None, std: Stats = None) -> Checkpoint:
        """Return a model of ours as a checkpoint, for `adapt`: transfer from one run to another."""
        tensors = dict(model.state_dict())
        return cls(
            path=Path(), tensors=tensors, config=model.config, position_rule="timm", mean=mean, std=std,
            total=len(tensors), used=len(tensors),
        )  # fmt: skip


def bilinear_preprocessing(config: ViTConfig, mean: tuple[float, ...], std: tuple[float, ...]) -> Preprocessing:
    return Preprocessing(
        image_size=config.image_size, channels=config.channels, mean=mean, std=std, resize="bilinear", polarity="as-is"
    )


def make_checkpoint(path: Path, mapped: Mapped) -> Checkpoint:
    """Infer the configuration, convert to float32 and compare every tensor with what the model expects."""
    notes = list(mapped.notes)
    tensors = _as_float32(mapped.tensors, notes)
    _shape(tensors, "patch_embed.proj.weight", ndim=4)
    facts, assumptions = complete(mapped.facts, mapped.defaults, tensors)
    if facts.pool == "mean" and "cls_token" in tensors:
        class_token_to_register(tensors, notes)
    config = _infer_config(tensors, facts, notes)
    if facts.mean is not None and len(facts.mean) != config.channels:
        notes.append(f"the input's mean has {len(facts.mean)} numbers, for {config.channels} channels: it is not used")
    expected = expected_shapes(config)
    is_backbone = not any(name in tensors for name in HEAD)
    return Checkpoint(
        path=path,
        tensors=tensors,
        config=config,
        position_rule=mapped.position_rule,
        mean=facts.mean,
        std=facts.std,
        class_names=facts.class_names,
        total=mapped.used + len(mapped.unexpected),
        used=mapped.used,
        missing=tuple(name for name in expected if name not in tensors and not (is_backbone and name in HEAD)),
        unexpected=(*mapped.unexpected, *(name for name in tensors if name not in expected)),
        wrong_shape=tuple(
            f"{name}: {tuple(tensor.shape)} in the file, {expected[name]} in the model"
            for name, tensor in tensors.items()
            if name in expected and tuple(tensor.shape) != expected[name]
        ),
        notes=tuple(notes),
        assumptions=(*assumptions, *mapped.assumptions),
    )


def expected_shapes(config: ViTConfig) -> dict[str, tuple[int, ...]]:
    """Return the names and shapes of the model's parameters without allocating: a hostile file may imply any size."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in ViT(config).state_dict().items()}


def _as_float32(tensors: Mapping[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    dtypes = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()} - {"float32"}
    if dtypes:
        notes.append(f"stored as {', '.join(sorted(dtypes))}, computed in float32")
    converted = {name: tensor.to(torch.float32).contiguous() for name, tensor in tensors.items()}
    bad = [name for name, tensor in converted.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise CheckpointError(f"{len(bad)} tensors hold NaN or infinity, the first is {bad[0]!r}")
    return converted


# --- the configuration, from shapes and facts --------------------------------------------------------------


def _infer_config(tensors: Mapping[str, Tensor], facts: Facts, notes: list[str]) -> ViTConfig:
    """Return the configuration that shapes and facts imply; an error names the argument that would complete it."""
    dim, channels, *patch_size = _shape(tensors, "patch_embed.proj.weight", ndim=4)  # (D, C, P, P)
    pre_logits = tensors.get("pre_logits.weight")
    head = tensors.get("head.weight")
    if "pos_embed" not in tensors and facts.positions != "none":
        raise CheckpointError(
            "it has no position embeddings: they may be rotary (rope) or computed, which vitreous' ViT does not do, and"
            " the file does not state that there are none"
        )
    values: dict[str, Any] = {
        "dim": dim,
        "channels": channels,
        "patch_size": tuple(patch_size),
        "depth": len({name.split(".")[1] for name in tensors if name.startswith("blocks.")}),
        "mlp_dim": _shape(tensors, "blocks.0.mlp.fc1.weight", ndim=2)[0],
        "num_heads": facts.num_heads,
        "image_size": _infer_image_size(tensors, tuple(patch_size), facts.image_size),
        "pool": facts.pool,
        "positions": "learned" if "pos_embed" in tensors else "none",
        "registers": _num_registers(tensors),
        "pre_norm": "norm_pre.weight" in tensors,
        "norm_after_pool": bool(facts.norm_after_pool) and facts.pool == "mean",  # of one token it is the same
        "head": "linear" if pre_logits is None else "mlp",
        "head_hidden": None if pre_logits is None or len(pre_logits) == dim else len(pre_logits),
        "num_classes": 1 if head is None else len(head),
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "norm_eps": facts.norm_eps,
        "gelu": facts.gelu,
    }
    _check_statements(values, facts, has_head=head is not None)
    if head is None:
        notes.append("a backbone: the file has no classifier")
    try:
        return build_config(ViTConfig, values).check_geometry()
    except ConfigError as error:
        raise CheckpointError(f"no ViT can be built from it: {error}") from None


def _shape(tensors: Mapping[str, Tensor], name: str, ndim: int) -> tuple[int, ...]:
    if name not in tensors:
        raise CheckpointError(f"it lacks {name!r} (in our names), from which the architecture is inferred")
    shape = tuple(tensors[name].shape)
    if len(shape) != ndim or 0 in shape:
        raise CheckpointError(f"{name!r} (in our names) has the shape {shape}; expected {ndim} axes")
    return shape


def _num_registers(tensors: Mapping[str, Tensor]) -> int:
    return _shape(tensors, "reg_token", ndim=3)[1] if "reg_token" in tensors else 0


#: What other libraries call our settings.
_THEIR_NAMES = {
    "dim": " (hidden_size, embed_dim)", "depth": " (num_hidden_layers)", "mlp_dim": " (intermediate_size, mlp_ratio)",
    "channels": " (num_channels, in_chans)", "num_classes": " (num_labels, id2label)", "positions": " (pos_embed)",
}  # fmt: skip


def _check_statements(values: Mapping[str, Any], facts: Facts, *, has_head: bool) -> None:
    """Refuse weights whose configuration states another model."""
    for name in (
        "dim",
        "depth",
        "mlp_dim",
        "patch_size",
        "channels",
        "qkv_bias",
        "pre_norm",
        "num_classes",
        "positions",
    ):
        stated = getattr(facts, name)
        if stated is None or stated == values[name] or (name == "num_classes" and not has_head):
            continue
        raise CheckpointError(
            f"its configuration states {name}={stated}{_THEIR_NAMES.get(name, '')}, and the weights have"
            f" {values[name]}: correct the one that is wrong"
        )


def _infer_image_size(
    tensors: Mapping[str, Tensor], patch_size: tuple[int, ...], stated: tuple[int, int] | None
) -> tuple[int, int]:
    if "pos_embed" not in tensors:
        if stated is None:
            raise CheckpointError(
                f"it has no positions to infer the image size from: give {how_to_state('trained_size')}"
            )
        return stated
    patch_height, patch_width = patch_size
    num_patches = _shape(tensors, "pos_embed", ndim=3)[1] - ("cls_token" in tensors)
    if stated is not None:
        (rows, rest_rows), (columns, rest_columns) = map(divmod, stated, patch_size)
        if rest_rows == rest_columns == 0 and rows * columns == num_patches:
            return stated
        raise CheckpointError(
            f"it was not trained at {by(*stated)} pixels: it has positions for {num_patches} patches of"
            f" {by(*patch_size)}; correct the one that is wrong"
        )
    side = math.isqrt(max(num_patches, 0))
    if side == 0 or side * side != num_patches:
        raise CheckpointError(
            f"it has positions for {num_patches} patches of {by(*patch_size)} pixels, which make no square: give"
            f" {how_to_state('trained_size')}, height and width in pixels"
        )
    return side * patch_height, side * patch_width
