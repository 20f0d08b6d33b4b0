"""A record of every tensor operation in a forward pass, and the attention and linear layers found in it.

The recorder works below autograd, where composite functions have been decomposed into a few primitive operations.
`nn.MultiheadAttention`, `F.scaled_dot_product_attention`, einsum and hand-written attention all look the same there:
product, softmax, product.

Shapes: G groups (images × heads) of Q queries and S keys, K head width.
"""

from __future__ import annotations

import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves

from vitreous.doctor.randomness import Deterministic


@dataclass(eq=False)
class Node:
    """One tensor that an operation returned, or a leaf."""

    op: str
    tensor: Tensor
    parents: tuple[Node, ...] = ()
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    module: str = ""  # the innermost module being executed
    name: str = ""  # leaves: the name of the parameter, buffer or plain tensor
    kind: str = ""  # leaves: input, parameter, buffer, plain or constant
    from_input: bool = False
    from_parameter: bool = False


#: Operations that rearrange values without changing them.
VIEWS = frozenset([
    "view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "permute", "t", "expand", "squeeze", "unsqueeze",
    "slice", "select", "alias", "detach", "clone", "unbind", "split", "split_with_sizes", "unsafe_split", "_to_copy",
    "as_strided", "lift_fresh",
])  # fmt: skip


def _location(tensor: Tensor) -> tuple[Any, ...]:
    # autograd may wrap a view anew between two operations, so tensors are identified by their memory
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


class Recorder(Deterministic):
    """Records the operations executed inside it. Tensors are kept alive, so no address is reused."""

    def __init__(self, leaves: dict[int, tuple[str, str]]) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.executing = [""]  # the names of the modules being executed, the innermost last
        self._leaves = leaves  # storage address → (kind, name)
        self._node_at: dict[tuple[Any, ...], Node] = {}
        self._written_from_input: set[int] = set()  # storages into which the input was copied, in whole or in part

    def _node_of(self, tensor: Tensor) -> Node:
        location = _location(tensor)
        if location not in self._node_at:
            kind, name = self._leaves.get(location[0], ("constant", ""))
            from_input, from_parameter = kind == "input", kind == "parameter"
            self._node_at[location] = Node(
                "leaf", tensor, name=name, kind=kind, from_input=from_input, from_parameter=from_parameter
            )
        node = self._node_at[location]
        node.from_input = node.from_input or location[0] in self._written_from_input
        return node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parents = tuple(self._node_of(tensor) for tensor in _tensors_in((args, kwargs)))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        from_input = any(parent.from_input for parent in parents)
        if func._schema.is_mutable and from_input:
            self._written_from_input.add(parents[0].tensor.untyped_storage().data_ptr())
        for tensor in _tensors_in(result):
            node = Node(
                op=func.overloadpacket.__name__.rstrip("_"),
                tensor=tensor,
                parents=parents,
                arguments=args,
                options=kwargs,
                module=self.executing[-1],
                from_input=from_input,
                from_parameter=any(parent.from_parameter for parent in parents),
            )
            self._node_at[_location(tensor)] = node
            self.nodes.append(node)
        return result


