"""Rows about a model before training: its initialisation, and the paper's two heads."""

from __future__ import annotations

import math
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config import ViTConfig
from vitreous.conformance.measurements import equal, noise
from vitreous.conformance.rows import Measurement, Subject, differs, does_not_apply, same, same_unless


def initialisation(subject: Subject) -> Measurement:
    """Statistics of a fresh model: a trained one no longer shows its initialisation."""
    if not isinstance(subject.fresh_config, ViTConfig):
        return differs("torch's defaults", "matrices, biases and embeddings are torch's defaults, not the authors'")
    here = f"a fresh model of {len(list(subject.fresh.parameters()))} tensors, measured{subject.scale}"
    return same_unless(initialisation_faults(subject.fresh), here)


@torch.no_grad()
def initialisation_faults(model: Any) -> list[str]:
    matrices, mlp_biases, zero_biases = [], [], [model.head.bias]
    for block in model.blocks:
        attention, mlp = block.attn, block.mlp
        matrices += [*attention.qkv.weight.chunk(3), attention.proj.weight, mlp.fc1.weight, mlp.fc2.weight]
        mlp_biases += [mlp.fc1.bias, mlp.fc2.bias]
        zero_biases += [bias for bias in (attention.qkv.bias, attention.proj.bias) if bias is not None]
    norms = [module for module in model.modules() if isinstance(module, nn.LayerNorm)]
    positions = [p for name, p in model.named_parameters() if name.startswith("pos_embed")]
    properties = {
        "the blocks' matrices are not Xavier-uniform": all(map(_is_xavier_uniform, matrices)),
        "the MLP's biases are not N(0, 1e-6)": _has_deviation(torch.cat(mlp_biases), 1e-6),
        "the attention's and the head's biases are not zero": not any(bias.any() for bias in zero_biases),
        "the positions are not N(0, 0.02)": all(_has_deviation(p, 0.02) for p in positions),
        "the class token is not zero": model.cls_token is None or not model.cls_token.any(),
        "the patch kernel is not LeCun-normal, truncated at 2σ": _is_lecun_normal(model.patch_embed.proj.weight),
        "the patches' bias is not zero": not model.patch_embed.proj.bias.any(),
        "a norm does not start as 1 and 0": all((n.weight == 1).all() and not n.bias.any() for n in norms),
    }
    return [fault for fault, holds in properties.items() if not holds]


def _is_xavier_uniform(weight: Tensor) -> bool:
    bound = math.sqrt(6 / sum(weight.shape))
    within = bool((weight.abs() <= bound * (1 + 1e-6)).all())
    return within and _has_deviation(weight, bound / math.sqrt(3))  # the standard deviation of a uniform is bound / √3


def _is_lecun_normal(weight: Tensor) -> bool:
    deviation = weight[0].numel() ** -0.5
    bound = 2 * deviation / 0.87962566  # Flax widens the normal so that, truncated at 2σ, it deviates by 1 / √fan-in
    return bool((weight.abs() <= bound * (1 + 1e-6)).all()) and _has_deviation(weight, deviation)


def _has_deviation(values: Tensor, deviation: float) -> bool:
    """Whether the mean is 0 and the standard deviation as given, within five standard errors."""
    error = 5 * deviation / math.sqrt(values.numel())
    return abs(values.mean().item()) < error and abs(values.std().item() - deviation) < error


# --- heads ---------------------------------------------------------------------------------------------------


@torch.no_grad()
def head_kind(subject: Subject) -> str:
    """Classify the head: `linear`, `tanh mlp` (one hidden layer) or `other`."""
    head, layers, width = subject.parts.head, subject.parts.head_layers, subject.parts.width
    a, b = noise(4, width), noise(4, width, seed=1)
    if equal(head(a) + head(b), head(a + b) + head(torch.zeros_like(a))):
        return "linear"
    return "tanh mlp" if len(layers) == 2 and equal(layers[1](layers[0](a).tanh()), head(a)) else "other"


def pretraining_head(subject: Subject) -> Measurement:
    kind = head_kind(subject)
    if kind == "linear":
        return does_not_apply("this model has the fine-tuning head; --set model.head=mlp builds the other")
    if kind == "tanh mlp":
        return same(f"an MLP with one hidden layer of {subject.parts.head_layers[0].out_features}, tanh")
    return differs("neither a linear layer nor one tanh hidden layer", "another head than either of the paper's")


def finetuning_head(subject: Subject) -> Measurement:
    if head_kind(subject) != "linear":
        return does_not_apply("this model's head has more than one layer: not the fine-tuning head")
    if not isinstance(subject.fresh_config, ViTConfig):
        return differs("a single linear layer, torch's default initialisation", "it does not start at zero")
    if any(parameter.any() for parameter in subject.fresh.get_submodule("head").parameters()):
        here = "a single linear layer that starts with random weights"
        return differs(here, "it does not start at zero: --set model.zero_head=true")
    return same("a single linear layer that starts at zero")
