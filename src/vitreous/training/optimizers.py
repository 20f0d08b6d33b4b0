"""Optimizers, schedules and averaged weights."""

from __future__ import annotations

import math

import torch
from torch import nn

from vitreous.config import TrainConfig
from vitreous.training.muon import Muon
from vitreous.training.sharded_muon import ShardedMuon
from vitreous.training.sharding import is_sharded, local

Named = list[tuple[str, nn.Parameter]]

#: Tables and tokens, which weight decay leaves alone.
_EMBEDDINGS = ("cls_token", "reg_token", "pos_embed", "rel_pos")


def make_optimizers(
    model: nn.Module, config: TrainConfig, muon_dtype: torch.dtype | None = None
) -> list[torch.optim.Optimizer]:
    """Return a recipe's optimizers. Weight decay acts on matrices only: no biases, norms, class token or positions.

    `muon_dtype` is the precision of Muon's large products; None: that of the parameters.
    """
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    scales = _layer_scales(named, config.layer_decay)
    if config.optimizer == "sgd":
        return [torch.optim.SGD(_groups(named, scales, config), lr=config.lr, momentum=config.momentum)]
    inner = [(name, p) for name, p in named if config.optimizer == "muon" and suits_muon(name, p)]
    by_muon = {name for name, _ in inner}
    groups = _groups([(name, p) for name, p in named if name not in by_muon], scales, config)
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    if not inner:  # a linear probe trains none of them
        return [adamw]
    stacked = [(p, 3 if name.endswith("qkv.weight") else 1) for name, p in inner]
    lr_scales = [scales[name] for name, _ in inner]
    kind = ShardedMuon if is_sharded(inner[0][1]) else Muon
    muon = kind(stacked, config.muon_lr, config.momentum, config.weight_decay, lr_scales, config.muon_steps, muon_dtype)
    return [muon, adamw]


def suits_muon(name: str, parameter: nn.Parameter) -> bool:
    """Return whether this is a matrix or kernel inside the network; AdamW takes the head and the positions.

    Muon on the patch embedding and the stem as well: errors of `vit` after 3 epochs 2.5 → 1.8 % (docs/log.md).
    """
    return (
        parameter.ndim >= 2
        and name.endswith(".weight")
        and not name.startswith(("head.", "fc2.", "pre_logits.", "pool_"))
    )


def _layer_scales(named: Named, decay: float) -> dict[str, float]:
    """Return each parameter's factor of the learning rate: 1 at the head, times `decay` per layer below it."""
    blocks = [int(name.split("blocks.")[1].split(".")[0]) for name, _ in named if "blocks." in name]
    top = max(blocks, default=-1) + 2

    def layer(name: str) -> int:
        if "blocks." in name:
            return int(name.split("blocks.")[1].split(".")[0]) + 1
        return 0 if name.startswith(("patch_embed", "cls_token", "reg_token", "pos_embed", "norm_pre", "stem")) else top

    return {name: decay ** (top - layer(name)) for name, _ in named}


def _groups(named: Named, scales: dict[str, float], config: TrainConfig) -> list[dict[str, object]]:
    """Return parameter groups by learning rate, and by whether weight decay acts on them."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        is_matrix = parameter.ndim >= 2 and not any(part in name for part in _EMBEDDINGS)
        key = (config.lr * scales[name], config.weight_decay if is_matrix else 0.0)
        groups.setdefault(key, []).append(parameter)
    return [{"params": params, "lr": lr, "weight_decay": decay} for (lr, decay), params in groups.items()]


def lr_factor(step: int, total_steps: int, config: TrainConfig) -> float:
    """Return the share of the peak learning rate at `step`: a linear warm-up, then the schedule down to `final_lr`."""
    warmup_steps = round(config.warmup_fraction * total_steps)
    if step < warmup_steps:
        return (step + 1) / warmup_steps
    progress = (step - warmup_steps) / max(1, total_steps - warmup_steps)
    if config.schedule == "constant":
        return 1.0
    remaining = 1 - progress if config.schedule == "linear" else (1 + math.cos(math.pi * progress)) / 2
    return config.final_lr + (1 - config.final_lr) * remaining


class AveragedWeights:
    """An exponential moving average of a model's parameters, kept as a second model that is evaluated and saved.

    Early on the decay is smaller, so that the average forgets the random start.
    """

    def __init__(self, model: nn.Module, averaged: nn.Module, decay: float):
        self.model, self.averaged, self.decay = model, averaged, decay
        for parameter in averaged.parameters():
            parameter.requires_grad_(False)

    @torch.no_grad()
    def update(self, step: int) -> None:
        decay = min(self.decay, (1 + step) / (10 + step))
        ours, theirs = ([local(value) for value in model.parameters()] for model in (self.averaged, self.model))
        torch._foreach_lerp_(ours, theirs, 1 - decay)
        for kept, trained in zip(self.averaged.buffers(), self.model.buffers(), strict=True):
            kept.copy_(trained)
