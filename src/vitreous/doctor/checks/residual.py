"""Is each branch a residual one: x + f(norm(x)), with the skip from the stream itself, once, and a norm that fits?

Works on the sums of a recording: in x + f(x), one operand (the skip) is an ancestor of the other (the branch).
"""

from __future__ import annotations

import itertools
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from vitreous.doctor.attention_ops import AttentionOp, layer_op, linear_op
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import NORMS, Graph, origin
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.norm_ops import is_statistic, norms_of
from vitreous.doctor.recording import Node
from vitreous.reports.formats import plural

#: A block has two to four branches; a skip connection around a whole stack of blocks is no mistake.
_LEVELS = 4
_NORM_ARITHMETIC = frozenset(["sub", "mul", "div", "pow"])
_FUSED_NORMS = frozenset(["native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm"])


@dataclass(frozen=True, eq=False)
class Residual:
    """One sum of a skip and a branch."""

    total: Node
    skip: Node
    branch: Node
    kind: str  # attention, MLP
    has_norm: bool  # somewhere in the branch

    @property
    def module(self) -> str:
        return self.total.module


def skip_normalised(tested: ModelUnderTest) -> Iterator[Finding]:
    """The skip must carry the stream, not its normalised copy."""
    graph, sums = tested.graph, _sums(tested)
    swapped = [pair for node in graph.nodes if (pair := _swapped(graph, node)) is not None]
    if swapped:
        total, norm = swapped[0]
        yield finding(
            "skip-normalised",
            f"in {plural(len(swapped), 'sum')}, first in `{total.module}`, a branch reads the stream as it is while the"
            f" skip connection carries the output of the norm `{norm.module}`: the two are swapped.",
            module=total.module,
        )
        return
    found = residuals(tested)
    if not found:
        raise NotMeasured("no residual connection was observed")
    attention = [residual for residual in found if residual.kind == "attention"]
    normed = [residual for residual in attention if norms_of(residual.skip)]
    # A post-norm model looks the same in the middle: x = norm(x + f(x)). There the norm belongs to the block before,
    # and the last sum is normalised.
    own = [residual for residual in normed if _parent(residual.skip.module) == residual.module != ""]
    open_end = _features_leave_unnormalised(graph, sums)
    if normed and len(normed) == len(attention) and (len(own) == len(normed) or open_end):
        first = normed[0]
        yield finding(
            "skip-normalised",
            f"in {len(normed)} of {_branches(len(attention), 'attention')}, first in `{first.module or 'forward'}`,"
            f" the skip connection starts after the norm `{first.skip.module}`: the stream itself is dropped, and each"
            " block passes on normalised tokens only.",
            module=first.module,
        )


def branch_not_normalised(tested: ModelUnderTest) -> Iterator[Finding]:
    """Attention (or MLP) that reads the raw stream, with no norm before, inside or after it."""
    found = residuals(tested)
    if not found:
        raise NotMeasured("no residual connection was observed")
    if any(_swapped(tested.graph, node) for node in tested.graph.nodes):
        raise NotMeasured("the norm is on the skip connection instead, which includes this")
    bare = [residual for residual in found if _is_bare(tested.graph, residual)]
    if not bare:
        return
    kinds = Counter(residual.kind for residual in found)
    for kind in ("attention", "MLP"):
        those = [residual for residual in bare if residual.kind == kind]
        # the first block may follow a norm of the embedding, the last one may be followed by the final norm
        if those and len(those) >= kinds[kind] - 1:
            everywhere = not any(residual.has_norm or residual.skip.op in NORMS for residual in found)
            yield finding(
                "branch-not-normalised",
                f"{len(those)} of {_branches(kinds[kind], kind)} read the stream without a norm, first in"
                f" `{those[0].module or 'forward'}`"
                + (": no branch of the model has one." if everywhere else ", where other branches have one."),
                level="note" if everywhere else None,
                module=those[0].module,
            )
            return


def skip_missing(tested: ModelUnderTest) -> Iterator[Finding]:
    """Between two attentions over the same tokens, no attention and no MLP may be on every path."""
    graph = tested.graph
    layers_of_attention = stages(tested)
    if len(layers_of_attention) < 2:
        raise NotMeasured("two attentions over the same number of tokens are needed")
    regions, attention, mlp = 0, 0, 0
    first = ""
    for (start, ops), (end, _) in itertools.pairwise(layers_of_attention):
        if start.tensor.shape != end.tensor.shape:
            continue
        regions += 1
        region = graph.between(ops[-1].product, end)
        joined = ops[0].product if len(ops) == 1 else next((node for node in region if node.op == "cat"), None)
        if joined is not None and id(joined) in graph.unavoidable:
            attention, first = attention + 1, first or ops[0].module
        layers = [linear for node in region if id(node) in graph.unavoidable and (linear := linear_op(node))]
        pairs = itertools.pairwise(layers)
        if any(one.out_features == two.in_features and one.in_features == two.out_features for one, two in pairs):
            mlp, first = mlp + 1, first or layers[0].output.module
    for count, what in ((attention, "attention"), (mlp, "MLP")):
        if count and 2 * count >= regions:
            yield finding(
                "skip-missing",
                f"around {count} of {_branches(regions, what)} (first: `{first}`) there is no skip connection:"
                f" every path from the image to the output passes through the {what}.",
                module=first,
            )
            return


def branch_doubled(tested: ModelUnderTest) -> Iterator[Finding]:
    """Write the stream as a sum: no term may occur twice."""
    sums = _sums(tested)
    if not sums:
        raise NotMeasured("no residual connection was observed")
    doubled = [node for node in sums if _has_duplicate(list(_terms(node, _LEVELS)))]
    if doubled:
        node = doubled[0]
        yield finding(
            "branch-doubled",
            f"in {plural(len(doubled), 'sum')}, first in `{node.module or 'forward'}`, the same tensor is added twice:"
            " a skip connection inside and outside of a block, or a branch that is added to itself.",
            module=node.module,
        )


