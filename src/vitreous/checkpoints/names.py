"""Tables of names, ours to theirs, and what all layouts share: prefixes, blocks, and the fused q, k, v.

Where a layout keeps q, k and v apart, its table names the pieces `blocks.i.attn.q`, `.k`, `.v`, which `join_qkv` puts
together into our (timm's) one matrix of 3D rows, and `split_qkv` takes apart again.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping

import torch
from torch import Tensor

from vitreous.errors import CheckpointError

MAX_BLOCKS = 256  # ViT-22B has 48

#: Branches of a training checkpoint that are no weights; they are counted in a note, not among the model's tensors.
_NOT_WEIGHTS = re.compile(
    r"^((optimizers?|optimizer_states|lr_schedulers?|scheduler|scaler|amp|callbacks|loops)\."
    r"|opt/state/|params/txt/|params/[tb]$)"  # big_vision's two-tower models: text tower, temperature, bias
)


def count_blocks(names: Iterable[str], pattern: str) -> int:
    """How many blocks `pattern` (one group: the number) finds: 0, 1, 2 … without a gap, or nothing is built."""
    matcher = re.compile(pattern)
    numbers = {int(found[1]) for name in names if (found := matcher.match(name)) and len(found[1]) <= 6}
    if not 0 < len(numbers) <= MAX_BLOCKS:
        raise CheckpointError(f"the file has {len(numbers)} transformer blocks; a ViT has from 1 to {MAX_BLOCKS}")
    if numbers != set(range(len(numbers))):
        gap = min(set(range(len(numbers))) - numbers)
        raise CheckpointError(f"block {gap} is missing: the file has blocks up to {max(numbers)}")
    return len(numbers)


def expand(table: Mapping[str, str], depth: int, suffixes: Mapping[str, str]) -> dict[str, str]:
    """`{our module: their module}` → `{their tensor: our tensor}`, for each block `{i}` and each suffix ours → theirs.

    A row whose name already ends in a tensor (`cls_token`) is given with a trailing `!` and taken as it is.
    """
    names: dict[str, str] = {}
    for ours, theirs in table.items():
        for i in range(depth) if "{i}" in ours else (0,):
            our_name, their_name = ours.replace("{i}", str(i)), theirs.replace("{i}", str(i))
            if ours.endswith("!"):
                names[their_name] = our_name.removesuffix("!")
                continue
            for our_suffix, their_suffix in suffixes.items():
                names[their_name + their_suffix] = our_name + our_suffix
    return names


#: What PyTorch calls the tensors of a linear layer, a convolution or a LayerNorm.
TORCH_SUFFIXES = {".weight": ".weight", ".bias": ".bias"}


def rename(tensors: Mapping[str, Tensor], names: Mapping[str, str]) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors that `names` knows, renamed; and the names it does not know."""
    renamed = {names[name]: tensor for name, tensor in tensors.items() if name in names}
    return renamed, [name for name in tensors if name not in names]


def find_prefixes(names: Iterable[str], marker: str) -> list[str]:
    """What stands before `marker` in the names that end with it: "", "model.", "module.backbone." …"""
    return sorted({name.removesuffix(marker) for name in names if name.endswith(marker)}, key=lambda p: (len(p), p))


def choose_prefix(prefixes: list[str], wanted: str | None) -> str:
    if wanted is not None:
        if wanted not in prefixes:
            raise CheckpointError(f"there are no weights under the prefix {wanted!r}; there are under {prefixes}")
        return wanted
    if len(prefixes) > 1:
        shown = ", ".join(repr(prefix) for prefix in prefixes[:6])
        raise CheckpointError(f"the file holds {len(prefixes)} models, under {shown}: choose one with prefix=…")
    return prefixes[0]


def strip_prefix(
    tensors: Mapping[str, Tensor], prefix: str, others: Iterable[str], notes: list[str]
) -> tuple[dict[str, Tensor], list[str]]:
    """The tensors under `prefix`, without it; and the names outside, which belong to nothing we know.

    Optimizer states, and models under the prefixes `others`, are left aside with a note.
    """
    inside: dict[str, Tensor] = {}
    outside: list[str] = []
    aside = 0
    left = tuple(other for other in others if other != prefix and not prefix.startswith(other))
    for name, tensor in tensors.items():
        if _NOT_WEIGHTS.match(name) or (left and name.startswith(left)):
            aside += 1
        elif name.startswith(prefix):
            inside[name.removeprefix(prefix)] = tensor
        else:
            outside.append(name)
    if prefix:
        notes.append(f"weights taken from under the prefix {prefix!r}")
    if aside:
        notes.append(f"{aside} tensors of the training's state or of another model left aside")
    return inside, outside


def join_qkv(tensors: Mapping[str, Tensor]) -> dict[str, Tensor]:
    """`…attn.q.weight`, `.k.`, `.v.` → `…attn.qkv.weight`: rows of q, then k, then v."""
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
                split[name.replace(".attn.qkv.", f".attn.{part}.")] = piece.contiguous()
        else:
            split[name] = tensor
    return split
