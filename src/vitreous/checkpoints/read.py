"""Read a published checkpoint: detect its layout, return its weights in our names or a model with them."""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError
from torch import Tensor

from vitreous.checkpoints import clip, google, hf_config, huggingface, timm, torchvision, vit_pytorch
from vitreous.checkpoints.adapt import adapt
from vitreous.checkpoints.assumptions import log_assumptions
from vitreous.checkpoints.checkpoint import HEAD, Checkpoint, Mapped, expected_shapes, make_checkpoint
from vitreous.checkpoints.facts import Facts, Gelu, Pool
from vitreous.checkpoints.files import RawFile
from vitreous.checkpoints.folder import WEIGHT_FILES, open_weights
from vitreous.checkpoints.names import choose_prefix, strip_prefix
from vitreous.checkpoints.unsupported import refuse_unsupported
from vitreous.errors import CheckpointError, ConfigError, quoted
from vitreous.models import ViT, build


@dataclass(frozen=True, kw_only=True)
class Layout:
    name: str
    marker: str  # a tensor that only this layout has; the text before it is the prefix
    read: Callable[[Mapping[str, Tensor], Facts, Mapping[str, Any]], Mapped]
    bases: tuple[str, ...] = ()  # prefixes of the backbone that the classifier does not have
    config_key: str | None = None  # a key that only this layout's config.json has
    read_config: Callable[[Mapping[str, Any], Path], Facts] = lambda config, folder: Facts()


LAYOUTS = (
    Layout(
        name="Hugging Face",
        marker=huggingface.MARKER,
        read=huggingface.read,
        bases=huggingface.BASES,
        config_key="model_type",
        read_config=hf_config.read_config,
    ),
    Layout(
        name="Hugging Face CLIP or SigLIP",
        marker=clip.MARKER,
        read=clip.read,
        bases=clip.BASES,
        config_key="model_type",
        read_config=hf_config.read_config,
    ),
    Layout(name="timm", marker=timm.MARKER, read=timm.read, config_key="architecture", read_config=timm.read_config),
    Layout(name="torchvision", marker=torchvision.MARKER, read=torchvision.read),
    Layout(name="Google npz", marker=google.MARKER, read=google.read),
    Layout(name="vit-pytorch", marker=vit_pytorch.MARKER, read=vit_pytorch.read),
)


def read_checkpoint(
    path: Path | str,
    *,
    allow_partial: bool = False,
    num_heads: int | None = None,
    pool: Pool | None = None,
    gelu: Gelu | None = None,
    norm_eps: float | None = None,
    trained_size: int | tuple[int, int] | None = None,
    channels: int | None = None,
    prefix: str | None = None,
) -> Checkpoint:
    """Return the weights of a file or folder in our names, with the configuration they imply.

    The keyword arguments state what a file may leave open: heads, pooling, GELU and ε, which are otherwise assumed (and
    the assumptions printed), the image size it was trained at if its grid is not square, the channels of a vit-pytorch
    patch, and which of several models to take. A tensor that is
    missing, unexpected or of the wrong shape is an error that lists them all; with `allow_partial` the same list is in
    `Checkpoint.report`, and the tensors of a freshly initialised model (seed 0) take their places.
    """
    asked = {
        "num_heads": num_heads, "image_size": trained_size, "channels": channels, "pool": pool, "gelu": gelu,
        "norm_eps": norm_eps,
    }  # fmt: skip
    checkpoint = read_quietly(Path(path), asked, prefix, allow_partial)
    log_assumptions(path, checkpoint.assumptions)
    return checkpoint


def read_quietly(path: Path, asked: Mapping[str, Any], prefix: str | None, allow_partial: bool) -> Checkpoint:
    """Return `read_checkpoint`'s result without printing what was assumed."""
    try:
        facts = Facts.model_validate(asked)
    except ValidationError as error:
        name = str(error.errors()[0]["loc"][0])
        given = "trained_size" if name == "image_size" else name
        expected = {"pool": "cls or mean", "gelu": "erf, tanh or quick", "norm_eps": "a number above 0"}
        raise CheckpointError(
            f"{given}={quoted(asked[name])}: expected {expected.get(name, 'positive whole numbers')}"
        ) from None
    raw, config = open_weights(path)
    try:
        checkpoint = make_checkpoint(path, _map(raw, config, path, facts, prefix))
    except CheckpointError as error:
        raise CheckpointError(f"{str(path)!r}: {error}") from None
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
    pool: Pool | None = None,
    gelu: Gelu | None = None,
    norm_eps: float | None = None,
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
        path, allow_partial=allow_partial, num_heads=num_heads, pool=pool, gelu=gelu, norm_eps=norm_eps,
        trained_size=trained_size, prefix=prefix,
    )  # fmt: skip
    asked = {"image_size": image_size, "patch_size": patch_size, "channels": channels, "num_classes": num_classes}
    return fit_model(checkpoint, {name: value for name, value in asked.items() if value is not None})


def fit_model(checkpoint: Checkpoint, asked: Mapping[str, Any]) -> tuple[ViT, Checkpoint]:
    """Return a model with the checkpoint's weights, fitted to the settings `asked`, and the checkpoint as fitted."""
    path = checkpoint.path
    if "num_classes" not in asked and not checkpoint.has_head:
        raise CheckpointError(
            f"{str(path)!r} is a backbone without a classifier: give --num-classes to start one at zero"
        )
    try:
        config = checkpoint.config.replace(**asked)
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


def _map(raw: RawFile, config: Mapping[str, Any], path: Path, asked: Facts, prefix: str | None) -> Mapped:
    """Detect the layout and the prefix, and let the layout's module rename.

    `config` is the config.json beside the weights; `asked` is what the caller states, which comes first.
    """
    folder, notes = path if os.path.isdir(path) else path.parent, list[str]()
    belongs = (
        folder == path or path.name.removesuffix(".index.json") in WEIGHT_FILES
    )  # config.json is surely that of the weights
    owner = next((layout for layout in LAYOUTS if layout.config_key in config), None) if belongs else None
    in_config = owner.read_config(config, folder) if owner is not None else Facts()  # first: it names features best
    refuse_unsupported(raw.tensors)
    layout, prefixes = _detect(raw.tensors)
    if config and layout.config_key not in config:
        if belongs:
            raise CheckpointError(
                f"the weights are in the layout of {layout.name}, and config.json is not: remove it if it is another"
                " model's"
            )
        notes.append("the config.json beside it is another model's: it is not read")
        config = {}
    if config and owner is None:
        in_config = layout.read_config(config, folder)
    header = Facts.from_header(raw.metadata)
    stated = asked.over(in_config).over(header)
    if config and layout.config_key == "model_type" and (done := hf_config.processor_deviations(folder)):
        notes.append(f"the folder's image processor {' and '.join(done)}; vitreous stretches the image, bilinearly")
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
        if prefixes := {_without_base(name.removesuffix(layout.marker), layout.bases) for name in markers}:
            return layout, sorted(prefixes, key=lambda prefix: (len(prefix), prefix))
    names = ", ".join(layout.name for layout in LAYOUTS)
    shown = ", ".join(sorted(tensors)[:3])
    raise CheckpointError(f"its {len(tensors)} tensors ({shown} …) match no ViT's layout that vitreous reads: {names}")


def _without_base(prefix: str, bases: tuple[str, ...]) -> str:
    return next((prefix.removesuffix(base) for base in bases if prefix.endswith(base)), prefix)


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
