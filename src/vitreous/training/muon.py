"""Muon (Jordan et al., 2024): momentum, orthogonalised by Newton–Schulz."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any

import torch
from torch import Tensor, nn

from vitreous.training.sharding import local

_OBLONG = 8  # times as long as wide; the first linear layer of `cnn` is 72 times: 41 → 10 ms per step
_LARGE = 1_200_000  # multiplications per step of Newton–Schulz: below, bfloat16 products cost more than they save


def orthogonalise(matrices: Tensor, steps: int = 5) -> Tensor:
    """Bring the singular values of a stack of matrices (count, rows, columns) close to 1, by Newton–Schulz.

    The quintic's coefficients are Jordan et al.'s (Muon, 2024). torch's own Muon always casts to bf16, which is slow on
    most CPUs and crashes on some; a stack lets all layers of one shape share each product.
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
    With fewer `steps`, small singular values stay smaller, which are mostly noise in trainings of a minute. `dtype` is
    the precision in which large stacks are orthogonalised (default: their own).
    """

    def __init__(
        self,
        params: list[tuple[nn.Parameter, int]],
        lr: float,
        momentum: float,
        weight_decay: float,
        lr_scales: list[float] | None = None,
        steps: int = 5,
        dtype: torch.dtype | None = None,
    ):
        self.steps, self.dtype = steps, dtype
        self._splits: dict[Tensor, int] = dict(params)
        alike: dict[tuple[float, ...], list[nn.Parameter]] = {}  # matrices of one shape, lying or standing
        for (parameter, _), scale in zip(params, lr_scales or [1.0] * len(params), strict=True):
            alike.setdefault((scale, *sorted(self._matrix_shape(parameter))), []).append(parameter)
        groups = [{"params": members, "lr": lr * scale} for (scale, *_), members in alike.items()]
        super().__init__(groups, {"lr": lr, "momentum": momentum, "weight_decay": weight_decay})

    def step(self, closure: None = None) -> None:  # type: ignore[override]
        self.update(self.param_groups)

    def parts(self) -> list[list[dict[str, Any]]]:
        """Return the groups in two lists of about equal work, which two threads can `update`."""
        parts: list[list[dict[str, Any]]] = [[], []]
        load = [0, 0]
        works = [(sum(map(self.work, group["params"])), group) for group in self.param_groups]
        for work, group in sorted(works, key=lambda pair: pair[0], reverse=True):
            least = load.index(min(load))
            parts[least].append(group)
            load[least] += work
        return parts

    @torch.no_grad()
    def update(self, groups: Iterable[dict[str, Any]]) -> None:
        for group in groups:
            if members := [p for p in group["params"] if p.grad is not None]:
                self._move(group, members, self._orthogonalise(members, self._look_ahead(group, members)))

    def work(self, parameter: Tensor) -> int:
        """Return the multiplications of one step of Newton–Schulz, about."""
        return parameter.numel() * min(self._matrix_shape(parameter))

    def _matrix_shape(self, parameter: Tensor) -> tuple[int, int]:
        """Return rows and columns of each of its matrices; a convolution's kernels are the rows of one."""
        return parameter.shape[0] // self._splits[parameter], math.prod(parameter.shape[1:])

    def _look_ahead(self, group: dict[str, Any], members: list[Tensor]) -> list[Tensor]:
        """Update the momentum; return the gradients with Nesterov's look-ahead, on this rank."""
        for parameter in members:
            if "momentum" not in self.state[parameter]:
                self.state[parameter]["momentum"] = torch.zeros_like(parameter)
        velocity = [local(self.state[p]["momentum"]) for p in members]
        gradients = [local(p.grad) for p in members if p.grad is not None]
        torch._foreach_lerp_(velocity, gradients, 1 - group["momentum"])
        return list(torch._foreach_lerp(gradients, velocity, group["momentum"]))

    def _orthogonalise(self, members: list[Tensor], ahead: list[Tensor]) -> list[Tensor]:
        """Return the updates of parameters whose matrices are alike, orthogonalised in one stack."""
        shapes = [self._matrix_shape(parameter) for parameter in members]
        stands = [rows > columns for rows, columns in shapes]
        matrices = [values.reshape(-1, *shape) for values, shape in zip(ahead, shapes, strict=True)]
        stack = torch.cat([each.mT if tall else each for each, tall in zip(matrices, stands, strict=True)])
        is_large = stack.numel() * stack.shape[1] >= _LARGE
        found = orthogonalise(stack.to(self.dtype) if is_large and self.dtype else stack, self.steps).to(stack.dtype)
        parts = found.split([len(each) for each in matrices])
        return [
            (part.mT if tall else part).reshape(parameter.shape)
            for part, tall, parameter in zip(parts, stands, members, strict=True)
        ]

    def _move(self, group: dict[str, Any], members: list[Tensor], updates: list[Tensor]) -> None:
        shapes = map(self._matrix_shape, members)
        scales = [math.sqrt(max(1.0, rows / columns)) for rows, columns in shapes]
        values = [local(parameter) for parameter in members]
        torch._foreach_mul_(values, 1 - group["lr"] * group["weight_decay"])
        torch._foreach_add_(values, torch._foreach_mul(updates, scales), alpha=-group["lr"])
