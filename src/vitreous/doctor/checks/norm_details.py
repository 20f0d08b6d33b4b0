"""Has each norm an ε that does not matter, a gain per feature, something to normalise? Has the head one before it?"""

from __future__ import annotations

from collections.abc import Iterator

from torch import Tensor

from vitreous.doctor.checks.residual import residuals
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import FUSED_NORMS, Graph, origin
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.norm_ops import Norm, gains, is_statistic, norms_of, scalings
from vitreous.doctor.recording import Node
from vitreous.reports.formats import number, plural

#: Libraries use 1e-12 to 1e-3. A smaller ε that dominates tells of tokens that vanish, not of the norm.
_LARGE_EPSILON = 1e-2
#: What a norm written by hand computes; a mean may be a pooling.
_SPREADS = frozenset(["var", "std", "var_mean", "std_mean", "rsqrt", "sqrt", "linalg_vector_norm", "norm"])


def norm_epsilon(tested: ModelUnderTest) -> Iterator[Finding]:
    """Compare ε with what it is added to: it is there for a division by 0 and should not change anything else."""
    graph = tested.graph
    found = [added for node in graph.nodes if (added := _fused_epsilon(node) or _epsilon_by_hand(graph, node))]
    if not found:
        raise NotMeasured("no norm with an ε was observed")
    wrong = [
        (node, epsilon, size)
        for node, epsilon, statistic in found
        if epsilon >= _LARGE_EPSILON and epsilon > (size := float(statistic.detach().float().median()))
    ]
    if wrong:
        node, epsilon, size = wrong[0]
        yield finding(
            "norm-epsilon",
            f"{plural(len(wrong), 'norm')} of {len(found)}, first `{node.module or 'forward'}`: ε is {number(epsilon)},"
            f" where the median of what it is added to is {number(size)}, so the tokens keep their size instead of"
            " being normalised.",
            module=node.module,
        )


def _fused_epsilon(node: Node) -> tuple[Node, float, Tensor] | None:
    """Return the norm, its ε and the variances that this is added to; None for other operations."""
    if node.result or not node.from_input or node.op not in ("native_layer_norm", "_fused_rms_norm"):
        return None
    data, shape, epsilon = node.arguments[0], node.arguments[1], node.arguments[4 if node.op[0] == "n" else 3]
    if not isinstance(epsilon, int | float):
        return None
    axes = tuple(range(-len(shape), 0))
    data = data.detach().float()
    variance = data.var(axes, correction=0) if node.op == "native_layer_norm" else data.square().mean(axes)
    return node, epsilon, variance


def _epsilon_by_hand(graph: Graph, node: Node) -> tuple[Node, float, Tensor] | None:
    """The same for √(variance + ε) and (standard deviation + ε) where these are operations of their own."""
    if node.op != "add" or len(node.parents) != 1 or not node.from_input or len(node.arguments) < 2:
        return None
    epsilon, statistic = node.arguments[1], node.parents[0]
    if not isinstance(epsilon, int | float) or not is_statistic(statistic) or not _is_spread(statistic):
        return None
    # nn.RMSNorm adds in place, so that the statistic is gone; whatever overwrites the sum too leaves nothing to compare
    if any(_is_in_place(child) for child in graph.children.get(id(node), [])):
        return None
    return node, float(epsilon), node.tensor - epsilon if _is_in_place(node) else statistic.tensor


def _is_in_place(node: Node) -> bool:
    return node.function is not None and bool(node.function._schema.is_mutable)


def _is_spread(node: Node, steps: int = 8) -> bool:
    """Whether this is a variance, a standard deviation or a mean of squares, and not a sum or a mean."""
    node = origin(node)
    if node.op in ("var", "std", "var_mean", "std_mean"):
        return node.result == 0
    if node.op == "mean":
        return origin(node.parents[0]).op in ("pow", "square") or _is_square(origin(node.parents[0]))
    return bool(steps) and node.op == "sqrt" and _is_spread(node.parents[0], steps - 1)


def _is_square(node: Node) -> bool:
    return node.op == "mul" and len(node.parents) == 2 and node.parents[0] is node.parents[1]


