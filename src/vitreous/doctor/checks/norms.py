"""Do norms run over the features of a token? Works for torch's norms and for hand-written ones.

Every element gets the number of the group it is normalised with. The linear layer behind the norm shows which elements
are the features of one token: a LayerNorm has one group per token, a BatchNorm one per feature.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor

from vitreous.doctor.attention_ops import LinearOp, linear_op
from vitreous.doctor.checks.residual import stages
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import Graph, origin
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.recording import Node

_REDUCTIONS = frozenset(["mean", "var", "std", "sum", "var_mean", "std_mean", "linalg_vector_norm", "norm"])
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


def norm_axis(tested: ModelUnderTest) -> Iterator[Finding]:
    """The norm before attention must run over the features, which are what the next linear layer sums over."""
    measured = False
    for start, _ in stages(tested):
        for norm in _norms_of(start):
            rows_and_layer = _rows(tested.graph, norm)
            if rows_and_layer is None:
                continue
            measured = True
            if (text := _fault(norm, *rows_and_layer)) is not None:
                yield finding("norm-axis", text, module=norm.node.module)
                return
    if not measured:
        raise NotMeasured("no norm before an attention was observed")


def _fault(norm: Norm, rows: Tensor, layer: LinearOp) -> str | None:
    """Describe what is wrong, given the group of each feature (column) of each token (row)."""
    if min(rows.shape) < 2:
        return None
    same_in_row = bool((rows == rows[:, :1]).all())
    where = f"`{norm.node.module or 'forward'}`"
    shape, behind = tuple(norm.node.tensor.shape), f"the linear layer behind it sums over {layer.in_features} features"
    if norm.is_batch_norm:
        if not same_in_row:
            return None
        return f"{where} normalises over one channel per token of its {shape} input; {behind}, which is another axis."
    if not same_in_row:
        if not _mixes_tokens(rows):
            return None  # several groups per token, each within it
        return f"{where} normalises over the tokens of its {shape} input; {behind}, which is another axis."
    together = norm.node.tensor.numel() // int(norm.groups.max() + 1) // layer.in_features
    if together < 2:
        return None
    return (
        f"{where} normalises {together} tokens together, of its {shape} input: each token's scale depends on the"
        " others."
    )


def _mixes_tokens(rows: Tensor) -> bool:
    """Whether a group has elements of several tokens; windows may repeat a token."""
    groups = [row.unique() for row in rows.unique(dim=0)]
    return sum(map(len, groups)) > len(torch.cat(groups).unique())


def _rows(graph: Graph, norm: Norm) -> tuple[Tensor, LinearOp] | None:
    """Return the groups as the next linear layer sees them, (tokens, features), and that layer."""
    for carried in graph.follow(norm.node, norm.groups):
        if (linear := linear_op(carried.consumer)) is not None and linear.data is carried.node:
            return carried.labels.reshape(-1, carried.labels.shape[-1]), linear
    return None


# --- finding norms -------------------------------------------------------------------------------------------


def _norms_of(start: Node) -> list[Norm]:
    """Return the norm that `start` is the result of; for a hand-written one its scaling and its centring."""
    ndim = start.tensor.ndim
    if start.op == "native_layer_norm":
        return [Norm(start, tuple(range(ndim - len(start.arguments[1]), ndim)))]
    if start.op == "_fused_rms_norm":
        return [Norm(start, (ndim - 1,))]
    if start.op in ("native_batch_norm", "_native_batch_norm_legit", "cudnn_batch_norm"):
        axes = tuple(axis for axis in range(ndim) if axis != 1)
        return [Norm(start, axes, is_batch_norm=True)] if ndim > 2 else []
    return list(_by_hand(start))


def _by_hand(node: Node) -> Iterator[Norm]:
    """Walk back through x ↦ a·x + b; where b or a is a statistic of x, it is a step of a norm."""
    for _ in range(8):
        if node.op not in ("add", "sub", "mul", "div") or len(node.arguments) < 2:
            return
        data = [parent for parent in node.parents if parent.from_input]
        full = [parent for parent in data if parent.tensor.shape == node.tensor.shape]
        if len(full) != 1 or len(data) > 2:
            return
        for other in data:
            if other is not full[0]:
                if not _is_statistic(other):
                    return
                yield Norm(node, _reduced_axes(node.tensor, other.tensor))
        node = origin(full[0])


def _reduced_axes(full: Tensor, statistic: Tensor) -> tuple[int, ...]:
    sizes = [1] * (full.ndim - statistic.ndim) + list(statistic.shape)
    return tuple(axis for axis, size in enumerate(sizes) if size == 1 < full.shape[axis])


def _is_statistic(node: Node, steps: int = 8) -> bool:
    """Whether this is a mean, a standard deviation or the like: a reduction, with simple functions of it at most."""
    node = origin(node)
    if node.op in _REDUCTIONS:
        return True
    data = [parent for parent in node.parents if parent.from_input]
    return bool(steps and node.op in _UNARY and data) and all(_is_statistic(parent, steps - 1) for parent in data)
