"""Half of a batch on each of two threads, where that is faster than all cores on every operation.

Operations of a small model take a millisecond or less, and at the end of each one the cores wait for the slowest of
them. Two threads that each carry half of the batch through the whole model wait for each other once.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

import torch
from torch import Tensor

from vitreous.config import ModelConfig, ViTConfig
from vitreous.hardware import prepare
from vitreous.models.summary import count_flops

P = TypeVar("P")
T = TypeVar("T")

# FLOPs of a batch's forward pass between which a training step is 5 to 13 % faster (`python bench/split_batch.py`,
# docs/log.md). Below, the operations are too short to overlap with Python, which runs in one thread at a time: up to
# half as fast. Above, the waiting no longer matters, and both threads read all weights.
AT_LEAST, AT_MOST = 3e8, 3e10


def split_is_faster(model: ModelConfig, batch_size: int, threads: int) -> bool:
    """Return whether to split a training batch: it has the right size, and equal seeds still give equal bits.

    Floating-point addition is commutative but not associative: with two partial gradients the result is reproducible,
    with three it is not. Dropout draws from one generator in the order in which the threads reach it, so models with
    dropout are not split.
    """
    if not isinstance(model, ViTConfig) or model.dropout or model.drop_path:
        return False
    return threads % 2 == 0 and AT_LEAST <= batch_size * count_flops(model) <= AT_MOST


class SplitBatch:
    """Two threads with half of this process's cores each."""

    def __init__(self, threads: int):
        before = torch.get_num_threads()
        self._pool = ThreadPoolExecutor(2, initializer=prepare, initargs=(threads // 2,))
        started = threading.Barrier(2)
        for waiting in [self._pool.submit(started.wait) for _ in range(2)]:
            waiting.result()
        torch.set_num_threads(before)  # it also applies to threads created later, so restore the previous value

    def run(self, function: Callable[[Tensor], T], batch: Tensor) -> list[T]:
        """Return `function` of the first half of the batch's rows and of the second, computed at the same time."""
        return self.map(function, [part for part in batch.tensor_split(2) if len(part)])

    def map(self, function: Callable[[P], T], parts: Sequence[P]) -> list[T]:
        """Return `function` of each of (at most two) parts, computed at the same time."""
        return [future.result() for future in [self._pool.submit(function, part) for part in parts]]