@torch.no_grad()
def record_forward(model: nn.Module, inputs: Tensor, plain: dict[str, Tensor]) -> Recorder:
    """Record what `model` does to `inputs`, with fused attention kernels switched off.

    `plain` holds the model's tensors that are neither parameters nor buffers.
    """
    leaves = {inputs.untyped_storage().data_ptr(): ("input", "input")}
    owned = {"plain": plain.items(), "buffer": model.named_buffers(), "parameter": model.named_parameters()}
    for kind, named in owned.items():
        leaves |= {tensor.untyped_storage().data_ptr(): (kind, name) for name, tensor in named if tensor.numel()}
    recorder = Recorder(leaves)

    def leave(*_: Any) -> None:
        recorder.executing.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: recorder.executing.append(name))
            hooks.callback(enter.remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        with sdpa_kernel(SDPBackend.MATH), recorder:
            model(inputs)
    return recorder


# --- walking back through a recording ------------------------------------------------------------------------


def without_views(node: Node) -> Node:
    while node.op in VIEWS and node.parents:
        node = node.parents[0]
    return node


def unscaled(node: Node) -> tuple[Node, float]:
    """Walk back through views and multiplications by a constant; return the node reached and the product of factors.

    The factor is NaN where the model learns it (a temperature): then no fixed value is expected.
    """
    factor = 1.0
    while True:
        node = without_views(node)
        if node.op not in ("mul", "div") or len(node.arguments) < 2:
            return node, factor
        data, other = _data_and_other(node)
        value = _constant_value(other)
        if data is None or value is None:
            return node, factor
        value = value or math.nan  # 0 leaves nothing to compare
        factor = factor * value if node.op == "mul" else factor / value
        node = data


def _data_and_other(node: Node) -> tuple[Node | None, Any]:
    """Return the one operand of a binary operation that depends on the input, and the other (a Node or a number)."""
    operands = list(node.parents)
    if len(operands) == 1:
        first, second = node.arguments[:2]
        return operands[0], second if isinstance(first, Tensor) else first
    data = [operand for operand in operands if operand.from_input]
    if len(data) != 1 or (node.op == "div" and data[0] is not operands[0]):
        return None, None
    return data[0], next(operand for operand in operands if operand is not data[0])


def _constant_value(other: Any) -> float | None:
    """Return the one value of a number or a constant tensor; NaN if it is learned, None if it has several values."""
    if isinstance(other, int | float):
        return float(other)
    if isinstance(other, Node) and other.from_parameter:
        return math.nan
    if isinstance(other, Node) and not other.from_input and other.tensor.numel():
        low, high = other.tensor.min().item(), other.tensor.max().item()
        return float(low) if low == high else None
    return None


# --- attention and linear layers -----------------------------------------------------------------------------


@dataclass(frozen=True, eq=False)
class ScoreProduct:
    """The product q·k of queries (G, Q, K) and keys (G, K, S) from which the logits are computed."""

    query: Tensor
    key: Tensor
    key_node: Node
    scale: float  # the factor between q·k and the logits; NaN if learned


@dataclass(frozen=True, eq=False, kw_only=True)
class AttentionOp:
    """One attention: weights (G, Q, S) times values (G, S, K)."""

    module: str
    weights: Tensor
    values: Tensor
    logits: Tensor  # the input of the softmax
    softmax_dim: int
    scores: ScoreProduct | None  # None if the logits are not computed from a product q·k


def attention_ops(recorder: Recorder) -> list[AttentionOp]:
    """Return every softmax whose result is multiplied with other activations (unlike a softmax over the classes)."""
    found: list[AttentionOp] = []
    seen: set[int] = set()
    for node in recorder.nodes:
        if node.op not in ("mm", "bmm") or not all(parent.from_input for parent in node.parents):
            continue
        for position, operand in enumerate(node.parents):
            softmax, _ = unscaled(operand)
            if softmax.op not in ("_softmax", "_safe_softmax") or id(softmax) in seen:
                continue
            seen.add(id(softmax))
            weights, values = operand.tensor, node.parents[1 - position].tensor
            if position == 1:  # values @ weights: transpose both, so that the summed axis is S
                weights, values = weights.mT, values.mT
            if weights.ndim == 2:
                weights, values = weights[None], values[None]
            logits = softmax.parents[0]
            found.append(
                AttentionOp(
                    module=softmax.module,
                    weights=weights,
                    values=values,
                    logits=logits.tensor,
                    softmax_dim=softmax.arguments[1] % softmax.tensor.ndim,
                    scores=_score_product(logits, 1.0),
                )
            )
    return found


def _score_product(node: Node, scale: float, depth: int = 0) -> ScoreProduct | None:
    """Walk from the softmax's input back to the product q·k, past scaling, biases and masks."""
    node, factor = unscaled(node)
    scale *= factor
    if node.op in ("mm", "bmm", "baddbmm"):
        query, key = node.parents[-2:]
        if not (query.from_input and key.from_input):
            return None  # a product with a parameter is a linear layer
        (_, query_factor), (key_node, key_factor) = unscaled(query), unscaled(key)
        scale *= float(node.options.get("alpha", 1)) * query_factor * key_factor
        return ScoreProduct(query.tensor, key.tensor, key_node, scale)
    if node.op in ("add", "sub", "masked_fill", "where", "clamp", "nan_to_num") and depth < 8:
        for parent in node.parents:
            if parent.from_input and (found := _score_product(parent, scale, depth + 1)) is not None:
                return found
    return None


@dataclass(frozen=True, eq=False)
class LinearOp:
    """One application of a linear layer: a product of data with a parameter."""

    weight: str
    in_features: int
    out_features: int
    data: Node


def linear_op(node: Node) -> LinearOp | None:
    if node.op not in ("mm", "bmm", "baddbmm", "addmm"):
        return None
    data, matrix = node.parents[-2:]
    leaf = without_views(matrix)
    if not data.from_input or matrix.from_input or leaf.kind != "parameter":
        return None
    in_features, out_features = matrix.tensor.shape[-2:]
    return LinearOp(leaf.name, in_features, out_features, data)


def linear_feeding(node: Node) -> LinearOp | None:
    """Return the linear layer whose output `node` is, with only views (and the layer's own bias) in between."""
    node = without_views(node)
    if node.op == "add":
        leaves = [without_views(parent) for parent in node.parents]
        data = [parent for parent in node.parents if parent.from_input]
        if sum(leaf.kind == "parameter" and leaf.tensor.ndim == 1 for leaf in leaves) != 1 or len(data) != 1:
            return None
        node = without_views(data[0])
    return linear_op(node)
