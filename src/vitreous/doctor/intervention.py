"""Change one tensor in the middle of a forward pass, to measure what depends on it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from torch import Tensor

from vitreous.doctor.randomness import Deterministic
from vitreous.doctor.recording import Node, Recorder, operation_name


class Changed(Deterministic):
    """Apply `change` in place to the result that `node` of a recording stands for; the inputs must be of its shape.

    The operation is found by its name, its result's shape and how many such ones come before it.
    """

    def __init__(self, recorder: Recorder, node: Node, change: Callable[[Tensor], None]) -> None:
        super().__init__()
        self.was_applied = False
        self._key = node.op, tuple(node.tensor.shape)
        same = [other for other in recorder.nodes if other.function is not None and other.result == 0]
        same = [other for other in same if (other.op, tuple(other.tensor.shape)) == self._key]
        self._remaining = next(i for i, other in enumerate(same) if other is node)
        self._change = change

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = super().__torch_dispatch__(func, types, args, kwargs)
        first = result[0] if isinstance(result, tuple | list) and result else result
        if not isinstance(first, Tensor) or (operation_name(func), tuple(first.shape)) != self._key:
            return result
        if self._remaining == 0:
            self._change(first)
            self.was_applied = True
        self._remaining -= 1
        return result