# --- the sums of a recording ---------------------------------------------------------------------------------


def _sums(tested: ModelUnderTest) -> list[Node]:
    """Return the additions of two activations of the same shape, with tokens and features."""
    return [
        node
        for node in tested.graph.nodes
        if node.op == "add"
        and len(node.parents) == 2
        and all(parent.from_input and parent.tensor.shape == node.tensor.shape for parent in node.parents)
        and node.tensor.ndim >= 2
    ]


def residuals(tested: ModelUnderTest) -> list[Residual]:
    """Return the residual connections around attention and MLPs, in order."""
    graph = tested.graph
    products = {id(op.product) for op in _attention(tested)}
    found = []
    for total in _sums(tested):
        one, two = (origin(parent) for parent in total.parents)
        if graph.depends(two, one) and one is not two:
            skip, branch = one, two
        elif graph.depends(one, two) and one is not two:
            skip, branch = two, one
        else:
            continue
        nodes = graph.between(skip, branch)[1:]
        has_attention = any(id(node) in products for node in nodes)
        if has_attention or sum(linear_op(node) is not None for node in nodes) >= 2:
            has_norm = any(node.op in NORMS for node in nodes)
            found.append(Residual(total, skip, branch, "attention" if has_attention else "MLP", has_norm))
    return found


def _attention(tested: ModelUnderTest) -> list[AttentionOp]:
    try:
        return tested.attention
    except NotMeasured:
        return []


def _swapped(graph: Graph, total: Node) -> tuple[Node, Node] | None:
    """Return the sum and its norm if it is f(x) + norm(x), where f does not read the norm."""
    if total.op != "add" or len(total.parents) != 2 or total.parents[0].tensor.shape != total.parents[1].tensor.shape:
        return None
    if not all(parent.from_input for parent in total.parents):
        return None
    one, two = (origin(parent) for parent in total.parents)
    for norm, branch in ((one, two), (two, one)):
        if norm.op not in _FUSED_NORMS or norm is branch or graph.depends(branch, norm):
            continue
        stream = origin(norm.parents[0])
        if not stream.from_input or not graph.depends(branch, stream) or branch is stream:
            continue
        nodes = graph.between(stream, branch)[1:]
        layers = any(node.op == "convolution" or linear_op(node) for node in nodes)  # 1×1 convolutions are linear
        if layers and not any(node.op in NORMS for node in nodes):
            return total, norm
    return None


def _is_bare(graph: Graph, residual: Residual) -> bool:
    if residual.has_norm or residual.skip.op in NORMS or residual.skip.op not in ("add", "cat"):
        return False
    return not all(_leads_to_norm(graph, child) for child in graph.children.get(id(residual.total), []))


def _leads_to_norm(graph: Graph, node: Node) -> bool:
    """Whether this is a norm, or arithmetic of a hand-written one: x − mean, x², x · rsqrt(…)."""
    while node.op not in NORMS and (node.op == "native_dropout" or origin(node) is not node):
        children = graph.children.get(id(node), [])
        if len(children) != 1:
            return False
        node = children[0]
    if node.op in _NORM_ARITHMETIC:
        partners = [parent for parent in node.parents if parent.from_input]
        return node.op == "pow" or any(is_statistic(partner) for partner in partners)
    return node.op in NORMS


def _features_leave_unnormalised(graph: Graph, sums: list[Node]) -> bool:
    """Whether nothing normalises the last sum before the output."""
    if not sums or graph.output is None or not graph.depends(graph.output, sums[-1]):
        return False
    return not any(node.op in NORMS for node in graph.between(sums[-1], graph.output))


def _branches(count: int, kind: str) -> str:
    return plural(count, f"{kind} branch", f"{kind} branches")


def _parent(module: str) -> str:
    return module.rpartition(".")[0]


def _has_duplicate(terms: list[Node]) -> bool:
    """Whether a term occurs twice, or once as it is and once normalised."""
    present = {id(term) for term in terms}
    normed = [term for term in terms if term.op in _FUSED_NORMS]
    return len(present) < len(terms) or any(id(origin(norm.parents[0])) in present for norm in normed)


def _terms(node: Node, depth: int) -> Iterator[Node]:
    """Flatten a sum of sums: the terms of x + (x + f) are x, x and f."""
    for parent in node.parents:
        inner = origin(parent)
        if inner.op == "add" and depth and len(inner.parents) == 2 and all(p.from_input for p in inner.parents):
            yield inner
            yield from _terms(inner, depth - 1)
        else:
            yield inner


def stages(tested: ModelUnderTest) -> list[tuple[Node, list[AttentionOp]]]:
    """Return what each layer of attention reads, with its attentions (one, or one per head)."""
    found: list[tuple[Node, list[AttentionOp]]] = []
    for op in tested.attention:
        if op.scores is None:
            continue
        key = _source(op.scores.key_operand)
        if key is None or key is not _source(op.scores.query_operand):
            continue
        if found and found[-1][0] is key:
            found[-1][1].append(op)
        else:
            found.append((key, [op]))
    return found


def _source(node: Node, steps: int = 12) -> Node | None:
    """Walk back from queries or keys to the input of the linear layer that they come from."""
    node = origin(node)
    if (linear := layer_op(node)) is not None:
        return origin(linear.data)
    data = [parent for parent in node.parents if parent.from_input]
    sources = {id(source): source for parent in data if steps and (source := _source(parent, steps - 1)) is not None}
    return next(iter(sources.values())) if len(sources) == 1 else None
