"""What a file of weights alone does not state, and the argument that states it.

The number of heads, the pooling, the kind of GELU and LayerNorm's ε leave no trace in the tensors. What was assumed is
printed with every load, because a wrong assumption changes the logits and raises no error.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping, Sequence

from torch import Tensor

from vitreous.checkpoints.facts import Facts
from vitreous.errors import CheckpointError

#: Heads of the published models, for layouts that do not record them: width → heads (ViT-H and up are not 64 wide).
PUBLISHED_HEADS = {192: 3, 384: 6, 768: 12, 1024: 16, 1152: 16, 1280: 16, 1408: 16, 1664: 16}

_POOLING = {
    ("cls", False): "the class token is pooled",
    ("cls", True): "the class token is pooled",
    ("mean", False): "the patches are averaged after the final LayerNorm",
    ("mean", True): "the patches are averaged before the final LayerNorm (fc_norm)",
}
#: timm's `rpn` models have the same tensors; every published one averages patches without a class token.
PRE_NORM_BLOCKS = "the blocks normalise before attention and MLP, not after (vit_*_rpn_* do, and cannot be read)"
_log = logging.getLogger("vitreous.checkpoints")


def complete(stated: Facts, defaults: Facts, tensors: Mapping[str, Tensor]) -> tuple[Facts, list[str]]:
    """Return the facts, completed by what must be assumed, and the assumptions as lines to print."""
    lines: list[str] = []
    facts = stated.over(defaults)
    if facts.num_heads is None:
        facts = facts.model_copy(update={"num_heads": _published_heads(tensors)})
    if stated.num_heads is None:
        lines.append(f"{facts.num_heads} heads, as models of this width usually have (num_heads)")
    if stated.pool is None:
        assert facts.pool is not None
        lines.append(f"{_POOLING[facts.pool, bool(facts.norm_after_pool)]} (pool)")
    if stated.gelu is None:
        lines.append(f"the activation is {facts.gelu} GELU (gelu)")
    if stated.norm_eps is None:
        lines.append(f"LayerNorm's ε is {facts.norm_eps:g} (norm_eps)")
    if facts.pool == "cls" and "cls_token" not in tensors:
        raise CheckpointError(
            f"the class token is to be pooled, and the weights have none: give {how_to_state('pool', 'mean')}"
        )
    return facts, lines


def how_to_state(name: str, value: str = "…") -> str:
    """Return the option that states a fact, for an error message."""
    flag = f"--{name.replace('_', '-')}{'' if value == '…' else f' {value!r}'}"
    return f"{flag} (in `vitreous train --from`: --set start.{name}={value})"


def in_words(assumptions: Sequence[str]) -> str:
    """Return one sentence that also says how to change an assumption; the last word of each is its argument."""
    assumed = f"assumed, because the file does not state it: {'; '.join(assumptions)}"
    if list(assumptions) == [PRE_NORM_BLOCKS]:
        return assumed
    name = assumptions[0].rpartition("(")[2].rstrip(")")
    return (
        f"{assumed}. If that is wrong, set it: {name}=… in Python, --{name.replace('_', '-')} in `vitreous convert`,"
        f" --set start.{name}=… in `vitreous train --from`"
    )


def log_assumptions(source: object, assumptions: Sequence[str]) -> None:
    """Print the assumptions on stderr; the logger `vitreous.checkpoints` can be configured to do otherwise."""
    if assumptions:
        _log.warning("%s: %s", source, in_words(assumptions))


def _published_heads(tensors: Mapping[str, Tensor]) -> int:
    kernel = tensors.get("patch_embed.proj.weight")
    dim = 0 if kernel is None else len(kernel)
    if dim not in PUBLISHED_HEADS:
        raise CheckpointError(
            f"it does not state its number of heads, and no published ViT has its width of {dim}: give"
            f" {how_to_state('num_heads')}"
        )
    return PUBLISHED_HEADS[dim]
