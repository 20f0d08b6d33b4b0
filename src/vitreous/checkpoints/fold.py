"""Parts of other libraries' ViTs that ours has in another form: the same arithmetic with other tensors."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from vitreous.checkpoints.assumptions import how_to_state
from vitreous.errors import CheckpointError


def fold_layer_scale(tensors: dict[str, Tensor], notes: list[str]) -> None:
    """Multiply each γ (`…ls1.gamma`) into the layer before it: γ · (W x + b) = (γ W) x + γ b."""
    gammas = [name for name in tensors if name.endswith(".gamma")]
    for name in gammas:
        block, which, _ = name.rsplit(".", 2)
        target = f"{block}.attn.proj" if which == "ls1" else f"{block}.mlp.fc2"
        weight, bias, gamma = tensors.get(f"{target}.weight"), tensors.get(f"{target}.bias"), tensors.pop(name)
        fits = weight is not None and weight.ndim == 2 and weight.shape[:1] == gamma.shape
        if weight is None or bias is None or gamma.shape != bias.shape or not fits:
            raise CheckpointError(f"{name!r} fits no layer of its shape")
        tensors[f"{target}.weight"], tensors[f"{target}.bias"] = weight * gamma[:, None], bias * gamma
    if gammas:
        notes.append(f"{len(gammas)} LayerScale vectors multiplied into the matrices before them: the same arithmetic")


def separate_registers(
    tensors: dict[str, Tensor], image_size: tuple[int, int] | None, embedded: bool | None, notes: list[str]
) -> None:
    """Give the class token a position and the registers none, as our ViT has them.

    The file's positions are for the patches alone or for all tokens, which `embedded` states; None: the number of
    patches decides, from the image size or because it is a square. A register's position is added to the register.
    """
    positions, registers = tensors.get("pos_embed"), tensors.get("reg_token")
    first, count = (
        int("cls_token" in tensors),
        0 if registers is None else registers.shape[1] if registers.ndim == 3 else 0,
    )
    if positions is None or positions.ndim != 3 or not first + count:
        return
    if embedded is None:
        embedded = _includes_prefix(positions.shape[1], first + count, _patches_of(tensors, image_size))
    if not embedded:
        if first:
            tensors["pos_embed"] = torch.cat([torch.zeros_like(positions[:, :1]), positions], dim=1)
            notes.append("the class token has no position embedding: it is given a zero one, the same arithmetic")
        return
    if registers is not None:
        theirs = positions[:, first : first + count]
        if theirs.shape != registers.shape:
            raise CheckpointError(f"its {count} registers and {positions.shape[1]} positions do not fit each other")
        tensors["reg_token"] = registers + theirs
        tensors["pos_embed"] = torch.cat([positions[:, :first], positions[:, first + count :]], dim=1)
        notes.append("the registers' positions are added to the registers: the same arithmetic")


def class_token_to_register(tensors: dict[str, Tensor], notes: list[str]) -> None:
    """Turn a class token that no head reads into a register, for pooling over the patches."""
    token, positions, registers = tensors.pop("cls_token"), tensors.get("pos_embed"), tensors.get("reg_token")
    parts = [token] if registers is None else [token, registers]
    if any(part.ndim != 3 or len(part) != 1 or part.shape[-1] != token.shape[-1] for part in parts):
        raise CheckpointError("the class token and the registers do not fit each other")
    if positions is not None:
        if positions.ndim != 3 or token.shape != positions[:, :1].shape:
            raise CheckpointError("the class token and the position embedding do not fit each other")
        parts[0], tensors["pos_embed"] = token + positions[:, :1], positions[:, 1:]
    tensors["reg_token"] = torch.cat(parts, dim=1)
    notes.append("the class token, which the head does not read, is kept as a register: the same arithmetic")


def _includes_prefix(rows: int, prefix: int, patches: int | None) -> bool:
    with_prefix, without = (
        count == patches if patches is not None else _is_square(count) for count in (rows - prefix, rows)
    )
    if with_prefix and without:
        raise CheckpointError(
            f"its {rows} positions may include the {prefix} tokens before the patches, or not: give"
            f" {how_to_state('trained_size')}"
        )
    return not without


def _patches_of(tensors: dict[str, Tensor], image_size: tuple[int, int] | None) -> int | None:
    """Return the number of patches, None if the image size is not known."""
    kernel = tensors.get("patch_embed.proj.weight")
    if image_size is None or kernel is None or kernel.ndim != 4 or 0 in kernel.shape:
        return None
    return image_size[0] // kernel.shape[2] * (image_size[1] // kernel.shape[3])


def _is_square(number: int) -> bool:
    return number > 0 and math.isqrt(number) ** 2 == number
