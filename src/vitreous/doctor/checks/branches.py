"""How each branch ends and joins the stream: by a sum, from a linear layer, with the heads of attention mixed."""

from __future__ import annotations

from collections.abc import Iterator

from vitreous.doctor.attention_ops import layer_op, linear_feeding
from vitreous.doctor.checks.layout import is_between_channels
from vitreous.doctor.checks.outputs import ACTIVATIONS
from vitreous.doctor.checks.residual import Residual, residuals
from vitreous.doctor.findings import Finding, NotMeasured, finding
from vitreous.doctor.graph import FUSED_NORMS, Graph, origin
from vitreous.doctor.model_under_test import ModelUnderTest
from vitreous.doctor.recording import Node
from vitreous.reports.formats import number, percent, plural

#: Activations that are 0 at least, or hardly below: a branch that ends with one can only add.
_ONE_SIDED = frozenset(["relu", "gelu", "silu", "leaky_relu", "softplus", "mish", "clamp_min"])
#: What a branch's last operation is where nothing bounds its values: a gate ends with a sigmoid or the like.
_UNBOUNDED = frozenset(["mm", "bmm", "addmm", "baddbmm", "add", "cat", "convolution"])
_PRODUCTS = frozenset(["mm", "bmm", "addmm", "baddbmm", "convolution"])


def skip_multiplied(tested: ModelUnderTest) -> Iterator[Finding]:
    """The stream must meet a branch in a sum: in a product x · f(x), what a block passes on depends on its size."""
    products = [pair for node in tested.graph.nodes if (pair := _stream_and_branch(tested, node)) is not None]
    if not products and not residuals(tested):
        raise NotMeasured("no residual connection was observed")
    if products:
        product, what = products[0]
        size = number(float(product.tensor.detach().abs().mean()))
        before = number(float(product.parents[0].tensor.detach().abs().mean()))
        yield finding(
            "skip-multiplied",
            f"in {plural(len(products), 'block')}, first `{product.module or 'forward'}`, the stream is multiplied with"
            f" the {what} branch instead of added to it: the mean size of a value goes from {before} to {size}.",
            module=product.module,
        )


def _stream_and_branch(tested: ModelUnderTest, node: Node) -> tuple[Node, str] | None:
    """Return the product and its branch if it is x · f(x), on every path to the output, where f is a whole branch."""
    graph = tested.graph
    if node.op != "mul" or len(node.parents) != 2 or node.tensor.ndim < 3 or id(node) not in graph.unavoidable:
        return None
    if any(not parent.from_input or parent.tensor.shape != node.tensor.shape for parent in node.parents):
        return None
    for stream, branch in (node.parents, node.parents[::-1]):
        start, end = origin(stream), origin(branch)
        if start is end or start.tensor.numel() != stream.tensor.numel() or not graph.depends(end, start):
            continue  # two parts of one tensor are a gated unit
        inside = graph.between(start, end)[1:]
        ids = {id(one) for one in inside}
        has_attention = tested.has_attention and any(id(op.product) in ids for op in tested.attention)
        layers = sum(layer_op(one) is not None for one in inside)
        if end.op in _UNBOUNDED and (has_attention or layers >= 2):
            return node, "attention" if has_attention else "MLP"
    return None


def branch_activation(tested: ModelUnderTest) -> Iterator[Finding]:
    """A branch must end with a linear layer: behind an activation, it can only add to the stream, never subtract."""
    found = residuals(tested)
    if not found:
        raise NotMeasured("no residual connection was observed")
    ends = [(residual, end) for residual in found if (end := _last_activation(residual)) is not None]
    if ends:
        residual, end = ends[0]
        values = end.tensor.detach()
        yield finding(
            "branch-activation",
            f"in {len(ends)} of {plural(len(found), 'branch', 'branches')}, first `{residual.module or 'forward'}`, the"
            f" last linear layer is followed by {ACTIVATIONS[end.op]} before the sum:"
            f" {percent(float((values > 0).float().mean()))} of the values added are positive, the smallest is"
            f" {number(float(values.min()))} and the largest {number(float(values.max()))}.",
            module=residual.module,
        )


def _last_activation(residual: Residual) -> Node | None:
    """Return the activation that the branch ends with, which reads a linear layer; norms and scales may follow."""
    node = residual.branch
    for _ in range(4):
        if node.op in _ONE_SIDED:
            return node if linear_feeding(node.parents[0]) is not None else None
        data = [parent for parent in node.parents if parent.from_input]
        is_scaled = node.op == "mul" and len(data) == 1
        if not is_scaled and not (node.op in FUSED_NORMS and node.result == 0):
            return None
        node = origin(data[0])
    return None


def projection_missing(tested: ModelUnderTest) -> Iterator[Finding]:
    """Behind several heads a linear layer must mix them; without it each head writes into its own features alone."""
    found = [residual for residual in residuals(tested) if residual.kind == "attention"]
    if not found or not tested.has_attention:
        raise NotMeasured("no residual connection around attention was observed")
    without = [(residual, *sizes) for residual in found if (sizes := _unprojected_sizes(tested, residual)) is not None]
    if without and len(without) == len(found):
        residual, width, features = without[0]
        yield finding(
            "projection-missing",
            f"in {plural(len(without), 'attention branch', 'attention branches')}, first"
            f" `{residual.module or 'forward'}`, no linear layer follows the heads: each of the {features // width}"
            f" heads adds its {width} values to its own {width} of the {features} features of a token.",
            module=residual.module,
        )


def _unprojected_sizes(tested: ModelUnderTest, residual: Residual) -> tuple[int, int] | None:
    """Return the width of a head and of all where no layer lies between several heads and the sum."""
    graph: Graph = tested.graph
    inside = {id(node) for node in graph.between(residual.skip, residual.branch)[1:]}
    ops = [op for op in tested.attention if id(op.product) in inside]
    shape = residual.total.tensor.shape
    is_map = len(shape) == 4 and shape[-1] == shape[-2]  # (B, D, H, W); of windows it is (B, H, W, D)
    width, features = (ops[0].values.shape[-1], shape[1 if is_map else -1]) if ops else (0, 0)
    if len({op.values.shape[-1] for op in ops}) != 1 or width >= features or features % width:
        return None
    if any(op.scores is None or is_between_channels(graph, op) for op in ops):
        return None
    behind = [node for op in ops for node in graph.between(op.product, residual.branch)[1:]]
    return None if any(node.op in _PRODUCTS for node in behind) else (int(width), int(features))
