"""A record of every tensor operation in a forward pass, as a graph that can be walked back.

The recorder works below autograd, where composite functions have been decomposed into a few primitive operations.
`nn.MultiheadAttention`, `F.scaled_dot_product_attention`, einsum and hand-written attention all look the same there:
product, softmax, product.
"""

from __future__ import annotations

import contextlib
import math
from contextlib import ExitStack
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._pytree import tree_leaves, tree_map

from vitreous.doctor.findings import NotMeasured
from vitreous.doctor.model_io import logits_in
from vitreous.doctor.randomness import Deterministic, is_random


@dataclass(eq=False)
class Node:
    """One tensor that an operation returned, or a leaf."""

    op: str
    tensor: Tensor
    parents: tuple[Node, ...] = ()
    function: Any = None  # the operator, to apply it to other tensors
    arguments: tuple[Any, ...] = ()
    result: int = 0  # which of the operator's results this is
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

#: Operations that read nothing but the shape of their argument.
SHAPE_ONLY = frozenset([
    "empty_like", "zeros_like", "ones_like", "full_like", "rand_like", "randn_like", "new_zeros", "new_ones",
    "new_empty", "new_full",
])  # fmt: skip


def _location(tensor: Tensor) -> tuple[Any, ...]:
    # autograd may wrap a view anew between two operations, so tensors are identified by their memory
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


def _tensors_in(value: Any) -> list[Tensor]:
    return [leaf for leaf in tree_leaves(value) if isinstance(leaf, Tensor)]


def operation_name(function: Any) -> str:
    """Return the operator's name, the same in place or not."""
    return str(function.overloadpacket.__name__).rstrip("_")


class Recorder(Deterministic):
    """Records the operations executed inside it. Tensors are kept alive, so no address is reused."""

    def __init__(self, leaves: dict[int, tuple[str, str]]) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self.executing = [""]  # the names of the modules being executed, the innermost last
        self.output: Node | None = None  # the logits
        self.made: dict[int, tuple[tuple[int, ...], str]] = {}  # parameters that forward creates: shape and place
        self.owned: set[int] = set()  # the ids of the model's own parameters
        self._kept: list[Tensor] = []
        self._leaves = leaves  # storage address → (kind, name)
        self._node_at: dict[tuple[Any, ...], Node] = {}
        self._writes: dict[int, list[Node]] = {}  # storage → what was written into it in place
        self._num_seen: dict[tuple[Any, ...], int] = {}  # location → how many of those writes its node includes

    def node_of(self, tensor: Tensor) -> Node:
        location = _location(tensor)
        if location not in self._node_at:
            kind, name = self._leaves.get(location[0], ("constant", ""))
            from_input, from_parameter = kind == "input", kind == "parameter"
            self._node_at[location] = Node(
                "leaf", tensor, name=name, kind=kind, from_input=from_input, from_parameter=from_parameter
            )
        writes, seen = self._writes.get(location[0], []), self._num_seen.get(location, 0)
        if len(writes) > seen:  # another view of this memory was written to since
            self._node_at[location] = self._add("written", tensor, (self._node_at[location], *writes[seen:]))
            self._num_seen[location] = len(writes)
        return self._node_at[location]

    def _add(self, op: str, tensor: Tensor, parents: tuple[Node, ...], **known: Any) -> Node:
        node = Node(
            op,
            tensor,
            parents,
            module=self.executing[-1],
            from_input=op not in SHAPE_ONLY and any(parent.from_input for parent in parents),
            from_parameter=op not in SHAPE_ONLY and any(parent.from_parameter for parent in parents),
            **known,
        )
        self.nodes.append(node)
        return node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        tensors = _tensors_in((args, kwargs))
        parents = tuple(self.node_of(tensor) for tensor in tensors)
        for tensor in tensors:
            if isinstance(tensor, nn.Parameter) and tensor.requires_grad and id(tensor) not in self.owned:
                self.made.setdefault(id(tensor), (tuple(tensor.shape), self.executing[-1]))
                self._kept.append(tensor)  # so that its id is not used again
        result = super().__torch_dispatch__(func, types, args, kwargs)
        op = operation_name(func)
        for index, tensor in enumerate(_tensors_in(result)):
            node = self._add(op, tensor, parents, function=func, arguments=args, options=kwargs, result=index)
            location = _location(tensor)
            self._node_at[location] = node
            if func._schema.is_mutable and index == 0:
                self._writes.setdefault(location[0], []).append(node)
            self._num_seen[location] = len(self._writes.get(location[0], []))
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
    recorder = _record(model, inputs, plain, leaves)
    if recorder.output is not None and not recorder.output.from_input:
        _find_images(recorder, _record(model, inputs.flip(-1, -2) + 1, plain, leaves))
    _merge_repeated(recorder)
    return recorder


def _record(model: nn.Module, inputs: Tensor, plain: dict[str, Tensor], leaves: dict[int, tuple[str, str]]) -> Recorder:
    recorder = Recorder(leaves)
    recorder.owned = {id(tensor) for tensor in [*model.parameters(), *model.buffers(), *plain.values()]}

    def leave(*_: Any) -> None:
        recorder.executing.pop()

    with ExitStack() as hooks:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: recorder.executing.append(name))
            hooks.callback(enter.remove)
            hooks.callback(module.register_forward_hook(leave, always_call=True).remove)
        with sdpa_kernel(SDPBackend.MATH), recorder:
            output = model(inputs)
    with contextlib.suppress(NotMeasured):
        recorder.output = recorder.node_of(logits_in(output))
    return recorder


def _find_images(recorder: Recorder, other: Recorder) -> None:
    """Mark what depends on the images where forward turns them into NumPy arrays, which leaves no trace.

    With other images, the constants that are different come from the images.
    """
    if [node.op for node in recorder.nodes] != [node.op for node in other.nodes]:
        return
    for node, same in zip(recorder.nodes, other.nodes, strict=True):
        for parent, there in zip(node.parents, same.parents, strict=True):
            if parent.kind == there.kind == "constant" and not torch.equal(parent.tensor, there.tensor):
                parent.from_input = True
        node.from_input = node.op not in SHAPE_ONLY and any(parent.from_input for parent in node.parents)


def _merge_repeated(recorder: Recorder) -> None:
    """Let everything read the first of several equal computations: norm(x) called twice is one tensor.

    The repeated ones stay in the list, where nothing reads them.
    """
    first: dict[Any, Node] = {}
    same: dict[int, Node] = {}
    for node in recorder.nodes:
        node.parents = tuple(same.get(id(parent), parent) for parent in node.parents)
        if node.function is None or node.function._schema.is_mutable or is_random(node.function) or not node.parents:
            continue
        constants = tree_map(lambda value: None if isinstance(value, Tensor) else value, (node.arguments, node.options))
        key = node.function, node.result, tuple(map(id, node.parents)), repr(constants)
        same[id(node)] = first.setdefault(key, node)
    if recorder.output is not None:
        recorder.output = same.get(id(recorder.output), recorder.output)


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
