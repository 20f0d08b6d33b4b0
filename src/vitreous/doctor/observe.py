"""Watching a model work: every tensor operation of one forward pass, and the attention found among them.

The modes here sit below autograd, where fused and composite functions have fallen apart into a few primitive
operations. `nn.MultiheadAttention`, `F.scaled_dot_product_attention`, einsum and hand-written attention all become the
same thing there: product, softmax, product. So nothing is read from the model's source or its class names.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass, field
from typing import Any

import torch
from torch import Tensor, nn
from torch.nn.attention import SDPBackend, sdpa_kernel
from torch.utils._python_dispatch import TorchDispatchMode

#: The draws that dropout (and stochastic depth) is made of.
DROPOUT = frozenset(["bernoulli", "native_dropout"])


def is_random(operation: Any) -> bool:
    """Whether an operation draws from a random generator."""
    return torch.Tag.nondeterministic_seeded in operation.tags


class Calm(TorchDispatchMode):
    """Replaces random draws by their expectation, so that a model with active dropout can still be examined.

    A dropout mask becomes exactly 1 (the mask is Bernoulli(keep) / keep), Gaussian noise 0, uniform noise its middle.
    With `only_dropout` the other draws stay random.
    """

    def __init__(self, *, only_dropout: bool = False) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.only_dropout = only_dropout

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        if is_random(func) and (not self.only_dropout or func.overloadpacket.__name__.rstrip("_") in DROPOUT):
            return _expected_result(func, args, kwargs or {})
        return func(*args, **(kwargs or {}))


def _expected_result(func: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
    name = func.overloadpacket.__name__
    if name == "native_dropout":
        return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
    if name == "bernoulli":  # the input holds the probabilities, unless one is given
        return args[0].clone() if len(args) == 1 else torch.full_like(args[0], args[1])
    result = func(*args, **kwargs)
    if name == "bernoulli_":
        probability = args[1] if len(args) > 1 else 0.5
        return result.copy_(torch.as_tensor(probability, device=result.device).expand_as(result))
    if name in ("rand", "rand_like"):
        return result.fill_(0.5)
    if name in ("randn", "randn_like"):
        return result.fill_(0.0)
    if name == "normal_":
        return result.fill_(args[1] if len(args) > 1 else 0.0)
    if name == "uniform_":
        low, high = (args[1] if len(args) > 1 else 0.0), (args[2] if len(args) > 2 else 1.0)
        return result.fill_((low + high) / 2)
    return result


class OtherDice(TorchDispatchMode):
    """Shuffles whatever random numbers are drawn, so that even a seeded constructor comes out otherwise."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_random(func) and isinstance(result, Tensor) and result.device.type == "cpu":
            order = torch.randperm(result.numel(), generator=self.generator)
            result.copy_(result.flatten()[order].view(result.shape))
        return result


@dataclass(eq=False)
class Node:
    """One tensor as it came out of one operation."""

    op: str
    tensor: Tensor
    parents: tuple[Node, ...] = ()
    arguments: tuple[Any, ...] = ()
    options: dict[str, Any] = field(default_factory=dict)
    module: str = ""  # the innermost module at work
    name: str = ""  # of a leaf: the parameter's, buffer's or plain tensor's name
    kind: str = ""  # of a leaf: input, parameter, buffer, plain or constant
    from_input: bool = False
    from_parameter: bool = False


#: Operations that move numbers about without changing them.
VIEWS = frozenset([
    "view", "_unsafe_view", "reshape", "_reshape_alias", "transpose", "permute", "t", "expand", "squeeze", "unsqueeze",
    "slice", "select", "alias", "detach", "clone", "unbind", "split", "split_with_sizes", "unsafe_split", "_to_copy",
    "as_strided", "lift_fresh",
])  # fmt: skip
SOFTMAX = frozenset(["_softmax", "_safe_softmax"])
PRODUCTS = frozenset(["mm", "bmm", "baddbmm", "addmm"])


def _place(tensor: Tensor) -> tuple[Any, ...]:
    # autograd may wrap a view anew between two operations, so a tensor is known by where its numbers lie
    return tensor.untyped_storage().data_ptr(), tensor.storage_offset(), tuple(tensor.shape), tensor.stride()


