"""The processes of one training, by torch's own engine (torchrun, gloo or NCCL, DDP). A no-op for a single process."""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Any, TypeVar

import torch
import torch.distributed as dist
from torch import Tensor, nn

T = TypeVar("T")


@dataclass(frozen=True)
class Group:
    """This process's rank among all; every method is a no-op or the identity for a single process."""

    rank: int = 0
    world_size: int = 1
    local_world_size: int = 1
    _wrapped: list[nn.parallel.DistributedDataParallel] = field(default_factory=list, repr=False, compare=False)

    @property
    def is_main(self) -> bool:
        return self.rank == 0

    def wrap(self, model: nn.Module) -> nn.Module:
        """Average gradients over the processes during the backward pass."""
        if self.world_size == 1:
            return model
        self._wrapped.append(nn.parallel.DistributedDataParallel(model))
        return self._wrapped[-1]

    def averaging(self, forward: Any, now: bool) -> contextlib.AbstractContextManager[Any]:
        """Average gradients in this backward pass if `now`; otherwise only accumulate them."""
        if self.world_size == 1 or now:
            return contextlib.nullcontext()
        return getattr(forward, "_orig_mod", forward).no_sync()  # beneath a compiled model

    def barrier(self) -> None:
        self.sum([0.0])  # on the CPU, whatever the gradients travel by

    def sum(self, values: list[float]) -> list[float]:
        if self.world_size == 1:
            return values
        total = torch.tensor(values, dtype=torch.float64)
        dist.all_reduce(total)
        return total.tolist()

    def any(self, *conditions: bool) -> list[bool]:
        """Return for each condition whether it holds on any rank, in one exchange."""
        return [total > 0 for total in self.sum([float(condition) for condition in conditions])]

    def broadcast(self, value: T) -> T:
        """Return rank 0's value on every rank."""
        if self.world_size == 1:
            return value
        values = [value]
        dist.broadcast_object_list(values, src=0)
        return values[0]

    def gather(self, rows: Tensor) -> Tensor:
        """Return the rows of all ranks, in rank order, however many each has."""
        if self.world_size == 1:
            return rows
        counts = [int(n) for n in self._gather_equal(torch.tensor([len(rows)]))]
        padded = rows.new_zeros(max(counts), *rows.shape[1:])
        padded[: len(rows)] = rows
        parts = self._gather_equal(padded).split(max(counts))
        return torch.cat([part[:count] for part, count in zip(parts, counts, strict=True)])

    def leave(self) -> None:
        """Leave the group, also on behalf of models that outlive it (an exception may keep them alive).

        Whoever releases gloo's group last waits for its threads to end. DDP's C++ reducer would do so while it has the
        GIL, for which one of these threads may be waiting to release its last tensor: a deadlock. So release it first.
        """
        for model in self._wrapped:
            del model.logger, model.reducer, model.process_group
        self._wrapped.clear()
        dist.destroy_process_group()

    def _gather_equal(self, rows: Tensor) -> Tensor:
        parts = [torch.empty_like(rows) for _ in range(self.world_size)]
        dist.all_gather(parts, rows)
        return torch.cat(parts)


@contextlib.contextmanager
def group() -> Iterator[Group]:
    """Join the processes that torchrun started (it sets the environment), or be the only one."""
    world_size = int(os.environ.get("WORLD_SIZE", "1"))
    if world_size == 1:
        yield Group()
        return
    # DDP imports this module when it is first used, and default arguments of its functions then keep the open group:
    # gloo's threads outlive destroy_process_group and sometimes abort the process as it ends. Import it before.
    import torch.distributed.nn.functional

    if torch.cuda.is_available():  # counts and metrics are exchanged on the CPU, gradients where they are
        torch.cuda.set_device(int(os.environ.get("LOCAL_RANK", "0")) % torch.cuda.device_count())
        dist.init_process_group("cpu:gloo,cuda:nccl")
    else:
        dist.init_process_group("gloo")
    joined = Group(dist.get_rank(), world_size, int(os.environ.get("LOCAL_WORLD_SIZE", world_size)))
    try:
        yield joined
    finally:
        joined.leave()
