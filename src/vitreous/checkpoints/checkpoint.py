"""What was read from a weights file: tensors in our names, the configuration they imply, and an account of each."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

import torch
from torch import Tensor

from vitreous.checkpoints.positions import PositionRule
from vitreous.config import ViTConfig, build_config
from vitreous.data.preprocessing import Preprocessing
from vitreous.errors import CheckpointError, ConfigError
from vitreous.models.vit import ViT

LayoutName = Literal["timm", "hf", "torchvision", "google", "vit-pytorch", "vitreous"]

#: Heads of the published models, for layouts that do not record them: width → heads (ViT-H and up are not 64 wide).
PUBLISHED_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1280: 16, 1408: 16, 1664: 16}

HEAD = ("head.weight", "head.bias")


@dataclass(frozen=True)
class Origin:
    """Facts that must travel with the weights, or they mean something else."""

    layout: LayoutName
    norm_eps: float
    gelu: Literal["erf", "tanh"]
    position_rule: PositionRule
    mean: tuple[float, ...] | None = None  # of the input, a number a channel, for pixels in [0, 1]; None: not known
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None


@dataclass(frozen=True)
class Hints:
    """What a file's neighbours, its header or the person say about it; None: nobody says."""

    num_heads: int | None = None
    image_size: tuple[int, int] | None = None
    channels: int | None = None
    norm_eps: float | None = None
    gelu: Literal["erf", "tanh"] | None = None
    mean: tuple[float, ...] | None = None
    std: tuple[float, ...] | None = None
    class_names: tuple[str, ...] | None = None

    def over(self, other: Hints) -> Hints:
        """These hints, completed by `other` where they are silent."""
        return replace(other, **{key: value for key, value in vars(self).items() if value is not None})


@dataclass
class Mapped:
    """A foreign file after its adapter: our names and shapes, and what could not be placed."""

    tensors: dict[str, Tensor]
    used: int  # tensors of the file that went into them
    unexpected: list[str]
    origin: Origin
    notes: list[str] = field(default_factory=list)
    num_heads: int | None = None
    pool: Literal["cls", "mean"] | None = None


@dataclass(frozen=True)
class Checkpoint:
    """Weights ready for a `ViT(config)`. `notes` say what was assumed or converted on the way."""

    path: Path
    tensors: dict[str, Tensor]
    config: ViTConfig
    origin: Origin
    total: int  # tensors in the file that belong to the model
    used: int
    missing: tuple[str, ...] = ()
    unexpected: tuple[str, ...] = ()
    wrong_shape: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def has_head(self) -> bool:
        return HEAD[0] in self.tensors

    @property
    def problems(self) -> list[str]:
        """What keeps the weights from being a whole model (without a classifier: a whole backbone), a line each."""
        lines = [f"missing: {name}" for name in self.missing]
        lines += [f"unexpected: {name}" for name in self.unexpected]
        return lines + [f"wrong shape: {line}" for line in self.wrong_shape]

    @property
    def report(self) -> str:
        """One line: "152 of 152 tensors, none left over"; then, where there are any, the problems."""
        head = f"{self.used} of {self.total} tensors"
        if not self.problems:
            return f"{head}, none left over"
        counts = {"missing": self.missing, "left over": self.unexpected, "of the wrong shape": self.wrong_shape}
        words = ", ".join(f"{len(names)} {what}" for what, names in counts.items() if names)
        return "\n".join([f"{head}; {words}", *(f"  {line}" for line in self.problems)])

    @property
    def preprocessing(self) -> Preprocessing | None:
        """How an image becomes this model's input; None where the file does not say (then `notes` do)."""
        mean, std, config = self.origin.mean, self.origin.std, self.config
        if mean is None or std is None or not len(mean) == len(std) == config.channels or min(std) <= 0:
            return None
        geometry = {"image_size": config.image_size, "channels": config.channels}
        return Preprocessing(**geometry, mean=mean, std=std, resize="bilinear", polarity="as-is")

    @classmethod
    def of_model(
        cls,
        model: ViT,
        origin: Origin | None = None,
        mean: tuple[float, ...] | None = None,
        std: tuple[float, ...] | None = None,
    ) -> Checkpoint:
        """A model of ours as a checkpoint, for `adapt`: transfer from one run to another."""
        config, tensors = model.config, dict(model.state_dict())
        origin = origin or Origin("vitreous", config.norm_eps, config.gelu, "timm", mean, std)
        return cls(Path(), tensors, config, origin, total=len(tensors), used=len(tensors))


def make_checkpoint(path: Path, mapped: Mapped, hints: Hints) -> Checkpoint:
    """Infer the configuration, convert to float32 and hold every tensor against what the model expects."""
    notes = list(mapped.notes)
    tensors = _as_float32(mapped.tensors, notes)
    config = infer_config(tensors, mapped, hints, notes)
    expected = expected_shapes(config)
    is_backbone = not any(name in tensors for name in HEAD)
    missing = tuple(name for name in expected if name not in tensors and not (is_backbone and name in HEAD))
    wrong = tuple(
        f"{name}: {tuple(tensor.shape)} in the file, {expected[name]} in the model"
        for name, tensor in tensors.items()
        if name in expected and tuple(tensor.shape) != expected[name]
    )
    homeless = tuple(name for name in tensors if name not in expected)
    return Checkpoint(
        path, tensors, config, mapped.origin, total=mapped.used + len(mapped.unexpected), used=mapped.used,
        missing=missing, unexpected=(*mapped.unexpected, *homeless), wrong_shape=wrong, notes=tuple(notes),
    )  # fmt: skip


