"""The norms found in a recording: torch's own, and hand-written ones."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.doctor.graph import origin
from vitreous.doctor.recording import Node, without_views

_REDUCTIONS = frozenset(["mean", "var", "std", "sum", "var_mean", "std_mean", "linalg_vector_norm", "norm"])
_BATCH_NORMS = frozenset(["native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"])
_FUSED = _BATCH_NORMS | {
    "native_layer_norm",
    "native_group_norm",
    "_fused_rms_norm",
    "_native_batch_norm_legit_no_training",
}
#: What may lie between a reduction and its use: √(variance + ε) and the like.
_UNARY = frozenset(["sqrt", "rsqrt", "pow", "reciprocal", "clamp", "clamp_min", "add", "sub", "mul", "div", "maximum"])


@dataclass(frozen=True, eq=False)
class Norm:
    """A normalised tensor, and the axes that were normalised together."""

    node: Node
    axes: tuple[int, ...]
    is_batch_norm: bool = False

    @property
    def groups(self) -> Tensor:
        """The group of each element, as a number."""
        shape = [1 if axis in self.axes else size for axis, size in enumerate(self.node.tensor.shape)]
        return torch.arange(torch.Size(shape).numel()).view(shape).expand(self.node.tensor.shape)


def norms_of(start: Node) -> list[Norm]:
    """Return the norm that `start` is the result of; for a hand-written one its scaling and its centring."""
    ndim = start.tensor.ndim
    if start.op == "native_layer_norm":
        return [Norm(start, tuple(range(ndim - len(start.arguments[1]), ndim)))]
    if start.op == "_fused_rms_norm":
        return [Norm(start, (ndim - 1,))]
    if start.op in _BATCH_NORMS:
        axes = tuple(axis for axis in range(ndim) if axis != 1)
        return [Norm(start, axes, is_batch_norm=True)] if ndim > 2 else []
    return list(_by_hand(start))


@dataclass(frozen=True, eq=False)
class Scaling:
    """Where a norm with parameters scales: the parameter's name, what was normalised, and the result."""

    weight: str
    data: Node
    node: Node


def scalings(nodes: Iterable[Node]) -> Iterator[Scaling]:
    """Yield every norm with parameters; of a hand-written one, the product with a vector: x̂ · γ."""
    for node in nodes:
        if node.result or (node.op not in _FUSED and node.op != "mul"):  # the other results are statistics
            continue
        leaves = [without_views(parent) for parent in node.parents if not parent.from_input]
        names = [leaf.name for leaf in leaves if leaf.kind == "parameter" and leaf.tensor.numel() > 1]
        if names and node.op in _FUSED:
            yield Scaling(names[0], origin(node.parents[0]), node)
        elif names and (steps := list(_by_hand(node))):
            yield Scaling(names[0], origin(_full_operands(steps[-1].node)[0]), node)


@dataclass(frozen=True, eq=False)
class Gain:
    """The product of a hand-written norm with a parameter, of whatever shape."""

    name: str
    parameter: Tensor
    norm: list[Norm]  # its scaling and its centring
    node: Node


def gains(nodes: Sequence[Node]) -> Iterator[Gain]:
    """Yield every x̂ · γ of a hand-written norm, γ · (x − mean) / std included."""
    divided: dict[int, Norm] = {}  # what is scaled by a statistic → that step
    for node in nodes:
        if node.op in ("mul", "div") and (full := _full_operands(node)):
            divided |= {id(origin(full[0])): step for step in _by_hand(node) if step.node is node}
    for node in nodes:
        if node.op != "mul" or len(node.parents) != 2:
            continue
        for data, other in (node.parents, node.parents[::-1]):
            leaf = without_views(other)
            if data.from_input and leaf.kind == "parameter" and (steps := list(_by_hand(origin(data)))):
                behind = [divided[id(node)]] if id(node) in divided else []
                yield Gain(leaf.name, other.tensor, [*behind, *steps], node)


def _by_hand(node: Node) -> Iterator[Norm]:
    """Walk back through x ↦ a·x + b; where b or a is a statistic of x, it is a step of a norm."""
    for _ in range(8):
        if node.op not in ("add", "sub", "mul", "div") or len(node.arguments) < 2:
            return
        data, full = [parent for parent in node.parents if parent.from_input], _full_operands(node)
        if len(full) != 1 or len(data) > 2:
            return
        for other in data:
            if other is not full[0]:
                if not is_statistic(other):
                    return
                yield Norm(node, _reduced_axes(node.tensor, other.tensor))
        node = origin(full[0])


def _full_operands(node: Node) -> list[Node]:
    """Return the operands that depend on the input and are not broadcast."""
    return [parent for parent in node.parents if parent.from_input and parent.tensor.shape == node.tensor.shape]


def _reduced_axes(full: Tensor, statistic: Tensor) -> tuple[int, ...]:
    sizes = [1] * (full.ndim - statistic.ndim) + list(statistic.shape)
    return tuple(axis for axis, size in enumerate(sizes) if size == 1 < full.shape[axis])


def is_statistic(node: Node, steps: int = 8) -> bool:
    """Whether this is a mean, a standard deviation or the like: a reduction, with simple functions of it at most."""
    node = origin(node)
    if node.op in _REDUCTIONS:
        return True
    data = [parent for parent in node.parents if parent.from_input]
    return bool(steps and node.op in _UNARY and data) and all(is_statistic(parent, steps - 1) for parent in data)
