"""Half a batch for each of two threads, instead of all cores on every operation of the whole batch.

Operations of a small ViT take a millisecond or less, and at the end of each one the cores wait for the last of them.
Two threads that each carry half of the images through the whole model meet once a step. Python runs in one of them at a
time, so the operations must be long enough to run beside it: from AT_LEAST on the halves win 5 to 13 % a step; below
they lose, up to a half. Above AT_MOST operations are so long that the waiting does not matter, and the halves may lose
again, since both read all weights (`python bench/halves.py`, docs/log.md).
"""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from typing import TypeVar

from torch import Tensor

from vitreous import cpu
from vitreous.config import ViTConfig
from vitreous.models.shapes import count_flops

T = TypeVar("T")

AT_LEAST, AT_MOST = 2.5e9, 3e10  # FLOPs of a batch's forward pass


def halves_pay(model: object, batch_size: int, threads: int) -> bool:
    """Whether this batch has the size for it, and the same seed would still give the same bits.

    The sum of two gradients is the same in either order; but dropout draws from one generator, in the order in which
    the threads come by.
    """
    if not isinstance(model, ViTConfig) or model.dropout or model.drop_path:
        return False
    return threads % 2 == 0 and AT_LEAST <= batch_size * count_flops(model) <= AT_MOST


class Halves:
    """Two threads with half of this process's cores each."""

    def __init__(self, threads: int):
        self._threads = ThreadPoolExecutor(2, initializer=cpu.prepare, initargs=(threads // 2,))

    def both(self, learn: Callable[[Tensor], T], batch: Tensor) -> list[T]:
        """`learn`, which adds to the gradients, of the first half of the batch's rows and of the second, at once."""
        halves = [self._threads.submit(learn, half) for half in batch.tensor_split(2) if len(half)]
        return [half.result() for half in halves]
