"""Optimizers, schedules and averaged weights."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.config import TrainConfig

_OBLONG = 8  # times as long as wide; the first linear layer of `cnn` is 72 times: 41 → 10 ms per step


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Bring the singular values of a stack of matrices (count, rows, columns) close to 1, by Newton–Schulz in fp32.

    The quintic's coefficients are Jordan et al.'s (Muon, 2024). torch's own Muon casts to bf16, which is slow on most
    CPUs and crashes on some; a stack lets all layers of one shape share each product.
    """
    a, b, c = 3.4445, -4.7750, 2.0315
    tall = matrices.shape[-2] > matrices.shape[-1]
    x = matrices.mT if tall else matrices
    x = x / (x.norm(dim=(-2, -1), keepdim=True) + 1e-7)
    if x.shape[-1] >= _OBLONG * x.shape[-2]:
        x = _orthogonalise_oblong(x, steps, a, b, c)
    else:
        for _ in range(steps):  # x ← a x + (b x xᵀ + c (x xᵀ)²) x; sums fused into the products
            gram = x @ x.mT
            x = torch.baddbmm(x, torch.baddbmm(gram, gram, gram, beta=b, alpha=c), x, beta=a)
    return x.mT if tall else x


def _orthogonalise_oblong(x: Tensor, steps: int, a: float, b: float, c: float) -> Tensor:
    """The same by two products with x in place of ten: every step multiplies it by a polynomial in x xᵀ."""
    gram = x @ x.mT
    total = torch.eye(gram.shape[-1], dtype=x.dtype, device=x.device).expand_as(gram)
    for _ in range(steps):
        factor = torch.baddbmm(gram, gram, gram, beta=b, alpha=c)
        factor.diagonal(dim1=-2, dim2=-1).add_(a)
        total, gram = factor @ total, factor @ gram @ factor
    return total @ x


class Muon(torch.optim.Optimizer):
    """Momentum, orthogonalised: each matrix moves by about `lr` in every direction it has.

    `splits` is how many matrices are stacked in a parameter (3 for a fused qkv): each is orthogonalised on its own.
    With fewer `steps`, small singular values stay smaller, which are mostly noise in trainings of a minute.
    """

    def __init__(
        self,
        params: list[tuple[nn.Parameter, int]],
        lr: float,
        momentum: float,
        weight_decay: float,
        lr_scales: list[float] | None = None,
        steps: int = 5,
    ):
        alike: dict[tuple[float, ...], list[nn.Parameter]] = {}
        for (parameter, splits), scale in zip(params, lr_scales or [1.0] * len(params), strict=True):
            alike.setdefault((splits, scale, *parameter.shape), []).append(parameter)
        groups = [{"params": members, "splits": key[0], "lr": lr * key[1]} for key, members in alike.items()]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay, "splits": 1})
        self.steps = steps

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.update(self.param_groups)

    def parts(self) -> list[list[dict[str, Any]]]:
        """Return the groups in two lists of about equal work, which two threads can `update`."""
        parts: list[list[dict[str, Any]]] = [[], []]
        work = [0, 0]
        for group in sorted(self.param_groups, key=_work, reverse=True):
            least = work.index(min(work))
            parts[least].append(group)
            work[least] += _work(group)
        return parts

    @torch.no_grad()
    def update(self, groups: Iterable[dict[str, Any]]) -> None:
        for group in groups:
            members: list[Tensor] = [p for p in group["params"] if p.grad is not None]
            if not members:
                continue
            for parameter in members:
                if "momentum" not in self.state[parameter]:
                    self.state[parameter]["momentum"] = torch.zeros_like(parameter)
            velocity: list[Tensor] = [self.state[p]["momentum"] for p in members]
            gradients = [p.grad for p in members if p.grad is not None]
            torch._foreach_lerp_(velocity, gradients, 1 - group["momentum"])
            nesterov = torch._foreach_lerp(gradients, velocity, group["momentum"])
            rows, columns = len(members[0]), members[0][0].numel()  # a convolution's kernels are the rows of a matrix
            splits = group["splits"]
            stack = torch.stack(list(nesterov)).view(len(members) * splits, rows // splits, columns)
            updates = orthogonalise(stack, self.steps).reshape(len(members), *members[0].shape)
            scale = math.sqrt(max(1.0, rows / splits / columns))
            torch._foreach_mul_(members, 1 - group["lr"] * group["weight_decay"])
            torch._foreach_add_(members, list(updates.unbind(0)), alpha=-group["lr"] * scale)


def _work(group: dict[str, Any]) -> int:
    """Return the multiplications of one step of Newton–Schulz, about."""
    first = group["params"][0]
    rows, columns = len(first) // group["splits"], first[0].numel()
    return len(group["params"]) * group["splits"] * rows * columns * min(rows, columns)


Named = list[tuple[str, nn.Parameter]]


def make_optimizers(model: nn.Module, config: TrainConfig) -> list[torch.optim.Optimizer]:
    """Return a recipe's optimizers. Weight decay acts on matrices only: no biases, norms, class token or positions."""
    named = [(name, p) for name, p in model.named_parameters() if p.requires_grad]
    scales = _layer_scales(named, config.layer_decay)
    if config.optimizer == "sgd":
        return [torch.optim.SGD(_groups(named, scales, config), lr=config.lr, momentum=config.momentum)]
    inner = [(name, p) for name, p in named if config.optimizer == "muon" and _suits_muon(name, p)]
    by_muon = {name for name, _ in inner}
    groups = _groups([(name, p) for name, p in named if name not in by_muon], scales, config)
    adamw = torch.optim.AdamW(groups, lr=config.lr, betas=config.betas, fused=True)
    if not inner:  # a linear probe trains none of them
        return [adamw]
    stacked = [(p, 3 if name.endswith("qkv.weight") else 1) for name, p in inner]
    lr_scales = [scales[name] for name, _ in inner]
    muon = Muon(stacked, config.muon_lr, config.momentum, config.weight_decay, lr_scales, config.muon_steps)
    return [muon, adamw]


def _suits_muon(name: str, parameter: nn.Parameter) -> bool:
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
        return 0 if name.startswith(("patch_embed", "cls_token", "pos_embed", "stem")) else top

    return {name: decay ** (top - layer(name)) for name, _ in named}


def _groups(named: Named, scales: dict[str, float], config: TrainConfig) -> list[dict[str, object]]:
    """Return parameter groups by learning rate, and by whether weight decay acts on them."""
    groups: dict[tuple[float, float], list[nn.Parameter]] = {}
    for name, parameter in named:
        is_matrix = parameter.ndim >= 2 and not any(part in name for part in ("cls_token", "pos_embed", "rel_pos"))
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
        torch._foreach_lerp_(list(self.averaged.parameters()), list(self.model.parameters()), 1 - decay)
        for ours, theirs in zip(self.averaged.buffers(), self.model.buffers(), strict=True):
            ours.copy_(theirs)