class Recorder(Calm):
    """Records the operations of the forward passes run inside it. Tensors are kept alive, so no address is reused."""

    def __init__(self, leaves: dict[int, tuple[str, str]], where: Callable[[], str]) -> None:
        super().__init__()
        self.nodes: list[Node] = []
        self._leaves = leaves  # storage address → (kind, name)
        self._where = where
        self._current: dict[tuple[Any, ...], Node] = {}
        self._written_from_input: set[int] = set()  # storages into which the input was copied, whole or in part

    def node_of(self, tensor: Tensor) -> Node:
        place = _place(tensor)
        node = self._current.get(place)
        if node is None:
            kind, name = self._leaves.get(place[0], ("constant", ""))
            node = Node("leaf", tensor, kind=kind, name=name, from_input=kind == "input")
            node.from_parameter = kind == "parameter"
            self._current[place] = node
        node.from_input = node.from_input or place[0] in self._written_from_input
        return node

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        kwargs = kwargs or {}
        parents = tuple(self.node_of(tensor) for tensor in _tensors_in((args, kwargs)))
        result = super().__torch_dispatch__(func, types, args, kwargs)
        from_input = any(parent.from_input for parent in parents)
        if func._schema.is_mutable and from_input and parents:
            self._written_from_input.add(parents[0].tensor.untyped_storage().data_ptr())
        for tensor in _tensors_in(result):
            node = Node(
                func.overloadpacket.__name__.rstrip("_"), tensor, parents, args, kwargs, self._where(),
                from_input=from_input, from_parameter=any(parent.from_parameter for parent in parents),
            )  # fmt: skip
            self._current[_place(tensor)] = node
            self.nodes.append(node)
        return result


def _tensors_in(value: Any) -> Iterator[Tensor]:
    if isinstance(value, Tensor):
        yield value
    elif isinstance(value, list | tuple):
        for item in value:
            yield from _tensors_in(item)
    elif isinstance(value, dict):
        for item in value.values():
            yield from _tensors_in(item)


@contextmanager
def recording(model: nn.Module, inputs: Tensor, plain: dict[str, Tensor]) -> Iterator[Recorder]:
    """Record what `model` does to `inputs`; attention comes in its spelled-out form, fast paths are switched off."""
    leaves = {inputs.untyped_storage().data_ptr(): ("input", "input")}
    owned = {"plain": plain.items(), "buffer": model.named_buffers(), "parameter": model.named_parameters()}
    for kind, named in owned.items():
        leaves |= {tensor.untyped_storage().data_ptr(): (kind, name) for name, tensor in named if tensor.numel()}
    at_work: list[str] = []
    with ExitStack() as stack:
        for name, module in model.named_modules():
            enter = module.register_forward_pre_hook(lambda *_, name=name: at_work.append(name))
            leave = module.register_forward_hook(lambda *_: at_work.pop() and None, always_call=True)
            stack.callback(enter.remove)
            stack.callback(leave.remove)
        stack.enter_context(torch.no_grad())
        stack.enter_context(sdpa_kernel(SDPBackend.MATH))
        yield stack.enter_context(Recorder(leaves, lambda: at_work[-1] if at_work else ""))


# --- reading a recording ------------------------------------------------------------------------------------


def without_views(node: Node) -> Node:
    while node.op in VIEWS and node.parents:
        node = node.parents[0]
    return node


def unscaled(node: Node) -> tuple[Node, float | None]:
    """Walk back through views and multiplications by a constant: the node reached and the factor on the way.

    The factor is None where the model learns it (a temperature), for then no fixed value is right or wrong.
    """
    factor: float | None = 1.0
    while True:
        node = without_views(node)
        if node.op not in ("mul", "div") or len(node.arguments) < 2:
            return node, factor
        followed, other = _data_and_other(node)
        if followed is None:
            return node, factor
        value = _constant_value(other)
        if value is None and not (isinstance(other, Node) and other.from_parameter):
            return node, factor
        if value is None or factor is None or value == 0:
            factor = None
        else:
            factor = factor * value if node.op == "mul" else factor / value
        node = followed


def _data_and_other(node: Node) -> tuple[Node | None, Any]:
    """Of a binary operation: the one operand that comes from the input, and the other (a Node or a number)."""
    operands = list(node.parents)
    if len(operands) == 1:
        first, second = node.arguments[:2]
        return (operands[0], second) if isinstance(first, Tensor) else (operands[0], first)
    data = [operand for operand in operands if operand.from_input]
    if len(data) != 1 or (node.op == "div" and data[0] is not operands[0]):
        return None, None
    return data[0], next(operand for operand in operands if operand is not data[0])


