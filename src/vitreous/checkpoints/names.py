"""Tensor names: tables from ours to theirs, prefixes, numbered blocks, and the fused q, k, v.

If a layout stores q, k and v separately, its table names them `blocks.i.attn.q`, `.k` and `.v`; `join_qkv` concatenates
them into our (timm's) matrix of 3D rows and `split_qkv` separates them again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vitreous.errors import CheckpointError

MAX_BLOCKS = 256  # ViT-22B has 48

#: Parts of a training checkpoint that are not weights; they are counted in a note, not among the model's tensors.
_NOT_WEIGHTS = re.compile(
    r"^((optimizers?|optimizer_states|lr_schedulers?|scheduler|scaler|amp|callbacks|loops)\."
    r"|opt/state/|params/txt/|params/[tb]$)"  # big_vision's two-tower models: text tower, temperature, bias
)


def count_blocks(names: Iterable[str], pattern: str) -> int:
    """Return the number of blocks that `pattern` (one group: the block's number) finds; refuse gaps."""
    matcher = re.compile(pattern)
    numbers = {int(found[1]) for name in names if (found := matcher.match(name)) and len(found[1]) <= 6}
    if not 0 < len(numbers) <= MAX_BLOCKS:
        raise CheckpointError(f"the file has {len(numbers)} transformer blocks; a ViT has from 1 to {MAX_BLOCKS}")
    if numbers != set(range(len(numbers))):
        gap = min(set(range(len(numbers))) - numbers)
        raise CheckpointError(f"block {gap} is missing: the file has blocks up to {max(numbers)}")
    return len(numbers)


def expand(table: Mapping[str, str], depth: int) -> dict[str, str]:
    """Turn `{our module: their module}` into `{their tensor: our tensor}` for each block `{i}`.

    A module has `.weight` and `.bias`; a key that ends in `!` names a tensor.
    """
    names: dict[str, str] = {}
    for ours, theirs in table.items():
        suffixes = ("",) if ours.endswith("!") else (".weight", ".bias")
        for i in range(depth) if "{i}" in ours else (0,):
            our_name, their_name = (name.removesuffix("!").replace("{i}", str(i)) for name in (ours, theirs))
            names |= {their_name + suffix: our_name + suffix for suffix in suffixes}
    return names


def rename(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors in `names`, renamed, and the names of the others."""
    renamed: dict[str, Tensor] = {}
    for theirs, tensor in tensors.items():
        if (ours := names.get(theirs)) in renamed:
            raise CheckpointError(f"the file has {ours!r} (in our names) under two names; one is {theirs!r}")
        if ours is not None:
            renamed[ours] = tensor
    return renamed, [name for name in tensors if name not in names]


def choose_prefix(prefixes: list[str], wanted: str | None) -> str:
    if wanted is None and len(prefixes) == 1:
        return prefixes[0]
    shown = ", ".join(repr(prefix) for prefix in prefixes[:6])
    if wanted is None:
        raise CheckpointError(f"the file holds {len(prefixes)} models, under {shown}: choose one with prefix=…")
    if wanted not in prefixes:
        raise CheckpointError(f"there are no weights under the prefix {wanted!r}; there are under {shown}")
    return wanted


def strip_prefix(
    tensors: Mapping[str, Tensor], prefix: str, others: Iterable[str], notes: list[str]
) -> tuple[dict[str, Tensor], list[str]]:
    """Return the tensors under `prefix`, without it, and the names outside.

    Optimizer states and models under the prefixes `others` are skipped with a note.
    """
    inside: dict[str, Tensor] = {}
    outside: list[str] = []
    num_skipped = 0
    other_models = tuple(other for other in others if other != prefix and not prefix.startswith(other))
    for name, tensor in tensors.items():
        if _NOT_WEIGHTS.match(name) or name.startswith(other_models):
            num_skipped += 1
        elif name.startswith(prefix):
            inside[name.removeprefix(prefix)] = tensor
        else:
            outside.append(name)
    if prefix:
        notes.append(f"weights taken from under the prefix {prefix!r}")
    if num_skipped:
        notes.append(f"{num_skipped} tensors of the training's state or of another model skipped")
    return inside, outside


def join_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """Concatenate `…attn.q.weight`, `.k.` and `.v.` to `…attn.qkv.weight`: rows of q, then k, then v."""
    joined = dict(tensors)
    for name in tensors:
        if ".attn.q." not in name:
            continue
        parts = [name.replace(".attn.q.", f".attn.{part}.") for part in "qkv"]
        if all(part in joined for part in parts) and len({joined[part].shape for part in parts}) == 1:
            joined[name.replace(".attn.q.", ".attn.qkv.")] = torch.cat([joined.pop(part) for part in parts])
    return joined


def split_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    split: dict[str, Tensor] = {}
    for name, tensor in tensors.items():
        if ".attn.qkv." in name:
            for part, piece in zip("qkv", tensor.chunk(3), strict=True):
                split[name.replace(".attn.qkv.", f".attn.{part}.")] = piece
        else:
            split[name] = tensor
    return split
