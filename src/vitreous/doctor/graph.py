"""Questions about a recording as a graph: what depends on what, what every path passes, where each element goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from typing import Any

import torch
from torch import Tensor
from torch.utils._pytree import tree_map

from vitreous.doctor.recording import SHAPE_ONLY, VIEWS, Node, Recorder

#: Operations that only move elements, besides the views.
MOVES = VIEWS | frozenset([
    "cat", "stack", "roll", "flip", "index", "index_select", "gather", "constant_pad_nd", "repeat", "unfold", "im2col",
    "pixel_unshuffle", "pixel_shuffle", "contiguous", "copy",
])  # fmt: skip
_RESHAPES = frozenset(["view", "_unsafe_view", "_reshape_alias", "reshape"])
_ELEMENTWISE = frozenset(["add", "sub", "mul", "div"])
FUSED_NORMS = frozenset(["native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm"])
#: Normalisations: the fused ones, and what hand-written ones consist of.
NORMS = frozenset(["native_layer_norm", "native_batch_norm", "native_group_norm", "_fused_rms_norm", "rsqrt", "var",
    "std", "var_mean", "std_mean", "linalg_vector_norm", "tanh", "sqrt", "norm", "mean"])  # fmt: skip


def is_dropped(node: Node) -> bool:
    """Whether this is dropout's result, which equals its input in a recording: the data come first."""
    if node.op == "native_dropout":
        return node.result == 0
    return node.op == "mul" and len(node.parents) == 2 and dropout_mask(node) is not None


def dropout_mask(node: Node) -> Node | None:
    """Return the random draw that this product multiplies with."""
    mask = node.parents[-1]
    while mask.op in VIEWS | {"div", "floor", "add"} and mask.parents:
        mask = mask.parents[0]
    return mask if mask.op == "bernoulli" and not mask.from_input else None


def origin(node: Node) -> Node:
    """Walk back through views, dropout and copies."""
    while (node.op in VIEWS or is_dropped(node)) and node.parents:
        node = node.parents[0]
    return node


@dataclass(eq=False)
class Carried:
    """Where elements are when an operation first computes with them."""

    consumer: Node
    node: Node  # the operand of `consumer`
    labels: Tensor  # shaped like the operand: the label of each element, −1 for elements from elsewhere


class Graph:
    """The graph of a recording."""

    def __init__(self, recorder: Recorder) -> None:
        self.nodes = recorder.nodes
        self.output = recorder.output
        self._index = {id(node): i for i, node in enumerate(self.nodes)}

    @cached_property
    def children(self) -> dict[int, list[Node]]:
        """id of a node → the nodes computed from it."""
        children: dict[int, list[Node]] = {}
        for node in self.nodes:
            for parent in {id(parent): parent for parent in node.parents}.values():
                children.setdefault(id(parent), []).append(node)
        return children

    @cached_property
    def _ancestors(self) -> list[int]:
        """Per node, the set of nodes it depends on (itself included), as bits."""
        sets: list[int] = []
        for i, node in enumerate(self.nodes):
            bits = 1 << i
            for parent in node.parents:
                if (j := self._index.get(id(parent))) is not None:
                    bits |= sets[j]
            sets.append(bits)
        return sets

    def depends(self, node: Node, on: Node) -> bool:
        i, j = self._index.get(id(node)), self._index.get(id(on))
        return i is not None and j is not None and bool(self._ancestors[i] >> j & 1)

    def between(self, first: Node, last: Node) -> list[Node]:
        """Return the nodes on a path from `first` to `last`, both included."""
        start, stop = self._index[id(first)], self._index[id(last)]
        return [
            self.nodes[k]
            for k in range(start, stop + 1)
            if self._ancestors[stop] >> k & 1 and self._ancestors[k] >> start & 1
        ]

    @cached_property
    def unavoidable(self) -> set[int]:
        """The ids of the nodes that every path from the input to the output passes."""
        if self.output is None or id(self.output) not in self._index:
            return set()
        stop = self._index[id(self.output)]
        paths_to: list[int] = []  # the number of paths from the input to each node
        for node in self.nodes[: stop + 1]:
            total = 0
            for parent in node.parents:
                if parent.from_input:
                    j = self._index.get(id(parent))
                    total += 1 if j is None else paths_to[j]
            paths_to.append(total)
        paths_from = [0] * (stop + 1)
        paths_from[stop] = 1
        for i in range(stop, -1, -1):
            for parent in self.nodes[i].parents:
                if (j := self._index.get(id(parent))) is not None and parent.from_input:
                    paths_from[j] += paths_from[i]
        everything = paths_to[stop]
        return {id(self.nodes[i]) for i in range(stop + 1) if everything and paths_to[i] * paths_from[i] == everything}

    def follow(self, start: Node, labels: Tensor) -> Iterator[Carried]:
        """Carry one label per element of `start` along, until something computes with the elements.

        Only moving, scaling and adding a constant leave an element recognisable.
        """
        carried = {id(start): labels.to(torch.float64) + 1}  # 0 stands for elements from elsewhere, as padding is
        for node in self.nodes[self._index.get(id(start), -1) + 1 :]:
            known = [parent for parent in node.parents if id(parent) in carried]
            if not known:
                continue
            moved = _move(node, carried)
            if moved is not None:
                carried[id(node)] = moved
                if node.op in FUSED_NORMS:  # it computes with the elements, and leaves each where it is
                    yield Carried(node, known[0], carried[id(known[0])] - 1)
            elif node.op not in SHAPE_ONLY and not (node.op in FUSED_NORMS and node.result):
                for parent in known:
                    yield Carried(node, parent, carried[id(parent)] - 1)


def _move(node: Node, carried: dict[int, Tensor]) -> Tensor | None:
    """Return the labels of the elements of `node`; None if it is not a mere rearrangement."""
    parent = node.parents[0]
    try:
        if is_dropped(node) or node.op in _RESHAPES or (node.op in FUSED_NORMS and node.result == 0):
            return carried[id(parent)].reshape(node.tensor.shape) if id(parent) in carried else None
        if node.op in _ELEMENTWISE and node.function is not None:
            (own,) = [parent for parent in node.parents if id(parent) in carried]
            others = [parent for parent in node.parents if parent is not own]
            # a factor or an offset per token, as in a norm, leaves each element where it is
            if any(other.from_input and other.tensor.numel() >= own.tensor.numel() for other in others):
                return None
            if own.tensor.shape != node.tensor.shape:
                return None
            return carried[id(own)]
        if node.op not in MOVES or node.op == "as_strided" or node.function is None:
            return None
        operands = iter(node.parents)  # in the order of the arguments

        def replace(value: Any) -> Any:
            if not isinstance(value, Tensor):
                return value
            found = carried.get(id(next(operands)))
            if found is not None:
                return found
            return torch.zeros(value.shape, dtype=torch.float64) if value.is_floating_point() else value

        if node.op == "copy":
            return None
        results = node.function(*tree_map(replace, node.arguments), **tree_map(replace, node.options))
        result = results if isinstance(results, Tensor) else results[node.result]
        return result.to(torch.float64) if tuple(result.shape) == tuple(node.tensor.shape) else None
    except (ValueError, RuntimeError, KeyError):
        return None