def norm_gain(tested: ModelUnderTest) -> Iterator[Finding]:
    """A hand-written LayerNorm must scale each feature of a token by its own parameter."""
    found = [gain for gain in gains(tested.graph.nodes) if _is_layer_norm(gain.norm)]
    wrong = []
    for gain in found:
        shape = tuple(gain.node.tensor.shape)
        sizes = [1] * (len(shape) - gain.parameter.ndim) + list(gain.parameter.shape)
        if sizes[-1] == 1 < shape[-1]:  # ends as the features do not
            rest = [size for size in sizes[:-1] if size > 1]
            wrong.append((gain, f"one parameter for all {shape[-1]} features" if not rest else
                          f"{rest[-1]} parameters, one per token for all {shape[-1]} features"))  # fmt: skip
    if wrong:
        gain, what = wrong[0]
        yield finding(
            "norm-gain",
            f"{plural(len(wrong), 'norm')} of {len(found)} written by hand, first `{gain.node.module or 'forward'}`,"
            f" {'scales' if len(wrong) == 1 else 'scale'} with `{gain.name}` of shape {tuple(gain.parameter.shape)}:"
            f" {what}.",
            module=gain.node.module,
        )


def _is_layer_norm(steps: list[Norm]) -> bool:
    """Whether it centres and scales over the features alone: norms of the length alone may have one gain on purpose."""
    centred = any(step.node.op == "sub" for step in steps)
    scaled = any(step.node.op in ("div", "mul") for step in steps)
    return centred and scaled and all(step.axes == (step.node.tensor.ndim - 1,) for step in steps)


def norm_repeated(tested: ModelUnderTest) -> Iterator[Finding]:
    """A norm must not read what another norm has just normalised, unless something else reads that too."""
    graph = tested.graph
    norms = list(scalings(graph.nodes))
    if not norms:
        raise NotMeasured("no norm with parameters was observed")
    totals = [residual.total for residual in residuals(tested)]
    repeated = []
    for norm in norms:
        steps = norms_of(norm.node)
        scaled = [step.node for step in steps if step.node.op not in ("sub", "add")]
        first = scaled[1] if len(scaled) > 1 else norm.data  # two norms written by hand are one chain of steps
        if not _is_over_features(first) or not _is_over_features(norm.node):
            continue
        # behind the last block a post-norm model has a norm of the block, one of the encoder and one of the head
        is_inside = any(graph.depends(total, norm.node) for total in totals)
        if is_inside and _is_read_by_alone(graph, first, norm.node):
            repeated.append((first, norm.node))
    if repeated:
        first, second = repeated[0]
        yield finding(
            "norm-repeated",
            f"{plural(len(repeated), 'norm')} of {len(norms)}, first `{second.module or 'forward'}`, reads the output"
            f" of another (`{first.module or 'forward'}`), which nothing else reads.",
            module=second.module,
        )


def final_norm_missing(tested: ModelUnderTest) -> Iterator[Finding]:
    """Behind the last block of a pre-norm model the stream must be normalised before the head reads it (Eq. 4)."""
    graph, found = tested.graph, residuals(tested)
    if not found or graph.output is None:
        raise NotMeasured("no residual connection was observed")
    is_pre_norm = all(residual.has_norm and not norms_of(residual.skip) for residual in found)
    last = found[-1].total
    is_last = id(last) in graph.unavoidable and all(graph.depends(last, residual.total) for residual in found)
    if len(found) < 2 or not is_pre_norm or not is_last or all(residual.kind != "attention" for residual in found):
        return
    behind = graph.between(last, graph.output)[1:]
    if any(node.op in FUSED_NORMS or node.op in _SPREADS or norms_of(node) for node in behind):
        return
    stream, first = (
        origin(residual.total).tensor.detach().float().std(-1).mean() for residual in (found[-1], found[0])
    )
    yield finding(
        "final-norm-missing",
        f"each of the {len(found)} branches normalises what it reads, and nothing normalises what the head reads: the"
        f" standard deviation of a token's features is {number(float(first))} after the first branch and"
        f" {number(float(stream))} after the last.",
        module=found[-1].module,
    )


def _is_over_features(node: Node) -> bool:
    """Whether this is the result of a norm (its scaling, not its centring alone) over the last axis."""
    steps = norms_of(node)
    scaled = any(step.node.op not in ("sub", "add") for step in steps)
    return scaled and all(step.axes == (step.node.tensor.ndim - 1,) and not step.is_batch_norm for step in steps)


def _is_read_by_alone(graph: Graph, first: Node, second: Node) -> bool:
    """Whether all that reads `first` belongs to `second`; what nobody reads in turn does not count."""
    for node in graph.between(first, second)[:-1]:
        for child in graph.children.get(id(node), []):
            is_read = id(child) in graph.children or child is graph.output
            if is_read and not graph.depends(second, child):
                return False
    return True