def _constant_value(other: Any) -> float | None:
    if isinstance(other, int | float):
        return float(other)
    if isinstance(other, Node) and not other.from_parameter and not other.from_input and other.tensor.numel():
        low, high = other.tensor.min().item(), other.tensor.max().item()
        return float(low) if low == high else None
    return None


@dataclass(frozen=True, eq=False)
class AttentionOp:
    """One attention as it was carried out: weights (G, Q, S) times values (G, S, K), for G groups of S positions."""

    module: str
    softmax: Node
    weights: Tensor
    values: Tensor
    logits: Tensor  # what went into the softmax
    softmax_dim: int
    query: Tensor | None = None  # (G, Q, K) as it entered the product; None where the logits are no product of q and k
    key: Tensor | None = None  # (G, K, S)
    key_node: Node | None = None
    scale: float | None = None  # what q·k was multiplied by; None: learned, or no product

    @property
    def head_dim(self) -> int | None:
        return None if self.query is None else self.query.shape[-1]


def attention_ops(recorder: Recorder) -> list[AttentionOp]:
    """Every softmax whose result is multiplied with other activations; a softmax over the classes is none."""
    found: list[AttentionOp] = []
    seen: set[int] = set()
    for node in recorder.nodes:
        if node.op not in ("mm", "bmm") or not all(parent.from_input for parent in node.parents):
            continue
        for position, operand in enumerate(node.parents):
            softmax, _ = unscaled(operand)
            if softmax.op not in SOFTMAX or id(softmax) in seen:
                continue
            seen.add(id(softmax))
            weights, values = node.parents[position].tensor, node.parents[1 - position].tensor
            if position == 1:  # values @ weights: turn both, so that the summed axis is S
                weights, values = weights.mT, values.mT
            if weights.ndim == 2:
                weights, values = weights[None], values[None]
            found.append(_attention_op(softmax, weights, values))
    return found


def _attention_op(softmax: Node, weights: Tensor, values: Tensor) -> AttentionOp:
    dim = softmax.arguments[1] % softmax.tensor.ndim
    logits = softmax.parents[0].tensor
    product = _score_product(softmax.parents[0], 1.0)
    if product is None:
        return AttentionOp(softmax.module, softmax, weights, values, logits, dim)
    node, scale = product
    query_node, key_node = node.parents[-2:]
    for operand in (query_node, key_node):
        _, factor = unscaled(operand)
        scale = None if scale is None or factor is None else scale * factor
    query, key = query_node.tensor, key_node.tensor
    return AttentionOp(softmax.module, softmax, weights, values, logits, dim, query, key, unscaled(key_node)[0], scale)


def _score_product(node: Node, factor: float | None, depth: int = 0) -> tuple[Node, float | None] | None:
    """From the softmax's input back to the product of queries and keys, past scaling, biases and masks."""
    node, own = unscaled(node)
    factor = None if factor is None or own is None else factor * own
    if node.op in ("mm", "bmm", "baddbmm"):
        if not all(parent.from_input for parent in node.parents[-2:]):
            return None  # a product with a parameter is a linear layer
        return node, None if factor is None else factor * float(node.options.get("alpha", 1))
    if node.op in ("add", "sub", "masked_fill", "where", "clamp", "nan_to_num") and depth < 8:
        for parent in node.parents:
            if parent.from_input and (found := _score_product(parent, factor, depth + 1)) is not None:
                return found
    return None


@dataclass(frozen=True, eq=False)
class LinearOp:
    """One application of a linear layer: a product of data with a parameter."""

    weight: str
    out_features: int
    in_features: int
    data: Node
    result: Node
    bias: str = ""


def linear_op(node: Node) -> LinearOp | None:
    if node.op not in PRODUCTS:
        return None
    left, right = node.parents[-2:]
    leaf = without_views(right)
    if not left.from_input or right.from_input or leaf.kind != "parameter":
        return None
    bias = without_views(node.parents[0]).name if node.op == "addmm" else ""
    return LinearOp(leaf.name, right.tensor.shape[-1], right.tensor.shape[-2], left, node, bias)


def linear_feeding(node: Node) -> LinearOp | None:
    """The linear layer whose output `node` is, with nothing between but views (and the layer's own bias)."""
    node = without_views(node)
    if node.op == "add":
        biases = [p for p in node.parents if without_views(p).kind == "parameter" and without_views(p).tensor.ndim == 1]
        data = [p for p in node.parents if p.from_input]
        if len(biases) != 1 or len(data) != 1:
            return None
        node = without_views(data[0])
    return linear_op(node)
