"""Control over random numbers: seeds, draws replaced by their expectation, draws that ignore the seed."""

from __future__ import annotations

import random
import warnings
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from torch import Tensor
from torch.utils._python_dispatch import TorchDispatchMode

#: The random operations that dropout (and stochastic depth) uses.
DROPOUT = frozenset(["bernoulli", "native_dropout"])


@contextmanager
def restored_global_state() -> Iterator[None]:
    """Restore the random generators, grad mode, attention fast path, thread count and warning filters afterwards.

    Meanwhile one thread: many small forward passes lose more to synchronisation than they gain (`doctor post-vit` on
    two shared cores: 26 s with one thread, 56 to 100 s with two).
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    fastpath, threads = torch.backends.mha.get_fastpath_enabled(), torch.get_num_threads()
    try:
        with (
            warnings.catch_warnings(action="ignore"),  # the model's own would be repeated dozens of times
            torch.random.fork_rng(),
            torch.inference_mode(False),
            torch.enable_grad(),
        ):
            torch.backends.mha.set_fastpath_enabled(False)
            torch.set_num_threads(1)
            yield
    finally:
        torch.set_num_threads(threads)
        torch.backends.mha.set_fastpath_enabled(fastpath)
        random.setstate(python_state)
        np.random.set_state(numpy_state)


def seed_everything(seed: int) -> None:
    torch.manual_seed(seed)
    random.seed(seed)
    np.random.seed(seed % 2**32)


def is_random(operation: Any) -> bool:
    return torch.Tag.nondeterministic_seeded in operation.tags


class Deterministic(TorchDispatchMode):
    """Replace random draws by their expectation, so that a model with active dropout can be examined.

    A dropout mask becomes exactly 1 (the mask is Bernoulli(keep) / keep), Gaussian noise 0, uniform noise its midpoint.
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
    name, given = func.overloadpacket.__name__, args[1:]
    if name == "native_dropout":
        return args[0].clone(), torch.ones_like(args[0], dtype=torch.bool)
    if name == "bernoulli":  # the input holds the probabilities, unless one is given
        return torch.full_like(args[0], given[0]) if given else args[0].clone()
    result = func(*args, **kwargs)
    if name == "bernoulli_":
        return result.copy_(torch.as_tensor(given[0] if given else 0.5, device=result.device).expand_as(result))
    expected = {"rand": 0.5, "rand_like": 0.5, "randn": 0.0, "randn_like": 0.0}.get(name)
    if name == "normal_":
        expected = given[0] if given else 0.0
    elif name == "uniform_":
        low, high = given[0] if given else 0.0, given[1] if len(given) > 1 else 1.0
        expected = (low + high) / 2
    return result if expected is None else result.fill_(expected)


class Reseeded(TorchDispatchMode):
    """Shuffle all random draws, so that even a constructor that seeds itself gets other values."""

    def __init__(self, seed: int) -> None:
        super().__init__()  # type: ignore[no-untyped-call]
        self.generator = torch.Generator().manual_seed(seed)

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        result = func(*args, **(kwargs or {}))
        if is_random(func) and isinstance(result, Tensor) and result.device.type == "cpu":
            order = torch.randperm(result.numel(), generator=self.generator)
            result.copy_(result.flatten()[order].view(result.shape))
        return result
