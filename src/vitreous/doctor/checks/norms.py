"""Do norms run over the features of a token, and has each place its own? Torch's norms and hand-written ones.

For the axis, every element gets the number of the group it is normalised with. The linear layer behind the norm shows
which elements are the features of one token: a LayerNorm has one group per token, a BatchNorm one per feature.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence

import torch
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
    """Norms must run over the features: those that the linear layer behind attention's norm sums over."""
    measured = False
    for norm, text in [*_before_attention(tested), *_by_size(tested)]:
        measured = True
        if text is not None:
            yield finding("norm-axis", text, module=norm.node.module)
            return
    if not measured:
        raise NotMeasured("no norm of tokens was observed")


def _before_attention(tested: ModelUnderTest) -> Iterator[tuple[Norm, str | None]]:
    sizes = _stream_sizes(tested)
    for start, _ in stages(tested) if tested.has_attention else []:
        for norm in norms_of(start):
            if sizes is not None and _is_over_features(norm, *sizes):
                yield norm, None  # whatever slices of a token the layer behind reads, such as one head's
                continue
            rows_and_layer = _rows(tested.graph, norm)
            if rows_and_layer is not None:
                yield norm, _fault(norm, *rows_and_layer)


def _by_size(tested: ModelUnderTest) -> Iterator[tuple[Norm, str | None]]:
    """Compare the axes of every other norm with the sizes of the stream (B, N, D), where these are all different."""
    sizes = _stream_sizes(tested)
    if sizes is None:
        return
    tokens, width = sizes
    for node in tested.graph.nodes:
        shape = tuple(node.tensor.shape)
        if sorted(shape[1:]) != sorted(sizes) or shape[0] != tested.num_recorded or node.result:
            continue
        for norm in norms_of(node):
            if norm.node.op in ("add", "sub"):  # a mean alone is a context, not a norm
                continue
            yield norm, _fault_by_size(norm, tokens, width)


def _is_over_features(norm: Norm, tokens: int, width: int) -> bool:
    shape = tuple(norm.node.tensor.shape)
    return not norm.is_batch_norm and shape[1:] == (tokens, width) and norm.axes == (2,)


def _fault_by_size(norm: Norm, tokens: int, width: int) -> str | None:
    shape = tuple(norm.node.tensor.shape)
    normalised = {shape[axis] for axis in norm.axes}
    if norm.is_batch_norm:
        wrong = "over one channel per token" if width in normalised else ""
    elif tokens not in normalised and 0 not in norm.axes:
        wrong = ""
    elif width in normalised:
        wrong = "several tokens together,"
    else:
        wrong = "over the tokens" if 0 not in norm.axes else "over the images of the batch"
    if not wrong:
        return None
    return (
        f"`{norm.node.module or 'forward'}` normalises {wrong} of its {shape} input; a token's {width} features are"
        f" {'only a part of that' if width in normalised and not norm.is_batch_norm else 'another axis'}."
    )


def _stream_sizes(tested: ModelUnderTest) -> tuple[int, int] | None:
    """Return the number of tokens and their width as the residual connections have them; None where it is unclear."""
    shapes = [tuple(residual.total.tensor.shape) for residual in residuals(tested)]
    if not shapes or len(set(shapes)) > 1 or len(shapes[0]) != 3 or len(set(shapes[0])) < 3:
        return None
    layers = [layer for node in tested.graph.nodes if (layer := layer_op(node)) is not None]
    # the patch embedding, or what follows it, produces tokens of the stream's width
    width = next((layer.out_features for layer in layers if layer.out_features in shapes[0][1:]), None)
    convolutions = [node for node in tested.graph.nodes if node.op == "convolution" and node.tensor.ndim == 4]
    if convolutions and convolutions[0].from_input:
        width = convolutions[-1].tensor.shape[1]
    if width not in shapes[0][1:]:
        return None
    return next(size for size in shapes[0][1:] if size != width), width


def _fault(norm: Norm, rows: Tensor, layer: LinearOp) -> str | None:
    """Describe what is wrong, given the element of the norm that each feature (column) of each token (row) is."""
    if min(rows.shape) < 2:
        return None
    elements, rows = rows, norm.groups.flatten().to(rows.device)[rows.clamp(min=0)].masked_fill(rows < 0, -1)
    same_in_row = bool((rows == rows[:, :1]).all())
    where = f"`{norm.node.module or 'forward'}`"
    shape, behind = tuple(norm.node.tensor.shape), f"the linear layer behind it sums over {layer.in_features} features"
    if norm.is_batch_norm:
        if not same_in_row:
            return None
        return f"{where} normalises over one channel per token of its {shape} input; {behind}, which is another axis."
    # over one axis, a row of which is in one group, a norm has one group per token: heads may share a projection
    if (same_in_row and len(norm.axes) == 1 and len(shape) > 2) or not _mixes_tokens(elements, rows):
        return None
    if not same_in_row:
        what = "images of the batch" if 0 in norm.axes else "tokens"
        return f"{where} normalises over the {what} of its {shape} input; {behind}, which is another axis."
    together = int((rows[:, 0] == rows[0, 0]).sum())
    return (
        f"{where} normalises {together} tokens together, of its {shape} input: each token's scale depends on the"
        " others."
    )