def _as_float32(tensors: Mapping[str, Tensor], notes: list[str]) -> dict[str, Tensor]:
    kinds = {str(tensor.dtype).removeprefix("torch.") for tensor in tensors.values()} - {"float32"}
    if kinds:
        notes.append(f"stored as {', '.join(sorted(kinds))}, computed in float32")
    converted = {name: tensor.to(torch.float32).contiguous() for name, tensor in tensors.items()}
    bad = [name for name, tensor in converted.items() if not torch.isfinite(tensor).all()]
    if bad:
        raise CheckpointError(f"{len(bad)} tensors hold NaN or infinity, the first is {bad[0]!r}")
    return converted


def infer_config(tensors: Mapping[str, Tensor], mapped: Mapped, hints: Hints, notes: list[str]) -> ViTConfig:
    """The configuration that the shapes, the adapter and the hints imply; what nobody says is asked for by name."""
    kernel = _get(tensors, "patch_embed.proj.weight", ndim=4)  # (D, C, P, P)
    dim, channels, *patch_size = kernel.shape
    pre_logits = tensors.get("pre_logits.weight")
    head = tensors.get("head.weight")
    values: dict[str, Any] = {
        "dim": dim,
        "channels": channels,
        "patch_size": tuple(patch_size),
        "depth": len({name.split(".")[1] for name in tensors if name.startswith("blocks.")}),
        "mlp_dim": _get(tensors, "blocks.0.mlp.fc1.weight", ndim=2).shape[0],
        "num_heads": _tell_heads(dim, mapped, hints, notes),
        "image_size": _tell_image_size(tensors, tuple(patch_size), hints),
        "pool": mapped.pool or ("cls" if "cls_token" in tensors else "mean"),
        "positions": "learned" if "pos_embed" in tensors else "none",
        "head": "linear" if pre_logits is None else "mlp",
        "head_hidden": None if pre_logits is None or len(pre_logits) == dim else len(pre_logits),
        "num_classes": 1 if head is None else len(head),
        "qkv_bias": "blocks.0.attn.qkv.bias" in tensors,
        "norm_eps": mapped.origin.norm_eps,
        "gelu": mapped.origin.gelu,
    }
    if head is None:
        notes.append("a backbone: there is no classifier in the file")
    try:
        return build_config(ViTConfig, values).check_geometry()
    except ConfigError as error:
        raise CheckpointError(f"it is no ViT that can be built: {error}") from None


def _get(tensors: Mapping[str, Tensor], name: str, ndim: int) -> Tensor:
    if name not in tensors:
        raise CheckpointError(f"it lacks {name!r} (by our names), without which nothing can be told")
    if tensors[name].ndim != ndim or 0 in tensors[name].shape:
        raise CheckpointError(f"{name!r} (by our names) has the shape {tuple(tensors[name].shape)}")
    return tensors[name]


def _tell_heads(dim: int, mapped: Mapped, hints: Hints, notes: list[str]) -> int:
    heads = mapped.num_heads or hints.num_heads
    if mapped.num_heads and hints.num_heads and mapped.num_heads != hints.num_heads:
        raise CheckpointError(f"it has {mapped.num_heads} heads, not num_heads={hints.num_heads}")
    if heads is None:
        if dim not in PUBLISHED_HEADS:
            raise CheckpointError(
                f"it does not say how many heads its width of {dim} is cut into, and no published ViT has"
                " that width: give num_heads=…"
            )
        heads = PUBLISHED_HEADS[dim]
        notes.append(f"{heads} heads, as the published models of width {dim} have: the file does not say")
    return heads


def _tell_image_size(tensors: Mapping[str, Tensor], patch_size: tuple[int, ...], hints: Hints) -> tuple[int, int]:
    ph, pw = patch_size
    if "pos_embed" not in tensors:
        if hints.image_size is None:
            raise CheckpointError("it has no positions, so nothing tells its image size: give trained_size=…")
        return hints.image_size
    num_patches = _get(tensors, "pos_embed", ndim=3).shape[1] - ("cls_token" in tensors)
    if hints.image_size is not None:
        height, width = hints.image_size
        if height % ph == width % pw == 0 and (height // ph) * (width // pw) == num_patches:
            return hints.image_size
    side = math.isqrt(max(num_patches, 0))
    if side == 0 or side * side != num_patches:
        raise CheckpointError(
            f"it has positions for {num_patches} patches of {ph}×{pw} pixels, which make no square: give"
            " trained_size=(height, width)"
        )
    return side * ph, side * pw


def expected_shapes(config: ViTConfig) -> dict[str, tuple[int, ...]]:
    """Names and shapes of the model's parameters, without the memory: a hostile file may imply any size."""
    with torch.device("meta"):
        return {name: tuple(tensor.shape) for name, tensor in ViT(config).state_dict().items()}
