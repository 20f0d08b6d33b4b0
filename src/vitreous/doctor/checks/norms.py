"""Do norms run over the features of a token? Works for torch's norms and for hand-written ones.

Every element gets the number of the group it is normalised with. The linear layer behind the norm shows which elements
are the features of one token: a LayerNorm has one group per token, a BatchNorm one per feature.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from vitreous.doctor.attention_ops import LinearOp, layer_op
from vitreous.doctor.checks.residual import stages
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.norm_ops import Norm, norms_of


def norm_axis(tested: ModelUnderTest) -> Iterator[Finding]:
    """The norm before attention must run over the features, which are what the next linear layer sums over."""
    measured = False
    for start, _ in stages(tested):
        for norm in norms_of(start):
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
    if not _mixes_tokens(norm, rows):
        return None
    if not same_in_row:
        return f"{where} normalises over the tokens of its {shape} input; {behind}, which is another axis."
    return (
        f"{where} normalises {norm.group_size // layer.in_features} tokens together, of its {shape} input: each token's"
        " scale depends on the others."
    )


def _mixes_tokens(norm: Norm, rows: Tensor) -> bool:
    """Whether a group has more elements than those of one token."""
    whole = [row for row in rows if bool((row >= 0).all())]  # not padding
    return any(bool((row.unique(return_counts=True)[1] < norm.group_size).any()) for row in whole[:4])


def _rows(graph: Graph, norm: Norm) -> tuple[Tensor, LinearOp] | None:
    """Return the groups as the next linear layer sees them, (tokens, features), and that layer."""
    for carried in graph.follow(norm.node, norm.groups):
        if (linear := layer_op(carried.consumer)) is not None and linear.data is carried.node:
            labels = carried.labels.mT if carried.consumer.op == "convolution" else carried.labels
            return labels.reshape(-1, labels.shape[-1]), linear
    return None
