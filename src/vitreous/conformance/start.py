"""Rows about how a model starts: its initialisation, and the two heads of the paper.

Shapes: D width, M width of the MLP.
"""

from __future__ import annotations

import math
from typing import Any

import torch
import torch.nn.functional as F
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.conformance.probes import NO_TOKENS, equal, noise
from vitreous.conformance.sheet import Row, Subject, differs, does_not_apply, item, same

# --- initialisation ------------------------------------------------------------------------------------------


@item(
    "initialisation",
    "Initialisation",
    "not in the text; the authors' code: Xavier-uniform matrices, MLP biases N(0, 1e-6), other biases 0, positions"
    " N(0, 0.02), class token 0, patch kernel LeCun-normal (cut at 2σ), norms 1 and 0",
    "that the paper's models were started as its code starts them now (Flax's defaults may have changed)",
)
def initialisation(subject: Subject) -> Row:
    """Statistics of a fresh model: a trained one no longer shows how it started."""
    if subject.parts is None:
        return does_not_apply(NO_TOKENS)
    if not isinstance(subject.fresh_config, ViTConfig):
        return differs(
            "torch's defaults", "matrices, biases and embeddings are torch's defaults, not the paper's code's"
        )
    faults = [fault for fault, found in _initial_faults(subject.fresh).items() if found]
    here = f"a fresh model of {sum(1 for _ in subject.fresh.parameters())} tensors, measured{subject.scale}"
    return differs(here, "; ".join(faults)) if faults else same(here)


@torch.no_grad()
def _initial_faults(model: Any) -> dict[str, bool]:
    matrices, mlp_biases, other_biases = [], [], []
    for block in model.blocks:
        matrices += [
            *block.attn.qkv.weight.chunk(3),
            block.attn.proj.weight,
            block.mlp.fc1.weight,
            block.mlp.fc2.weight,
        ]
        mlp_biases += [block.mlp.fc1.bias, block.mlp.fc2.bias]
        other_biases += [block.attn.proj.bias] + ([] if block.attn.qkv.bias is None else [block.attn.qkv.bias])
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    kernel = model.patch_embed.proj.weight
    positions = [p for name, p in model.named_parameters() if name.startswith("pos_embed")]
    return {
        "the blocks' matrices are not Xavier-uniform": not all(map(_is_xavier_uniform, matrices)),
        "the MLP's biases are not N(0, 1e-6)": not _has_spread(torch.cat(mlp_biases), 1e-6),
        "the attention's and the head's biases are not zero": any(b.any() for b in [*other_biases, model.head.bias]),
        "the positions are not N(0, 0.02)": not all(_has_spread(p.flatten(), 0.02) for p in positions),
        "the class token is not zero": model.cls_token is not None and bool(model.cls_token.any()),
        "the patch kernel is not LeCun-normal, cut at 2σ": not _is_lecun_normal(kernel),
        "the patches' bias is not zero": bool(model.patch_embed.proj.bias.any()),
        "a norm does not start as 1 and 0": any((n.weight != 1).any() or n.bias.any() for n in norms),
    }


def _is_xavier_uniform(weight: Tensor) -> bool:
    bound = math.sqrt(6 / sum(weight.shape))
    within = bool((weight.abs() <= bound * (1 + 1e-6)).all())
    return within and _has_spread(weight.flatten(), bound / math.sqrt(3))  # the deviation of a uniform is bound / √3


def _is_lecun_normal(weight: Tensor) -> bool:
    deviation = weight[0].numel() ** -0.5
    cut = 2 * deviation / 0.87962566  # Flax widens the bell so that, cut at 2σ, its deviation is 1 / √fan-in
    return bool((weight.abs() <= cut * (1 + 1e-6)).all()) and _has_spread(weight.flatten(), deviation)


def _has_spread(values: Tensor, deviation: float) -> bool:
    """Mean 0 and this deviation, within what so many numbers let one tell (five standard errors)."""
    error = 5 * deviation / math.sqrt(len(values))
    return abs(values.mean().item()) < error and abs(values.std().item() - deviation) < error


# --- heads ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def head_kind(subject: Subject) -> str:
    """What the head does to y: `linear`, `tanh mlp` (one hidden layer) or `other`."""
    parts = subject.parts
    assert parts is not None
    a, b, zero = noise(4, subject.width), noise(4, subject.width, seed=1), torch.zeros(4, subject.width).double()
    if equal(parts.head(a) + parts.head(b), parts.head(a + b) + parts.head(zero)):
        return "linear"
    if len(parts.head_layers) != 2:
        return "other"
    hidden, last = parts.head_layers
    return "tanh mlp" if equal(F.linear(F.linear(a, *hidden).tanh(), *last), parts.head(a)) else "other"


@item("head-pretraining", "Head, pre-training", "an MLP with one hidden layer, tanh (Sec. 3.1, App. D.3)")
def pretraining_head(subject: Subject) -> Row:
    if subject.parts is None:
        return does_not_apply(NO_TOKENS)
    kind = head_kind(subject)
    if kind == "linear":
        return does_not_apply("this model has the fine-tuning head; --set model.head=mlp builds the other")
    if kind == "tanh mlp":
        return same(f"an MLP with one hidden layer of {subject.parts.head_layers[0][0].shape[0]}, tanh")
    return differs("neither a linear layer nor one tanh hidden layer", "another head than either of the paper's")


@item(
    "head-finetuning",
    "Head, fine-tuning",
    "a single linear layer D × classes that starts at zero (Sec. 3.2, App. B.1.1)",
)
def finetuning_head(subject: Subject) -> Row:
    if subject.parts is None:
        return does_not_apply(NO_TOKENS)
    if head_kind(subject) != "linear":
        return does_not_apply("this model's head has more than one layer: not the fine-tuning head")
    if not isinstance(subject.fresh_config, ViTConfig):
        return differs("a single linear layer, torch's default initialisation", "it does not start at zero")
    last: Any = subject.fresh.get_submodule("head")
    starts_at_zero = not last.weight.any() and not last.bias.any()
    here = f"a single linear layer that starts {'at zero' if starts_at_zero else 'with random weights'}"
    return same(here) if starts_at_zero else differs(here, "it does not start at zero: --set model.zero_head=true")