def _mixes_tokens(elements: Tensor, rows: Tensor) -> bool:
    """Whether a group has elements of different tokens; overlapping windows may repeat a token."""
    whole = [i for i in range(len(rows)) if bool((rows[i] >= 0).all())]  # not padding
    first = whole[0] if whole else 0
    for other in whole[1:]:
        shared = bool(torch.isin(rows[other], rows[first]).any())
        if shared and not bool(torch.isin(elements[other], elements[first]).any()):
            return True
    return False


def _rows(graph: Graph, norm: Norm) -> tuple[Tensor, LinearOp] | None:
    """Return the elements of the norm as the next linear layer sees them, (tokens, features), and that layer."""
    shape = norm.node.tensor.shape
    for carried in graph.follow(norm.node, torch.arange(shape.numel()).view(shape)):
        if (linear := layer_op(carried.consumer)) is not None and linear.data is carried.node:
            labels = carried.labels.mT if carried.consumer.op == "convolution" else carried.labels
            return labels.reshape(-1, labels.shape[-1]).long(), linear
    return None


def norm_shared(tested: ModelUnderTest) -> Iterator[Finding]:
    """Branches must not be normalised with the same parameters: neither the two of a block nor those of all blocks."""
    found, norms = _innermost(tested), list(scalings(tested.graph.nodes))
    weights = _norm_weights(tested.graph, found, norms)
    if sum(map(bool, weights)) < 2:
        raise NotMeasured("no two residual connections with a norm that has parameters were observed")
    reads = [_reads(tested.graph, residual) for residual in found]
    pairs = [i for i in range(len(found) - 1) if reads[i] != reads[i + 1]]
    within: dict[str, Node] = {}  # the parameter of the norm → where it is used a second time
    for i in pairs:
        for name in weights[i].keys() & weights[i + 1].keys():
            if weights[i][name] is not weights[i + 1][name]:
                within.setdefault(name, weights[i + 1][name])
    across = {} if within else _shared_by_layers(tested.graph, found, weights)
    for shared, where in ((within, "in both places of a block"), (across, "in several layers")):
        if shared:
            name, node = next(iter(shared.items()))
            yield finding(
                "norm-shared",
                f"{plural(len(shared), 'norm')}, first `{name}`, {'is' if len(shared) == 1 else 'are'} applied {where},"
                " whose linear layers differ: the same parameters scale all these branches.",
                module=node.module,
            )


def _shared_by_layers(
    graph: Graph, found: Sequence[Residual], weights: Sequence[Mapping[str, Node]]
) -> dict[str, Node]:
    """Return the norms' parameters that branches with other linear layers use too: these are not one block reused."""
    shared: dict[str, Node] = {}
    first: dict[str, tuple[Node, set[str]]] = {}  # the norm's parameter → its first use, the branch's linear layers
    for residual, own in zip(found, weights, strict=True):
        inside = graph.between(residual.skip, residual.branch)[1:]
        linear = {op.weight for node in inside if (op := linear_op(node))}
        for name, node in own.items():
            before, layers = first.setdefault(name, (node, linear))
            if before is not node and linear and layers and not linear & layers:
                shared.setdefault(name, node)
    return shared


def _innermost(tested: ModelUnderTest) -> list[Residual]:
    """Return the residual connections without another one inside: the others go around whole blocks."""
    found = residuals(tested)
    totals = {id(residual.total) for residual in found}
    return [
        residual
        for residual in found
        if not any(id(node) in totals for node in tested.graph.between(residual.skip, residual.branch)[1:])
    ]


def _norm_weights(graph: Graph, found: Sequence[Residual], norms: list[Scaling]) -> list[dict[str, Node]]:
    """Return per branch the parameters that its norms scale with.

    Of a branch without any: the norm that its skip starts behind, unless it is that of the branch before (post-norm);
    or else the norm behind the sum. A norm behind the sum of a pre-norm block belongs to the next branch.
    """
    weights, taken = [], set()
    for residual in found:
        inside = {id(node) for node in graph.between(residual.skip, residual.branch)[1:]}
        own = [norm for norm in norms if id(norm.node) in inside]
        own = own or [norm for norm in norms if norm.node is residual.skip and id(norm.node) not in taken]
        if not own:
            own = [norm for norm in norms if norm.data is residual.total]
            taken |= {id(norm.node) for norm in own}
        weights.append({norm.weight: norm.node for norm in own})
    return weights


def _reads(graph: Graph, residual: Residual) -> tuple[str, int]:
    """Return what distinguishes the branches of a block: attention or MLP, and the axis that an MLP mixes."""
    inside = graph.between(residual.skip, residual.branch)[1:]
    first = next((linear for node in inside if (linear := linear_op(node))), None)
    return residual.kind, first.in_features if first and residual.kind != "attention" else 0
