"""Do norms run over the features of a token, and has each place its own? Torch's norms and hand-written ones.

For the axis, every element gets the number of the group it is normalised with. The linear layer behind the norm shows
which elements are the features of one token: a LayerNorm has one group per token, a BatchNorm one per feature.
"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from vitreous.doctor.attention_ops import LinearOp, layer_op, linear_op
from vitreous.doctor.checks.residual import Residual, residuals, stages
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import Graph
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.norm_ops import Norm, Scaling, norms_of, scalings
from vitreous.doctor.recording import Node
from vitreous.reports.formats import plural


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


def norm_shared(tested: ModelUnderTest) -> Iterator[Finding]:
    """Two branches of a block must not be normalised with the same parameters."""
    found, norms = _innermost(tested), list(scalings(tested.graph.nodes))
    weights = [_norm_weights(tested.graph, residual, norms) for residual in found]
    if sum(map(bool, weights)) < 2:
        raise NotMeasured("no two residual connections with a norm that has parameters were observed")
    reads = [_reads(tested.graph, residual) for residual in found]
    pairs = [i for i in range(len(found) - 1) if reads[i] != reads[i + 1]]
    shared: dict[str, Node] = {}  # the parameter of the norm → where it is used a second time
    for i in pairs:
        for name in weights[i].keys() & weights[i + 1].keys():
            if weights[i][name] is not weights[i + 1][name]:
                shared.setdefault(name, weights[i + 1][name])
    if shared:
        name, node = next(iter(shared.items()))
        yield finding(
            "norm-shared",
            f"{plural(len(shared), 'norm')}, first `{name}`, {'is' if len(shared) == 1 else 'are'} applied in both"
            " places of a block: the same parameters scale both branches.",
            module=node.module,
        )


def _innermost(tested: ModelUnderTest) -> list[Residual]:
    """Return the residual connections without another one inside: the others go around whole blocks."""
    found = residuals(tested)
    totals = {id(residual.total) for residual in found}
    return [
        residual
        for residual in found
        if not any(id(node) in totals for node in tested.graph.between(residual.skip, residual.branch)[1:])
    ]


def _norm_weights(graph: Graph, residual: Residual, norms: list[Scaling]) -> dict[str, Node]:
    """Return the parameters that the norms of a branch scale with; of a branch without any, the norm behind the sum.

    A norm behind the sum of a pre-norm block belongs to the next branch.
    """
    inside = {id(node) for node in graph.between(residual.skip, residual.branch)[1:]}
    own = [norm for norm in norms if id(norm.node) in inside]
    behind = [norm for norm in norms if norm.data is residual.total]
    return {norm.weight: norm.node for norm in own or behind}


def _reads(graph: Graph, residual: Residual) -> tuple[str, int]:
    """Return what distinguishes the branches of a block: attention or MLP, and the axis that an MLP mixes."""
    inside = graph.between(residual.skip, residual.branch)[1:]
    first = next((linear for node in inside if (linear := linear_op(node))), None)
    return residual.kind, first.in_features if first and residual.kind == "MLP" else 0
