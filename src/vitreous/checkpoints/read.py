"""Read a published checkpoint: its weights in our names, or a model with them."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import torch
from pydantic import ValidationError

from vitreous.checkpoints.adapt import adapt
from vitreous.checkpoints.checkpoint import HEAD, Checkpoint, expected_shapes, make_checkpoint
from vitreous.checkpoints.facts import Hints
from vitreous.checkpoints.files import RawFile, read_json, read_tensors
from vitreous.checkpoints.layouts import map_to_ours
from vitreous.errors import CheckpointError, ConfigError
from vitreous.models.vit import ViT

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
        asked = Hints.model_validate({"num_heads": num_heads, "image_size": trained_size, "channels": channels})
    except ValidationError:
        raise CheckpointError("num_heads, trained_size and channels must be positive whole numbers") from None
    raw, config = _open(path)
    folder = path if path.is_dir() else path.parent
    try:
        checkpoint = make_checkpoint(path, *map_to_ours(raw, config, folder, asked, prefix))
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
        model = ViT(config)
    model.load_state_dict(adapted.tensors, strict=True)
    notes = (*checkpoint.notes, *adapted.changes)
    return model.eval(), replace(checkpoint, tensors=adapted.tensors, config=config, origin=adapted.origin, notes=notes)


def _open(path: Path) -> tuple[RawFile, dict[str, Any]]:
    """Return the tensors and the config.json beside them, {} if there is none."""
    file = _weights_in(path) if path.is_dir() else path
    config = read_json(file.parent / "config.json")
    if path.is_dir() and isinstance(config.get("config"), dict):
        raise CheckpointError(f"{str(path)!r} is a run of vitreous: give it where a run is expected, with --run")
    return read_tensors(file), config


def _weights_in(folder: Path) -> Path:
    for name in _WEIGHT_FILES:
        if (folder / name).exists():
            return folder / name
    if any(folder.glob("*.index.json")):
        raise CheckpointError(f"the weights in {str(folder)!r} are split over several files: save them as one")
    raise CheckpointError(f"the folder {str(folder)!r} holds neither {' nor '.join(_WEIGHT_FILES)}")


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
