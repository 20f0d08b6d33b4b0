"""Shuffled batches, sharded by rank. Each is a function of (seed, epoch, batch), so training can resume at any step."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass

import torch
from torch import Tensor


@dataclass(frozen=True)
class BatchSampler:
    """The indices of the images of every training step. An incomplete last batch of an epoch is dropped."""

    num_images: int
    batch_size: int  # over all ranks
    seed: int
    rank: int = 0
    world_size: int = 1

    @property
    def steps_per_epoch(self) -> int:
        return max(1, self.num_images // self.batch_size)

    def order(self, epoch: int) -> Tensor:
        generator = torch.Generator().manual_seed(self.seed * 1_000_003 + epoch)
        return torch.randperm(self.num_images, generator=generator)

    def steps(self, start: int, stop: int) -> Iterator[tuple[int, int, Tensor]]:
        """Yield (step, epoch, indices of this rank's share) from step `start` up to `stop`."""
        epoch, order = -1, torch.empty(0)
        for step in range(start, stop):
            if step // self.steps_per_epoch != epoch:
                epoch = step // self.steps_per_epoch
                order = self.order(epoch)
            first = step % self.steps_per_epoch * self.batch_size
            batch = order[first : first + self.batch_size]
            yield step, epoch, batch.tensor_split(self.world_size)[self.rank]
