"""Shuffled batches, shared among the ranks.

Which image comes where is a function of (seed, epoch, position) alone: the same for every number of processes, so that
a training can resume at any step, and on another number of processes.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Self

import numpy as np
import torch
from torch import Tensor

from vitreous.data.block_order import block_order

if TYPE_CHECKING:
    from vitreous.data.splits import Split


@dataclass(frozen=True)
class BatchSampler:
    """The indices of the images of every training step. An incomplete last batch of an epoch is dropped."""

    num_images: int
    batch_size: int  # over all ranks
    seed: int
    rank: int = 0
    world_size: int = 1
    block: int | None = None  # images that are stored side by side and read together; None: a list of all is shuffled

    @classmethod
    def of(cls, split: Split, batch_size: int, seed: int, rank: int = 0, world_size: int = 1) -> Self:
        """Return the batches of a split: by blocks, if its images are read from shards."""
        return cls(len(split), batch_size, seed, rank, world_size, split.block)

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.num_images // self.batch_size)

    def order(self, epoch: int) -> Tensor:
        """Return the indices of all images in the order of an epoch."""
        if self.block is not None:
            return self._by_blocks(epoch, 0, self.num_images)
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.num_images, generator=generator)

    def _by_blocks(self, epoch: int, first: int, last: int) -> Tensor:
        assert self.block is not None
        positions = np.arange(first, min(last, self.num_images))
        return torch.from_numpy(block_order(self.num_images, self.block, self.seed, epoch, positions))

    def steps(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (step, epoch, indices of this rank's share) from step `start` up to `stop`."""
        epoch, order = -1, torch.empty(0)
        for step in range(start, stop):
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                order = self.order(epoch) if self.block is None else order
            first = step % self.steps_per_epoch * self.batch_size
            last = first + self.batch_size
            batch = order[first:last] if self.block is None else self._by_blocks(epoch, first, last)
            yield step, epoch, batch.tensor_split(self.world_size)[self.rank]
